"""All configurations that may be run: predicted, ordered, and drawn together with their errors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfmodel.api import header, misfit
from perfmodel.api.all_gpus import of_all, refuse_without_all, uses_all
from perfmodel.api.offload import settled
from perfmodel.api.records import Table, id_suffixes, sent_together
from perfmodel.api.session import Session, refusal
from perfmodel.api.table import build_table, legal_layouts, legality, search_space
from perfmodel.engines.legality import problems
from perfmodel.errors import BadInput, Problem
from perfmodel.pipeline.evaluate import STAGES
from perfmodel.pipeline.lines import Column
from perfmodel.plan.belief import Z80, Belief, Matrix, believe
from perfmodel.plan.changes import changes, things
from perfmodel.plan.choose import DRAWS, Choice, choose
from perfmodel.report.answer import Answer
from perfmodel.search.rank import denoise_layouts, needless_sharding, rank, score
from perfmodel.spec.parallel import Layouts, ParallelConfig, parse_parallel
from perfmodel.units import S_PER_MINUTE

START_S = 180.0
"""Start of a server: processes, weights from disk, graph capture.  A prior."""

WARMUPS = 1
REPEATS = 3
CONTENDERS = 160
"""Configurations that are drawn: the fastest by prediction."""

OUT_OF_MEMORY = 100.0
"""A run that fails counts as so many times its length: as good as never."""

STATED = 5
"""Places of a ranking that are shown; the ties among them are named."""

OBJECTIVES = ("latency", "throughput", "cost")


@dataclass(frozen=True)
class Field:
    """All configurations that may be run.

    Attributes:
        table: predictions of all legal configurations.
        rows: those that fit, best predicted first.
        scale: objective over request time, of all rows.
        pick: what `recommend` puts first; ties: what it says to tie with that.
        belief: over all rows.
    """

    table: Table
    rows: NDArray[np.intp]
    scale: Column
    pick: int
    ties: tuple[int, ...]
    belief: Belief

    @cached_property
    def contenders(self) -> NDArray[np.intp]:
        """The rows that are drawn: of those that do the same work in the same time, one."""
        rows = [self.pick, *self.ties, *self.rows.tolist()]
        work = denoise_layouts(self.table.evaluation.layouts)
        seconds = self.table.evaluation.latency_s
        first: dict[tuple[int, str], int] = {}
        for row in rows:
            first.setdefault((int(work[row]), f"{seconds[row]:.6e}"), row)
        return np.array(list(first.values())[:CONTENDERS], np.intp)

    def draws(self, seed: int = 0, stages: Sequence[str] = STAGES) -> Matrix:
        """Objectives of the contenders, drawn together, ``[DRAWS, contenders]``.

        Weights that are sharded needlessly make no draw faster, and what runs out of memory
        (tight: one error of the memory for all of a draw) takes `OUT_OF_MEMORY` times as long.
        """
        rows = self.contenders
        drawn = self.belief.take(rows).draws_s(DRAWS, seed, stages) * self.scale[rows]
        times = self.table.evaluation.latency_s * self.scale
        pairs = needless_sharding(self.table.evaluation.layouts, rows, times)
        for sharded, plain in pairs.items():
            drawn[:, sharded] = np.maximum(drawn[:, sharded], drawn[:, plain])
        return np.where(self._runs_out(rows, seed), OUT_OF_MEMORY * drawn, drawn)

    def _runs_out(self, rows: NDArray[np.intp], seed: int) -> NDArray[np.bool_]:
        """Where a tight row exceeds the memory, ``[DRAWS, rows]``; never where the pick is tight.

        Formula: ``required + z x (upper - required) / Z80 > capacity``, one normal z a draw.
        """
        memory = self.table.memory
        if memory.tight[self.pick]:
            return np.zeros((DRAWS, len(rows)), bool)
        z = np.random.default_rng([seed, len(rows)]).standard_normal((DRAWS, 1))
        spread_bytes = (memory.upper_bytes - memory.required_bytes)[rows] / Z80
        over = memory.required_bytes[rows] + z * spread_bytes > memory.capacity_bytes
        return np.asarray(over & memory.tight[rows])

    def minutes(self, repeats: float = REPEATS) -> Column:
        """Wall time of a run of each row: start, warm-up, requests."""
        job = self.table.session.job
        first_s = job.machine.term("first_request_s")
        requests = repeats * sent_together(self.table) + WARMUPS
        seconds = START_S + first_s + requests * self.table.evaluation.latency_s
        return np.asarray(seconds / S_PER_MINUTE)


def survey(
    session: Session,
    objective: str = "latency",
    candidates: Sequence[str | ParallelConfig] = (),
    *,
    use_all_gpus: bool = False,
    fitting: bool = True,
) -> Field | Answer:
    """Predict everything that may be run; the answer of `recommend` where nothing fits.

    Args:
        session: the question.
        objective: latency, throughput or cost.
        candidates: only these configurations; empty: the whole search space.
        use_all_gpus: leave out configurations of fewer devices.
        fitting: leave out what does not fit by prediction.

    Raises:
        BadInput: an objective that no run measures, an unreadable id, no layout of all devices.
        Refused, MissingData: no legal configuration.
    """
    if objective not in OBJECTIVES:
        legal = ", ".join(OBJECTIVES)
        message = f"--objective {objective} needs no runs: it is no time; legal: {legal}"
        raise BadInput(Problem("objective", message, "--objective", objective, OBJECTIVES))
    layouts = _layouts(session, candidates)
    table = build_table(session, layouts)
    evaluation, num_gpus = table.evaluation, session.system.num_gpus
    allowed = table.memory.fits.copy() if fitting else np.ones(len(layouts), bool)
    if use_all_gpus:
        refuse_without_all(session, layouts, objective, named=bool(candidates))
        allowed &= uses_all(session, layouts, objective)
    if not allowed.any():
        answer = Answer(
            workload=header.workload_info(session),
            system=header.system_info(session),
            engine=header.engine_info(session),
            objective=objective,
        )
        return misfit.explain(session, table, answer, all_gpus=objective if use_all_gpus else "")
    requests = session.workload.concurrency
    scores = score(evaluation, table.memory.peak_bytes, objective, num_gpus, requests)
    order = np.flatnonzero(allowed)
    order = order[np.argsort(scores[order], kind="stable")]
    memory = table.memory
    ranking = rank(
        evaluation, allowed, scores, memory.peak_bytes, memory.tight, memory.capacity_bytes
    )
    return Field(
        table=table,
        rows=order,
        scale=scores / evaluation.latency_s,
        pick=int(ranking.order[0]),
        ties=tuple(int(row) for row in ranking.order[1:STATED][ranking.tied[1:STATED]]),
        belief=believe(evaluation),
    )


def settled_for(
    session: Session, candidates: Sequence[str | ParallelConfig] = (), all_gpus: str = ""
) -> Session:
    """`session` with ``offload=auto`` resolved for what competes.

    `all_gpus`: the objective under which only configurations of all devices do, "" where all do.

    Raises:
        BadInput, Refused, MissingData: as `survey`.
    """
    if session.options.offload != "auto":
        return session
    layouts = _layouts(session, candidates)
    return settled(session, of_all(session, layouts, all_gpus) if all_gpus else layouts)


def _layouts(session: Session, candidates: Sequence[str | ParallelConfig]) -> Layouts:
    """The legal layouts, of the whole search space or of those named."""
    if not candidates:
        return legal_layouts(session, legality(session, search_space(session)))
    configs = [c if isinstance(c, ParallelConfig) else _layout(c, session) for c in candidates]
    rules, context = session.engine.rules(), session.context
    broken = tuple(p for c in configs for p in problems(rules, context, c) if p.severity == "error")
    if broken:
        raise refusal(*dict.fromkeys(broken))
    return Layouts.of(dict.fromkeys(configs))


def _layout(candidate: str, session: Session) -> ParallelConfig:
    """A candidate's layout; options are those of the whole plan.

    Raises:
        BadInput: the candidate's id names an option that the plan has not.
    """
    config, options = parse_parallel(candidate)
    behaviour = session.behaviour
    own = id_suffixes(behaviour.options, behaviour.assumed)
    if other := [option for option in options if option not in own]:
        message = (
            f"--candidates {candidate} names {', '.join(other)}, but options hold for the whole "
            f"plan; try --candidates {config.config_id} and the option by itself (--dtype, "
            "--offload, --cache, --attention)"
        )
        raise BadInput(Problem("candidates", message, "--candidates", candidate))
    return config


def choose_runs(
    field: Field,
    draws: Matrix | None = None,
    *,
    max_runs: int,
    budget_minutes: float | None = None,
    stages: Sequence[str] = STAGES,
    all_runs: bool = False,
) -> Choice:
    """The runs of a field; `all_runs`: as many as there may be, however little they tell."""
    draws = field.draws(stages=stages) if draws is None else draws
    rows = field.contenders
    configs = [field.table.evaluation.layouts.row(int(row)) for row in rows]
    world = field.table.evaluation.layouts.world_size[rows]
    minutes = field.minutes()[rows]
    pick, ties = field.pick, field.ties
    if tuple(stages) != STAGES:
        pick, ties = int(rows[np.argmin(field.belief.take(rows).time_s(stages))]), ()
    places = {int(row): place for place, row in enumerate(rows)}
    return choose(
        draws,
        places[pick],
        minutes * world,
        minutes,
        lambda candidate, runs: min(things(changes(configs[r], configs[candidate])) for r in runs),
        max_runs=max_runs,
        budget_minutes=budget_minutes,
        repeats=REPEATS,
        all_runs=all_runs,
        ties=[places[row] for row in ties],
    )
