"""What an accelerator is: sourced figures in base units, and a system built of them.

Every number is a `Figure`: its value, where it was read and what kind of evidence that is.
Efficiencies do not live here; they are fitted (``calibration/``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.errors import MissingData, Problem
from perfmodel.spec.figures import (
    Alternative,
    Bandwidth,
    CacheSize,
    Capacity,
    Clock,
    Count,
    ExpRate,
    Figure,
    Kind,
    LinkRate,
    NetworkRate,
    Number,
    Power,
    Rate,
    Strict,
    Text,
    Units,
    value_of,
)
from perfmodel.units import GIGA

__all__ = [
    "Alternative",
    "Collectives",
    "Compute",
    "DescribedLink",
    "Device",
    "Figure",
    "HostLink",
    "Link",
    "Measured",
    "Memory",
    "Network",
    "Source",
    "System",
    "value_of",
]

Family = Literal[
    "blackwell",
    "blackwell-rtx",
    "hopper",
    "ada",
    "ampere",
    "cdna3",
    "cdna4",
    "rdna3",
    "rdna4",
    "davinci",
    "davinci-v3",
    "neuron",
    "gaudi",
    "tpu",
    "cpu",
]
LinkShape = Literal["switch", "mesh", "ring", "pcie", "none"]

# A block-scaled format runs at the rate of its plain one unless the file has a figure of its own.
SAME_PEAK = {
    "fp8_block": "fp8",
    "mxfp8": "fp8",
    "mxfp4": "nvfp4",
    "fp4": "nvfp4",
    "fp16": "bf16",
    "fp32": "tf32",
}


class Memory(Strict):
    """Device memory: nominal size, what the driver leaves usable, and its rate."""

    kind: Text
    capacity_bytes: Capacity
    usable_bytes: Capacity
    bandwidth_bytes_per_s: Bandwidth
    l2_bytes: CacheSize | None = None


class Compute(Strict):
    """Units that run blocks (SMs, compute units, cube cores), clock and power."""

    multiprocessors: Units | None = None
    boost_hz: Clock | None = None
    tdp_w: Power | None = None


class Link(Strict):
    """The link between devices.

    Attributes:
        kind: as people call it, e.g. ``NVLink 5``.
        bytes_per_s_per_direction: of one device over all its ports.
        topology: ``switch`` any group gets the full rate; ``mesh`` one direct link a pair;
            ``ring`` two neighbours; ``pcie`` through the host; ``none`` one device only.
        domain_size: consecutive devices that the link joins; may exceed a host (72 for NVL72).
        p2p: devices copy to each other without passing through host memory.
        in_switch_reduce: the switch can add (NVLink SHARP).
        pair_bytes_per_s_per_direction: of one direct link, where the file knows it.
        same_as: id of a device with the same links, whose fitted collectives hold here too.
    """

    kind: Text
    bytes_per_s_per_direction: LinkRate
    topology: LinkShape
    domain_size: Count
    p2p: Annotated[bool, Field(strict=True)] = True
    in_switch_reduce: Annotated[bool, Field(strict=True)] = False
    pair_bytes_per_s_per_direction: LinkRate | None = None
    same_as: Text | None = None

    @model_validator(mode="after")
    def _one_direction(self) -> Link:
        value = self.bytes_per_s_per_direction.value
        if value is None:
            raise ValueError("bytes_per_s_per_direction: a link needs a rate, null is not one")
        most = _PER_DIRECTION.get(self.kind.split(" (")[0])
        if most is not None and value > most:
            raise ValueError(
                f"bytes_per_s_per_direction: {self.kind} carries {most / GIGA:g} GB/s per "
                f"direction, not {value / GIGA:g}; is that the sum of both directions?"
            )
        return self


# Vendor rates of a full link, one direction; a file above it has counted both.
_PER_DIRECTION = {
    "NVLink 3": 300 * GIGA,
    "NVLink 4": 450 * GIGA,
    "NVLink 5": 900 * GIGA,
    "PCIe Gen4": 32 * GIGA,
    "PCIe Gen5": 64 * GIGA,
    "PCIe Gen6": 128 * GIGA,
}


class HostLink(Strict):
    """The link of one device to its host."""

    kind: Text
    bytes_per_s_per_direction: LinkRate


class Network(Strict):
    """Between hosts (or supernodes): the share of one device."""

    kind: Text
    bytes_per_s_per_direction: NetworkRate


class Collectives(Strict):
    """Best collectives seen inside one node, by number of ranks.

    ``busbw_bytes_per_s``: bus bandwidth as nccl-tests defines it; ``small_message_s``: latency
    floor of tiny messages.
    """

    source: Text
    kind: Kind
    note: Text | None = None
    busbw_bytes_per_s: dict[str, dict[int, Number]] = Field(default_factory=dict)
    small_message_s: dict[str, dict[int, Number]] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _plausible(self) -> Collectives:
        for name, by_ranks in self.busbw_bytes_per_s.items():
            for ranks, value in by_ranks.items():
                if not GIGA <= value <= 2000 * GIGA:
                    raise ValueError(f"busbw_bytes_per_s: {name}, {ranks} ranks: {value:g} B/s")
        for name, by_ranks in self.small_message_s.items():
            for ranks, value in by_ranks.items():
                if value > 1e-2:
                    raise ValueError(f"small_message_s: {name}, {ranks} ranks: {value:g} s")
        return self


class Measured(Strict):
    """Best rates anyone reached on the device: facts that bound a prediction from below."""

    gemm_flop_per_s: dict[str, Rate] = Field(default_factory=dict)
    attention_flop_per_s: dict[str, Rate] = Field(default_factory=dict)
    read_bytes_per_s: Bandwidth | None = None
    collectives: Collectives | None = None


class Source(Strict):
    """Where figures were read."""

    url: Text
    what: Text


class Device(Strict):
    """One accelerator as torch counts it (an Ascend 910C package is two).

    Attributes:
        id: file name without ``.yaml``.
        title: short name in tables.
        aliases: what people type; names: what tools print.
        counts: what one device is, where a package holds several (two dies of a 910C).
        node_size: devices in one host.
        peak_flop_per_s: dense matrix peak by dtype, multiply-add = 2.
        vector_flop_per_s: fp32 on the vector units; exp_per_s: exponentials of softmax.
        network: what joins hosts; a device that is used in one host needs none.
    """

    id: Annotated[str, Field(strict=True, pattern=r"^[a-z0-9][a-z0-9.\-]*$")]
    vendor: Text
    title: Text
    aliases: tuple[Text, ...] = ()
    names: tuple[Text, ...] = ()
    architecture: Text
    family: Family
    compute_capability: Text | None = None
    counts: Text | None = None
    node_size: Count
    peak_flop_per_s: Annotated[dict[str, Rate], Field(min_length=1)]
    vector_flop_per_s: Rate | None = None
    exp_per_s: ExpRate | None = None
    memory: Memory
    compute: Compute = Field(default_factory=Compute)
    link: Link
    host_link: HostLink
    network: Network | None = None
    measured: Measured = Field(default_factory=Measured)
    sources: dict[str, Source]
    notes: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> Device:
        if problems := _inconsistencies(self):
            raise ValueError("; ".join(problems))
        return self

    def peak(self, dtype: str) -> Figure:
        """Dense matrix peak of `dtype` [FLOP/s]; a block format falls back on its plain one.

        Raises:
            MissingData: the device has no peak for it; none is ever guessed.
        """
        for name in (dtype, SAME_PEAK.get(dtype, dtype)):
            figure = self.peak_flop_per_s.get(name)
            if figure is not None and figure.value is not None:
                return figure
        have = tuple(name for name, figure in self.peak_flop_per_s.items() if figure.value)
        raise MissingData(
            Problem(
                "no-peak",
                f"{self.title} has no {dtype} matrix rate in hardware/{self.id}.yaml; "
                f"it has {', '.join(have)}; try --dtype {have[0]}",
                field="--dtype",
                value=dtype,
                legal_values=have,
            )
        )

    def roof_flop_per_s(self, dtype: str) -> float:
        """The larger of peak and best measured rate of `dtype` [FLOP/s]: nothing is faster."""
        names = (dtype, SAME_PEAK.get(dtype, dtype))
        measured = [
            figure.value or 0.0
            for name in names
            if (figure := self.measured.gemm_flop_per_s.get(name)) is not None
        ]
        return max([value_of(self.peak(dtype)), *measured])

    def roof_bytes_per_s(self) -> float:
        """The larger of datasheet and best measured memory rate [B/s]."""
        read = self.measured.read_bytes_per_s
        return max(
            value_of(self.memory.bandwidth_bytes_per_s), (read.value or 0.0) if read else 0.0
        )

    @property
    def usable_bytes(self) -> float:
        """What the driver leaves of one device's memory [B]."""
        return value_of(self.memory.usable_bytes)


