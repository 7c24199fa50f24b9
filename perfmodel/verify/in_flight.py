"""Runs of several requests in flight, as one request alone."""

from __future__ import annotations

from perfmodel.pipeline.queue import wave
from perfmodel.spec.record import RunRecord
from perfmodel.validate.questions import replicas
from perfmodel.validate.waiting import CLIENT_KEYS

SERVER_KEYS = ("server", "stage_gen")
"""Times of a whole request at the server; some servers count from the arrival, so with the wait."""
WAITED = "requests in flight: its times hold those that waited"


def waits(record: RunRecord) -> bool:
    """Whether some of the requests in flight wait for others."""
    return (record.concurrency or 1) > replicas(record)


def unclear(record: RunRecord) -> str:
    """Why the times of a run cannot be told from the wait for others; "" where they can."""
    if not waits(record) or stays(record) is not None:
        return ""
    why = "for files of other replicas too" if record.latency_of else "latency_of names none"
    return f"{record.concurrency} {WAITED} ({why})"


def stays(record: RunRecord) -> float | None:
    """Services that the stated latency holds; None where the record does not state which it is.

    Formula: `perfmodel.pipeline.queue.wave` of the requests on the replicas, mean or last.
        Replicas that end together also wait for each other's files: only one replica is known.
    """
    if record.latency_of is None or replicas(record) > 1:
        return None
    mean, last = map(float, wave(record.concurrency or 1, 1))
    return last if record.latency_of == "last" else mean


def alone(record: RunRecord) -> RunRecord:
    """`record` with the client's times of one request alone, where they are of a known one.

    Extremes of a wave are its first and last, no spread of repeats: they are left out.
    """
    times = stays(record)
    if times is None or not waits(record):
        return record
    measured = {
        key: value / times if key in CLIENT_KEYS else value
        for key, value in record.measured_ms.items()
        if key not in SERVER_KEYS and not key.endswith(("_min", "_max"))
    }
    return record.model_copy(update={"measured_ms": measured})


def note(record: RunRecord) -> list[str]:
    """What was made of the times of a run of several requests in flight."""
    times = stays(record)
    if times is None or not waits(record):
        return []
    return [
        f"{record.concurrency} requests in flight: a request alone is taken as the client's "
        f"{record.latency_of} / {times:g}"
    ]
