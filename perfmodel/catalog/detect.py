"""Reads this machine with the tools that are installed (never torch): ``--gpus here``."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from perfmodel.catalog.gpus import Overrides, build_system, resolve
from perfmodel.errors import BadInput, Problem
from perfmodel.spec.hardware import System
from perfmodel.units import GIB, KIB, MIB

TIMEOUT_S = 20
TOOLS = ("nvidia-smi", "npu-smi", "rocm-smi")
# Which devices a process sees; a plain list of numbers is understood.
VISIBLE = ("CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
NETWORK_SETTINGS = ("NCCL_", "HCCL_", "RCCL_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the tools say: name and count of devices, memory of one, and the host."""

    name: str
    count: int
    memory_gib: float | None
    host_ram_gib: float | None
    sockets: int | None
    p2p: bool | None = None
    settings: tuple[str, ...] = ()


def here(overrides: Overrides | None = None) -> System:
    """This machine as a system; what the user says wins over what the tools say.

    Raises:
        BadInput: no tool is installed or none lists a device.
    """
    overrides = overrides or Overrides()
    found = detect()
    device, warning = resolve(found.name)
    merged = replace(
        overrides,
        gpu_memory_gib=overrides.gpu_memory_gib or found.memory_gib,
        host_ram_gib=overrides.host_ram_gib or found.host_ram_gib,
        sockets=overrides.sockets or found.sockets,
        p2p=found.p2p if overrides.p2p is None else overrides.p2p,
    )
    system = build_system(device, count=found.count, nodes=1, overrides=merged)
    return replace(
        system,
        warnings=(*((warning,) if warning else ()), *system.warnings),
        named={"gpus": "here"},
        changed=overrides.flags(),
    )


def detect() -> Found:
    """Devices of this machine by nvidia-smi, npu-smi or rocm-smi, and its host.

    Raises:
        BadInput: nothing was found; the line says what was tried.
    """
    devices = _nvidia() or _ascend() or _amd()
    if not devices:
        raise BadInput(
            Problem(
                "gpu-here",
                f"no accelerator found on this machine ({', '.join(TOOLS)} tried); "
                "name it instead, e.g. --gpus 4xB300",
                field="--gpus",
                value="here",
                suggestions=("4xB300",),
            )
        )
    names = {name for name, _ in devices}
    if len(names) > 1:
        raise BadInput(
            Problem(
                "gpu-here",
                f"different accelerators on this machine: {', '.join(sorted(names))}; "
                "name one kind, e.g. --gpus 2xL40S",
                field="--gpus",
                value="here",
            )
        )
    memory = [size for _, size in devices if size]
    return Found(
        name=devices[0][0],
        count=len(_visible(devices)),
        memory_gib=min(memory) / GIB if memory else None,
        host_ram_gib=host_ram_gib(),
        sockets=host_sockets(),
        p2p=_nvidia_p2p(),
        settings=tuple(
            f"{key}={value}"
            for key, value in sorted(os.environ.items())
            if key.startswith(NETWORK_SETTINGS)
        ),
    )


def _visible(devices: list[tuple[str, float]]) -> list[tuple[str, float]]:
    for variable in VISIBLE:
        numbers = os.environ.get(variable, "")
        if re.fullmatch(r"\d+(,\d+)*", numbers):
            chosen = [int(part) for part in numbers.split(",")]
            return [devices[index] for index in chosen if index < len(devices)] or devices
    return devices


def _output(*command: str) -> str:
    """What a tool prints, empty if it is missing or fails."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _nvidia() -> list[tuple[str, float]]:
    text = _output("nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits")
    return parse_nvidia(text.splitlines())


def parse_nvidia(lines: Iterable[str]) -> list[tuple[str, float]]:
    """(name, bytes) of each line ``NVIDIA H200, 143771``; unified memory prints no number."""
    found = []
    for line in lines:
        name, comma, size = (part.strip() for part in line.rpartition(","))
        if comma and name:
            found.append((name, float(size) * MIB if size.isdecimal() else 0.0))
    return found


def _nvidia_p2p() -> bool | None:
    """Whether all pairs can read each other (``topo -p2p r`` prints OK); None: not known."""
    text = _output("nvidia-smi", "topo", "-p2p", "r")
    rows = [line.split()[1:] for line in text.splitlines() if re.match(r"\s*GPU\d+\s+\S", line)]
    cells = [cell for row in rows for cell in row if cell in ("OK", "NS", "CNS", "GNS", "TNS")]
    return all(cell == "OK" for cell in cells) if cells else None


def _ascend() -> list[tuple[str, float]]:
    return parse_ascend(_output("npu-smi", "info").splitlines())


def parse_ascend(lines: Iterable[str]) -> list[tuple[str, float]]:
    """(name, bytes) a device from the table of ``npu-smi info``.

    A device has a row ``| 0  910B3  | OK ...`` and a row with its bus address, whose last
    ``used / total`` pair is memory in MB; a 910C has two such pairs of rows.
    """
    found: list[tuple[str, float]] = []
    name = ""
    for line in lines:
        if match := re.match(r"\|\s*\d+\s+(?P<name>\S*\d\S*)\s*\|\s*\w+\s*\|", line):
            name = match["name"]
        elif name and re.search(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d", line):
            pairs = re.findall(r"(\d+)\s*/\s*(\d+)", line)
            found.append((name, float(pairs[-1][1]) * MIB if pairs else 0.0))
    return found


def _amd() -> list[tuple[str, float]]:
    text = _output("rocm-smi", "--showproductname")
    names = re.findall(r"Card [Ss]eries:\s*(.+)", text)
    return [(name.strip(), 0.0) for name in names]


def host_ram_gib(meminfo: Path = Path("/proc/meminfo")) -> float | None:
    """All memory of this host [GiB], None where the system does not say."""
    try:
        match = re.search(r"^MemTotal:\s*(\d+) kB", meminfo.read_text(), re.M)
    except OSError:
        return None
    return int(match[1]) * KIB / GIB if match else None


def host_sockets(cpuinfo: Path = Path("/proc/cpuinfo")) -> int | None:
    """CPU packages of this host, None where the system does not say."""
    try:
        packages = set(re.findall(r"^physical id\s*:\s*(\d+)", cpuinfo.read_text(), re.M))
    except OSError:
        return None
    return len(packages) or None