def _inconsistencies(device: Device) -> list[str]:
    found: list[str] = []
    peaks = {name: figure.value for name, figure in device.peak_flop_per_s.items()}
    for key, figure in (
        ("memory.usable_bytes", device.memory.usable_bytes),
        ("memory.bandwidth_bytes_per_s", device.memory.bandwidth_bytes_per_s),
        ("host_link.bytes_per_s_per_direction", device.host_link.bytes_per_s_per_direction),
        *(
            [("network.bytes_per_s_per_direction", device.network.bytes_per_s_per_direction)]
            if device.network
            else []
        ),
    ):
        if figure.value is None:
            found.append(f"{key}: a number is needed, null is not one")
    if found:
        return found
    # A CPU does a few FLOP for each byte, an accelerator tens to hundreds.
    least = 0.3 if device.family == "cpu" else 10
    memory_bytes_per_s = value_of(device.memory.bandwidth_bytes_per_s)
    for name in ("bf16", "fp16", "fp8"):
        ridge = (peaks.get(name) or least * memory_bytes_per_s) / memory_bytes_per_s
        if not least <= ridge <= 10_000:
            found.append(
                f"peak_flop_per_s.{name}: {ridge:.3g} FLOP for each byte of memory rate; "
                "one of the two is off by a prefix"
            )
    if device.usable_bytes > 1.08 * (device.memory.capacity_bytes.value or 0.0):
        found.append("memory.usable_bytes: more than capacity_bytes")
    for name, figure in device.measured.gemm_flop_per_s.items():
        peak = peaks.get(name) or peaks.get(SAME_PEAK.get(name, name))
        if peak and (figure.value or 0.0) > 2 * peak:
            found.append(f"measured.gemm_flop_per_s.{name}: more than twice the peak")
    found += [
        f"sources: no entry for {key!r}" for key in _cited(device) if key not in device.sources
    ]
    return found


