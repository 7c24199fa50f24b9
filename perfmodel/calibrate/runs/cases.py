"""Measured runs as questions that the pipeline answers again under other engine terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from perfmodel import catalog
from perfmodel.engines.base import Behaviour
from perfmodel.engines.legality import problems
from perfmodel.errors import PerfmodelError
from perfmodel.pipeline.evaluate import BUILDERS, composed
from perfmodel.pipeline.job import Job
from perfmodel.pipeline.lines import Stage
from perfmodel.pipeline.request_width import FACTORS, uncertain
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.record import END_TO_END_KEYS, RunRecord
from perfmodel.units import MS_PER_S
from perfmodel.validate.predicted import WHOLE, by_key, rank_forwards
from perfmodel.validate.questions import Question, Skip, question
from perfmodel.validate.timers import stage_timers
from perfmodel.validate.waiting import waited

STAGE_KEYS = ("vae_encode", "vae_decode")
STEP_KEYS = ("denoise", "denoise_per_step", "transformer_forward")
CLIENT_TERM = "client_overhead_s"
OWN = "own runs"
"""Source of runs that name none."""

Values = Mapping[str, Mapping[str, float]]
"""Values of engine terms by the file of the engine that looks them up, and by name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run under some terms.

    Attributes:
        log_s: logarithm of the predicted seconds of each target.
        uncertain: what makes the request uncertain, in the order of `FACTORS`; empty where it was
            not asked for.
    """

    log_s: tuple[float, ...]
    uncertain: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Costed:
    """A stage, the terms that it looked up, and those that counted as fitted."""

    read: Mapping[str, float | None]
    fitted: frozenset[str]
    stage: Stage


@dataclass(frozen=True)
class Case:
    """One measured run.

    Attributes:
        chain: the engine's terms file and those that it inherits from, nearest first.
        own: names of the terms that each of them states itself.
        targets: measured seconds by key: stages, then the whole request.
        question: what is alike in repeated measurements of one configuration.
        host: the machine that ran it, where it has terms of its own; `host_terms` their values.
        site_terms: what its own runs say of the machine (`sites`).
        stages: each stage as it was costed first and last.
    """

    record: RunRecord
    job: Job
    layouts: Layouts
    chain: tuple[str, ...]
    own: tuple[frozenset[str], ...]
    targets: Mapping[str, float]
    question: str
    host: str | None = None
    host_terms: Mapping[str, float] = field(default_factory=dict)
    site_terms: Mapping[str, float] = field(default_factory=dict)
    stages: dict[str, tuple[Costed, ...]] = field(default_factory=dict, repr=False, compare=False)

    @property
    def source(self) -> str:
        """Whose measurement it is: runs of one source never lie in both halves.

        Runs without a source are those of whoever hands them in.
        """
        return self.record.source or OWN

    def under(self, file: str, name: str) -> bool:
        """Whether a value of `name` in `file` would hold here."""
        if file not in self.chain:
            return False
        nearer = self.own[: self.chain.index(file)]
        return not any(name in names for names in nearer)

    @property
    def device(self) -> str:
        """Id of the device that it ran on."""
        return self.job.machine.device.id

    @property
    def file(self) -> str:
        """The terms file of its engine."""
        return self.chain[0]

    def terms(self, values: Values) -> dict[str, float]:
        """Terms of this run with those of `values` for its engine, of its host and its site."""
        engine = {**self.job.machine.terms, **values.get(self.file, {})}
        return {**engine, **self.host_terms, **self.site_terms}

    def outcome(self, terms: Mapping[str, float], fitted: frozenset[str] | None = None) -> Outcome:
        """Evaluate the run.

        Args:
            terms: engine terms by name.
            fitted: those that count as fitted, for what is uncertain; None: that is not asked.
        """
        machine = replace(self.job.machine, terms=dict(terms))
        if fitted is not None:
            machine = replace(machine, fitted_terms=fitted)
        job = replace(self.job, machine=machine)
        stages = {name: self._stage(name, job) for name in BUILDERS}
        evaluation = composed(job, self.layouts, stages)
        milliseconds = by_key(
            {n: float(stage.total_s[0]) * MS_PER_S for n, stage in evaluation.stages.items()},
            float(evaluation.latency_s[0]) * MS_PER_S,
            float(evaluation.forward_s[0]) * MS_PER_S,
            steps=int(job.shape.steps),
            forwards=rank_forwards(int(job.shape.forwards), int(self.layouts.cfg[0])),
            client=machine.term(CLIENT_TERM, 0.0) * MS_PER_S if "client" in self.targets else 0.0,
            to_result=job.behaviour.time_ends == "result",
            timers=stage_timers(job.behaviour, lambda: evaluation.stages),
        )
        encode_ms = float(evaluation.stages["video_encode"].total_s[0]) * MS_PER_S
        milliseconds = waited(self.record, job.behaviour, milliseconds, encode_ms, "mid")
        logs = tuple(float(np.log(milliseconds[key] / MS_PER_S)) for key in self.targets)
        features = {} if fitted is None else uncertain(evaluation)
        return Outcome(logs, tuple(float(features[name][0]) for name in FACTORS if features))

    def _stage(self, name: str, job: Job) -> Stage:
        """A stage costed alone, or as it was: only the terms that it looks up change it."""
        terms, fitted = job.machine.terms, job.machine.fitted_terms
        for one in self.stages.get(name, ()):
            if one.fitted == fitted and all(terms.get(k) == v for k, v in one.read.items()):
                return one.stage
        traced = _Traced(terms)
        machine = replace(job.machine, terms=traced)
        stage = BUILDERS[name](replace(job, machine=machine), self.layouts)
        costed = Costed({key: terms.get(key) for key in traced.names}, fitted, stage)
        self.stages[name] = (*self.stages.get(name, ())[:1], costed)
        return stage


class _Traced(dict[str, float]):
    """Terms that remember which names were asked for."""

    def __init__(self, terms: Mapping[str, float]) -> None:
        super().__init__(terms)
        self.names: set[str] = set()

    def __contains__(self, name: object) -> bool:
        self.names.add(str(name))
        return super().__contains__(name)


def cases_of(
    records: Iterable[RunRecord], left_out: Callable[[str, str], None] = lambda run, why: None
) -> list[Case]:
    """Runs that can be predicted, are not doubtful and measure a stage or a request.

    `left_out` is told the id of each other run, and why.
    """
    found = []
    for record in records:
        try:
            case = None if record.doubtful else _case(record)
        except Skip as reason:
            left_out(record.id, str(reason))
            continue
        except PerfmodelError as error:
            left_out(record.id, error.problems[0].message)
            continue
        if case is None or not case.targets:
            left_out(record.id, "doubtful" if case is None else "no time that is fitted")
            continue
        found.append(case)
    return found


def _case(record: RunRecord) -> Case:
    asked = question(record)
    layouts = Layouts.of([asked.parallel])
    session = asked.session()
    found = problems(session.engine.rules(), session.context, asked.parallel)
    errors = [problem.message for problem in found if problem.severity == "error"]
    if errors:
        raise Skip(errors[0])
    chain = catalog.terms_chain(session.behaviour.terms)
    own = tuple(frozenset(catalog.own_terms(file).get("terms", {})) for file in chain)
    return Case(
        record=record,
        job=session.job,
        layouts=layouts,
        chain=chain,
        own=own,
        targets=_targets(record, session.behaviour),
        question=_alike(record, asked),
        host=asked.host,
        host_terms=_values(chain[0], asked.host),
    )


def _values(file: str, host: str | None) -> dict[str, float]:
    entries = {} if host is None else catalog.host_terms(file, host)
    return {name: float(entry["value"]) for name, entry in entries.items()}


def _targets(record: RunRecord, behaviour: Behaviour) -> dict[str, float]:
    """Seconds by key: the VAE, one key of the denoiser, one of the request."""
    timers = stage_timers(behaviour)
    keys = [key for key in STAGE_KEYS if key in record.measured_ms]
    for names in (STEP_KEYS, END_TO_END_KEYS):
        keys += [key for key in names if key in record.measured_ms][:1]
    return {
        key: record.measured_ms[key] / MS_PER_S
        for key in keys
        if timers.comparable(record, key) and (record.steps is not None or key not in WHOLE)
    }


def _alike(record: RunRecord, asked: Question) -> str:
    """The configuration that a run measures; another number of steps is not another one."""
    workload = asked.workload.model_copy(update={"steps": None, "forwards": None})
    parts = (record.source, asked.engine, workload, asked.options, asked.parallel)
    return repr((*parts, asked.system.device.id, asked.system.num_gpus))
