"""``perfmodel plan``: the few runs that decide, and the scripts that run them."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.cli.command import flag_command
from perfmodel.cli.flags import COMMANDS, OUTPUT, PLAN, SEARCH, WORK
from perfmodel.cli.given import Given
from perfmodel.units import S_PER_HOUR, S_PER_MINUTE

if TYPE_CHECKING:
    from perfmodel.report.answer import Document
    from perfmodel.report.plan_answer import PlanAnswer

CHOICE = tuple(f for f in SEARCH if f.name in ("objective", "any-gpus", "use-all-gpus"))
MOST_RUNS = 100
MINUTES = {"s": 1 / S_PER_MINUTE, "m": 1.0, "h": S_PER_HOUR / S_PER_MINUTE, "": 1.0}
_BUDGET = re.compile(r"(?:\d+(?:\.\d+)?[hms]?)+")
_PART = re.compile(r"(\d+(?:\.\d+)?)([hms]?)")
ELSEWHERE = ("out", "format", "json", "color", "config", "dump_config", "commands")
PATHS = ("system", "fit")


def _kind() -> type[Document]:
    from perfmodel.report.plan_answer import PlanAnswer

    return PlanAnswer


@flag_command(*WORK, *CHOICE, *PLAN, *COMMANDS, *OUTPUT, kind=_kind)
def command(given: Given) -> int:
    """The few runs that most likely contain the best configuration, with scripts to run them.

    Example: perfmodel plan --gpus 4xB300 --frames 189 --max-runs 3 --out sweep/
    """
    started = time.perf_counter()
    from perfmodel.cli.inputs import read_inputs
    from perfmodel.cli.output import emit, read_target
    from perfmodel.cli.values import Collector

    collect = Collector()
    target = collect(lambda: read_target(given, commands=0))
    inputs = collect(lambda: read_inputs(given))
    settings = collect(lambda: read_plan_settings(given))
    collect.finish()
    assert target is not None
    assert inputs is not None
    from perfmodel.plan.make import plan
    from perfmodel.report.plan_answer import PlanAnswer

    folder = None if target.path is None or _is_file(target.path) else target.path
    if folder is not None:
        target = replace(target, path=None)
    asked: dict[str, Any] = {**inputs.settings, **(settings or {})}
    for key in ("max_latency_ms", "price_per_gpu_hour", "top", "allow_lossy"):
        asked.pop(key, None)
    answer = plan(inputs.workload, inputs.system, options=inputs.options, **asked)
    if isinstance(answer, PlanAnswer):
        answer = answer.model_copy(update={"flags": _typed(given)})
    if folder is None or not isinstance(answer, PlanAnswer):
        return emit(answer, target, time.perf_counter() - started)
    write(answer, given, folder)
    code = emit(answer, target, time.perf_counter() - started)
    _next_steps(answer, folder)
    return code


def write(answer: PlanAnswer, given: Given, folder: Path) -> None:
    """The scripts of a plan.

    Raises:
        BadInput: the folder cannot be written, or holds the results of another plan.
    """
    from perfmodel.api.session import open_session
    from perfmodel.cli.inputs import read_inputs
    from perfmodel.plan.make import run_records
    from perfmodel.plan.scripts import write_scripts

    inputs = read_inputs(given)
    opened = {k: v for k, v in inputs.settings.items() if k in ("engine", "fit", "strict")}
    session = open_session(inputs.workload, inputs.system, options=inputs.options, **opened)
    write_scripts(answer, run_records(session, answer), folder)


def _next_steps(answer: PlanAnswer, folder: Path) -> None:
    from perfmodel.cli.streams import say
    from perfmodel.files import as_word
    from perfmodel.plan.scripts import several_hosts

    hosts = several_hosts(answer)
    say(
        f"wrote {folder}: plan.json, run_all.sh, slurm.sh, and serve.sh, request.sh, bench.sh a run"
    )
    script, results = as_word(folder / "run_all.sh"), as_word(folder / "results.jsonl")
    where = f" on each of {hosts} hosts (its head says how)" if hosts > 1 else ""
    say(f"next: bash {script}{where}, then perfmodel verify --from {results}")


def _is_file(path: Path) -> bool:
    return path.suffix.lower() in (".json", ".csv", ".md", ".txt") or path.is_file()


def _typed(given: Given) -> dict[str, Any]:
    """The flags that ask this question again, from any folder."""
    values = {k: v for k, v in given.values.items() if k not in ELSEWHERE and v not in ("", ())}
    return {k: str(Path(str(v)).resolve()) if k in PATHS else v for k, v in values.items()}


def read_plan_settings(given: Given) -> dict[str, Any]:
    """Budget, number of runs and candidates.

    Raises:
        BadInput: every flag that cannot be read.
    """
    from perfmodel.cli.values import Collector, whole
    from perfmodel.spec.parallel import parse_parallel

    collect = Collector()
    runs = collect(lambda: whole(given, "max_runs", 1, MOST_RUNS))
    budget = collect(lambda: read_budget(given))
    names = [part for text in given.many("candidates") for part in _split(text)]
    for name in names:
        collect(lambda name=name: parse_parallel(name))  # type: ignore[misc]
    collect.finish()
    found = {"max_runs": runs, "budget_minutes": budget, "candidates": tuple(names) or None}
    return {key: value for key, value in found.items() if value is not None}


def _split(text: str) -> list[str]:
    # commas belong to KEY=VALUE degrees, so several of those are parted by semicolons
    parts = text.split(";") if "=" in text else text.split(",")
    return [part.strip() for part in parts if part.strip()]


def read_budget(given: Given) -> float | None:
    """Minutes of ``30m``, ``1h30m``, ``90s`` or ``45``.

    Raises:
        BadInput: not a duration above zero.
    """
    from perfmodel.cli.values import refuse

    text = given.text("budget")
    if text is None:
        return None
    cleaned = text.strip().lower().replace(" ", "")
    if not _BUDGET.fullmatch(cleaned):
        raise refuse("budget", text, "is not a duration", "30m, 1h30m, 90s")
    minutes = sum(float(value) * MINUTES[unit] for value, unit in _PART.findall(cleaned))
    if minutes <= 0:
        raise refuse("budget", text, "leaves no time", "30m, 1h30m, 90s")
    return minutes
