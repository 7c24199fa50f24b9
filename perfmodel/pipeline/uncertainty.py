"""How far a prediction may be off: 80 % intervals, and the error of a difference.

Every kind of time has a relative 80 % half-width by its provenance (``spread`` in the engine's
terms file, from held-out residuals where there are runs, else a stated prior).  Errors of one kind
are common to all its operators and to all configurations, so within a kind they add up, between
kinds they add in squares; in a difference of two configurations they cancel as far as both spend
the same time on that kind.  What no kind explains (the release of the engine and its libraries,
clocks, settings that a source does not state) scales a whole run: ``run.image`` and ``run.video``,
or ``run.video.fitted`` on devices with fitted kernel laws and ``run.video.prior`` on others.
What a step cache skips, where that is a prior, scales the denoise time: ``cache``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from perfmodel.pipeline.evaluate import STAGES, Evaluation, Job
from perfmodel.pipeline.lines import Column, Stage

REPEAT_FRAC = 0.01
"""Relative 80 % half-width of repeated measurements of one configuration on one machine."""

DEFAULT_SPREAD = {"measured": 0.03, "fitted": 0.08, "prior": 0.36, "datasheet": 0.45}

WHOLE = ("run", "cache")
"""Sources of error that are no kind of time."""

RUN_SPREAD = {"run.image": 0.25, "run.video": 0.15}
"""Relative 80 % half-width of a whole run, for an engine without a value of its own."""

RUN_LAW = "gemm/bf16"
"""The law whose provenance says whether the kernels of a device were measured."""


def spread(name: str, provenance: str, table: Mapping[str, float]) -> float:
    """Relative 80 % half-width of a kind (or stage) of time at some provenance."""
    return table.get(f"{name}.{provenance}", table.get(name, DEFAULT_SPREAD[provenance]))


def parts_s(stage: Stage, table: Mapping[str, float]) -> Iterator[tuple[str, Column, float]]:
    """(source of error, exposed time, its relative half-width) of each kind, ``[N]`` seconds."""
    for name in sorted({(line.kind, line.axis, line.provenance) for line in stage.lines}):
        kind, axis, provenance = name
        label = stage.name if kind in ("host", "copy") and stage.name != "denoise" else kind
        seconds = np.zeros(stage.cases)
        for line in stage.lines:
            if (line.kind, line.axis, line.provenance) == name:
                seconds = seconds + line.total_s
        yield (
            f"{label}.{axis}.{provenance}",
            stage.by_case(seconds),
            spread(label, provenance, table),
        )


def _kinds_s(evaluation: Evaluation, names: tuple[str, ...]) -> dict[str, Column]:
    """Error in seconds by kind of time, ``[N]`` each."""
    table = evaluation.job.spread
    errors: dict[str, Column] = {}
    for name in names:
        for source, seconds, halfwidth_frac in parts_s(evaluation.stages[name], table):
            errors[source] = errors.get(source, 0.0) + seconds * halfwidth_frac
    return errors


def _errors_s(evaluation: Evaluation, names: tuple[str, ...]) -> dict[str, Column]:
    """Error in seconds by independent source, ``[N]`` each."""
    whole = whole_halfwidths(evaluation.job)
    run = whole["run"] * _sum_s(evaluation, names)
    denoise = _sum_s(evaluation, tuple(name for name in names if name == "denoise"))
    return {**_kinds_s(evaluation, names), "run": run, "cache": whole["cache"] * denoise}


def whole_halfwidths(job: Job) -> dict[str, float]:
    """Relative 80 % half-width of what scales a whole run, and of what scales its denoise time."""
    return {"run": run_spread(job, "run"), "cache": job.spread.get("cache", 0.0)}


def run_class(job: Job) -> str:
    """What the spread of a whole run depends on: its output, and how its device is known.

    ``video.fitted``: the kernel laws are fitted on this device; ``video.prior``: lent by a family.
    """
    output = "video" if np.max(job.shape.frames) > 1 else "image"
    law = job.machine.laws.get(RUN_LAW)
    return f"{output}.{'prior' if law is None else law.provenance}"


def run_spread(job: Job, name: str) -> float:
    """``run``: relative half-width that scales a whole run; ``parts``: see `halfwidth_s`."""
    special = f"{name}.{run_class(job)}"
    general = special.rpartition(".")[0]
    return job.spread.get(special, job.spread.get(general, RUN_SPREAD.get(general, 1.0)))


def _sum_s(evaluation: Evaluation, names: tuple[str, ...]) -> Column:
    start = np.zeros(len(evaluation.layouts))
    return sum((evaluation.stages[name].total_s for name in names), start)


def parts_frac(evaluation: Evaluation) -> Column:
    """Relative 80 % half-width of the request from the kinds of time alone, ``[N]``."""
    squares = sum((e**2 for e in _kinds_s(evaluation, STAGES).values()), np.zeros(1))
    return np.asarray(np.sqrt(squares) / evaluation.latency_s)


def halfwidth_s(evaluation: Evaluation, names: tuple[str, ...] = STAGES) -> Column:
    """80 % half-width of the sum of some stages, ``[N]`` seconds.

    Terms that were fitted to whole requests leave the sum of the stages better known than each of
    them: where runs have shown by how much, the kinds' share of a request is multiplied by
    ``parts`` of its class.
    """
    share = run_spread(evaluation.job, "parts") if names == STAGES else 1.0
    total = np.zeros(len(evaluation.layouts))
    for source, error in _errors_s(evaluation, names).items():
        total = total + (error if source in WHOLE else share * error) ** 2
    return np.sqrt(total + (REPEAT_FRAC * _sum_s(evaluation, names)) ** 2)


def difference_halfwidth_s(
    evaluation: Evaluation,
    rows: NDArray[np.intp],
    references: NDArray[np.intp],
    weight: Column | None = None,
) -> NDArray[np.float64]:
    """80 % half-width of ``latency[row] - latency[reference]``, ``[rows, references]`` seconds.

    `weight` multiplies each row's latency first (devices of a request, its share of a machine).
    """
    weight = np.ones(len(evaluation.layouts)) if weight is None else weight
    total = np.zeros((len(rows), len(references)))
    for error in _errors_s(evaluation, STAGES).values():
        weighted = error * weight
        total += (weighted[rows][:, None] - weighted[references]) ** 2
    repeat = REPEAT_FRAC * (evaluation.latency_s * weight)[rows]
    same = rows[:, None] == references
    return np.where(same, 0.0, np.sqrt(total + 2 * repeat[:, None] ** 2))
