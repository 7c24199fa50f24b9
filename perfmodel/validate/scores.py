"""Error statistics and ranking quality."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np

from perfmodel.report.validate_answer import Errors
from perfmodel.units import PERCENT

APART = 0.05
"""Pairs of measurements closer than this do not count in the order."""

UNIT_RATIO = (300.0, 3000.0)
"""A prediction this many times the measurement means seconds where milliseconds belong."""


def likely_unit(predicted_ms: float, measured_ms: float) -> str | None:
    """The unit that a time seems to be in, where that is not milliseconds."""
    if min(predicted_ms, measured_ms) <= 0:
        return None
    low, high = UNIT_RATIO
    if low < predicted_ms / measured_ms < high:
        return "seconds"
    return "µs" if low < measured_ms / predicted_ms < high else None


def errors(pairs: Iterable[tuple[float, float]]) -> Errors | None:
    """Statistics of (predicted, measured) pairs; None when there are none."""
    table = np.array(list(pairs), float)
    if not len(table):
        return None
    signed = (table[:, 0] / table[:, 1] - 1) * PERCENT
    absolute = np.abs(signed)
    return Errors(
        n=len(table),
        mape=float(absolute.mean()),
        median_ape=float(np.median(absolute)),
        p90_ape=float(np.percentile(absolute, 90)),
        bias=float(signed.mean()),
    )


def order_agreement(predicted: Sequence[float], measured: Sequence[float]) -> tuple[int, int]:
    """(agreeing minus disagreeing, all) pairs whose measurements are more than 5 % apart."""
    agree = total = 0
    for (p, m), (q, n) in combinations(zip(predicted, measured, strict=True), 2):
        if abs(m - n) <= APART * min(m, n):
            continue
        total += 1
        agree += 1 if (p - q) * (m - n) > 0 else -1
    return agree, total


def regret(predicted: Sequence[float], measured: Sequence[float]) -> tuple[int, float]:
    """(index of the predicted best, its measured loss over the measured best as a fraction)."""
    pick = int(np.argmin(predicted))
    best = min(measured)
    return pick, measured[pick] / best - 1


def grouped(
    rows: Iterable[tuple[Mapping[str, str], float, float]], labels: Sequence[str]
) -> dict[str, dict[str, Errors]]:
    """Statistics by label: {label: {value: errors}} of (labels, predicted, measured) rows."""
    collected: dict[str, dict[str, list[tuple[float, float]]]] = {label: {} for label in labels}
    for values, predicted, measured in rows:
        for label in labels:
            collected[label].setdefault(values[label], []).append((predicted, measured))
    return {
        label: {
            value: found
            for value, pairs in sorted(groups.items())
            if (found := errors(pairs)) is not None
        }
        for label, groups in collected.items()
    }
