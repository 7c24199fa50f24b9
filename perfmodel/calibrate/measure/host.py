"""Host time per kernel launch: eager, compiled, and as a captured graph."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F

from perfmodel.calibrate.cases import HostCase
from perfmodel.calibrate.measure.device import Call, Device, Unsupported
from perfmodel.calibrate.measure.timing import Timing, repeat

_SIZE = 16
_BLOCK_LAUNCHES = 4


def _pointwise(x: torch.Tensor, weight: torch.Tensor, launches: int) -> torch.Tensor:
    for _ in range(launches):
        x = x + weight
    return x


def _linear(x: torch.Tensor, weight: torch.Tensor, launches: int) -> torch.Tensor:
    for _ in range(launches):
        x = F.linear(x, weight)
    return x


def _block(x: torch.Tensor, weight: torch.Tensor, launches: int) -> torch.Tensor:
    """Norm, product, activation, residual: the mix of a transformer block."""
    for _ in range(launches // _BLOCK_LAUNCHES):
        x = x + F.silu(F.linear(F.layer_norm(x, (_SIZE,)), weight))
    return x


_CHAINS: dict[str, Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]] = {
    "pointwise": _pointwise,
    "linear": _linear,
    "block": _block,
}


def measure(case: HostCase, device: Device, budget_s: float) -> Timing:
    """Host time per launch of the chain [s], launches counted as the eager form has them.

    The host's clock runs while it issues the chain; waiting for the device is left out (kernels of
    16x16 take less time than their launch).  On the CPU issuing and running are one.

    Raises:
        Unsupported: graphs where the device has none, or a chain that does not exist.
    """
    chain = _CHAINS.get(case.kernel)
    if chain is None:
        raise Unsupported(f"no launch chain {case.kernel}")
    call = _issue(case, chain, device)
    with torch.inference_mode():
        for _ in range(3):
            call()
        device.synchronize()
        return repeat(lambda: _issue_s(call, device) / case.launches, budget_s, 0.0)


def _issue_s(call: Call, device: Device) -> float:
    device.synchronize()
    start_s = time.perf_counter()
    call()
    return time.perf_counter() - start_s


def _issue(
    case: HostCase, chain: Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor], device: Device
) -> Call:
    dtype = torch.float32 if device.is_cpu else torch.bfloat16
    x = device.random(_SIZE, _SIZE, dtype=dtype)
    weight = device.random(_SIZE, _SIZE, dtype=dtype) / _SIZE
    if case.mode == "eager":
        return lambda: chain(x, weight, case.launches)
    if case.mode == "compiled":
        torch._dynamo.reset()
        compiled = torch.compile(chain, dynamic=False)
        return lambda: compiled(x, weight, case.launches)
    if device.is_cpu:
        raise Unsupported("the CPU has no graphs to capture")
    call = partial(chain, x, weight, case.launches)
    return partial(_replay, _capture(call, device), call)


def _replay(graph: torch.cuda.CUDAGraph, call: Call) -> None:
    """`call` as it was captured; it holds the tensors whose addresses the graph has."""
    del call
    graph.replay()


def _capture(call: Call, device: Device) -> torch.cuda.CUDAGraph:
    """Capture `call` after three runs on a side stream, as torch's documentation asks.

    Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
    """
    runtime = device.runtime
    maker = getattr(runtime, "CUDAGraph", None) or getattr(runtime, "NPUGraph", None)
    if maker is None or not hasattr(runtime, "graph"):
        raise Unsupported(f"torch.{device.kind} has no graphs in this version")
    side = runtime.Stream()
    side.wait_stream(runtime.current_stream())
    with runtime.stream(side), torch.inference_mode():
        for _ in range(3):
            call()
    runtime.current_stream().wait_stream(side)
    graph: torch.cuda.CUDAGraph = maker()
    with torch.inference_mode(), runtime.graph(graph):
        call()
    return graph
