"""Copies between host and device memory, pinned and pageable, and within host memory."""

from __future__ import annotations

import time
from functools import partial
from itertools import count

import torch

from perfmodel.calibrate.cases import TransferCase
from perfmodel.calibrate.measure.device import Device, Unsupported
from perfmodel.calibrate.measure.timing import Timing, repeat

_BUFFERS = 3


def measure(case: TransferCase, device: Device, budget_s: float) -> Timing:
    """Wall time of one synchronised copy [s], as a pipeline that needs the bytes waits for it.

    Raises:
        Unsupported: a host-device copy on a device that is the host.
    """
    on_host = case.direction == "h2h"
    if device.is_cpu and not on_host:
        raise Unsupported("the device is the host: there is nothing to transfer")
    host = [_host_bytes(case) for _ in range(_BUFFERS)]
    far = [_far_bytes(case, device, on_host) for _ in range(_BUFFERS)]
    source, target = (far, host) if case.direction == "d2h" else (host, far)
    turn = count()

    def sample_s() -> float:
        index = next(turn) % _BUFFERS
        copy = partial(target[index].copy_, source[index], non_blocking=case.kernel == "pinned")
        device.synchronize()
        start_s = time.perf_counter()
        copy()
        device.synchronize()
        return time.perf_counter() - start_s

    for _ in range(_BUFFERS):
        sample_s()
    return repeat(sample_s, budget_s, sample_s())


def _host_bytes(case: TransferCase) -> torch.Tensor:
    """Random bytes in host memory, every page touched."""
    data = torch.randint(0, 256, (case.bytes_moved,), dtype=torch.uint8)
    return data.pin_memory() if case.kernel == "pinned" else data


def _far_bytes(case: TransferCase, device: Device, on_host: bool) -> torch.Tensor:
    place = torch.device("cpu") if on_host else device.torch_device
    return torch.zeros(case.bytes_moved, dtype=torch.uint8, device=place)
