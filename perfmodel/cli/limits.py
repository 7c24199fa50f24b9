"""Exit codes of limits that a user set: 5 where the answer is slower or less exact."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.cli.given import Given

if TYPE_CHECKING:
    from perfmodel.report.answer import Answer, CompareAnswer, Prediction

LIMIT_MISSED = 5


def of_answer(answer: Answer, limit_ms: float | None) -> int:
    """Exit code 0 when the best configuration is within ``--max-latency``, else a line and 5."""
    from perfmodel.cli.streams import say
    from perfmodel.report.words import milliseconds

    best = _longest_ms(answer.recommendations[0]) if answer.recommendations else None
    if limit_ms is None or (best is not None and best <= limit_ms):
        return 0
    requests = answer.workload.concurrency if answer.workload else 1
    what = "the fastest configuration"
    if requests > 1:
        what = f"with {what} the last of {requests} requests in flight"
    say(
        f"error[max-latency]: {what} takes {milliseconds(best)} ms, over "
        f"--max-latency {milliseconds(limit_ms)}; more GPUs, fewer --steps or a smaller --size "
        "are faster"
    )
    return LIMIT_MISSED


def of_cases(answer: CompareAnswer, given: Given) -> int:
    """Exit code 0 when a case is as fast as its ``--max-latency``, else a line and 5."""
    from perfmodel.cli.streams import say
    from perfmodel.cli.values import number

    for row in answer.rows:
        limit = number(row.values.get("max_latency") or given.text("max_latency") or "")
        took = _longest_ms(row.prediction) if row.prediction else None
        if limit is None or (took is not None and took <= limit):
            return 0
    say("error[max-latency]: no case is as fast as its --max-latency; vary gpus, steps or size")
    return LIMIT_MISSED


def _longest_ms(prediction: Prediction) -> float | None:
    """What a limit is compared with: the slowest of the requests in flight."""
    return prediction.in_flight_worst_ms or prediction.latency_ms
