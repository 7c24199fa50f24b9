"""What a client waits for when more than one request is in flight."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.engines.base import Behaviour
from perfmodel.pipeline.queue import wave
from perfmodel.spec.record import RunRecord
from perfmodel.validate.questions import replicas

CLIENT_KEYS = ("client", "e2e")
"""What is measured from outside the server."""


def waited(
    record: RunRecord,
    behaviour: Behaviour,
    by_key_ms: Mapping[str, float],
    encode_ms: float,
    end: str,
) -> dict[str, float]:
    """Milliseconds by key with the time that other requests take.

    Args:
        record: the run; `concurrency` is null where one request ran alone.
        behaviour: of its engine.
        by_key_ms: of a request alone.
        encode_ms: encoding its file.
        end: ``low``, ``mid`` or ``high`` of the range.
    """
    times, after_ms = _queue(record, end), _in_turn(record, behaviour, end) * encode_ms
    return {
        key: value * times + after_ms if key in CLIENT_KEYS else value
        for key, value in by_key_ms.items()
    }


def _queue(record: RunRecord, end: str) -> float:
    """Times of a request that a client waits when more are in flight than replicas take.

    Formula: between the mean of one wave, sent at once, and ``ceil(in flight / replicas)`` (a new
        request for each that is done); the middle of both.  Of a wave whose mean or last request
        is stated, that one.
    """
    at_once, steady = map(float, wave(record.concurrency or 1, replicas(record)))
    if record.latency_of is not None:
        return steady if record.latency_of == "last" else at_once
    return {"low": at_once, "high": steady}.get(end, (at_once + steady) / 2)


def _in_turn(record: RunRecord, behaviour: Behaviour, end: str) -> float:
    """Files that are encoded before a request's own, of requests that end together.

    Formula: of ``k`` replicas that end together the last waits for ``k - 1`` files, the mean
        request for ``(k - 1) / 2``; the middle of both where the source does not say which it is.
    """
    together = min(record.concurrency or 1, replicas(record))
    if not behaviour.encodes_in_turn or together == 1:
        return 0.0
    mean, last = (together - 1) / 2, float(together - 1)
    if record.latency_of is not None:
        return last if record.latency_of == "last" else mean
    return {"low": mean, "high": last}.get(end, (mean + last) / 2)
