"""Answers to the cases of a comparison, put side by side."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.report.answer import (
    Answer,
    CompareAnswer,
    CompareRow,
    Document,
    PredictAnswer,
    Prediction,
)
from perfmodel.units import PERCENT


def side_by_side(
    cases: Sequence[tuple[dict[str, str], Document]], command: str | None = None
) -> CompareAnswer:
    """One row a case, in order; what all cases share stays in the header.

    Args:
        cases: the varied flags of a case, and its answer (`Answer` or `PredictAnswer`).
        command: the command line that asked for it.

    Returns:
        A `CompareAnswer`; ok as soon as one case is, else the status of the first.
    """
    rows: list[CompareRow] = []
    first_ms: float | None = None
    for values, answer in cases:
        best = best_of(answer)
        latency = best.latency_ms if best else None
        first_ms = latency if first_ms is None else first_ms
        change = (latency / first_ms - 1) * PERCENT if latency and first_ms else None
        rows.append(
            CompareRow(
                values=values,
                status=answer.status,
                prediction=best,
                vs_first_pct=change,
                trust=answer.trust,
                answer_id=answer.answer_id,
                problems=answer.problems,
            )
        )
    answers = [answer for _, answer in cases]
    return _document(rows, answers, command)


def best_of(answer: Document) -> Prediction | None:
    """The first recommendation, or the only prediction."""
    if isinstance(answer, PredictAnswer):
        return answer.prediction
    return next(iter(answer.recommendations), None) if isinstance(answer, Answer) else None


def _document(
    rows: list[CompareRow], answers: Sequence[Document], command: str | None
) -> CompareAnswer:
    keys = dict.fromkeys(key for row in rows for key in row.values)
    varied = {k: tuple(dict.fromkeys(r.values[k] for r in rows if k in r.values)) for k in keys}
    worst = answers[0].status if answers else "bad_input"
    status = "ok" if any(answer.status == "ok" for answer in answers) else worst

    def common(name: str) -> object:
        values = [getattr(answer, name) for answer in answers]
        return values[0] if values and all(value == values[0] for value in values) else None

    shared = {name: common(name) for name in ("workload", "system", "engine", "objective")}
    warnings = dict.fromkeys(warning for answer in answers for warning in answer.warnings)
    return CompareAnswer(
        status=status,
        rows=tuple(rows),
        varied=varied,
        warnings=tuple(warnings),
        provenance=common("provenance") or {},
        command=command,
        **shared,
    )
