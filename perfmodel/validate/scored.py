"""Writes ``calibration/runs/scored.csv``: ``python -m perfmodel.validate.scored``.

Answers quote it: how far predictions were from measured runs like the one asked, and the nearest
of them.  To be written again when a law, a rule or a fit changes.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

from perfmodel import catalog
from perfmodel.catalog.scored import SCORED_FILE, ScoredRun, options_text
from perfmodel.spec.record import RunRecord, read_records
from perfmodel.validate.predicted import Predicted, predict_record
from perfmodel.validate.questions import Skip
from perfmodel.validate.runs import fitted_ids


def scored_run(record: RunRecord, fit_ids: frozenset[str]) -> ScoredRun | None:
    """A record beside its prediction; None if it is doubtful, or no whole request is predicted.

    Args:
        record: a measured run.
        fit_ids: records that some engine term was fitted to.
    """
    try:
        one = None if record.doubtful else predict_record(record)
    except Skip:
        return None
    if one is None or one.end_to_end_key is None:
        return None
    return _row(one, one.end_to_end_key, record.id in fit_ids)


def _row(one: Predicted, key: str, in_fit: bool) -> ScoredRun:
    asked, answer, record = one.question, one.answer, one.record
    request, engine = answer.workload, answer.engine
    assert request is not None
    assert engine is not None
    assert request.forwards is not None
    return ScoredRun(
        id=record.id,
        model=asked.workload.model,
        device=asked.system.device.id,
        num_gpus=asked.system.num_gpus,
        engine=record.engine,
        version=engine.version or "",
        config_id=answer.config_id or "",
        options=options_text(engine.options),
        task=request.task,
        width=request.width,
        height=request.height,
        frames=request.frames,
        steps=request.steps,
        forwards=request.forwards,
        batch=request.batch,
        concurrency=asked.workload.concurrency,
        measured_ms=record.measured_ms[key],
        predicted_ms=round(one.predicted_ms[key], 1),
        in_fit=in_fit,
        source=record.source or "",
        source_date=str(record.source_date or ""),
    )


def write(runs: Sequence[ScoredRun], path: Path) -> None:
    """One line a run, in the order given."""
    with path.open("w", encoding="utf-8", newline="") as out:
        rows = csv.writer(out, lineterminator="\n")
        rows.writerow(ScoredRun._fields)
        rows.writerows(runs)


def _all() -> Iterator[ScoredRun]:
    shipped = catalog.data_roots()[0]
    records, _ = read_records([shipped / "calibration" / "runs" / "public.jsonl"])
    fit_ids = fitted_ids()
    for record in records:
        if (found := scored_run(record, fit_ids)) is not None:
            yield found


if __name__ == "__main__":
    target = catalog.data_roots()[0] / SCORED_FILE
    target.unlink(missing_ok=True)  # predictions would quote what it says now
    scored = list(_all())
    write(scored, target)
    print(f"{len(scored)} runs in {target}")
