"""Reads what people type after ``--gpus``: ``4xB300``, ``2x8xH100``, ``h100:8``, a tool's name."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace

from perfmodel.catalog.data import entries, find, load_device, simple, unknown_device
from perfmodel.catalog.own import drafts, lent_names
from perfmodel.errors import BadInput, Problem
from perfmodel.spec.hardware import Device, System, value_of
from perfmodel.units import GIB, GIGA

MOST_GPUS = 100_000
# Servers with more PCIe cards than this usually spread them over two CPUs.
CARDS_A_SOCKET = 4
# A typed size this near to the nominal one is the same card (44.9 and 48, 141 and 140).
SAME_SIZE = 0.1
EXAMPLES = ("4xB300", "2x8xH100", "h100:8")

_TIMES = r"\s*[x*\u00d7]\s*"
_NESTED = re.compile(rf"(?P<nodes>-?\d+){_TIMES}(?P<count>-?\d+){_TIMES}(?P<name>.+)$", re.I)
_COUNTED = re.compile(rf"(?P<count>-?\d+){_TIMES}(?P<name>.*)$", re.I)
_COLON = re.compile(r"(?P<name>.+?)\s*:\s*(?P<count>-?\d+)$")
_NOISE = re.compile(r"\b(nvidia|geforce|amd|instinct|huawei|tesla|corporation|oam|nvlink)\b", re.I)
_MEMORY = re.compile(r"\b(\d+)\s*gi?b?\b", re.I)
_PCIE = re.compile(r"\bpcie\b", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What the user says about the machine; None takes the catalogue (host RAM: unknown)."""

    gpu_memory_gib: float | None = None
    gpu_reserve_gib: float = 0.0
    host_ram_gib: float | None = None
    p2p: bool | None = None
    sockets: int | None = None

    def flags(self) -> dict[str, object]:
        """What differs from the catalogue, by the name of its flag (``p2p`` has a negative one)."""
        values = asdict(self)
        stated = {name: value for name, value in values.items() if value and name != "p2p"}
        return {**stated, "no_p2p": self.p2p is False}


def parse_gpus(text: str, overrides: Overrides | None = None) -> System:
    """The system that `text` names.

    Raises:
        BadInput: unknown name, or a count that is not 1 .. 100,000; one line.
    """
    overrides = overrides or Overrides()
    stripped = text.strip()
    if stripped.lower() == "here":
        from perfmodel.catalog.detect import here

        return here(overrides)
    nodes, count, name = _split(stripped)
    if not simple(name):
        raise BadInput(_bad_count(text, "no accelerator is named"))
    if name.endswith(":"):
        raise BadInput(_bad_count(text, "a count is missing after the colon"))
    if "," in name:
        raise BadInput(_bad_count(text, "one kind of accelerator a call; compare: --vary gpus=A,B"))
    hosts = 1 if nodes is None else nodes
    if min(hosts, count) < 1 or hosts * count > MOST_GPUS:
        raise BadInput(_bad_count(text, f"the count must be 1 to {MOST_GPUS:,}"))
    device, warning = resolve(name)
    system = build_system(device, count=count, nodes=nodes, overrides=overrides)
    said = (warning, None if overrides.gpu_memory_gib else _other_size(name, device))
    return replace(system, warnings=(*filter(None, said), *system.warnings))


def _split(text: str) -> tuple[int | None, int, str]:
    """(nodes or None, devices, name); an absurd count stays a number and is refused later."""
    if match := _NESTED.match(text):
        return int(match["nodes"]), int(match["count"]), match["name"].strip()
    if match := _COUNTED.match(text) or _COLON.match(text):
        return None, int(match["count"]), match["name"].strip()
    return None, 1, text


def _bad_count(text: str, what: str) -> Problem:
    return Problem(
        "gpu-count",
        f'--gpus "{text}": {what}; try {", ".join(EXAMPLES)}',
        field="--gpus",
        value=text,
        suggestions=EXAMPLES,
    )


def resolve(name: str) -> tuple[Device, Problem | None]:
    """The device of a name as typed or printed, and a warning if it could mean another one.

    Raises:
        BadInput: no such device.
    """
    for candidate in _candidates(name):
        item = find("hardware", candidate)
        if item is not None:
            device = load_device(item.id)
            return device, lent_names(item.id, candidate) or _ambiguity(name, candidate, device)
    item = find("hardware", _PCIE.sub(" ", _candidates(name)[-1]))
    if item is not None and load_device(item.id).link.topology == "pcie":
        return load_device(item.id), None
    raise BadInput(*drafts(("hardware",)), unknown_device(name))


def _candidates(name: str) -> list[str]:
    """The name, then without vendor words, then without remarks, then without memory size."""
    plain = _NOISE.sub(" ", name)
    bare = re.sub(r"\([^)]*\)", " ", plain)
    return [name, plain, bare, _MEMORY.sub(r"\1g", bare), _MEMORY.sub(" ", bare)]


