"""Optuna studies over a unit cube: options, storage, resuming, and the scale of a parameter."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.fits import Parameter
from perfmodel.errors import BadInput, Problem, needs

if TYPE_CHECKING:
    import optuna

FloatArray = NDArray[np.float64]


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
    """

    trials: int = 60
    jobs: int = 1
    timeout_s: float | None = None
    sampler: str = "tpe"
    seed: int = 20260901
    storage: str | None = None
    polish: bool = True


def from_unit(p: Parameter, x: float) -> float:
    """Value of `p` at `x` in 0..1 (logarithmic parameters geometrically; nearest of a grid)."""
    if p.grid:
        return p.grid[min(int(x * len(p.grid)), len(p.grid) - 1)]
    if p.log:
        return float(p.low * (p.high / p.low) ** x)
    return float(p.low + (p.high - p.low) * x)


def to_unit(p: Parameter, value: float) -> float:
    """Inverse of `from_unit`, clipped to 0..1 (the middle of a grid value's share)."""
    if p.grid:
        nearest = int(np.argmin(np.abs(np.asarray(p.grid) - value)))
        return (nearest + 0.5) / len(p.grid)
    if p.log:
        x = np.log(value / p.low) / np.log(p.high / p.low)
    else:
        x = (value - p.low) / (p.high - p.low)
    return float(np.clip(x, 0.0, 1.0))


def open_study(options: Options, name: str) -> optuna.Study:
    """The study of that name, resumed where the storage has it."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = _sampler(options)
    try:
        return optuna.create_study(
            study_name=name,
            storage=_storage(options.storage),
            sampler=sampler,
            load_if_exists=True,
        )
    except _failures() as error:
        raise _unusable(options.storage, error) from None


def check_storage(target: str | None) -> None:
    """Refuse a storage that cannot be opened before anything is fitted.

    Raises:
        BadInput: why it cannot be opened.
    """
    import optuna

    try:
        optuna.storages.get_storage(_storage(target))
    except _failures() as error:
        raise _unusable(target, error) from None


def _failures() -> tuple[type[Exception], ...]:
    """How a journal or a database says that it cannot be used."""
    from sqlalchemy.exc import SQLAlchemyError

    return (OSError, ValueError, KeyError, ImportError, SQLAlchemyError)


def _unusable(target: str | None, error: Exception) -> BadInput:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:120]
    message = (
        f"--storage {target} cannot be used for a study: {reason}; "
        "name a journal file in a folder of yours, or a database URL"
    )
    return BadInput(Problem("storage", message, "--storage", target))


def _storage(target: str | None) -> Any:
    """Journal file for a path, an RDB for a URL, memory for None."""
    import optuna

    if target is None or "://" in target:
        return target
    from optuna.storages.journal import JournalFileBackend

    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and (held := path.read_bytes()) and not held.endswith(b"\n"):
        raise ValueError("its last line is cut off, remove that line or the file")
    # The lock is a link to the path as given: a relative one would dangle and never be given up.
    return optuna.storages.JournalStorage(JournalFileBackend(str(path.resolve())))


def _sampler(options: Options) -> Any:
    import optuna

    if options.sampler == "cmaes":
        try:
            import cmaes  # noqa: F401
        except ImportError as err:
            raise BadInput(
                Problem(
                    "sampler",
                    needs("--sampler cmaes", "the package cmaes", "cmaes"),
                    field="--sampler",
                    value="cmaes",
                    legal_values=("tpe", "cmaes"),
                )
            ) from err
        return optuna.samplers.CmaEsSampler(seed=options.seed)
    return optuna.samplers.TPESampler(
        seed=options.seed, multivariate=True, n_startup_trials=20, n_ei_candidates=16
    )


def explore(
    bounds: Sequence[Parameter],
    loss: Callable[[FloatArray], float],
    options: Options,
    study_name: str,
) -> list[FloatArray]:
    """Points of the unit cube that a study found, best first; it starts at the defaults.

    A study of this name in the storage is resumed: only its missing trials are run.
    """
    study = open_study(options, study_name)
    run_study(study, bounds, loss, options)
    return finished(study, bounds)


def finished(study: optuna.Study, bounds: Sequence[Parameter]) -> list[FloatArray]:
    """Points of the finished trials, best first."""
    done = sorted(
        (t for t in study.trials if t.value is not None), key=lambda t: (t.value or 0.0, t.number)
    )
    return [np.array([t.params[p.name] for p in bounds]) for t in done]


def run_study(
    study: optuna.Study,
    bounds: Sequence[Parameter],
    loss: Callable[[FloatArray], float],
    options: Options,
) -> None:
    """Run the trials that are still missing (a resumed study keeps its own)."""
    if not study.trials:
        study.enqueue_trial({p.name: to_unit(p, p.default) for p in bounds})

    def objective(trial: optuna.Trial) -> float:
        return loss(np.array([trial.suggest_float(p.name, 0.0, 1.0) for p in bounds]))

    missing = options.trials - sum(t.value is not None for t in study.trials)
    if missing > 0:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study.optimize(
                objective, n_trials=missing, n_jobs=options.jobs, timeout=options.timeout_s
            )