def _cited(part: object) -> set[str]:
    """Source keys used anywhere below `part`."""
    if isinstance(part, (Figure, Alternative, Collectives)):
        others = getattr(part, "alternatives", ())
        return {part.source}.union(*(_cited(other) for other in others))
    if isinstance(part, dict):
        return set().union(*(_cited(value) for value in part.values()))
    if isinstance(part, Strict):
        return set().union(
            *(_cited(getattr(part, key)) for key in type(part).model_fields if key != "sources")
        )
    return set()


@dataclass(frozen=True, slots=True)
class DescribedLink:
    """A cable of a described machine: two ends (``gpu0`` .. or any other name) and its rate."""

    a: str
    b: str
    bytes_per_s_per_direction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Devices, hosts and what the user changed about them.

    Attributes:
        num_gpus: devices over all nodes; gpus_per_node: in one host.
        usable_bytes: per device, after `--gpu-memory` and `--gpu-reserve` [B].
        host_ram_bytes: of one host; None is unknown and never assumed.
        p2p: devices of a host copy to each other directly.
        sockets: CPUs that the PCIe devices of a host are spread over.
        label: ``4x B300``; link_label: ``NVLink``.
        links: cables of a described machine, empty for a catalogued layout.
        warnings: names that were ambiguous, hosts that are not full.
        assumed: fields that the user did not give.
        named: the flag that means this machine, where its devices and hosts do not tell.
        changed: what the user said of it, by the name of the flag.
    """

    device: Device
    num_gpus: int
    nodes: int
    gpus_per_node: int
    usable_bytes: float
    host_ram_bytes: float | None = None
    p2p: bool = True
    sockets: int = 1
    label: str = ""
    link_label: str = ""
    links: tuple[DescribedLink, ...] = ()
    warnings: tuple[Problem, ...] = ()
    assumed: tuple[str, ...] = field(default=())
    named: Mapping[str, str] = field(default_factory=dict)
    changed: Mapping[str, object] = field(default_factory=dict)

    @property
    def devices_a_socket(self) -> int:
        """Devices of a host that share a CPU: dealt evenly, in rank order."""
        return -(-self.gpus_per_node // max(1, min(self.sockets, self.gpus_per_node)))

    def sockets_of(self, devices: int) -> int | None:
        """CPUs that the first `devices` of a host are spread over; None where no CPU is between."""
        if self.device.link.topology != "pcie" or self.links:
            return None
        return -(-min(devices, self.gpus_per_node) // self.devices_a_socket)
