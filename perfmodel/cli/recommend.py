"""``perfmodel recommend``: rank parallel configurations for a request on a machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from perfmodel.cli import arrays, limits
from perfmodel.cli.command import flag_command
from perfmodel.cli.flags import COMMANDS, OUTPUT, REJECTED, SEARCH, WORK
from perfmodel.cli.given import Given

if TYPE_CHECKING:
    from perfmodel.report.answer import Document

ANY_ENGINE = "any"


def _kind() -> type[Document]:
    from perfmodel.report.answer import Answer

    return Answer


@flag_command(*WORK, *SEARCH, *REJECTED, *COMMANDS, *OUTPUT, kind=_kind)
def command(given: Given) -> int:
    """Which parallel configuration to use, and how sure that is.

    Example: perfmodel recommend --gpus 4xB300 --frames 189
    """
    started = time.perf_counter()
    arrays.load()
    from perfmodel.cli.inputs import read_inputs
    from perfmodel.cli.output import emit, read_target
    from perfmodel.cli.values import Collector

    collect = Collector()
    target = collect(lambda: read_target(given))
    if given.text("engine") == ANY_ENGINE and target is not None:
        from perfmodel.cli.compare import all_engines

        compared = all_engines(given)
        code = emit(compared, target, time.perf_counter() - started)
        return limits.of_cases(compared, given) if code == 0 else code
    inputs = collect(lambda: read_inputs(given))
    collect.finish()
    assert target is not None
    assert inputs is not None
    from perfmodel import api

    answer = api.recommend(
        inputs.workload, inputs.system, options=inputs.options, **inputs.settings
    )
    code = emit(answer, target, time.perf_counter() - started)
    return limits.of_answer(answer, inputs.settings.get("max_latency_ms")) if code == 0 else code
