"""One record beside its prediction: stages, range, memory, and what is odd in it."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.api.records import low_high_ms
from perfmodel.pipeline.evaluate import STAGES
from perfmodel.pipeline.uncertainty import halfwidth_s
from perfmodel.plan.belief import (
    HUBER_SD,
    distance_sd,
)
from perfmodel.report.answer import StageRow
from perfmodel.report.plan_answer import PlanAnswer
from perfmodel.report.verify_answer import VerifiedRun
from perfmodel.report.words import stage_title
from perfmodel.spec.record import RunRecord
from perfmodel.units import GIB, MIB, MS_PER_S, PERCENT
from perfmodel.verify.learned import (
    Judgement,
    Measured,
)
from perfmodel.verify.observe import WHOLE_KEYS, key_seconds, key_stages, observations
from perfmodel.verify.sort import Aside

DISAGREE_FRAC = 0.1
"""Records of one configuration that differ by more are named."""


def _letter(plan: PlanAnswer | None, record: RunRecord, config_id: str | None) -> str | None:
    if plan is None:
        return None
    by_run = {run.run_id: run.letter for run in plan.runs}
    by_config = {run.config_id: run.letter for run in plan.runs}
    return by_run.get(record.run or "") or by_config.get(config_id or "")


def set_aside(item: Aside, plan: PlanAnswer | None) -> VerifiedRun:
    """The row of a record that is not used."""
    return VerifiedRun(
        letter=_letter(plan, item.record, item.config_id),
        record_id=item.record.id,
        config_id=item.config_id,
        status="failed" if item.kind == "failed" else "set aside",
        reason=item.reason,
    )


def compared(
    found: Judgement, one: Measured, record: RunRecord, plan: PlanAnswer | None
) -> VerifiedRun:
    """The row of a record: what it measured, beside what was predicted of its configuration."""
    table, session = found.field.table, found.field.table.session
    config_id = table.config_id(one.row)
    measured = record.measured_ms
    compared_ms = measured.get(found.key) if found.key else None
    stages = _stage_rows(found, one.row, measured)
    predicted_ms = low = high = None
    if found.key:
        covered = key_stages(found.key, session)
        seconds = float(found.prior.time_s(covered)[one.row])
        times = int(session.job.shape.steps) if found.key == "denoise_per_step" else 1
        ends = _range_ms(found, one.row, covered)
        predicted_ms, low, high = (value / times for value in (seconds * MS_PER_S, *ends))
    error = outside = None
    if compared_ms and predicted_ms is not None and low is not None and high is not None:
        error = (predicted_ms / compared_ms - 1) * PERCENT
        outside = not low <= compared_ms <= high
    reserved = record.memory_kind != "driver"
    memory = table.memory.reserved_bytes if reserved else table.memory.peak_bytes
    seen_mib = record.peak_memory_mib
    return VerifiedRun(
        letter=_letter(plan, record, config_id),
        record_id=record.id,
        config_id=config_id,
        status="measured",
        notes=tuple(_notes(found, one, record)),
        stages=stages,
        compared_ms=compared_ms,
        predicted_ms=predicted_ms,
        error_pct=error,
        outside_range=outside,
        peak_memory_gib=None if seen_mib is None else seen_mib * MIB / GIB,
        predicted_memory_gib=None if seen_mib is None else float(memory[one.row]) / GIB,
    )


def _notes(found: Judgement, one: Measured, record: RunRecord) -> list[str]:
    """What is missing in a record, and what in it disagrees."""
    session = found.field.table.session
    if record.id.startswith("study "):
        return ["told to the study before, not in these results"]
    seen, notes = observations(one.row, record, found.prior, session)
    exists = [s for s in STAGES if found.prior.time_s((s,))[one.row] > 0 and s != "transfer"]
    present = {s for one_seen in seen if len(one_seen.stages) == 1 for s in one_seen.stages}
    missing = [stage_title(s) for s in exists if s not in present]
    if not present:
        notes.append("no stage times: the terms are told apart by the other runs only")
    elif missing:
        notes.append(f"no {', '.join(missing)}: learnt from what is there")
    if not any(key in record.measured_ms for key in WHOLE_KEYS):
        notes.append("no request time: the stages that are missing stay predicted")
    if any(abs(distance_sd(found.belief, one_seen)) > HUBER_SD for one_seen in seen):
        notes.append(_far(found))
    if found.key and len(one.taken) > 1:
        values = [
            t.record.measured_ms[found.key] for t in one.taken if found.key in t.record.measured_ms
        ]
        if values and max(values) > min(values) * (1 + DISAGREE_FRAC):
            notes.append(
                f"{len(values)} records of it differ by "
                f"{(max(values) / min(values) - 1) * PERCENT:.0f} %: their median counts"
            )
    return notes


def _far(found: Judgement) -> str:
    """What is said of a run that the terms do not reach: strange among others, or one of all."""
    session, belief = found.field.table.session, found.belief
    far = [
        any(
            abs(distance_sd(belief, seen)) > HUBER_SD
            for taken in one.taken
            for seen in observations(one.row, taken.record, found.prior, session)[0]
        )
        for one in found.measured
    ]
    if all(far):
        return "further from the prediction than the terms may move: is it the setting asked?"
    return "far from what the other runs say: it counts less; was it the same code?"


def _range_ms(found: Judgement, row: int, stages: Sequence[str]) -> tuple[float, float]:
    """80 % range of some stages of a row as predicted, in milliseconds: that of `recommend`."""
    evaluation, names = found.field.table.evaluation, tuple(stages)
    seconds = sum(float(evaluation.stages[name].total_s[row]) for name in names)
    return low_high_ms(seconds, float(halfwidth_s(evaluation, names)[row]))


def _stage_rows(found: Judgement, row: int, measured: dict[str, float]) -> tuple[StageRow, ...]:
    session, rows = found.field.table.session, []
    named: list[tuple[str, tuple[str, ...], float | None]] = [
        (stage, (stage,), measured.get(stage)) for stage in STAGES
    ]
    steps = int(session.job.shape.steps)
    per_step = measured.get("denoise_per_step")
    whole = next((k for k in WHOLE_KEYS if measured.get(k)), None)
    request_ms = None
    covered: tuple[str, ...] = STAGES
    if whole:
        covered = key_stages(whole, session)
        request_ms = key_seconds(whole, measured[whole], session) * MS_PER_S
    named.append(("request", covered, request_ms))
    for name, stages, seen in named:
        value = per_step * steps if seen is None and name == "denoise" and per_step else seen
        predicted_ms = float(found.prior.time_s(stages)[row]) * MS_PER_S
        low, high = _range_ms(found, row, stages)
        rows.append(
            StageRow(
                stage=name,
                predicted_ms=predicted_ms,
                low_ms=low,
                high_ms=high,
                measured_ms=value,
                error_pct=(predicted_ms / value - 1) * PERCENT if value else None,
                outside_range=not low <= value <= high if value and predicted_ms else None,
            )
        )
    return tuple(rows)
