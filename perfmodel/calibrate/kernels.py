"""The kernels in the rows of a law: which is the reference, and which factors are free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.records import Rows

FACTORS = ("rate", "exp_rate")

FEWEST_KERNEL_ROWS = 4
"""A kernel with fewer rows gets no factor: it would hold their noise, and the fastest is taken."""

FACTOR_LOW, FACTOR_HIGH = 0.25, 4.0
"""Range of a factor over its usual value."""


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels of a law.

    Attributes:
        names: the reference first.
        factors: (kernel, factor) pairs that are free: the rate of each kernel but the reference
            that has rows enough, for attention also the speed of its exponentials, if it was
            measured at several head widths (else the two are one).
        usual: around what the factors of a kernel are searched, where that is not 1.
    """

    names: tuple[str, ...]
    factors: tuple[tuple[str, str], ...] = ()
    usual: Mapping[str, float] = field(default_factory=dict)

    @property
    def own(self) -> set[str]:
        """Kernels whose rate is known: the reference and those with factors."""
        return {self.names[0], *(name for name, _ in self.factors)}


def kernels_of(rows: Rows, work: NDArray[np.float64]) -> Kernels:
    """Kernels of some rows.

    The reference is the kernel with most rows; but where another is far faster (matrix units
    against none, fused attention against plain), the fastest, as the law's rates are those of
    matrix units.  Kernels far off the reference are searched around the ratio of their rates.

    Args:
        rows: of one law.
        work: FLOP or bytes of each.
    """
    names, counts = np.unique(rows.text("kernel"), return_counts=True)
    ordered = [str(names[i]) for i in np.lexsort((names, -counts))]
    many = {str(name) for name in names[counts >= FEWEST_KERNEL_ROWS]}
    ratios = {name: _rate_ratio(rows, work, name, ordered[0]) for name in many - {ordered[0]}}
    fastest = max(ratios, key=lambda name: ratios[name], default="")
    if ratios.get(fastest, 0.0) > FACTOR_HIGH:
        ordered = [fastest, *(name for name in ordered if name != fastest)]
        ratios = {name: _rate_ratio(rows, work, name, fastest) for name in many - {fastest}}
    usual = {n: ratio for n, ratio in ratios.items() if not FACTOR_LOW < ratio < FACTOR_HIGH}
    return Kernels(tuple(ordered), tuple(_factors(rows, ordered[1:], many)), usual)


def _factors(rows: Rows, names: list[str], many: set[str]) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name in (name for name in names if name in many):
        found.append((name, "rate"))
        if "head_dim" in rows.columns:
            widths = rows.columns["head_dim"][rows.text("kernel") == name]
            if len(np.unique(widths)) > 1:
                found.append((name, "exp_rate"))
    return found


def _rate_ratio(rows: Rows, work: NDArray[np.float64], name: str, reference: str) -> float:
    """Median of work over time of one kernel over that of another at the same work."""
    names, rate = rows.text("kernel"), np.log(work / rows["latency_s"])
    here, there = names == name, np.flatnonzero(names == reference)
    order = there[np.argsort(work[there], kind="stable")]
    usual = np.interp(np.log(work[here]), np.log(work[order]), rate[order])
    return float(np.exp(np.median(rate[here] - usual)))
