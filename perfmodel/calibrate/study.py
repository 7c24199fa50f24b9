"""The search for the parameters of one law: an Optuna study, then a bounded polish.

The study explores; the polish (scipy, trust region on a soft-l1 loss) walks down from the best
few trials and from starts that the shortest rows suggest.  Both minimise the mean of
``|log(predicted / measured)|`` clipped at `CLIP`, so a few broken rows cannot steer the law.
Sampler seeds are fixed: one job gives the same bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.explore import (
    Options,
    finished,
    from_unit,
    open_study,
    run_study,
    to_unit,
)
from perfmodel.calibrate.kernels import FACTOR_HIGH, FACTOR_LOW, FACTORS, Kernels
from perfmodel.calibrate.laws_fit import FitLaw
from perfmodel.cost.fits import Parameter
from perfmodel.cost.machine import Rates

if TYPE_CHECKING:
    import optuna

FloatArray = NDArray[np.float64]

CLIP = 0.5
"""Largest absolute log error that a row contributes."""

SAMPLE_ROWS, POLISH_ROWS = 800, 1500
"""Rows that the study and the first walks of the polish look at; the last walk uses all."""

EVALUATIONS, FEW_EVALUATIONS = 25, 16
STEPS = (3e-2, 1e-2, 3e-3)
SHORTLIST = 6
SMOOTH_STEP, SMOOTH_EVALUATIONS = 3e-3, 2
"""Where all differences are one call: their step, which needs no tiles to cross, and how many more
evaluations a walk may take."""
SOFT = 0.05
"""Log error from which the loss grows linearly instead of quadratically."""

RIDGE = 0.3
"""Strength of the pull towards the defaults: a whole range weighs as a log error of 0.1 in one
row, nothing in a table of thousands, a stay in tables of dozens."""

FEW_ROWS, MOST_STARTS = 1200, 12


@dataclass(frozen=True, slots=True)
class Found:
    """Best parameters of a law; `kernels` holds the factors of each kernel by name."""

    values: dict[str, float]
    kernels: dict[str, dict[str, float]]
    loss: float
    trials: int
    at_bounds: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Space:
    """Parameters and kernel factors as one vector in the unit cube."""

    parameters: tuple[Parameter, ...]
    kernels: Kernels

    def bounds(self) -> list[Parameter]:
        """A `Parameter` for every coordinate."""
        factors = (self._factor(name, factor) for name, factor in self.kernels.factors)
        return [*self.parameters, *factors]

    def _factor(self, kernel: str, factor: str) -> Parameter:
        usual = self.kernels.usual.get(kernel, 1.0)
        low, high = usual * FACTOR_LOW, usual * FACTOR_HIGH
        return Parameter(f"{factor}[{kernel}]", usual, low, high, "kernel", log=True)

    def decode(self, unit: FloatArray) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
        """Values and kernel factors of a point of the unit cube."""
        values = {p.name: from_unit(p, float(x)) for p, x in zip(self.bounds(), unit, strict=True)}
        kernels = {
            name: {factor: values.pop(f"{factor}[{name}]", 1.0) for factor in FACTORS}
            for name in self.kernels.names
        }
        return values, kernels

    def encode(
        self, values: Mapping[str, float], kernels: Mapping[str, Mapping[str, float]]
    ) -> FloatArray:
        """The point of the unit cube of given values."""
        merged = dict(values)
        for name, factors in kernels.items():
            merged.update({f"{factor}[{name}]": value for factor, value in factors.items()})
        return np.array([to_unit(p, merged.get(p.name, p.default)) for p in self.bounds()])


class Objective:
    """Log errors of a law on a set of rows, as a function of the unit cube."""

    def __init__(self, law: FitLaw, rates: Rates, index: NDArray[np.intp]) -> None:
        """Bind rows once."""
        self.law, self.rates = law, rates
        self.rows = law.rows.take(index)
        self.measured = self.rows["latency_s"]
        self.space = Space(law.parameters, law.kernels)
        self.names = law.kernels.names
        names = np.asarray(self.names)
        order = np.argsort(names)
        position = np.searchsorted(names[order], self.rows.text("kernel"))
        self.default = self.space.encode({}, {})
        self.strength = RIDGE * np.array([p.pull for p in self.space.bounds()])
        self.kernel_of = order[np.minimum(position, len(names) - 1)]

    def log_error(self, unit: FloatArray) -> FloatArray:
        """``log(predicted / measured)`` of each row."""
        values, kernels = self.space.decode(unit)
        factors = {
            factor: np.array([kernels[name][factor] for name in self.names])[self.kernel_of]
            for factor in FACTORS
        }
        predicted = self.law.predict(values, self.rates, self.rows, factors)
        return np.asarray(np.log(predicted / self.measured))

    def slopes(self, unit: FloatArray, free: NDArray[np.bool_], step: float) -> FloatArray:
        """Derivatives of `residuals` by the free coordinates: all shifted points in one call.

        Shifts go towards the middle of the cube, so that they stay inside.
        """
        where = np.flatnonzero(free)
        shift = np.where(unit[where] > 0.5, -step, step)
        points = np.vstack([unit, np.repeat(unit[None, :], len(where), axis=0)])
        points[np.arange(len(where)) + 1, where] += shift
        decoded = [self.space.decode(point) for point in points]
        values: dict[str, Any] = {
            p.name: np.array([[found[p.name]] for found, _ in decoded])
            for p in self.law.parameters
            if not p.grid
        }
        values.update({p.name: decoded[0][0][p.name] for p in self.law.parameters if p.grid})
        factors = {
            factor: np.array([[k[name][factor] for name in self.names] for _, k in decoded])
            for factor in FACTORS
        }
        rows = {factor: found[:, self.kernel_of] for factor, found in factors.items()}
        error = np.log(self.law.predict(values, self.rates, self.rows, rows))
        pulls = np.diag(self.strength)[:, where]
        return np.vstack([((error[1:] - error[0]) / shift[:, None]).T, pulls])

    def loss(self, unit: FloatArray) -> float:
        """Mean clipped absolute log error, plus the pull towards the defaults."""
        error = float(np.minimum(np.abs(self.log_error(unit)), CLIP).mean())
        return error + float((self.pull(unit) ** 2).sum()) / (2 * SOFT * len(self.rows))

    def pull(self, unit: FloatArray) -> FloatArray:
        """Residuals that hold what the rows do not determine near its default."""
        return np.asarray(self.strength * (unit - self.default))

    def residuals(self, unit: FloatArray) -> FloatArray:
        """Log errors and pulls, for least squares."""
        return np.concatenate([self.log_error(unit), self.pull(unit)])


def search(
    law: FitLaw, rates: Rates, index: NDArray[np.intp], options: Options, study_name: str
) -> Found:
    """Find the parameters of `law` on the rows `index`."""
    few = _some(index, SAMPLE_ROWS, options.seed)
    sample, full = Objective(law, rates, few), Objective(law, rates, index)
    middle = Objective(law, rates, _some(index, POLISH_ROWS, options.seed))
    study = open_study(options, f"{study_name}:{_digest(law, few)}")
    run_study(study, sample.space.bounds(), sample.loss, options)
    starts = [*_data_starts(full), *_candidates(study, sample.space, len(index))]
    if options.polish:
        starts = _shortlist(middle, starts)
        starts = [_polish(middle, start, STEPS, EVALUATIONS) for start in starts]
    best = min(starts, key=full.loss)
    if options.polish and len(middle.rows) < len(full.rows):
        best = _polish(full, best, STEPS[1:], EVALUATIONS)
    values, kernels = full.space.decode(best)
    at_bounds = tuple(
        p.name for p, x in zip(full.space.bounds(), best, strict=True) if not 2e-3 < x < 1 - 2e-3
    )
    return Found(values, kernels, full.loss(best), len(study.trials), at_bounds)


def _some(index: NDArray[np.intp], most: int, seed: int) -> NDArray[np.intp]:
    """At most `most` of the rows, in order."""
    if len(index) <= most:
        return index
    return np.sort(np.random.default_rng(seed).choice(index, most, replace=False))


FLOORS = ("launch_s", "kernel_floor_s", "latency_s", "start_s")


def _data_starts(problem: Objective) -> list[FloatArray]:
    """Defaults whose floor is the shortest row: a kernel's own, or the host's time for a call."""
    shortest = float(np.percentile(problem.measured, 2))
    names = {p.name for p in problem.space.parameters}
    floors = [{name: 0.9 * shortest for name in FLOORS if name in names}]
    if "host_floor_s" in names:
        floors.append({"launch_s": 0.2 * shortest, "host_floor_s": shortest})
    return [problem.space.encode(floor, {}) for floor in floors if floor]


def _candidates(study: optuna.Study, space: Space, rows: int) -> list[FloatArray]:
    """The best trials; one for every choice of the parameters that only take a few values."""
    bounds = space.bounds()
    points = finished(study, bounds)
    many = int(np.clip(FEW_ROWS // max(rows, 1), 1, MOST_STARTS))
    if not any(p.grid for p in bounds):
        return points[:many]
    by_choice: dict[tuple[float, ...], FloatArray] = {}
    for choice in product(*(p.grid for p in bounds if p.grid)):
        start = space.encode({}, {})
        start[[bool(p.grid) for p in bounds]] = [
            to_unit(p, value)
            for p, value in zip((p for p in bounds if p.grid), choice, strict=True)
        ]
        by_choice[choice] = start
    return [*by_choice.values(), *points[:many]]


def _shortlist(problem: Objective, starts: list[FloatArray]) -> list[FloatArray]:
    """A short walk from each of many starts, then only the best go on."""
    if len(starts) <= MOST_STARTS:
        return starts
    walked = [_polish(problem, start, STEPS[1:2], FEW_EVALUATIONS) for start in starts]
    return sorted(walked, key=problem.loss)[:SHORTLIST]


def _digest(law: FitLaw, index: NDArray[np.intp]) -> str:
    """Hash of rows and search space: a study is resumed only for the very same question."""
    state = hashlib.sha256(repr(law.parameters).encode())
    rows = law.rows.take(index)
    for name in sorted(rows.columns):
        state.update(np.ascontiguousarray(rows.columns[name]).tobytes())
    return state.hexdigest()[:12]


def _polish(
    problem: Objective, start: FloatArray, steps: tuple[float, ...], evaluations: int
) -> FloatArray:
    """Trust-region descent from `start`, in rounds of shrinking difference steps.

    Tiles and waves make the loss piecewise smooth, so differences are wide at first.  Parameters
    with a grid stay where they are.
    """
    from scipy.optimize import least_squares

    free = np.array([not p.grid for p in problem.space.bounds()])
    best = np.where(free, np.clip(start, 1e-4, 1 - 1e-4), start)

    def residuals(part: FloatArray) -> FloatArray:
        return problem.residuals(_with(best, free, part))

    def slopes(part: FloatArray) -> FloatArray:
        return problem.slopes(_with(best, free, part), free, SMOOTH_STEP)

    smooth = problem.law.batched
    for step in steps:
        result = least_squares(
            residuals,
            np.clip(best[free], 1e-4, 1 - 1e-4),
            jac=slopes if smooth else "2-point",
            bounds=(0.0, 1.0),
            loss="soft_l1",
            f_scale=SOFT,
            diff_step=[step] * int(free.sum()),
            max_nfev=evaluations * (SMOOTH_EVALUATIONS if smooth else 1),
        )
        found = _with(best, free, result.x)
        if problem.loss(found) < problem.loss(best):
            best = found
    return best


def _with(point: FloatArray, free: NDArray[np.bool_], part: FloatArray) -> FloatArray:
    """`point` with its free coordinates replaced."""
    merged = point.copy()
    merged[free] = part
    return merged
