"""What was asked and told, kept in an Optuna study beside the results (ask and tell).

A trial is a configuration: its degrees are the parameters, its request time [s] the value; one of
which only stages were measured is not told.  The top picks are enqueued and asked, which marks
them as running; a measurement tells their value, a failed run tells the failure.  A later call
finds the study of the same question, takes up what it was told, tells what is new and asks for
more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.api.session import Session
from perfmodel.errors import BadInput, Problem
from perfmodel.files import is_file
from perfmodel.spec.parallel import ParallelConfig, parse_parallel
from perfmodel.spec.record import RunRecord
from perfmodel.units import MS_PER_S
from perfmodel.verify.learned import Judgement
from perfmodel.verify.sort import Aside, Taken

if TYPE_CHECKING:
    import optuna

MOST_DEGREE = 4096
AXES = tuple(f.name for f in fields(ParallelConfig))
SHOWN_DIGITS = 6


def keep(path: Path, found: Judgement, aside: Sequence[Aside], asked: Sequence[str]) -> int:
    """Tell a study what was measured, and ask it for the configurations to run next.

    Args:
        path: journal file; made if it is not there.
        found: what was measured.
        aside: records that were not used; the failed ones are told as failures.
        asked: ids of the configurations that may be run next.

    Returns:
        Trials in the study.

    Raises:
        BadInput: the file cannot be read or written as a study.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        study = _open(path, question_name(found.field.table.session))
        for one in (run for run in found.measured if found.known[run.row]):
            config = found.field.table.evaluation.layouts.row(one.row)
            value = round(float(found.latency_s[one.row]), SHOWN_DIGITS)
            _tell(study, config, value)
        for item in aside:
            if item.kind == "failed" and item.config_id is not None:
                _tell(study, parse_parallel(item.config_id)[0], None)
        for name in asked:
            _ask(study, parse_parallel(name)[0])
        return len(study.trials)
    except (OSError, ValueError, KeyError) as error:
        raise _unusable(path, error) from None


MOST_SHOWN = 200
"""Characters of a library's message that a refusal repeats."""


def _unusable(path: Path, error: Exception) -> BadInput:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:MOST_SHOWN]
    message = f"--study {path} cannot be continued ({reason}); name another file, or none"
    return BadInput(Problem("study", message, "--study", str(path)))


def told_s(path: Path, question: str) -> dict[ParallelConfig, float]:
    """Request times [s] that a study was told, by configuration; the last one counts.

    Raises:
        BadInput: the file cannot be read as a study.
    """
    if not is_file(path):
        return {}
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    done = (optuna.trial.TrialState.COMPLETE,)
    try:
        trials = _open(path, question).get_trials(deepcopy=False, states=done)
        return {_config(trial.params): float(trial.value or 0.0) for trial in trials}
    except (OSError, ValueError, KeyError) as error:
        raise _unusable(path, error) from None


def remembered(study: Path, session: Session, present: set[ParallelConfig]) -> list[Taken]:
    """What an earlier call told the study about configurations that these results lack."""
    earlier = told_s(study, question_name(session))
    return [
        Taken(
            RunRecord(
                id=f"study {config.config_id}",
                engine=session.engine.name,
                model=session.model.slug,
                measured_ms={"server": seconds * MS_PER_S},
                note="told to the study before",
            ),
            config,
        )
        for config, seconds in earlier.items()
        if config not in present
    ]


def question_name(session: Session) -> str:
    """A name that the same question has again, whatever the fit: model, shape, machine, engine."""
    shape, system, behaviour = session.job.shape, session.system, session.behaviour
    size = f"{int(shape.width)}x{int(shape.height)}x{int(shape.frames)}"
    options = behaviour.options.model_dump_json()
    rest = hashlib.sha256(f"{shape} {options} {behaviour.version}".encode()).hexdigest()[:8]
    return f"{session.model.slug} {shape.task} {size} {system.num_gpus}x{system.device.id} {rest}"


def _open(path: Path, question: str) -> optuna.Study:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    path.parent.mkdir(parents=True, exist_ok=True)
    storage = JournalStorage(JournalFileBackend(str(path.resolve())))
    return optuna.create_study(study_name=question, storage=storage, load_if_exists=True)


def _params(config: ParallelConfig) -> dict[str, int]:
    return {axis: int(getattr(config, axis)) for axis in AXES}


def _config(params: Mapping[str, Any]) -> ParallelConfig:
    degrees = {axis: int(params[axis]) for axis in AXES if axis in params}
    tiling = bool(degrees.pop("vae_tiling", 0))
    return ParallelConfig(**degrees, vae_tiling=tiling)


def _ask(study: optuna.Study, config: ParallelConfig) -> None:
    """Ask for a configuration, unless it was asked for or told before."""
    if not any(True for _ in _trials(study, config)):
        _new(study, config)


def _trials(study: optuna.Study, config: ParallelConfig) -> Iterable[optuna.trial.FrozenTrial]:
    wanted = _params(config)
    return (trial for trial in study.get_trials(deepcopy=False) if trial.params == wanted)


def _tell(study: optuna.Study, config: ParallelConfig, value: float | None) -> None:
    """Tell the value of a configuration, or that it failed; the same value twice is told once."""
    import optuna

    state = optuna.trial.TrialState
    trials = list(_trials(study, config))
    told = [t.value for t in trials if t.state == state.COMPLETE]
    failed = any(t.state == state.FAIL for t in trials)
    if (value is None and (failed or told)) or value in told:
        return
    open_trials = [t for t in trials if t.state == state.RUNNING]
    trial = open_trials[0] if open_trials else _new(study, config)
    if value is None:
        study.tell(trial.number, state=state.FAIL)
    else:
        study.tell(trial.number, value)


def _new(study: optuna.Study, config: ParallelConfig) -> optuna.trial.FrozenTrial:
    """Enqueue and ask; what an interrupted call left in the queue before it is closed."""
    import optuna

    study.enqueue_trial(_params(config))
    while True:
        trial = study.ask()
        for axis in AXES:
            trial.suggest_int(axis, 0 if axis == "vae_tiling" else 1, MOST_DEGREE)
        if trial.params == _params(config):
            break
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
    trial.set_user_attr("config_id", config.config_id)
    return study.trials[trial.number]
