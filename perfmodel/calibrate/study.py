"""The search for the parameters of one law: an Optuna study, then a bounded polish.

The study explores; the polish (scipy, trust region on a soft-l1 loss) walks down from the best
few trials.  Both minimise the mean of ``|log(predicted / measured)|`` clipped at `CLIP`, so a few
broken rows cannot steer the law.  Sampler seeds are fixed: one job gives the same bits.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.laws_fit import FitLaw
from perfmodel.cost.fits import Parameter
from perfmodel.cost.machine import Rates
from perfmodel.errors import BadInput, Problem

if TYPE_CHECKING:
    import optuna

FloatArray = NDArray[np.float64]

CLIP = 0.5
"""Largest absolute log error that a row contributes."""

SAMPLE_ROWS = 800
"""Rows the study looks at; the polish uses all."""

KERNEL_LOW, KERNEL_HIGH = 0.4, 2.5


@dataclass(frozen=True, slots=True)
class Options:
    """How a law is searched.

    Attributes:
        trials: trials of the study.
        jobs: threads of the study (more than one is not bit for bit repeatable).
        timeout_s: stop the study of a law after this time.
        sampler: ``tpe`` or ``cmaes``.
        seed: of the sampler and of the row sample.
        storage: journal file, RDB URL, or None for memory only.
        polish: refine with scipy.
        starts: how many of the best trials the polish starts from.
    """

    trials: int = 60
    jobs: int = 1
    timeout_s: float | None = None
    sampler: str = "tpe"
    seed: int = 20260901
    storage: str | None = None
    polish: bool = True
    starts: int = 2


@dataclass(frozen=True, slots=True)
class Found:
    """Best parameters of a law."""

    values: dict[str, float]
    kernels: dict[str, float]
    loss: float
    trials: int
    at_bounds: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Space:
    """Parameters and kernel factors as one vector in the unit cube."""

    parameters: tuple[Parameter, ...]
    kernels: tuple[str, ...]

    def __len__(self) -> int:
        """Number of free values; the first kernel is the reference and has none."""
        return len(self.parameters) + max(0, len(self.kernels) - 1)

    def bounds(self) -> list[Parameter]:
        """A `Parameter` for every coordinate."""
        extra = [
            Parameter(f"rate[{name}]", 1.0, KERNEL_LOW, KERNEL_HIGH, "kernel rate", log=True)
            for name in self.kernels[1:]
        ]
        return [*self.parameters, *extra]

    def decode(self, unit: FloatArray) -> tuple[dict[str, float], dict[str, float]]:
        """Values and kernel factors of a point of the unit cube."""
        values = {p.name: from_unit(p, float(x)) for p, x in zip(self.bounds(), unit, strict=True)}
        kernels = {name: values.pop(f"rate[{name}]", 1.0) for name in self.kernels}
        return values, kernels

    def encode(self, values: Mapping[str, float], kernels: Mapping[str, float]) -> FloatArray:
        """The point of the unit cube of given values."""
        merged = {**values, **{f"rate[{name}]": rate for name, rate in kernels.items()}}
        return np.array([to_unit(p, merged.get(p.name, p.default)) for p in self.bounds()])


def from_unit(p: Parameter, x: float) -> float:
    """Value of `p` at `x` in 0..1 (logarithmic parameters geometrically)."""
    if p.log:
        return float(p.low * (p.high / p.low) ** x)
    return float(p.low + (p.high - p.low) * x)


def to_unit(p: Parameter, value: float) -> float:
    """Inverse of `from_unit`, clipped to 0..1."""
    if p.log:
        x = np.log(value / p.low) / np.log(p.high / p.low)
    else:
        x = (value - p.low) / (p.high - p.low)
    return float(np.clip(x, 0.0, 1.0))


class Objective:
    """Log errors of a law on a set of rows, as a function of the unit cube."""

    def __init__(self, law: FitLaw, rates: Rates, index: NDArray[np.intp]) -> None:
        """Bind rows once."""
        self.law, self.rates = law, rates
        self.rows = law.rows.take(index)
        self.measured = self.rows["latency_s"]
        self.space = Space(law.parameters, kernel_names(law))
        names = np.asarray(self.space.kernels)
        order = np.argsort(names)
        position = np.searchsorted(names[order], self.rows.text("kernel"))
        self.kernel_of = order[np.minimum(position, len(names) - 1)]

    def log_error(self, unit: FloatArray) -> FloatArray:
        """``log(predicted / measured)`` of each row."""
        values, kernels = self.space.decode(unit)
        rate = np.array([kernels[name] for name in self.space.kernels])[self.kernel_of]
        predicted = self.law.predict(values, self.rates, self.rows, rate)
        return np.asarray(np.log(predicted / self.measured))

    def loss(self, unit: FloatArray) -> float:
        """Mean clipped absolute log error."""
        return float(np.minimum(np.abs(self.log_error(unit)), CLIP).mean())


def kernel_names(law: FitLaw) -> tuple[str, ...]:
    """Kernels of a law, most rows first (the reference), then by name."""
    names, counts = np.unique(law.rows.text("kernel"), return_counts=True)
    return tuple(str(names[i]) for i in np.lexsort((names, -counts)))


def search(
    law: FitLaw, rates: Rates, index: NDArray[np.intp], options: Options, study_name: str
) -> Found:
    """Find the parameters of `law` on the rows `index`."""
    rng = np.random.default_rng(options.seed)
    few = index
    if len(index) > SAMPLE_ROWS:
        few = np.sort(rng.choice(index, SAMPLE_ROWS, replace=False))
    sample, full = Objective(law, rates, few), Objective(law, rates, index)
    study = _study(options, f"{study_name}:{_digest(law, few)}")
    _run(study, sample, options)
    finished = [t for t in study.trials if t.value is not None]
    finished.sort(key=lambda t: (t.value, t.number))
    names = [p.name for p in sample.space.bounds()]
    starts = [np.array([t.params[name] for name in names]) for t in finished[: options.starts]]
    if options.polish:
        starts = [_polish(full, start) for start in starts]
    best = min(starts, key=full.loss)
    values, kernels = full.space.decode(best)
    at_bounds = tuple(
        p.name for p, x in zip(full.space.bounds(), best, strict=True) if not 2e-3 < x < 1 - 2e-3
    )
    return Found(values, kernels, full.loss(best), len(finished), at_bounds)


def _digest(law: FitLaw, index: NDArray[np.intp]) -> str:
    """Hash of rows and search space: a study is resumed only for the very same question."""
    state = hashlib.sha256(repr(law.parameters).encode())
    rows = law.rows.take(index)
    for name in sorted(rows.columns):
        state.update(np.ascontiguousarray(rows.columns[name]).tobytes())
    return state.hexdigest()[:12]


def _study(options: Options, name: str) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        study_name=name,
        storage=_storage(options.storage),
        sampler=_sampler(options),
        load_if_exists=True,
    )


def _storage(target: str | None) -> Any:
    """Journal file for a path, an RDB for a URL, memory for None."""
    import optuna

    if target is None or "://" in target:
        return target
    from optuna.storages.journal import JournalFileBackend

    Path(target).parent.mkdir(parents=True, exist_ok=True)
    return optuna.storages.JournalStorage(JournalFileBackend(target))


def _sampler(options: Options) -> Any:
    import optuna

    if options.sampler == "cmaes":
        try:
            import cmaes  # noqa: F401
        except ImportError as err:
            raise BadInput(
                Problem(
                    "sampler",
                    "--sampler cmaes needs the package cmaes: pip install perfmodel[cmaes]",
                    field="--sampler",
                    value="cmaes",
                    legal_values=("tpe", "cmaes"),
                )
            ) from err
        return optuna.samplers.CmaEsSampler(seed=options.seed)
    return optuna.samplers.TPESampler(
        seed=options.seed, multivariate=True, n_startup_trials=20, n_ei_candidates=16
    )


def _run(study: optuna.Study, problem: Objective, options: Options) -> None:
    """Run the trials that are still missing (a resumed study keeps its own)."""
    bounds = problem.space.bounds()
    if not study.trials:
        study.enqueue_trial({p.name: to_unit(p, p.default) for p in bounds})

    def objective(trial: optuna.Trial) -> float:
        unit = np.array([trial.suggest_float(p.name, 0.0, 1.0) for p in bounds])
        return problem.loss(unit)

    missing = options.trials - sum(t.value is not None for t in study.trials)
    if missing > 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study.optimize(
                objective, n_trials=missing, n_jobs=options.jobs, timeout=options.timeout_s
            )


def _polish(problem: Objective, start: FloatArray) -> FloatArray:
    """Trust-region descent from `start`, in rounds of shrinking difference steps.

    Tiles and waves make the loss piecewise smooth, so differences are wide at first.
    """
    from scipy.optimize import least_squares

    best = np.clip(start, 1e-4, 1 - 1e-4)
    for step in (3e-2, 1e-2, 3e-3):
        result = least_squares(
            problem.log_error,
            np.clip(best, 1e-4, 1 - 1e-4),
            bounds=(0.0, 1.0),
            loss="soft_l1",
            f_scale=0.05,
            diff_step=[step] * len(best),
            max_nfev=25,
        )
        if problem.loss(result.x) < problem.loss(best):
            best = result.x
    return np.asarray(best)
