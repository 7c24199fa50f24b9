"""What the commands of ``hardware`` print with ``--json``."""

from __future__ import annotations

from typing import Literal

from perfmodel.report.asked import SCHEMA_VERSION, Record, Versioned
from perfmodel.spec.hardware import Device


class DeviceRow(Record):
    """The main figures of a device; null is unknown."""

    id: str
    title: str
    vendor: str
    family: str
    bf16_flop_per_s: float | None = None
    fp8_flop_per_s: float | None = None
    nvfp4_flop_per_s: float | None = None
    mxfp4_flop_per_s: float | None = None
    usable_bytes: float
    memory_bytes_per_s: float | None = None
    link: str
    link_bytes_per_s_per_direction: float | None = None
    devices_joined: int | None = None
    node_size: int
    aliases: tuple[str, ...] = ()


class DevicesAnswer(Versioned):
    """All devices that are known."""

    devices: tuple[DeviceRow, ...]


class DeviceAnswer(Device):
    """Every figure of one device with its source, as its file has them."""

    schema_version: str = SCHEMA_VERSION
    status: Literal["ok"] = "ok"


class CheckedFile(Record):
    """A file without a problem, and what it describes."""

    file: str
    what: str


class CheckAnswer(Versioned):
    """Files without a problem."""

    files: tuple[CheckedFile, ...]


class DetectAnswer(Versioned):
    """This machine, as the tools of its driver describe it."""

    name: str
    count: int
    memory_gib: float | None = None
    host_ram_gib: float | None = None
    sockets: int | None = None
    p2p: bool | None = None
    settings: tuple[str, ...] = ()
