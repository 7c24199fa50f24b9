"""What would beat the best, if its memory holds: a tight layout, or one with offload."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.api.offload import MODES, enough, host_needs
from perfmodel.api.records import Table
from perfmodel.api.table import build_table, legality
from perfmodel.memory import STATUS
from perfmodel.pipeline.lines import Column
from perfmodel.pipeline.uncertainty import REPEAT_FRAC
from perfmodel.report.answer import Choice
from perfmodel.spec.workload import GATHERED
from perfmodel.units import GIB, MS_PER_S, PERCENT

TIGHT = "tight"
OFFLOAD = "offload"


@dataclass(frozen=True, slots=True)
class Bar:
    """What is to be beaten.

    Attributes:
        best: score of the first recommendation, smaller is better.
        score: of each row of a table.
        allowed: which rows of a table may run at all, whatever memory they take.
        offload: whether offload may be proposed.
    """

    best: float
    score: Callable[[Table], Column]
    allowed: Callable[[Table], NDArray[np.bool_]]
    offload: bool

    def beaten(self, table: Table) -> NDArray[np.bool_]:
        """Rows that are better by more than repeats of a measurement differ."""
        return np.asarray(self.allowed(table) & (self.score(table) < self.best * (1 - REPEAT_FRAC)))


def worth_trying(tables: Sequence[Table], bar: Bar) -> tuple[Choice, ...]:
    """The best tight row, and the best with offload, where they beat the first recommendation."""
    tight = [choice for table in tables for choice in _tight(table, bar)]
    more = [choice for table in tables if bar.offload for choice in _offloaded(table, bar)]
    found = (min(some, key=_change, default=None) for some in (tight, more))
    return tuple(choice for choice in found if choice is not None)


def _change(choice: Choice) -> float:
    return choice.latency_change_pct or 0.0


def _tight(table: Table, bar: Bar) -> Iterator[Choice]:
    rows = np.flatnonzero(table.memory.tight & bar.beaten(table))
    if rows.size:
        scores = bar.score(table)
        row = int(rows[np.argmin(scores[rows])])
        upper, capacity = float(table.memory.upper_bytes[row]), table.memory.capacity_bytes
        why = f"its memory may reach {upper / GIB:,.1f} of {capacity / GIB:,.1f} GiB"
        yield _choice(table, row, TIGHT, float(scores[row]) / bar.best - 1, why=why)


def _offloaded(table: Table, bar: Bar) -> Iterator[Choice]:
    """Under each mode of offload, the best that surely fits and beats the bar.

    Offload takes no time away: only layouts that beat the bar and do not surely fit without it are
    tried.
    """
    sure = table.memory.fits & ~table.memory.tight
    layouts = table.evaluation.layouts.take(bar.beaten(table) & ~sure)
    for mode in _modes(table) if len(layouts) else ():
        options = table.session.options.model_copy(update={"offload": mode})
        session = table.session.with_options(options)
        legal = legality(session, layouts).legal
        if mode == GATHERED:
            legal = legal & (layouts.sequence_parallel * layouts.dp > 1)
        if not legal.any():
            continue
        other = build_table(session, layouts.take(legal))
        sure = enough(session.system, other.memory) & ~other.memory.tight & bar.beaten(other)
        if sure.any():
            scores = np.where(sure, bar.score(other), np.inf)
            row = int(np.argmin(scores))
            host_bytes = float(other.memory.host_bytes[row])
            yield _choice(
                other,
                row,
                OFFLOAD,
                float(scores[row]) / bar.best - 1,
                option=f"offload={mode}",
                host_memory_gib=host_bytes / GIB,
                needs=host_needs(session.system, host_bytes),
            )


def _modes(table: Table) -> list[str]:
    has, now = table.session.behaviour.offload_modes, table.session.options.offload
    return [mode for mode in MODES if mode in has and mode not in ("none", now)]


def _choice(table: Table, row: int, title: str, change: float, **extra: object) -> Choice:
    fields = {
        "title": title,
        "config_id": table.config_id(row),
        "num_gpus": table.num_gpus(row),
        "latency_ms": float(table.evaluation.latency_s[row]) * MS_PER_S,
        "latency_change_pct": change * PERCENT,
        "memory_gib": float(table.memory.peak_bytes[row]) / GIB,
        "fit_status": STATUS[int(table.memory.fit_status[row])],
    }
    return Choice.model_validate({**fields, **extra})