def _ambiguity(typed: str, candidate: str, device: Device) -> Problem | None:
    """Warn where `candidate` is short for several devices and no tool prints it."""
    if simple(candidate) in {simple(other) for other in (device.id, device.title, *device.names)}:
        return None
    others = [
        item.title
        for item in entries("hardware").values()
        if item.id != device.id and _abbreviates(candidate, item.id)
    ]
    counted = f", {device.counts}" if device.counts else ""
    if not others and not counted:
        return None
    also = f"; others: {', '.join(others)}" if others else ""
    return Problem(
        "gpu-name",
        f'"{typed}" taken as {device.id} ({device.title}{counted}){also}',
        field="--gpus",
        value=typed,
        suggestions=tuple(others),
        severity="warning",
    )


def _other_size(name: str, device: Device) -> Problem | None:
    """Warn where a memory size is typed that the catalogued card does not have."""
    match = _MEMORY.search(name)
    nominal_gb = value_of(device.memory.capacity_bytes) / GIGA
    if match is None or abs(int(match[1]) - nominal_gb) <= SAME_SIZE * nominal_gb:
        return None
    return Problem(
        "gpu-memory",
        f'"{name}": {device.title} is catalogued with {nominal_gb:g} GB, which is used; '
        f"for a card of {match[1]} GB add --gpu-memory {match[1]}",
        field="--gpus",
        value=name,
        suggestions=(f"--gpu-memory {match[1]}",),
        severity="warning",
    )


def _abbreviates(name: str, identity: str) -> bool:
    """Whether `name` is a beginning of an id, or all its words are in it."""
    words = set(re.findall(r"[a-z0-9]+", name.lower()))
    start = simple(identity.removeprefix("ascend-"))
    return words <= set(identity.split("-")) or start.startswith(simple(name))


def build_system(
    device: Device, *, count: int, nodes: int | None = None, overrides: Overrides | None = None
) -> System:
    """`count` devices (in each of `nodes` hosts, where given) with the user's changes.

    Without `nodes`, hosts of the catalogued size are filled one after the other.
    """
    overrides = overrides or Overrides()
    _check_overrides(device, overrides)
    per_node = count if nodes else min(count, device.node_size)
    hosts = nodes or -(-count // device.node_size)
    total = count * nodes if nodes else count
    sockets = overrides.sockets or _usual_sockets(device, per_node)
    usable = device.usable_bytes
    if overrides.gpu_memory_gib is not None:
        usable = overrides.gpu_memory_gib * GIB
    spread = f"{hosts}x{per_node}x" if nodes is not None and nodes > 1 else f"{total}x"
    return System(
        device=device,
        num_gpus=total,
        nodes=hosts,
        gpus_per_node=per_node,
        usable_bytes=usable - overrides.gpu_reserve_gib * GIB,
        host_ram_bytes=None if overrides.host_ram_gib is None else overrides.host_ram_gib * GIB,
        p2p=device.link.p2p if overrides.p2p is None else overrides.p2p,
        sockets=sockets,
        label=f"{spread} {device.title}",
        link_label=link_label(device),
        warnings=_host_warnings(device, total, per_node, hosts, named=nodes is not None),
        assumed=_assumed(device, overrides, per_node),
        changed=overrides.flags(),
    )


def link_label(device: Device) -> str:
    """The link in a word: NVLink, PCIe, HCCS, xGMI, network where hosts hold one device each."""
    if device.link.kind == "none":
        return "network"
    return "xGMI" if "xGMI" in device.link.kind else device.link.kind.split()[0]


def _usual_sockets(device: Device, per_node: int) -> int:
    return 2 if device.link.topology == "pcie" and per_node > CARDS_A_SOCKET else 1


def _assumed(device: Device, overrides: Overrides, per_node: int) -> tuple[str, ...]:
    if device.link.topology != "pcie" or per_node == 1:
        return ()
    given = {"p2p": overrides.p2p, "sockets": overrides.sockets}
    return tuple(name for name, value in given.items() if value is None)


def _host_warnings(
    device: Device, total: int, per_node: int, hosts: int, *, named: bool
) -> tuple[Problem, ...]:
    if named and per_node > device.node_size:
        text = f"{per_node} {device.title} in one host; the usual host has {device.node_size}"
    elif not named and hosts > 1 and total % per_node:
        text = (
            f"{total} {device.title} fill {hosts} hosts of {per_node} unevenly; "
            f"write {hosts}xNx{device.title} to say how they are spread"
        )
    else:
        return ()
    return (Problem("gpu-hosts", text, field="--gpus", severity="warning"),)


def _check_overrides(device: Device, overrides: Overrides) -> None:
    memory = overrides.gpu_memory_gib
    have = device.usable_bytes / GIB if memory is None else memory
    problems: list[Problem] = []
    for flag, value, low, high in (
        ("--gpu-memory", memory, 0.5, 10_000.0),
        ("--host-ram", overrides.host_ram_gib, 1.0, 1e6),
        ("--sockets", overrides.sockets, 1, 16),
    ):
        if value is not None and not low <= value <= high:
            problems.append(_bad_override(flag, value, f"{low:g} to {high:,.0f}"))
    if not 0 <= overrides.gpu_reserve_gib < have:
        problems.append(
            _bad_override("--gpu-reserve", overrides.gpu_reserve_gib, f"0 to below {have:.1f} GiB")
        )
    if problems:
        raise BadInput(*problems)


def _bad_override(flag: str, value: float, legal: str) -> Problem:
    return Problem(
        "gpu-machine",
        f"{flag} {value:g} is out of range; legal: {legal}",
        field=flag,
        value=f"{value:g}",
    )
