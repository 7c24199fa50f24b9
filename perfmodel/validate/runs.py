"""How far predictions are from measured runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from perfmodel import catalog
from perfmodel.report.validate_answer import RecordDetail, Skipped, ValidateAnswer
from perfmodel.spec.record import RunRecord, read_records
from perfmodel.units import PERCENT
from perfmodel.validate.predicted import Predicted, predict_record
from perfmodel.validate.questions import Skip, version_of
from perfmodel.validate.scores import errors, grouped, likely_unit
from perfmodel.validate.sweeps import sweep_rows

STAGE_METRICS = ("denoise", "denoise_per_step", "vae_decode", "vae_encode", "text_encode")
METRICS = ("e2e", *STAGE_METRICS, "peak_memory")
GROUPS = ("gpu", "model", "engine", "num_gpus")


def validate_runs(
    paths: Iterable[Path],
    *,
    include_doubtful: bool = False,
    fit_ids: frozenset[str] = frozenset(),
    in_fit: bool | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> ValidateAnswer:
    """Predict every record and score it.

    Args:
        paths: JSONL files.
        include_doubtful: doubtful records enter the metrics.
        fit_ids: records that some engine term was fitted to.
        in_fit: score only records inside (True) or outside (False) the fits; None all.
        progress: called with (done, all).
    """
    records, bad = read_records(paths)
    predicted, skipped = _predict_all(records, progress)
    scored = [
        one
        for one in predicted
        if (include_doubtful or not one.record.doubtful)
        and (in_fit is None or (one.record.id in fit_ids) == in_fit)
    ]
    sweeps, summary = sweep_rows(scored)
    inside, halfwidths = _intervals(scored)
    return ValidateAnswer(
        records=len(records),
        predicted=len(predicted),
        scored=len(scored),
        scope=_scope(include_doubtful, in_fit),
        skipped=tuple(skipped),
        bad_rows=tuple(problem.message for problem in bad),
        metrics={
            name: found for name in METRICS if (found := errors(_pairs(scored, name))) is not None
        },
        by=grouped(_labelled(scored), GROUPS),
        sweeps=tuple(sweeps),
        sweep_summary=summary,
        interval_coverage=float(np.mean(inside)) if inside else None,
        interval_halfwidth_median_pct=float(np.median(halfwidths)) if halfwidths else None,
        records_detail=tuple(_detail(one, fit_ids) for one in predicted),
    )


def fitted_ids() -> frozenset[str]:
    """Ids of the runs that some engine term was fitted to."""
    ids: set[str] = set()
    for path in catalog.data_files("calibration/engines/*.json"):
        for entry in (catalog.own_terms(path.stem).get("terms") or {}).values():
            ids |= set(entry.get("records", ()))
    return frozenset(ids)


def _scope(include_doubtful: bool, in_fit: bool | None) -> str:
    rows = {None: "all", True: "inside a fit", False: "outside every fit"}[in_fit]
    return f"{rows}, {'with' if include_doubtful else 'without'} doubtful rows"


def _predict_all(
    records: Sequence[RunRecord], progress: Callable[[int, int], None] | None
) -> tuple[list[Predicted], list[Skipped]]:
    predicted: list[Predicted] = []
    skipped: list[Skipped] = []
    for number, record in enumerate(records, start=1):
        try:
            one = predict_record(record)
        except Skip as reason:
            skipped.append(Skipped(id=record.id, reason=str(reason)))
        else:
            if one.predicted_ms or one.memory_mib is not None:
                predicted.append(one)
            else:
                skipped.append(Skipped(id=record.id, reason="measures nothing that is predicted"))
        if progress is not None:
            progress(number, len(records))
    return predicted, skipped


def _key(one: Predicted, metric: str) -> str | None:
    if metric == "e2e":
        return one.end_to_end_key
    return metric if metric in one.predicted_ms else None


def _pairs(scored: Sequence[Predicted], metric: str) -> Iterator[tuple[float, float]]:
    for one in scored:
        if metric == "peak_memory":
            if one.memory_mib is not None and one.record.peak_memory_mib:
                yield one.memory_mib, one.record.peak_memory_mib
        elif key := _key(one, metric):
            yield one.predicted_ms[key], one.record.measured_ms[key]


def _labelled(
    scored: Sequence[Predicted],
) -> Iterator[tuple[Mapping[str, str], float, float]]:
    """One row a record: its end-to-end time, else its denoise time."""
    for one in scored:
        key = one.main_key
        if key is None:
            continue
        labels = {
            "gpu": one.question.system.device.id,
            "model": one.question.workload.model,
            "engine": one.record.engine,
            "num_gpus": str(one.question.system.num_gpus),
        }
        yield labels, one.predicted_ms[key], one.record.measured_ms[key]


def _intervals(scored: Sequence[Predicted]) -> tuple[list[bool], list[float]]:
    """Whether the 80 % interval held each measured value, and its half-width in percent."""
    inside: list[bool] = []
    halfwidths: list[float] = []
    for one in scored:
        key = one.main_key
        if key is None:
            continue
        low, high = one.low_ms[key], one.high_ms[key]
        inside.append(low <= one.record.measured_ms[key] <= high)
        if one.predicted_ms[key] > 0:
            halfwidths.append((high - low) / 2 / one.predicted_ms[key] * PERCENT)
    return inside, halfwidths


def _detail(one: Predicted, fit_ids: frozenset[str]) -> RecordDetail:
    measured = {key: one.record.measured_ms[key] for key in one.predicted_ms}
    ape = {
        key: abs(one.predicted_ms[key] / value - 1) * PERCENT
        for key, value in measured.items()
        if value > 0
    }
    memory = None
    if one.memory_mib is not None and one.record.peak_memory_mib:
        memory = (one.memory_mib, one.record.peak_memory_mib)
    return RecordDetail(
        id=one.record.id,
        engine=one.record.engine,
        model=one.question.workload.model,
        gpu=one.question.system.device.id,
        num_gpus=one.question.system.num_gpus,
        config_id=one.answer.config_id,
        source=one.record.source,
        doubtful=one.record.doubtful,
        in_fit=one.record.id in fit_ids,
        predicted_ms=one.predicted_ms,
        measured_ms=measured,
        ape=ape,
        low_ms=one.low_ms,
        high_ms=one.high_ms,
        peak_memory_mib=memory,
        assumed=one.question.assumed,
        likely_reason=likely_reason(one),
    )


def likely_reason(one: Predicted) -> str | None:
    """What most probably explains a miss outside the interval: the largest uncertain part."""
    key = one.main_key
    if key is None or one.low_ms[key] <= one.record.measured_ms[key] <= one.high_ms[key]:
        return None
    predicted_ms, measured_ms = one.predicted_ms[key], one.record.measured_ms[key]
    unit = likely_unit(predicted_ms, measured_ms) if key != "text_encode" else None
    if unit is not None:
        return f"looks like {unit}, not ms: {key}"
    if "engine_version" in one.question.assumed:
        day, _ = version_of(one.record)
        taken = "taken from the source's date" if day else "the newest is taken"
        return f"engine version not stated, {taken}"
    prediction = one.answer.prediction
    if prediction is None:
        return None
    bound = prediction.stages_bound
    values = prediction.stages_ms.model_dump()
    stage = max(values, key=lambda name: values[name] or 0.0)
    return f"{stage.replace('_', ' ')}, limited by {bound.get(stage, 'unknown')}"
