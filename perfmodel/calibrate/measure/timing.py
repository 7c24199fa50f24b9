"""Timing of calls: warm-up, rotation of buffers, median and spread within a time budget."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

from perfmodel.calibrate.measure.device import Call, Device

MIN_REPEATS = 5
SLOW_REPEATS = 3
MAX_REPEATS = 200
MAX_BATCH = 100
"""Calls in one timed batch; with several kernels a call this stays below the launch queue."""

_MIN_BATCH_S = {True: 5e-4, False: 1e-3}
"""Shortest timed batch [s] on the CPU and on an accelerator: 1000x the clock's resolution."""

_ROTATE_CACHES = 2.0
_MAX_BUFFER_SETS = 256
"""Twice the 126 MB of a B200's cache with sets of 1 MB."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Result of repeated measurement.

    Attributes:
        median_s: median over the repeats, per call [s].
        spread_s: interquartile range over the repeats, per call [s].
        repeats: timed repeats (each a batch of calls when one call is short).
    """

    median_s: float
    spread_s: float
    repeats: int


def buffer_sets(device: Device, set_bytes: float, memory_frac: float = 0.5) -> int:
    """How many sets of buffers to rotate: twice the last-level cache in all, as memory allows.

    Formula: ``1 + ceil(2*cache/set)``, at most 256 and at most `memory_frac` of the free memory;
    1 when one set alone is larger than that.
    """
    wanted = 1 + -(-_ROTATE_CACHES * device.cache_bytes // max(set_bytes, 1.0))
    affordable = memory_frac * device.free_bytes() // max(set_bytes, 1.0)
    return int(max(1, min(wanted, affordable, _MAX_BUFFER_SETS)))


def summary(samples_s: Sequence[float]) -> Timing:
    """Median and interquartile range of per-call times."""
    if len(samples_s) < 2:
        return Timing(samples_s[0], 0.0, 1)
    low, _, high = statistics.quantiles(samples_s, n=4, method="inclusive")
    return Timing(statistics.median(samples_s), high - low, len(samples_s))


def repeat(sample_s: Callable[[], float], budget_s: float, once_s: float) -> Timing:
    """Call `sample_s` (which returns a per-call time) until the budget is used.

    At least 5 repeats, 3 when these alone would exceed the budget; at most 200.
    """
    least = MIN_REPEATS if MIN_REPEATS * once_s <= budget_s else SLOW_REPEATS
    deadline_s = time.perf_counter() + budget_s
    samples_s: list[float] = []
    while len(samples_s) < least or (
        time.perf_counter() < deadline_s and len(samples_s) < MAX_REPEATS
    ):
        samples_s.append(sample_s())
    return summary(samples_s)


def time_calls(device: Device, calls: Sequence[Call], budget_s: float) -> Timing:
    """Device time of one call; `calls` do the same work on different buffers.

    The first pass over the buffers pays for allocation, algorithm choice and compilation and is
    not timed; then warm-up for a tenth of the budget; then batches that rotate the buffers.
    """
    once_s = _warm_up(device, calls, 0.1 * budget_s)
    batch = max(1, min(MAX_BATCH, round(_MIN_BATCH_S[device.is_cpu] / max(once_s, 1e-7))))
    each_issue_s = issue_s(device, calls)
    turn: Iterator[Call] = cycle(calls)

    def sample_s() -> float:
        work = list(islice(turn, batch))
        return device.batch_s(work, head_start_s=1.5 * batch * each_issue_s) / batch

    return repeat(sample_s, 0.9 * budget_s, batch * once_s)


def _warm_up(device: Device, calls: Sequence[Call], budget_s: float) -> float:
    """Run `calls` untimed, then for `budget_s`; the last round's time per call [s]."""
    calls[0]()
    device.synchronize()
    deadline_s = time.perf_counter() + budget_s
    once_s = device.batch_s(calls[:1])
    for call in islice(cycle(calls), 1, MAX_REPEATS):
        if time.perf_counter() > deadline_s:
            break
        once_s = device.batch_s([call])
    return once_s


def issue_s(device: Device, calls: Sequence[Call]) -> float:
    """Host time to issue one call [s]; 0 on the CPU, where issuing is running."""
    if device.is_cpu:
        return 0.0
    count = min(len(calls), 10)
    start_s = time.perf_counter()
    for call in calls[:count]:
        call()
    spent_s = time.perf_counter() - start_s
    device.synchronize()
    return spent_s / count
