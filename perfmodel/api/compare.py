"""The same question several times, side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import TypeVar

from perfmodel.report.answer import (
    Answer,
    CompareAnswer,
    CompareRow,
    Document,
    EngineInfo,
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
        system=_common([d.system for _, d in answered if d.system]),
        engine=_common_engine([d.engine for _, d in answered if d.engine]),
        objective=reference.objective,
        provenance=_provenance([document for _, document in answered]),
        warnings=tuple(dict.fromkeys(w for _, d in answered for w in d.warnings)),
        varied=varied,
        rows=rows,
        answer_id=hashlib.sha256(ids.encode()).hexdigest()[:8],
    )


Part = TypeVar("Part")


def _common(parts: Sequence[Part]) -> Part | None:
    """What all cases have; None where they differ."""
    return parts[0] if parts and all(part == parts[0] for part in parts) else None


def _common_engine(found: Sequence[EngineInfo]) -> EngineInfo | None:
    """Engine and version with the options that are the same in all cases."""
    if not found or len({(one.name, one.version) for one in found}) > 1:
        return None
    first = found[0]
    same = {
        key: value
        for key, value in first.options.items()
        if all(key in one.options and one.options[key] == value for one in found)
    }
    assumed = tuple(
        name
        for name in first.assumed
        if name not in first.options or (name in same and all(name in o.assumed for o in found))
    )
    return first.model_copy(update={"options": same, "assumed": assumed})


def _provenance(documents: Sequence[Document]) -> dict[str, str]:
    """What the numbers of all cases were made from: each fit, each engine's rules."""
    found: dict[str, list[str]] = {}
    for document in documents:
        for key, value in document.provenance.items():
            if value not in found.setdefault(key, []):
                found[key].append(value)
    return {key: " + ".join(values) for key, values in found.items()}


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
