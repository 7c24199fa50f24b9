"""How far a prediction may be off: 80 % intervals, and the error of a difference.

Every kind of time has a relative 80 % half-width by its provenance (``spread`` in the engine's
terms file, else a stated prior).  Errors of one kind are common to all its operators and to all
configurations, so within a kind they add up, between kinds they add in squares; in a difference of
two configurations they cancel as far as both spend the same time on that kind.  How well a whole
request is known is another question, which measured runs answer (`request_width`): what the kinds
together do not explain of its range scales the whole run, all stages and both sides of a difference
alike.  What a step cache skips, where that is a prior, scales the denoise time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from perfmodel.pipeline.evaluate import STAGES, Evaluation
from perfmodel.pipeline.lines import Column, Stage
from perfmodel.pipeline.request_width import request_frac, uncertain

REPEAT_FRAC = 0.01
"""Relative 80 % half-width of repeated measurements of one configuration on one machine."""

DEFAULT_SPREAD = {"measured": 0.03, "fitted": 0.08, "prior": 0.36, "datasheet": 0.45}


COMMON_FRAC = 0.5
"""Share of the variance of a whole request that all of it has in common, at the least: a prior."""


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


def _cache_s(evaluation: Evaluation) -> Column:
    """Error of the denoise time by what a step cache skips, ``[N]`` seconds."""
    share = evaluation.job.spread.get("cache", 0.0)
    return np.asarray(share * evaluation.stages["denoise"].total_s)


def _sum_s(evaluation: Evaluation, names: tuple[str, ...]) -> Column:
    start = np.zeros(len(evaluation.layouts))
    return sum((evaluation.stages[name].total_s for name in names), start)


def _squares(errors: Mapping[str, Column]) -> Column:
    return sum((error**2 for error in errors.values()), np.zeros(1))


def run_frac(evaluation: Evaluation) -> Column:
    """Relative half-width of what scales a whole run, ``[N]``.

    What the kinds do not explain of the width of a request, and no less than `COMMON_FRAC` of its
    variance: kinds that are known badly each may still be known well together.
    """
    whole = request_frac(uncertain(evaluation), evaluation.job.spread)
    kinds = _squares(_kinds_s(evaluation, STAGES)) / evaluation.latency_s**2
    return np.asarray(np.sqrt(np.maximum(whole**2 - kinds, COMMON_FRAC * whole**2)))


def whole_halfwidths(evaluation: Evaluation) -> dict[str, float]:
    """Relative half-width of what scales a whole run, typically, and its denoise time."""
    run = float(np.median(run_frac(evaluation)))
    return {"run": run, "cache": evaluation.job.spread.get("cache", 0.0)}


def halfwidth_s(evaluation: Evaluation, names: tuple[str, ...] = STAGES) -> Column:
    """80 % half-width of the sum of some stages, ``[N]`` seconds.

    A request's is what measured runs showed; that of some of its stages is the errors of their
    kinds of time and of the whole run, in squares.
    """
    if names == STAGES:
        whole = request_frac(uncertain(evaluation), evaluation.job.spread) * evaluation.latency_s
        return np.asarray(np.hypot(whole, _cache_s(evaluation)))
    seconds = _sum_s(evaluation, names)
    total = _squares(_kinds_s(evaluation, names)) + (run_frac(evaluation) * seconds) ** 2
    if "denoise" in names:
        total = total + _cache_s(evaluation) ** 2
    return np.asarray(np.sqrt(total + (REPEAT_FRAC * seconds) ** 2))


def difference_halfwidth_s(
    evaluation: Evaluation,
    rows: NDArray[np.intp],
    references: NDArray[np.intp],
    weight: Column | None = None,
) -> NDArray[np.float64]:
    """80 % half-width of ``latency[row] - latency[reference]``, ``[rows, references]`` seconds.

    Kinds of time keep their errors in full; what scales a whole run (the larger of both sides)
    scales the difference.  `weight` multiplies each row's latency first (devices of a request, its
    share of a machine).
    """
    weight = np.ones(len(evaluation.layouts)) if weight is None else weight

    def difference(seconds: Column) -> NDArray[np.float64]:
        weighted = seconds * weight
        return np.asarray(weighted[rows][:, None] - weighted[references])

    run = run_frac(evaluation)
    total = (
        np.maximum(run[rows][:, None], run[references]) * difference(evaluation.latency_s)
    ) ** 2
    for error in (*_kinds_s(evaluation, STAGES).values(), _cache_s(evaluation)):
        total += difference(error) ** 2
    repeat = REPEAT_FRAC * (evaluation.latency_s * weight)[rows]
    same = rows[:, None] == references
    return np.where(same, 0.0, np.sqrt(total + 2 * repeat[:, None] ** 2))
