"""Learn from the records that answer a question; the ranking with what was learnt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np
from numpy.typing import NDArray

from perfmodel.api.records import Table
from perfmodel.api.session import Session
from perfmodel.api.table import build_table
from perfmodel.pipeline.evaluate import STAGES
from perfmodel.pipeline.lines import Column
from perfmodel.pipeline.uncertainty import REPEAT_FRAC
from perfmodel.plan.belief import Z80, Belief, Matrix, believe, learn, log_sd
from perfmodel.plan.survey import Field
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.verify.observe import (
    WHOLE_KEYS,
    compared_key,
    key_seconds,
    key_stages,
    observations,
    wrong_unit,
)
from perfmodel.verify.sort import Aside, Taken

DRAWS = 4000
CONTENDERS = 160
NEXT_RUNS = 3
NEXT_SHARE = 0.05
"""A configuration is proposed as a further run when it is the best in this share of draws."""


@dataclass(frozen=True)
class Measured:
    """A configuration that was run.

    Attributes:
        taken: its records.
        row: in the belief's columns.
        measured_ms: median over the records, by key.
    """

    taken: tuple[Taken, ...]
    row: int
    measured_ms: dict[str, float]


@dataclass(frozen=True)
class Judgement:
    """Everything known after the measurements.

    Attributes:
        field: predictions; prior: the belief before, belief: after.
        measured: configurations that were run.
        latency_s: request time after the measurements, ``[N]``.
        known: whether a row's request time was measured as a whole, ``[N]``.
        key: what the runs are compared by.
    """

    field: Field
    prior: Belief
    belief: Belief
    measured: tuple[Measured, ...]
    latency_s: Column
    known: NDArray[np.bool_]
    key: str | None


def with_rows(field: Field, configs: Sequence[ParallelConfig]) -> Field:
    """`field` with rows for configurations that the search space has not."""
    layouts = field.table.evaluation.layouts
    present = {layouts.row(i) for i in range(len(layouts))}
    missing = [c for c in dict.fromkeys(configs) if c not in present]
    if not missing:
        return field
    everything = Layouts.of([*(layouts.row(i) for i in range(len(layouts))), *missing])
    table = build_table(field.table.session, everything)
    added = np.arange(len(layouts), len(everything))
    scale = np.concatenate([field.scale, np.full(len(missing), np.median(field.scale))])
    latency = table.evaluation.latency_s
    rows = np.concatenate([field.rows, added])
    rows = rows[np.argsort(latency[rows] * scale[rows], kind="stable")]
    return Field(table, rows, scale, field.pick, field.ties, believe(table.evaluation))


def split_units(field: Field, taken: Sequence[Taken]) -> tuple[list[Taken], list[Aside]]:
    """Records whose times look like another unit are set aside."""
    rows = _row_index(field.table)
    good: list[Taken] = []
    bad: list[Aside] = []
    for one in taken:
        measured = one.record.measured_ms
        row = rows[one.config]
        reason = wrong_unit(measured, row, field.belief, field.table.session)
        if reason:
            bad.append(Aside(one.record, one.config.config_id, "units", reason))
        else:
            good.append(one)
    return good, bad


def _row_index(table: Table) -> dict[ParallelConfig, int]:
    layouts = table.evaluation.layouts
    return {layouts.row(i): i for i in range(len(layouts))}


def judge(field: Field, taken: Sequence[Taken]) -> Judgement:
    """Learn from the records that answer the question."""
    session, rows = field.table.session, _row_index(field.table)
    groups: dict[ParallelConfig, list[Taken]] = {}
    for one in taken:
        groups.setdefault(one.config, []).append(one)
    measured = tuple(
        Measured(tuple(group), rows[config], _median([t.record.measured_ms for t in group]))
        for config, group in groups.items()
    )
    seen = [
        observation
        for one in measured
        for record in (t.record for t in one.taken)
        for observation in observations(one.row, record, field.belief, session)[0]
    ]
    belief = learn(field.belief, seen)
    latency_s = belief.latency_s.copy()
    known = np.zeros(len(latency_s), bool)
    for run in measured:
        latency_s[run.row], known[run.row] = _request_s(run, belief, session)
    key = compared_key([run.measured_ms for run in measured]) if measured else None
    return Judgement(field, field.belief, belief, measured, latency_s, known, key)


def _median(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: median(row[key] for row in rows if key in row) for key in keys}


def _request_s(one: Measured, belief: Belief, session: Session) -> tuple[float, bool]:
    """Request time of a measured row, and whether all of it was measured."""
    for key in WHOLE_KEYS:
        if one.measured_ms.get(key):
            stages = key_stages(key, session)
            rest = [s for s in STAGES if s not in stages]
            rest_s = float(belief.time_s(rest)[one.row]) if rest else 0.0
            return key_seconds(key, one.measured_ms[key], session) + rest_s, True
    stages_s = {stage: float(belief.time_s((stage,))[one.row]) for stage in STAGES}
    for key, milliseconds in one.measured_ms.items():
        if len(stages := key_stages(key, session)) == 1 and milliseconds:
            stages_s[stages[0]] = key_seconds(key, milliseconds, session)
    return sum(stages_s.values()), False


def ranked(found: Judgement) -> tuple[list[int], Matrix]:
    """Rows that fit, best first, and draws of their objective, in that order.

    A configuration that nobody ran goes before the best measured one only where it is faster
    beyond the error of the difference; else it is one more run to propose.
    """
    field = found.field
    scores = found.latency_s * field.scale
    order = field.rows[np.argsort(scores[field.rows], kind="stable")]
    order = order[:CONTENDERS]
    places = np.flatnonzero(found.known[order])
    if places.size and places[0] > 0:
        draws = _draws(found, order)
        best = int(places[0])
        if not surely_less(draws[:, 0], draws[:, best]):
            order = np.concatenate([order[[best]], np.delete(order, best)])
    return [int(row) for row in order], _draws(found, order)


def surely_less(first: Column, second: Column) -> bool:
    """Whether draws of one time lie below those of another by more than their difference varies."""
    ratio = np.log(first / second)
    return bool(np.median(ratio) + Z80 * ratio.std() < 0)


def _draws(found: Judgement, order: NDArray[np.intp]) -> Matrix:
    """Objectives of some rows, drawn together; what was measured varies as repeats do."""
    draws = found.belief.take(order).draws_s(DRAWS)
    random = np.random.default_rng(1)
    for place, row in enumerate(order):
        if found.known[row]:
            noise = random.standard_normal(DRAWS) * log_sd(REPEAT_FRAC)
            draws[:, place] = found.latency_s[row] * np.exp(noise)
        else:
            middle = float(found.belief.latency_s[row])
            draws[:, place] *= found.latency_s[row] / middle
    return np.asarray(draws * found.field.scale[order])


def loss_frac(draws: Matrix) -> float:
    """Expected loss of the first place against the best of all."""
    return float((draws[:, 0] / draws.min(axis=1)).mean() - 1)


def next_runs(found: Judgement, order: Sequence[int], draws: Matrix) -> tuple[str, ...]:
    """Configurations that nobody ran and that may be the best."""
    share = (draws <= draws.min(axis=1)[:, None]).mean(axis=0)
    measured = {one.row for one in found.measured}
    likely = sorted(range(len(order)), key=lambda place: -share[place])
    rows = [order[p] for p in likely if share[p] >= NEXT_SHARE and order[p] not in measured]
    return tuple(found.field.table.config_id(row) for row in rows[:NEXT_RUNS])
