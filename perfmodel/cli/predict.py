"""``perfmodel predict``: one configuration, by stage, operator and memory phase."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from perfmodel.cli import arrays
from perfmodel.cli.command import flag_command
from perfmodel.cli.flags import BESIDE, COMMANDS, OUTPUT, PARALLEL, WORK
from perfmodel.cli.given import Given

if TYPE_CHECKING:
    from perfmodel.report.answer import Document
    from perfmodel.spec.parallel import ParallelConfig


def _kind() -> type[Document]:
    from perfmodel.report.answer import PredictAnswer

    return PredictAnswer


@flag_command(*WORK, *PARALLEL, *BESIDE, *COMMANDS, *OUTPUT, kind=_kind)
def command(given: Given) -> int:
    """What one configuration takes, where the time goes, and whether it fits.

    Example: perfmodel predict --gpus 4xB300 --parallel cfg=2,ulysses=2,vae_patch=4

    Example: perfmodel predict --gpus 4xB300 --parallel -- vllm serve MODEL --omni --usp 4
    """
    started = time.perf_counter()
    arrays.load()
    from perfmodel.cli.inputs import read_inputs
    from perfmodel.cli.launched import with_open_points
    from perfmodel.cli.output import emit, read_target
    from perfmodel.cli.values import Collector

    collect = Collector()
    target = collect(lambda: read_target(given, commands=0))
    inputs = collect(lambda: read_inputs(given))
    extra = collect(lambda: read_extra(given))
    collect.finish()
    assert target is not None
    assert inputs is not None
    from perfmodel import api

    settings: dict[str, Any] = {**inputs.settings, **(extra or {})}
    answer = api.predict(inputs.workload, inputs.system, options=inputs.options, **settings)
    answer = with_open_points(answer, settings.get("launch"), settings.get("engine"))
    return emit(answer, target, time.perf_counter() - started)


def read_extra(given: Given) -> dict[str, Any]:
    """The configuration, the engine that its command starts, and what to put beside it.

    Raises:
        BadInput: all problems of ``--parallel``, the launch command, ``--measured`` and ``--set``.
    """
    from perfmodel.cli.inputs import read_stage_times
    from perfmodel.cli.measured import read_measured
    from perfmodel.cli.values import Collector

    collect = Collector()
    parallel, measured = given.text("parallel"), given.text("measured")
    found: dict[str, Any] = {
        "parallel": collect(lambda: _parallel(parallel)) if parallel else None,
        **(collect(lambda: _launched(given)) or {}),
        "measured": collect(lambda: read_measured(measured)) if measured else None,
        "overrides": collect(lambda: read_stage_times(given, "set")) or None,
    }
    if parallel and given.launch:
        collect.problems.append(_both(parallel))
    collect.finish()
    return {key: value for key, value in found.items() if value is not None}


def _parallel(text: str) -> str | ParallelConfig:
    from perfmodel.spec.parallel import parse_parallel

    config, suffixes = parse_parallel(text)
    # suffixes such as fp8 are options: the api reads the whole id
    return text if suffixes else config


def _launched(given: Given) -> dict[str, Any]:
    from perfmodel.cli.launched import check_model, read_engine, words

    if not given.launch:
        return {}
    command = words(given.launch)
    started = read_engine(given, command)
    check_model(given, command, started or given.text("engine"))
    return {"launch": command, "engine": started}


def _both(parallel: str) -> Any:
    from perfmodel.errors import Problem

    return Problem(
        "parallel",
        f"--parallel {parallel} and the launch command after -- both state the degrees; give one",
        field="--parallel",
        value=parallel,
    )
