"""``perfmodel verify``: did the pick hold, which term is off, and what is best now?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.cli.command import flag_command
from perfmodel.cli.flags import (
    BY_KEY,
    COMMANDS,
    HERE,
    OUTPUT,
    PARALLEL,
    PLAN,
    SEARCH,
    VERIFY,
    WORK,
)
from perfmodel.cli.given import Given, Value
from perfmodel.errors import BadInput, Problem
from perfmodel.files import Unreadable, is_file, read_json

if TYPE_CHECKING:
    from perfmodel.api.session import Session
    from perfmodel.report.answer import Document
    from perfmodel.report.plan_answer import PlanAnswer
    from perfmodel.spec.record import RunRecord

CHOICE = (
    *(flag for flag in SEARCH if flag.name == "objective"),
    *(flag for flag in PLAN if flag.name == "candidates"),
)
STUDY = "study.journal"
SOURCE = (*(flag.key for flag in VERIFY), "fit", "strict")
MACHINE = ("gpus", "system")


def _kind() -> type[Document]:
    from perfmodel.report.verify_answer import VerifyAnswer

    return VerifyAnswer


@flag_command(*WORK, *CHOICE, *PARALLEL, *VERIFY, *HERE, *COMMANDS, *OUTPUT, kind=_kind)
def command(given: Given) -> int:
    """Predicted against measured by stage, whether the pick held, and the ranking with both.

    Example: perfmodel verify --from sweep/results.jsonl
    """
    chosen = [name for name in WAYS if given.values.get(name)]
    if len(chosen) != 1:
        flags = " or ".join(f"--{BY_KEY[name].name}" for name in WAYS)
        what = "nothing is verified" if not chosen else "one way at a time"
        message = f"{what}; give {flags}; try --from sweep/results.jsonl"
        raise BadInput(Problem("verify", message, "--from"))
    _refuse_foreign(given, chosen[0])
    return WAYS[chosen[0]](given)


ONLY = {
    "live": ("parallel", *(flag.key for flag in HERE if "--live" in flag.help)),
    "serve": tuple(flag.key for flag in HERE if "--serve" in flag.help),
}
"""Flags that mean something to one way alone."""


def _refuse_foreign(given: Given, way: str) -> None:
    """No flag is ignored in silence."""
    found = [
        Problem(
            "verify",
            f"--{BY_KEY[key].name} belongs to --{BY_KEY[other].name}; leave it out",
            f"--{BY_KEY[key].name}",
            str(given.values[key]),
        )
        for other, keys in ONLY.items()
        for key in keys
        if other != way and given.values.get(key)
    ]
    if given.launch:
        message = "verify takes no launch command after --; give --parallel an id"
        found.append(Problem("usage", message, "--", " ".join(given.launch)))
    if found:
        raise BadInput(*found)


def from_results(given: Given) -> int:
    """``--from FILE``: results that are there."""
    started = time.perf_counter()
    from perfmodel.cli.output import emit, read_target
    from perfmodel.cli.plan import read_plan_settings
    from perfmodel.cli.values import Collector

    collect = Collector()
    target = collect(lambda: read_target(given, commands=0))
    paths = collect(lambda: _files(given))
    settings = collect(lambda: read_plan_settings(given))
    collect.finish()
    assert target is not None
    assert paths is not None
    from perfmodel.verify.sort import read_results
    from perfmodel.verify.verdict import verify

    records, bad = read_results(paths)
    plan = _plan(given, paths[0])
    if not records:
        names = ", ".join(map(str, paths))
        why = f"; {bad[0].message}" if len(bad) == 1 else ""
        message = f"nothing in the results can be used: no run record in {names}{why}"
        hint = "try --from sweep/results.jsonl, or perfmodel records convert"
        raise BadInput(*bad, Problem("results", f"{message}; {hint}", "--from", names))
    session, asked = _session(given, plan, records)
    answer = verify(
        session,
        records,
        plan=plan,
        objective=asked.text("objective") or "latency",
        candidates=(settings or {}).get("candidates", ()) or _candidates(asked),
        include_doubtful=given.on("include_doubtful"),
        study=_study(given, paths[0]),
        problems=bad,
        source={key: asked.values.get(key) for key in SOURCE},
    )
    return emit(answer, target, time.perf_counter() - started)


def from_devices(given: Given) -> int:
    """``--live``: blocks of the pick on the devices here."""
    from perfmodel.cli.verify_here import live

    return live(given)


def from_engine(given: Given) -> int:
    """``--serve DIR``: the runs of a plan with the engine here, then as ``--from``."""
    from perfmodel.cli.verify_here import serve

    return from_results(given.with_values({"from_": (str(serve(given)),)}))


WAYS: dict[str, Callable[[Given], int]] = {
    "from_": from_results,
    "live": from_devices,
    "serve": from_engine,
}
"""Ways to verify, by the flag that asks for each."""


def _files(given: Given) -> list[Path]:
    paths = [Path(text) for text in given.many("from_")]
    missing = [path for path in paths if not is_file(path)]
    if missing:
        raise BadInput(
            *(
                Problem("from", f"--from {path} is not a file", "--from", str(path))
                for path in missing
            )
        )
    return paths


def _plan(given: Given, results: Path) -> PlanAnswer | None:
    """The plan of ``--plan``, else the one beside the results."""
    from pydantic import ValidationError

    from perfmodel.report.plan_answer import PlanAnswer

    text = given.text("plan")
    path = Path(text) if text else results.parent / "plan.json"
    if not text and not is_file(path):
        return None
    try:
        return PlanAnswer.model_validate(read_json(path))
    except (Unreadable, ValidationError) as error:
        reason = " ".join(str(error).split())[:200]
        message = f"--plan {path} is no plan.json: {reason}"
        raise BadInput(Problem("plan", message, "--plan", str(path))) from None


def _session(
    given: Given, plan: PlanAnswer | None, records: Sequence[RunRecord]
) -> tuple[Session, Given]:
    """The question: of the flags, else of the plan, else of the records themselves."""
    from perfmodel.api.session import open_session
    from perfmodel.cli.inputs import read_inputs

    asked = given
    if plan is not None and not any(given.text(key) for key in MACHINE):
        flags: dict[str, Value] = {k: v for k, v in plan.flags.items() if k in BY_KEY}
        asked = given.with_values({**flags, **given.values})
    if any(asked.text(key) for key in MACHINE):
        inputs = read_inputs(asked)
        opened = {k: v for k, v in inputs.settings.items() if k in ("engine", "fit", "strict")}
        return open_session(inputs.workload, inputs.system, options=inputs.options, **opened), asked
    from perfmodel.verify.asked import common_question

    found = common_question(records, given.on("include_doubtful"))
    session = open_session(
        found.workload, found.system, engine=found.engine, options=found.options, **_opened(given)
    )
    return session, asked


def _opened(given: Given) -> dict[str, Any]:
    from perfmodel.cli.inputs import read_settings

    return {k: v for k, v in read_settings(given).items() if k in ("fit", "strict")}


def _candidates(asked: Given) -> tuple[str, ...]:
    from perfmodel.cli.plan import read_plan_settings

    return tuple(read_plan_settings(asked).get("candidates", ()))


def _study(given: Given, results: Path) -> Path | None:
    text = given.text("study")
    if text == "none":
        return None
    return Path(text) if text else results.parent / STUDY
