"""An accelerator that is not there: torch's device API with a clock, a stream and a memory.

`install` puts a ``torch.cuda`` (or ``torch.npu``) in place whose tensors live on the meta device.
Every operator that torch dispatches costs the host `ISSUE_S` and the device the time of its work
at the device's rates, on a stream that runs behind the host, so that what a benchmark reads off
events and clocks can be compared with what the device spent.  It refuses what a real device
refuses: events that were not recorded or have not passed, synchronising inside a capture, tensors
of two devices in one operator, attention backends outside their limits, more memory than there is.

`on_cpu` is the variant for ranks in processes of their own: tensors lie in host memory, nccl and
hccl are gloo.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

ISSUE_S = 5e-6
KERNEL_S = 2e-6
COPY_BYTES_PER_S = 5e10
MEMORY_BOUND_CACHE = 4.0


@dataclass
class Chip:
    """What the device is and can do."""

    name: str = "NVIDIA H100 80GB HBM3"
    capability: tuple[int, int] = (9, 0)
    count: int = 8
    total_bytes: int = 80 * 10**9
    cache_bytes: int = 50 * 2**20
    flop_per_s: float = 6e14
    architecture: str = ""
    bytes_per_s: float = 3e12
    fails: Callable[[Any, tuple[Any, ...]], Exception | None] = lambda func, args: None


@dataclass
class Stream:
    """When the work queued on it ends [s]."""

    free_s: float = 0.0

    def wait_stream(self, other: Stream) -> None:
        self.free_s = max(self.free_s, other.free_s)


@dataclass
class Engine:
    """The state of the device: the host's clock, the current stream, the cache."""

    chip: Chip
    host_s: float = 100.0
    stream: Stream = field(default_factory=Stream)
    graph: Graph | None = None
    lost: Exception | None = None
    fused: bool = False
    kernels_s: list[float] = field(default_factory=list)
    cached: dict[int, int] = field(default_factory=dict)

    def clock(self) -> float:
        self.host_s += 1e-7
        return self.host_s

    def launch(self, seconds: float, issue_s: float = ISSUE_S) -> None:
        if self.lost is not None:
            raise self.lost
        if self.fused:
            return
        self.kernels_s.append(seconds)
        if self.graph is not None:
            self.graph.seconds += seconds
            return
        self.host_s += issue_s
        self.stream.free_s = max(self.stream.free_s, self.host_s) + seconds

    def synchronize(self) -> None:
        if self.graph is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        if self.lost is not None:
            raise self.lost
        self.host_s = max(self.host_s, self.stream.free_s)

    def read_s(self, tensors: list[torch.Tensor]) -> float:
        """Time to move the tensors; those that the cache still holds come faster."""
        seconds = 0.0
        distinct = {one.untyped_storage()._cdata: one for one in tensors}
        for storage, one in distinct.items():
            size = one.numel() * one.element_size()
            known = self.cached.pop(storage, 0)
            rate = self.chip.bytes_per_s * (MEMORY_BOUND_CACHE if known else 1.0)
            seconds += size / rate
            if size <= self.chip.cache_bytes:
                self.cached[storage] = size
        while sum(self.cached.values()) > self.chip.cache_bytes:
            del self.cached[next(iter(self.cached))]
        return seconds


@dataclass
class Graph:
    """A captured graph."""

    engine: Engine
    seconds: float = 0.0
    captured: bool = False

    def replay(self) -> None:
        if not self.captured:
            raise RuntimeError("Called CUDAGraph::replay without a preceding successful capture.")
        self.engine.launch(self.seconds, issue_s=2 * ISSUE_S)


