"""Which of the candidate terms the runs support: added one by one while unseen sources gain."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.runs.solve import FloatArray, Problem, mean_error, step

GAIN = 0.01
"""Share of the error of unseen sources that a further term must take away."""


def choose(problem: Problem, start: FloatArray, folds: NDArray[np.intp], most: int) -> list[int]:
    """Positions of the terms to free, at most `most`, best first.

    Every set of terms is fitted with its slopes at `start` to all folds but one and scored on that
    one.
    """
    errors = problem.errors(start)
    chosen: list[int] = []
    best = mean_error(errors, problem.weight)
    others = set(range(len(start)))
    while others and len(chosen) < most and len(np.unique(folds)) > 1:
        scores = {
            one: _unseen(problem, start, errors, folds, [*chosen, one]) for one in sorted(others)
        }
        found = min(scores, key=lambda one: scores[one])
        if scores[found] > best * (1.0 - GAIN):
            break
        best = scores[found]
        chosen.append(found)
        others.discard(found)
    return chosen


def _unseen(
    problem: Problem,
    start: FloatArray,
    errors: FloatArray,
    folds: NDArray[np.intp],
    free: list[int],
) -> float:
    """Weighted mean error of each fold under terms that were fitted to the others."""
    left = np.empty_like(errors)
    few = narrowed(problem, free)
    for fold in np.unique(folds):
        seen = folds != fold
        part = replace(few, slopes=few.slopes[seen], weight=few.weight[seen])
        moved = step(part, start[free], errors[seen]) - start[free]
        left[~seen] = errors[~seen] + few.slopes[~seen] @ moved
    return mean_error(left, problem.weight)


def narrowed(problem: Problem, free: list[int]) -> Problem:
    """`problem` over some of its terms; the others stay where they are."""
    return replace(problem, centre=problem.centre[free], slopes=problem.slopes[:, free])
