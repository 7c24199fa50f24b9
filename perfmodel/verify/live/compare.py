"""Measured rows beside the predicted operators, and what they say of the whole stage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from perfmodel.report.live_answer import LiveRow
from perfmodel.units import MS_PER_S, PERCENT
from perfmodel.verify.live.question import Predicted, Question
from perfmodel.verify.live.store import Row

BLOCK, FORWARD, STEP, DECODE = "block", "forward", "step", "decode"


@dataclass(frozen=True)
class Summed:
    """All rows of one operator: time of one unit."""

    each_ms: float
    spread_ms: float
    repeats: int
    skipped: str | None


def summed(rows: Iterable[Row]) -> dict[str, Summed]:
    """Time of an operator in one unit: over all shapes that it runs on."""
    found: dict[str, Summed] = {}
    for row in rows:
        old = found.get(row.operator, Summed(0.0, 0.0, 0, None))
        found[row.operator] = Summed(
            old.each_ms + row.occurrences * (row.each_ms or 0.0),
            old.spread_ms + row.occurrences * (row.spread_ms or 0.0),
            row.repeats,
            old.skipped or row.skipped,
        )
    return found


def denoise_rows(question: Question, rows: Iterable[Row]) -> list[LiveRow]:
    """Operators of the denoise stage that were run, by falling predicted time."""
    predicted = question.denoise()
    whole_s = sum(one.total_s for one in predicted.values())
    blocks, steps = question.block_runs(), float(question.job.shape.steps)
    forwards = blocks / question.job.model.transformer.layers
    units = ((BLOCK, blocks), (FORWARD, forwards), (STEP, steps))
    found = []
    for name, time in summed(rows).items():
        one = predicted.get(name)
        if one is None:
            continue
        # an operator runs at least once in its unit
        unit, runs = next(((u, r) for u, r in units if one.count >= r), (STEP, one.count))
        found.append(_row("denoise", one, unit, one.total_s / runs, time, one.total_s / whole_s))
    return sorted(found, key=lambda row: -(row.share or 0.0))


def vae_rows(question: Question, rows: Iterable[Row]) -> list[LiveRow]:
    """Operators of the VAE slice: a whole decode runs each `count` times."""
    predicted = question.vae()
    whole_s = sum(one.total_s for one in predicted.values())
    found = []
    for row in rows:
        parts = [predicted[name] for name in (row.operator, *row.also) if name in predicted]
        if row.operator not in predicted or not parts:
            continue
        runs = predicted[row.operator].count
        each_s = sum(one.total_s / one.count for one in parts)
        share = sum(one.total_s for one in parts) / whole_s
        time = Summed(row.each_ms or 0.0, row.spread_ms or 0.0, row.repeats, row.skipped)
        unit = f"of {runs:,.0f} a {DECODE}"
        found.append(_row("vae_decode", parts[0], unit, each_s, time, share))
    return sorted(found, key=lambda row: -(row.share or 0.0))


def _row(
    stage: str, one: Predicted, unit: str, predicted_s: float, time: Summed, share: float
) -> LiveRow:
    predicted_ms = predicted_s * MS_PER_S
    measured_ms = None if time.skipped or not time.each_ms else time.each_ms
    return LiveRow(
        stage=stage,
        operator=one.name,
        kind=one.kind,
        unit=unit,
        predicted_ms=predicted_ms,
        measured_ms=measured_ms,
        error_pct=None if measured_ms is None else (predicted_ms / measured_ms - 1) * PERCENT,
        spread_ms=None if measured_ms is None else time.spread_ms,
        repeats=time.repeats,
        share=share,
        bound=one.bound,
        provenance=one.provenance,
        skipped=time.skipped,
    )


@dataclass(frozen=True)
class Block:
    """One block on all ranks [ms], predicted with what overlaps, and over its operators alone."""

    predicted_ms: float
    runs: float


def block(question: Question, rows: Iterable[LiveRow]) -> Block:
    """The predicted time of one block: its operators as a request sees them."""
    names = {row.operator for row in rows if row.unit == BLOCK}
    runs = question.block_runs()
    seconds = sum(float(line.total_s[0]) for line in question.stage_lines() if line.name in names)
    return Block(seconds / runs * MS_PER_S, runs)


def stage_ms(question: Question) -> float:
    """The predicted denoise stage [ms]."""
    return sum(float(line.total_s[0]) for line in question.stage_lines()) * MS_PER_S


def extrapolated_ms(
    question: Question, rows: Iterable[LiveRow], block_ms: float | None
) -> float | None:
    """The denoise stage with measured blocks and operators in the place of the predicted ones."""
    if block_ms is None:
        return None
    seen = {row.operator: row for row in rows if row.measured_ms is not None}
    inside = {name for name, row in seen.items() if row.unit == BLOCK}
    total = block_ms * question.block_runs()
    for line in question.stage_lines():
        milliseconds = float(line.total_s[0]) * MS_PER_S
        if line.name in inside:
            continue
        row = seen.get(line.name)
        if row is not None and row.measured_ms is not None and row.predicted_ms > 0:
            milliseconds *= row.measured_ms / row.predicted_ms
        total += milliseconds
    return total


def not_built(predicted: Mapping[str, Predicted], rows: Iterable[LiveRow]) -> dict[str, float]:
    """Share of each predicted operator that was not run, largest first."""
    names = {row.operator for row in rows}
    whole = sum(one.total_s for one in predicted.values()) or 1.0
    left = {name: one.total_s / whole for name, one in predicted.items() if name not in names}
    return dict(sorted(left.items(), key=lambda item: -item[1]))
