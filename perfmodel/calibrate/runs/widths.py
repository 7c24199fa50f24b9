"""Widths of 80 % ranges from the errors of runs: a scale by reasons, engines apart, then a check.

The absolute log error y of a run is taken as exponential with a scale that is a product of factors
(a generalised linear model with a log link):

    log E[y] = b + engine + sum_k log(factor_k) x_k

Each factor lies between 1 and `HIGHEST_FACTOR`, pulled to its prior.  Engines differ by a normal
effect of standard deviation ``apart``: an engine with many sources has nearly the scale of its own
runs, one with few nearly that of all (n runs of a source weigh as sqrt(n)).  ``apart`` is the one
under which runs of unseen sources have the best ranges; the last step multiplies all ranges so that
four of five runs of unseen sources lie inside.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.calibrate.runs.evaluations import IntArray
from perfmodel.calibrate.runs.folds import folds_of
from perfmodel.calibrate.runs.solve import FloatArray
from perfmodel.pipeline.request_width import FACTORS, HIGHEST_FACTOR, HIGHEST_RUN, LOWEST_RUN

COVERED = 0.8
FOLDS = 10
APART = (0.05, 0.2, 0.4, 0.8)
"""Candidates for how far engines differ, as standard deviations of the log scale."""

FACTOR_SD = 0.5
"""Standard deviation of the logarithm of a factor around its prior."""

LEAST = 0.002
"""Errors below this are as good as none."""

DIGITS = 3


@dataclass(frozen=True, slots=True)
class Errors:
    """Whole requests: how far off each was, and what was uncertain about it.

    Attributes:
        size: absolute log errors, ``[R]``.
        features: columns in the order of `FACTORS`, ``[R, K]``.
        engines, sources: of each run.
    """

    size: FloatArray
    features: FloatArray
    engines: tuple[str, ...]
    sources: tuple[str, ...]

    def __len__(self) -> int:
        """Runs."""
        return len(self.size)

    def take(self, rows: IntArray) -> Errors:
        """Some of the runs."""
        return Errors(
            self.size[rows],
            self.features[rows],
            tuple(self.engines[n] for n in rows),
            tuple(self.sources[n] for n in rows),
        )


@dataclass(frozen=True, slots=True)
class Widths:
    """The scale of errors.

    Attributes:
        base: log scale of a plain run of an engine without runs.
        factors: logarithms, in the order of `FACTORS`, ``[K]``.
        engines: what each engine adds to the log scale.
        apart: standard deviation of those.
    """

    base: float
    factors: FloatArray
    engines: dict[str, float]
    apart: float

    def run(self, engine: str) -> float:
        """Log half-width of a plain run, within its bounds."""
        width = math.exp(self.base + self.engines.get(engine, 0.0))
        return float(f"{min(max(width, LOWEST_RUN), HIGHEST_RUN):.{DIGITS}g}")

    def table(self, engine: str) -> dict[str, float]:
        """Entries of the ``spread`` of a terms file."""
        factors = zip(FACTORS, np.exp(self.factors), strict=True)
        return {"run": self.run(engine)} | {
            f"run.{name}": float(f"{factor:.{DIGITS}g}") for name, factor in factors
        }

    def log_halfwidths(self, errors: Errors) -> FloatArray:
        """Log half-width of each run, ``[R]``."""
        engines = np.array([self.engines.get(name, 0.0) for name in errors.engines])
        return np.asarray(np.exp(self.base + engines + errors.features @ self.factors))


def widths_of(errors: Errors) -> Widths:
    """The widths that some runs support."""
    unseen = {apart: _unseen(errors, apart) for apart in APART}
    rescale = {apart: quantile(np.log(_seen(errors)) - log) for apart, log in unseen.items()}
    score = {a: score_of(np.exp(unseen[a] + rescale[a]), errors.size) for a in APART}
    apart = min(APART, key=lambda a: score[a])
    found = scales(errors, apart)
    return replace(found, base=found.base + rescale[apart])


def unseen_halfwidths(errors: Errors) -> FloatArray:
    """Log half-width of each run, all steps repeated without its source, ``[R]``."""
    folds, result = folds_of(errors.sources, folds=FOLDS), np.empty(len(errors))
    for fold in np.unique(folds):
        rows = np.flatnonzero(folds == fold)
        found = widths_of(errors.take(np.flatnonzero(folds != fold)))
        result[rows] = found.log_halfwidths(errors.take(rows))
    return result


def quantile(log_ratios: FloatArray) -> float:
    """The smallest that holds ``ceil(0.8 (n + 1))`` of n: a further one lies below 4 times of 5."""
    place = min(len(log_ratios), math.ceil(COVERED * (len(log_ratios) + 1))) - 1
    return float(np.sort(log_ratios)[place])


def score_of(halfwidths: FloatArray, size: FloatArray) -> float:
    """Mean interval score of 80 % ranges: half-width, and five times what lies outside.

    Formula: ``w + max(y - w, 0) / (1 - 0.8)``; the true 80 % quantile has the smallest.
    Source: Gneiting and Raftery 2007, doi:10.1198/016214506000001437, eq. 43.
    """
    return float(np.mean(halfwidths + np.maximum(size - halfwidths, 0.0) / (1.0 - COVERED)))


def _seen(errors: Errors) -> FloatArray:
    return np.maximum(errors.size, LEAST)


def _unseen(errors: Errors, apart: float) -> FloatArray:
    """Log scale of each run from the runs of other sources, ``[R]``."""
    folds, result = folds_of(errors.sources, folds=FOLDS), np.empty(len(errors))
    for fold in np.unique(folds):
        rows = np.flatnonzero(folds == fold)
        found = scales(errors.take(np.flatnonzero(folds != fold)), apart)
        result[rows] = np.log(found.log_halfwidths(errors.take(rows)))
    return result


def scales(errors: Errors, apart: float) -> Widths:
    """The most plausible scales of exponential errors, with engines `apart`.

    The negative log plausibility ``sum w (eta + y exp(-eta)) + pulls`` is convex in all unknowns.
    """
    from scipy.optimize import minimize

    engines, which = np.unique(errors.engines, return_inverse=True)
    count = len(FACTORS)
    size, weight = _seen(errors), _weights(errors.sources)
    centre = np.array([0.0, *np.log(list(FACTORS.values())), *np.zeros(len(engines))])
    pull = np.array([0.0, *[FACTOR_SD**-2.0] * count, *[apart**-2.0] * len(engines)])

    def loss(point: FloatArray) -> tuple[float, FloatArray]:
        own = point[1 + count :][which]
        eta = point[0] + errors.features @ point[1 : 1 + count] + own
        ratio = size * np.exp(-eta)
        away = point - centre
        value = (weight * (eta + ratio)).sum() + 0.5 * (pull * away**2).sum()
        rest = weight * (1.0 - ratio)
        by_engine = np.bincount(which, rest, len(engines))
        slope = np.concatenate([[rest.sum()], rest @ errors.features, by_engine])
        return float(value), slope + pull * away

    start = centre.copy()
    start[0] = np.log(np.average(size, weights=weight))
    ends = [
        (None, None),
        *[(0.0, math.log(HIGHEST_FACTOR))] * count,
        *[(None, None)] * len(engines),
    ]
    point = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=ends).x
    own = {str(name): float(x) for name, x in zip(engines, point[1 + count :], strict=True)}
    return Widths(float(point[0]), point[1 : 1 + count], own, apart)


def _weights(sources: Sequence[str]) -> FloatArray:
    """Of each run: n runs of a source weigh as sqrt(n), for they share what it does not say."""
    count = Counter(sources)
    return np.array([count[source] ** -0.5 for source in sources])
