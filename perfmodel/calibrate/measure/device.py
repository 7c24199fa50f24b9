"""The device under test behind one small interface: ``cuda`` (also ROCm), ``npu`` or ``cpu``."""

from __future__ import annotations

import contextlib
import gc
import importlib
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from perfmodel.errors import BadInput, Problem
from perfmodel.units import KIB, MIB, MS_PER_S

KINDS = ("cuda", "npu", "cpu")

_ACCELERATOR_CACHE_BYTES = 256 * MIB
"""AMD's Infinity Cache (MI300X), which HIP does not report; no accelerator's cache is larger."""

_CPU_CACHE_BYTES = 32 * MIB
_HEAD_START_CALLS = 100
"""Products queued ahead at most: with a batch of unfused operators below the 1024 launches that
CUDA queues, and on the fastest devices still longer than a batch takes to issue."""

_POOL = 1_048_573
_TORCH_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}

Call = Callable[[], object]


class Unsupported(Exception):
    """The device or this build of torch has no such kernel; the reason is the text."""


@dataclass(frozen=True)
class Device:
    """An opened device.

    Attributes:
        kind: cuda, npu or cpu.
        torch_device: where tensors go.
        runtime: ``torch.cuda`` or ``torch.npu``; None on the CPU.
    """

    kind: str
    torch_device: torch.device
    runtime: Any

    @property
    def is_cpu(self) -> bool:
        """Whether calls are synchronous and there is no transfer."""
        return self.runtime is None

    @cached_property
    def name(self) -> str:
        """The name that the driver (or ``/proc/cpuinfo``) prints."""
        return host_cpu() if self.is_cpu else str(self.runtime.get_device_name(self.torch_device))

    @cached_property
    def software(self) -> str:
        """Versions that change kernel times: torch, its runtime, cuDNN, torch_npu."""
        parts = [f"torch {torch.__version__}"]
        if self.kind == "cuda":
            runtime = torch.version.cuda or torch.version.hip
            parts.append(f"{'hip' if torch.version.hip else 'cuda'} {runtime}")
            parts.append(f"cudnn {torch.backends.cudnn.version()}")
            if torch.distributed.is_nccl_available():
                parts.append("nccl " + ".".join(map(str, torch.cuda.nccl.version())))
        elif self.kind == "npu":
            parts.append(f"torch_npu {importlib.import_module('torch_npu').__version__}")
            cann = getattr(torch.version, "cann", None)
            parts += [f"cann {cann}"] if cann else []
        return " ".join(parts)

    @cached_property
    def cache_bytes(self) -> int:
        """Last-level cache, or what no known one exceeds."""
        if self.is_cpu:
            return _cpu_cache_bytes()
        if self.kind == "cuda" and torch.version.hip:
            return _ACCELERATOR_CACHE_BYTES
        properties = self.runtime.get_device_properties(self.torch_device)
        return int(getattr(properties, "L2_cache_size", 0)) or _ACCELERATOR_CACHE_BYTES

    @cached_property
    def has_fp8(self) -> bool:
        """Whether `torch._scaled_mm` may run in 8 bit: capability 8.9 and later, CDNA3 too."""
        if self.kind != "cuda":
            return False
        return bool(self.runtime.get_device_capability(self.torch_device) >= (8, 9))

    @cached_property
    def fp8(self) -> torch.dtype:
        """The e4m3 of the device's matrix units: CDNA3 (gfx94x) has no negative zero."""
        if self.kind == "cuda" and torch.version.hip:
            properties = self.runtime.get_device_properties(self.torch_device)
            if "gfx94" in str(getattr(properties, "gcnArchName", "")):
                return torch.float8_e4m3fnuz
        return torch.float8_e4m3fn

    def free_bytes(self) -> int:
        """Memory that can still be allocated: free on the device, and unused in torch's cache."""
        if self.is_cpu:
            return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        held = self.runtime.memory_reserved(self.torch_device)
        used = self.runtime.memory_allocated(self.torch_device)
        return int(self.runtime.mem_get_info(self.torch_device)[0]) + int(held) - int(used)

    def synchronize(self) -> None:
        """Wait for everything that was issued."""
        if not self.is_cpu:
            self.runtime.synchronize(self.torch_device)

    def release(self) -> None:
        """Give cached memory back to the driver (after an out-of-memory error).

        Buffers that an exception's cycle of frames still holds are collected first.
        """
        gc.collect()
        if not self.is_cpu:
            self.runtime.empty_cache()

    def dtype(self, name: str) -> torch.dtype:
        """The torch type of a record's dtype.

        Raises:
            NotImplementedError: the record's dtype has no plain torch type.
        """
        if name not in _TORCH_DTYPES:
            raise NotImplementedError(f"dtype {name} has no dense torch kernel here")
        return _TORCH_DTYPES[name]

    def random(self, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        """Normal random data: zeros draw less power and run faster than real data."""
        count = math.prod(shape)
        pool = self._pool
        if count <= len(pool):
            return pool[:count].to(dtype, copy=True).view(shape)
        return pool.to(dtype).repeat(-(-count // len(pool)))[:count].view(shape)

    @cached_property
    def _pool(self) -> torch.Tensor:
        """A prime number of normal values that fill any tensor at the speed of a copy."""
        generator = torch.Generator(self.torch_device).manual_seed(0)
        return torch.randn(_POOL, device=self.torch_device, generator=generator)

    def batch_s(
        self, calls: Sequence[Call], *, head_start_s: float = 0.0, first: Call | None = None
    ) -> float:
        """Seconds that the device spends on `calls`, issued back to back.

        On an accelerator the time between two events, with work of `head_start_s` queued before
        the first, so that the host's launch time is not measured; `first` is queued between that
        work and the first event.  On the CPU wall time; with one thread the process's own time, so
        that others who use the core are not measured.
        """
        if self.is_cpu:
            clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
            start_s = clock()
            for call in calls:
                call()
            return clock() - start_s
        start, end = (self.runtime.Event(enable_timing=True) for _ in range(2))
        self._occupy(head_start_s)
        if first is not None:
            first()
        start.record()
        for call in calls:
            call()
        end.record()
        self.synchronize()
        return float(start.elapsed_time(end)) / MS_PER_S

    def prepare(self) -> None:
        """Make what `batch_s` queues ahead while there is memory for it, and time it."""
        if not self.is_cpu:
            _ = self._blocker

    def _occupy(self, seconds: float) -> None:
        """Queue about `seconds` of device work."""
        if seconds <= 0:
            return
        left, each_s = self._blocker
        for _ in range(min(_HEAD_START_CALLS, 1 + int(seconds / each_s))):
            torch.mm(left, left)

    @cached_property
    def _blocker(self) -> tuple[torch.Tensor, float]:
        """A product that keeps the device busy for about a millisecond, and its time."""
        size = 4096
        left = self.random(size, size, dtype=torch.bfloat16)
        torch.mm(left, left)
        self.synchronize()
        start_s = time.perf_counter()
        for _ in range(4):
            torch.mm(left, left)
        self.synchronize()
        return left, (time.perf_counter() - start_s) / 4

    def clock_mhz(self) -> float | None:
        """Clock of the compute units right now [MHz]; None where it cannot be read.

        By torch's binding of the driver's library (``nvidia-ml-py``) where it is installed, else
        by ``nvidia-smi``.
        """
        if self.is_cpu:
            return _cpu_clock_mhz()
        # without the library an ImportError, on a part of a device an error of the library's own
        with contextlib.suppress(Exception):
            return float(self.runtime.clock_rate(self.torch_device)) or None
        return _smi_clock_mhz(self._smi_id) if self.kind == "cuda" else None

    @cached_property
    def _smi_id(self) -> str:
        """The device's UUID: ``nvidia-smi`` counts devices that ``CUDA_VISIBLE_DEVICES`` hides."""
        properties = self.runtime.get_device_properties(self.torch_device)
        uuid = getattr(properties, "uuid", None)
        return f"GPU-{uuid}" if uuid else str(self.torch_device.index or 0)

    def used_by_others_bytes(self) -> int:
        """Memory of the device that is neither free nor torch's own, its context included."""
        if self.is_cpu:
            return 0
        free, total = self.runtime.mem_get_info(self.torch_device)
        return int(total) - int(free) - int(self.runtime.memory_reserved(self.torch_device))


def open_device(kind: str | None = None, index: int | None = None) -> Device:
    """Open `kind`, or the first of cuda, npu, cpu that is there.

    Args:
        kind: cuda, npu or cpu.
        index: device number; None takes the process's local rank under torchrun, else 0.

    Raises:
        BadInput: no such device on this machine, in one line.
    """
    if kind is not None and kind not in KINDS:
        raise BadInput(_problem(f'no device kind "{kind}"; choose one of {", ".join(KINDS)}', kind))
    number = int(os.environ.get("LOCAL_RANK", "0")) if index is None else index
    for candidate in (kind,) if kind else KINDS:
        runtime = None if candidate == "cpu" else _runtime(candidate)
        if candidate == "cpu":
            return Device("cpu", torch.device("cpu"), None)
        if runtime is not None and number < runtime.device_count():
            runtime.set_device(number)
            return Device(candidate, torch.device(candidate, number), runtime)
    raise BadInput(_problem(_absent(str(kind), number), kind))


def _problem(message: str, value: str | None) -> Problem:
    return Problem("bench-device", message, field="--device", value=value, legal_values=KINDS)


def _absent(kind: str, number: int) -> str:
    built = f"torch {torch.__version__}"
    which = f"{kind}:{number}" if number else kind
    hint = "install torch_npu" if kind == "npu" else "install a torch build with CUDA or ROCm"
    return f"no {which} device: {built} sees none on this machine; {hint}, or use --device cpu"


def device_count(kind: str) -> int:
    """Devices of `kind` on this machine (0 where there are none; 1 CPU)."""
    if kind == "cpu":
        return 1
    runtime = _runtime(kind)
    return 0 if runtime is None else int(runtime.device_count())


def _runtime(kind: str) -> Any:
    """``torch.cuda`` or ``torch.npu`` if a device is there."""
    if kind == "npu":
        try:
            importlib.import_module("torch_npu")
        except ImportError:
            return None
    runtime = getattr(torch, kind, None)
    return runtime if runtime is not None and runtime.is_available() else None


def host_cpu() -> str:
    """Name of the host processor."""
    for key, value in _cpuinfo():
        if key in ("model name", "Model Name", "Hardware"):
            return value
    return platform.processor() or platform.machine()


def _cpuinfo() -> list[tuple[str, str]]:
    path = Path("/proc/cpuinfo")
    if not path.exists():
        return []
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    return [(key.strip(), value.strip()) for key, _, value in pairs]


def _cpu_clock_mhz() -> float | None:
    clocks = [float(value) for key, value in _cpuinfo() if key == "cpu MHz"]
    return sum(clocks) / len(clocks) if clocks else None


def _cpu_cache_bytes() -> int:
    """The largest cache of core 0 that Linux describes."""
    folder = Path("/sys/devices/system/cpu/cpu0/cache")
    sizes = [path.read_text().strip() for path in folder.glob("index*/size")]
    units = {"K": KIB, "M": MIB}
    known = [int(text[:-1]) * units[text[-1]] for text in sizes if text[-1:] in units]
    return max(known, default=_CPU_CACHE_BYTES)


def unseen_accelerator() -> str | None:
    """A driver's device file on a machine where torch sees no accelerator; None without."""
    files = ("/dev/nvidia0", "/dev/davinci0", "/dev/kfd")
    return next((name for name in files if Path(name).exists()), None)


def _smi_clock_mhz(identity: str) -> float | None:
    """Streaming-multiprocessor clock by ``nvidia-smi`` (absent on other vendors: None)."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, f"--id={identity}", "--query-gpu=clocks.sm", "--format=csv,noheader,nounits"]
    try:
        reply = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)
        return float(reply.stdout.strip())
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
