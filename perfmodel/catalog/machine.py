"""A machine that its owner describes in a file: ``--system box.yaml``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from perfmodel.catalog.data import read_yaml
from perfmodel.catalog.detect import Found
from perfmodel.catalog.gpus import Overrides, build_system, resolve
from perfmodel.catalog.problems import validated
from perfmodel.errors import BadInput, Problem
from perfmodel.spec.hardware import DescribedLink, Device, System
from perfmodel.spec.workload import Frozen
from perfmodel.units import GIGA

RULE = "system-file"
Gib = Annotated[float, Field(strict=True, gt=0, le=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=100_000)]


class Cable(Frozen):
    """A link of one host: two ends (``gpu0`` .., or any name of a switch or CPU) and its rate."""

    between: Annotated[tuple[str, str], Field(strict=False)]
    gb_per_s_per_direction: Annotated[float, Field(strict=True, ge=0.1, le=2000)]


class Machine(Frozen):
    """The fields of a ``--system`` file; only `device` is needed."""

    device: str | dict[str, Any]
    gpus: Count = 1
    nodes: Count = 1
    host_ram_gib: Gib | None = None
    gpu_memory_gib: Gib | None = None
    gpu_reserve_gib: Annotated[float, Field(strict=True, ge=0, le=1e6)] = 0.0
    p2p: Annotated[bool, Field(strict=True)] | None = None
    sockets: Annotated[int, Field(strict=True, ge=1, le=16)] | None = None
    links: tuple[Cable, ...] = ()
    notes: tuple[str, ...] = ()


def load_system(path: str | Path, overrides: Overrides | None = None) -> System:
    """The system that a file describes; flags win over the file.

    Raises:
        BadInput: every problem of the file, each naming file and field.
    """
    label = str(path)
    data = read_yaml(Path(path), RULE, label)
    if not looks_like_machine(data) and looks_like_device(data):
        raise BadInput(_device_file(label, data))
    machine = validated(Machine, data, label, RULE)
    flags = overrides or Overrides()
    merged = Overrides(
        gpu_memory_gib=flags.gpu_memory_gib or machine.gpu_memory_gib,
        gpu_reserve_gib=flags.gpu_reserve_gib or machine.gpu_reserve_gib,
        host_ram_gib=flags.host_ram_gib or machine.host_ram_gib,
        p2p=machine.p2p if flags.p2p is None else flags.p2p,
        sockets=flags.sockets or machine.sockets,
    )
    warning: Problem | None = None
    if isinstance(machine.device, str):
        device, warning = resolve(machine.device)
    else:
        device = validated(Device, machine.device, f"{label}: device", RULE)
    system = build_system(device, count=machine.gpus, nodes=machine.nodes, overrides=merged)
    links = tuple(
        DescribedLink(*cable.between, cable.gb_per_s_per_direction * GIGA)
        for cable in machine.links
    )
    if links:
        from perfmodel.topology_graph import cable_graph

        cable_graph(replace(system, links=links))
    warnings = (*((warning,) if warning else ()), *system.warnings)
    return replace(
        system,
        links=links,
        warnings=warnings,
        named={"system": label},
        changed=flags.flags(),
    )


def system_yaml(found: Found) -> str:
    """What was detected as a ``--system`` file."""
    device, _ = resolve(found.name)
    rows = [
        f"# {found.count}x {found.name}, as the driver's tools describe it; edit freely",
        f"device: {device.id}",
        f"gpus: {found.count}",
    ]
    if found.memory_gib is not None:
        rows.append(f"gpu_memory_gib: {found.memory_gib:.2f}")
    if found.host_ram_gib is not None:
        rows.append(f"host_ram_gib: {found.host_ram_gib:.1f}")
    if found.sockets is not None:
        rows.append(f"sockets: {found.sockets}")
    if found.p2p is not None:
        rows.append(f"p2p: {str(found.p2p).lower()}")
    if found.settings:
        rows += ["notes:", *(f'- "{setting}"' for setting in found.settings)]
    return "\n".join(rows) + "\n"


def _device_file(label: str, data: dict[str, Any]) -> Problem:
    identity = str(data["id"])
    message = (
        f"{label} describes a device, and --system takes a machine; put it into DIR/hardware/ and "
        f"set PERFMODEL_PATH=DIR, then --gpus 4x{identity} (or device: {identity} in a machine)"
    )
    return Problem(RULE, message, field="--system", value=label)


def looks_like_device(data: dict[str, Any]) -> bool:
    """Whether a YAML mapping describes a device."""
    return {"id", "peak_flop_per_s"} <= set(data)


def looks_like_machine(data: dict[str, Any]) -> bool:
    """Whether a YAML mapping describes a machine (it names a device) and not a device."""
    return "device" in data
