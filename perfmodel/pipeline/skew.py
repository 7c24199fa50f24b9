"""How long ranks wait for the slowest of them, by how many there are.

Devices of one kind differ in clock and temperature.  Where their paces scatter normally around the
mean, which is what one device is predicted to do, the slowest of n lies

    sigma * d(n),    d(n) = E[max of n standard normals] = integral of (x > 0) - Phi(x)^n

behind it: d(2) = 1/sqrt(pi) = 0.56, d(4) = 1.03, d(8) = 1.42.  The term `rank_skew_frac` is stated
for four ranks, the group of most runs behind the fitted terms.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray

STATED_RANKS = 4
"""Ranks that `rank_skew_frac` holds for."""
EDGE, STEPS = 9.0, 1800
"""Standard deviations beyond which nothing is left, and steps of the integral."""


def skew_share(ranks: ArrayLike) -> NDArray[np.float64]:
    """Waiting over that of four ranks, ``d(n) / d(4)``: 0 for one.

    Args:
        ranks: devices that work on a request together; below 1 counts as 1.
    """
    counts, place = np.unique(np.maximum(np.asarray(ranks, np.int64), 1), return_inverse=True)
    behind = np.array([_behind(int(count)) for count in counts])
    return (behind / _behind(STATED_RANKS))[place].reshape(np.shape(ranks))


@cache
def _behind(count: int) -> float:
    """``d(count)``; the mean of one is 0."""
    at, below = _normal()
    return float(np.trapezoid((at > 0.0) - below**count, at)) if count > 1 else 0.0


@cache
def _normal() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points on either side of 0, none on the step itself, and Phi there."""
    at = np.linspace(-EDGE, EDGE, STEPS)
    below = NormalDist().cdf
    return at, np.array([below(x) for x in at.tolist()])
