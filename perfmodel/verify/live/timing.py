"""The time of one step, agreed on by all ranks: that of the slowest."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist

from perfmodel.calibrate.measure.device import Call, Device
from perfmodel.calibrate.measure.timing import Timing, buffer_sets, summary, time_calls
from perfmodel.verify.live.tape import Step, copied, tensors

_MEMORY_FRAC = 0.25
_MIN_BATCH_S = 1e-3
_MAX_BATCH = 50
_REPEATS = (5, 100)


def several() -> bool:
    """Whether this process is one of several."""
    return bool(dist.is_initialized() and dist.get_world_size() > 1)


def from_first(value: object) -> object:
    """Rank 0's `value` on every rank."""
    if not several():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def slowest(seconds: float, device: Device) -> float:
    """The largest of the ranks' values."""
    if not several():
        return seconds
    box = torch.tensor([seconds], device=device.torch_device, dtype=torch.float32)
    dist.all_reduce(box, op=dist.ReduceOp.MAX)
    return float(box.item())


def first_reason(reason: str) -> str:
    """The first rank's reason why something cannot run; empty when it runs everywhere."""
    if not several():
        return reason
    reasons: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(reasons, reason)
    return next((text for text in reasons if text), "")


def time_step(step: Step, device: Device, budget_s: float) -> Timing | str:
    """Median time of a step on the slowest rank, or why there is none."""
    if step.message:
        return time_together(partial(step.function, *step.inputs), device, budget_s)
    timing, reason = None, ""
    try:
        timing = time_calls(device, calls_of(step, device), budget_s)
    except Exception as error:  # compilers have classes of their own; the others must hear of it
        device.release()
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    reason = first_reason(reason)
    if reason or timing is None:
        return reason or "no time"
    return Timing(
        slowest(timing.median_s, device), slowest(timing.spread_s, device), timing.repeats
    )


def calls_of(step: Step, device: Device) -> Sequence[Call]:
    """The step on several sets of inputs, so that no cache holds them from call to call."""
    size = float(sum(t.numel() * t.element_size() for t in tensors(step.inputs)))
    sets = buffer_sets(device, size, _MEMORY_FRAC)
    return [partial(step.function, *(copied(part) for part in step.inputs)) for _ in range(sets)]


def time_together(call: Callable[[], object], device: Device, budget_s: float) -> Timing:
    """Median wall time of a call in which ranks wait for one another.

    The number of calls follows from times that all ranks share, so none waits for a rank that
    went on.
    """
    call()
    device.synchronize()
    once_s = _batch_s(call, 1, device)
    once_s = min(once_s, _batch_s(call, 1, device))
    batch = max(1, min(_MAX_BATCH, round(_MIN_BATCH_S / max(once_s, 1e-7))))
    least, most = _REPEATS
    repeats = max(least, min(most, round(budget_s / (batch * max(once_s, 1e-7)))))
    return summary([_batch_s(call, batch, device) / batch for _ in range(repeats)])


def _batch_s(call: Callable[[], object], batch: int, device: Device) -> float:
    if several():
        dist.barrier()
    device.synchronize()
    if device.is_cpu:
        start_s = time.perf_counter()
        for _ in range(batch):
            call()
        spent_s = time.perf_counter() - start_s
    else:
        spent_s = device.batch_s([call] * batch)
    return slowest(spent_s, device)