class Event:
    """A point on a stream."""

    def __init__(self, engine: Engine, enable_timing: bool = False) -> None:
        self.engine, self.timing, self.at_s = engine, enable_timing, math.nan

    def record(self, stream: Stream | None = None) -> None:
        self.engine.host_s += 1e-6
        self.at_s = max((stream or self.engine.stream).free_s, self.engine.host_s)

    def elapsed_time(self, end: Event) -> float:
        if math.isnan(self.at_s) or math.isnan(end.at_s):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        if not (self.timing and end.timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if end.at_s > self.engine.host_s:
            raise RuntimeError("CUDA error: device not ready")
        return (end.at_s - self.at_s) * 1e3


class Runtime(types.ModuleType):
    """``torch.cuda``: what the fake has, and the real module for the rest."""

    OutOfMemoryError = torch.OutOfMemoryError

    def __init__(self, kind: str, engine: Engine, real: types.ModuleType | None) -> None:
        super().__init__(f"torch.{kind}")
        self._engine, self._real = engine, real
        self.device_set: int | None = None
        self.nccl = types.SimpleNamespace(version=lambda: (2, 28, 9))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_real"], name)

    def is_available(self) -> bool:
        return True

    def device_count(self) -> int:
        return self._engine.chip.count

    def set_device(self, index: int) -> None:
        self.device_set = index

    def current_device(self) -> int:
        return self.device_set or 0

    def get_device_name(self, device: Any = None) -> str:
        return self._engine.chip.name

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return self._engine.chip.capability

    def get_device_properties(self, device: Any = None) -> Any:
        chip = self._engine.chip
        return types.SimpleNamespace(
            name=chip.name,
            L2_cache_size=chip.cache_bytes,
            multi_processor_count=132,
            total_memory=chip.total_bytes,
            gcnArchName=chip.architecture,
            uuid="01234567-89ab-cdef-0123-456789abcdef",
        )

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return int(0.97 * self._engine.chip.total_bytes), self._engine.chip.total_bytes

    def memory_reserved(self, device: Any = None) -> int:
        return 2**21

    def memory_allocated(self, device: Any = None) -> int:
        return 2**20

    def empty_cache(self) -> None:
        if self._engine.lost is not None:
            raise self._engine.lost

    def synchronize(self, device: Any = None) -> None:
        self._engine.synchronize()

    def clock_rate(self, device: Any = None) -> int:
        raise ModuleNotFoundError("nvidia-ml-py does not seem to be installed")

    def Event(self, enable_timing: bool = False) -> Event:
        return Event(self._engine, enable_timing)

    def Stream(self, device: Any = None) -> Stream:
        return Stream()

    def current_stream(self, device: Any = None) -> Stream:
        return self._engine.stream

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        before, self._engine.stream = self._engine.stream, stream
        try:
            yield
        finally:
            self._engine.stream = before

    def _graph(self) -> Graph:
        return Graph(self._engine)

    @contextlib.contextmanager
    def graph(self, graph: Graph) -> Iterator[None]:
        self._engine.synchronize()
        self._engine.graph = graph
        try:
            yield
        finally:
            self._engine.graph, graph.captured = None, True


class HostGenerator(torch.Generator):
    """Random numbers are drawn on the host, whatever the device."""

    def __new__(cls, device: Any = None) -> HostGenerator:
        return super().__new__(cls)


class Placement(TorchFunctionMode):
    """Tensors of the device are made where the fake keeps them; attention is one kernel."""

    def __init__(
        self,
        kind: str,
        where: str,
        engine: Engine | None,
        made: Callable[[Any], None] | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.where, self.engine, self.made = kind, where, engine, made

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = {name: self._moved(value) for name, value in (kwargs or {}).items()}
        args = tuple(self._moved(value) for value in args)
        if func is F.scaled_dot_product_attention and self.engine is not None:
            return self._attention(*args, **kwargs)
        if func is torch.mm and self.engine is None:
            return args[0]  # only keeps a device busy
        out = func(*args, **kwargs)
        if self.made is not None and isinstance(out, torch.Tensor):
            self.made(out)
        return out

    def _moved(self, value: Any) -> Any:
        ours = isinstance(value, torch.device) and value.type == self.kind
        return torch.device(self.where) if ours else value

    def _attention(
        self, query: Any, key: Any, value: Any, is_causal: bool = False, enable_gqa: bool = False
    ) -> torch.Tensor:
        heads, width = query.shape[1], query.shape[3]
        if key.shape[1] != heads and not enable_gqa:
            raise RuntimeError("The size of tensor a must match the size of tensor b")
        if self.kind == "cuda" and not self._runs(width, enable_gqa):
            raise RuntimeError("No available kernel. Aborting execution.")
        work = 4.0 * query.shape[0] * heads * query.shape[2] * key.shape[2] * width
        assert self.engine is not None
        seconds = work * (0.5 if is_causal else 1.0) / self.engine.chip.flop_per_s
        self.engine.launch(KERNEL_S + seconds, issue_s=4 * ISSUE_S)
        return torch.empty_like(query)

    @staticmethod
    def _runs(width: int, grouped: bool) -> bool:
        """Limits of torch's three fused kernels (``sdp_utils.cpp``)."""
        backends = torch.backends.cuda
        flash = backends.flash_sdp_enabled() and width <= 256
        cudnn = backends.cudnn_sdp_enabled() and width <= 128
        efficient = backends.mem_efficient_sdp_enabled() and not grouped
        return flash or cudnn or efficient or backends.math_sdp_enabled()


class Silicon(TorchDispatchMode):
    """Charges each operator's time to the device."""

    def __init__(self, engine: Engine) -> None:
        super().__init__()
        self.engine = engine

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = _tensors((args, kwargs))
        far = [one for one in given if one.device.type == "meta"]
        near = [one for one in given if one.device.type == "cpu" and one.dim()]
        if func is torch.ops.aten.copy_.default and far and near:
            return self._transfer(args[0], far[0], *args[2:])
        if far and near:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices"
            )
        error = self.engine.chip.fails(func, args)
        if error is not None:
            raise error
        out = func(*args, **kwargs)
        made = [one for one in _tensors(out) if one.device.type == "meta"]
        if not (far or made) or _is_view(func):
            return out
        self._allocate(made)
        if "empty" not in str(func):
            self.engine.launch(self._seconds(func, args, kwargs, out, far + made))
        return out

    def _transfer(self, target: torch.Tensor, far: torch.Tensor, *rest: Any) -> torch.Tensor:
        """Asynchronous from or to pinned memory, else the host waits."""
        self.engine.launch(KERNEL_S + far.numel() * far.element_size() / COPY_BYTES_PER_S)
        if not (rest and rest[0]):
            self.engine.synchronize()
        return target

    def _allocate(self, made: list[torch.Tensor]) -> None:
        size = sum(one.untyped_storage().nbytes() for one in made)
        if size > self.engine.chip.total_bytes:
            _no_memory()

    def _seconds(
        self, func: Any, args: Any, kwargs: Any, out: Any, moved: list[torch.Tensor]
    ) -> float:
        count = flop_registry.get(func._overloadpacket)
        flops = 0.0
        if func is torch.ops.aten.linear.default:
            flops = 2.0 * out.numel() * args[0].shape[-1]
        elif func in (torch.ops.aten.conv2d.default, torch.ops.aten.conv3d.default):
            flops = 2.0 * out.numel() * args[1][0].numel()
        elif count is not None:
            flops = float(count(*args, **kwargs, out_val=out))
        return KERNEL_S + max(flops / self.engine.chip.flop_per_s, self.engine.read_s(moved))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [one for part in value for one in _tensors(part)]
    return []


def _is_view(func: Any) -> bool:
    returned = [r.alias_info for r in func._schema.returns]
    return any(info is not None and not info.is_write for info in returned)


def _compile(engine: Engine) -> Callable[..., Any]:
    """``torch.compile``: seconds for the first call, then one kernel a call."""

    def compile_(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        first = True

        def run(*args: Any) -> Any:
            nonlocal first
            engine.fused, engine.host_s = True, engine.host_s + (2.0 if first else 4 * ISSUE_S)
            first = False
            try:
                out = function(*args)
            finally:
                engine.fused = False
            engine.launch(KERNEL_S + engine.read_s([*_tensors(args)[:1], *_tensors(out)]))
            return out

        return run

    return compile_


def install(monkeypatch: Any, kind: str = "cuda", chip: Chip | None = None) -> Engine:
    """Put the device in place for the rest of a test; `uninstall` is monkeypatch's and the modes'.

    Enter ``fake_accelerator.running(engine, kind)`` around what shall run on it.
    """
    engine = Engine(chip or Chip())
    runtime = Runtime(kind, engine, getattr(torch, kind, None))
    maker = {"cuda": "CUDAGraph", "npu": "NPUGraph"}[kind]
    setattr(runtime, maker, runtime._graph)
    if kind == "npu":
        _name_npu()
        monkeypatch.setitem(sys.modules, "torch_npu", types.SimpleNamespace(__version__="2.7.1"))
    monkeypatch.setattr(torch, kind, runtime, raising=False)
    monkeypatch.setattr(torch, "Generator", HostGenerator)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(torch, "compile", _compile(engine))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setattr(time, "perf_counter", engine.clock)
    return engine


def _name_npu() -> None:
    """Let ``torch.device("npu", 0)`` exist; once a process, and it cannot be undone."""
    with contextlib.suppress(RuntimeError):
        torch.utils.rename_privateuse1_backend("npu")


@contextlib.contextmanager
def running(engine: Engine, kind: str = "cuda") -> Iterator[None]:
    """Operators run on the fake."""
    with Placement(kind, "meta", engine), Silicon(engine):
        yield


class CpuRuntime(Runtime):
    """Time is the host's: for ranks in processes of their own, whose messages are real."""

    def synchronize(self, device: Any = None) -> None:
        pass

    def Event(self, enable_timing: bool = False) -> Any:
        return _WallEvent()


class _WallEvent:
    def record(self) -> None:
        self.at_s = time.perf_counter()

    def elapsed_time(self, end: _WallEvent) -> float:
        return (end.at_s - self.at_s) * 1e3


def on_cpu(kind: str, chip: Chip, full: Callable[[], None] | None = None) -> None:
    """Make this process see `chip`, with tensors in host memory and gloo for nccl and hccl.

    Args:
        kind: cuda or npu.
        chip: what the device is; a tensor beyond its memory is refused.
        full: called instead for such a tensor.
    """
    engine = Engine(chip)
    runtime = CpuRuntime(kind, engine, getattr(torch, kind, None))
    if kind == "npu":
        _name_npu()
        sys.modules["torch_npu"] = types.SimpleNamespace(__version__="2.7.1")  # type: ignore
    setattr(torch, kind, runtime)
    torch.Generator = HostGenerator
    torch.version.cuda = "13.0"
    dist.is_nccl_available = lambda: True
    start = dist.init_process_group

    def init_process_group(backend: str, **options: Any) -> None:
        assert backend == {"cuda": "nccl", "npu": "hccl"}[kind]
        assert runtime.device_set == int(os.environ["LOCAL_RANK"])
        start("gloo", **options)

    dist.init_process_group = init_process_group

    def made(tensor: torch.Tensor) -> None:
        if tensor.untyped_storage().nbytes() > chip.total_bytes:
            (full or _no_memory)()

    Placement(kind, "cpu", None, made).__enter__()


def _no_memory() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate too much")
