"""The most plausible terms: log errors of runs against a pull towards the priors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

LOG_ERROR = 0.1
"""Log error of a run that weighs as much as one standard deviation of a prior."""

SIGMA = 0.125
"""Standard deviation of a prior as a share of its range: the bounds are extremes."""

ROUNDS = 4
STILL = 2e-3
"""Steps below this share of a range end the search."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Targets as a function of free terms in the unit cube.

    Attributes:
        centre: the priors, ``[P]``.
        slopes: change of each log error over a whole range, ``[T, P]``.
        weight: square root of the weight of each target, ``[T]``.
        errors: log errors at a point, ``[T]``.
    """

    centre: FloatArray
    slopes: FloatArray
    weight: FloatArray
    errors: Callable[[FloatArray], FloatArray]

    def loss(self, point: FloatArray) -> float:
        """Negative log plausibility: errors soft-l1, pulls squared."""
        scaled = self.errors(point) * self.weight / LOG_ERROR
        pulls = (point - self.centre) / SIGMA
        return float((np.sqrt(1.0 + scaled**2) - 1.0).sum() + 0.5 * (pulls**2).sum())


def step(problem: Problem, at: FloatArray, errors: FloatArray) -> FloatArray:
    """The best point of the problem made linear at `at`, by reweighted bounded least squares."""
    from scipy.optimize import lsq_linear

    rows = problem.slopes * (problem.weight / LOG_ERROR)[:, None]
    base = errors * problem.weight / LOG_ERROR
    pulls = np.eye(len(at)) / SIGMA
    point = at
    for _ in range(ROBUST_ROUNDS):
        soft = (1.0 + (base + rows @ (point - at)) ** 2) ** -0.25
        matrix = np.vstack([rows * soft[:, None], pulls])
        target = np.concatenate([(rows @ at - base) * soft, problem.centre / SIGMA])
        point = np.clip(lsq_linear(matrix, target, bounds=(0.0, 1.0)).x, 0.0, 1.0)
    return np.asarray(point)


ROBUST_ROUNDS = 6


def walk(problem: Problem, start: FloatArray) -> FloatArray:
    """Steps with fixed slopes and exact errors from `start`, until they stand still."""
    best = at = start
    lowest = problem.loss(at)
    for _ in range(ROUNDS):
        point = step(problem, at, problem.errors(at))
        loss = problem.loss(point)
        if loss < lowest:
            best, lowest = point, loss
        if loss > lowest or np.abs(point - at).max() < STILL:
            break
        at = point
    return best


def mean_error(errors: FloatArray, weight: FloatArray) -> float:
    """Weighted mean absolute log error."""
    return float((np.abs(errors) * weight**2).sum() / (weight**2).sum())
