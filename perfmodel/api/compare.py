"""The same question several times, side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from perfmodel.report.answer import (
    Answer,
    CompareAnswer,
    CompareRow,
    Document,
    PredictAnswer,
    Prediction,
)
from perfmodel.units import PERCENT


def compare(answered: Sequence[tuple[Mapping[str, str], Document]]) -> CompareAnswer:
    """Put answers beside each other.

    Args:
        answered: (varied flags and their values, answer), in the order to show.

    Returns:
        A row a case; its status is ``ok`` when at least one case has a prediction.
    """
    varied: dict[str, tuple[str, ...]] = {}
    for values, _ in answered:
        for key, value in values.items():
            if value not in varied.get(key, ()):
                varied[key] = (*varied.get(key, ()), value)
    predictions = [_prediction(document) for _, document in answered]
    first_ms = next((ms for p in predictions if p and (ms := stay_ms(p))), None)
    rows = tuple(
        _row(values, document, found, first_ms)
        for (values, document), found in zip(answered, predictions, strict=True)
    )
    reference = next((d for _, d in answered if d.workload is not None), answered[0][1])
    ids = "".join(row.answer_id or row.status for row in rows)
    return CompareAnswer(
        status="ok" if any(predictions) else answered[0][1].status,
        problems=() if any(predictions) else answered[0][1].problems,
        workload=reference.workload,
        system=reference.system,
        engine=reference.engine,
        objective=reference.objective,
        provenance=reference.provenance,
        warnings=tuple(dict.fromkeys(w for _, d in answered for w in d.warnings)),
        varied=varied,
        rows=rows,
        answer_id=hashlib.sha256(ids.encode()).hexdigest()[:8],
    )


def stay_ms(prediction: Prediction) -> float | None:
    """How long a request takes, on average over those in flight: what `recommend` ranks by."""
    return prediction.in_flight_mean_ms or prediction.latency_ms


def _prediction(document: Document) -> Prediction | None:
    if isinstance(document, PredictAnswer):
        return document.prediction
    if isinstance(document, Answer) and document.recommendations:
        return document.recommendations[0]
    return None


def _row(
    values: Mapping[str, str],
    document: Document,
    found: Prediction | None,
    first_ms: float | None,
) -> CompareRow:
    change = None
    if found is not None and (took_ms := stay_ms(found)) is not None and first_ms:
        change = (took_ms / first_ms - 1) * PERCENT
    return CompareRow(
        values=dict(values),
        status=document.status,
        prediction=found,
        vs_first_pct=change,
        trust=document.trust,
        answer_id=document.answer_id,
        problems=document.problems,
    )
