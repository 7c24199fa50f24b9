"""Which links a process group crosses, and what each rank gets of them.

Rank order is engine business; a group is described by how many ranks it has, how far apart they
are, and how many such groups talk at the same time.  Uniform machines take the closed forms below;
a machine described by its cables is solved on its graph (`perfmodel.topology_graph`, networkx).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.errors import MissingData, Problem
from perfmodel.spec.hardware import Device, System, value_of
from perfmodel.units import GIGA

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Pattern = Literal["ring", "pairwise", "next"]

# Without peer access each byte is written to host memory and read back, so two copies share the
# time (prior), and all devices of a CPU share what it can stage at once (prior).
STAGED_COPIES = 2
HOST_STAGING_BYTES_PER_S = 100 * GIGA
# One direction of the CPU-to-CPU link (prior; two or three UPI links of 20.8 GB/s, or xGMI).
SOCKET_LINK_BYTES_PER_S = 60 * GIGA
# What all-to-all between peers reaches over that link together, in one direction.  Prior: 8 x L40
# and 8 x L20 lose 13 s and 5 s to Ulysses in xDiT's PixArt tables, 2 to 4 GB/s, where one stream
# of a ring passes at more than 10 GB/s and copies through host memory (8 x RTX 4090) at 12 GB/s.
SOCKET_PEERS_BYTES_PER_S = 4 * GIGA


class Tier(IntEnum):
    """The slowest kind of link that a group crosses."""

    LOCAL = 0
    DOMAIN = 1
    HOST = 2
    NETWORK = 3


@dataclass(frozen=True, slots=True)
class Path:
    """What a group gets.

    Attributes:
        tier: `Tier` of the slowest link it crosses.
        bytes_per_s_per_direction: per rank while all groups talk; infinite for one rank.
    """

    tier: Ints
    bytes_per_s_per_direction: Floats


@dataclass(frozen=True, slots=True)
class Topology:
    """The links of a system, ready for questions about groups."""

    system: System
    link_bytes_per_s: float
    pair_bytes_per_s: float
    host_bytes_per_s: float
    network_bytes_per_s: float
    domain: int
    node: int

    @classmethod
    def of(cls, system: System) -> Topology:
        """Read the rates once.

        A link domain inside a host ends with the host; a rack-scale one spans hosts.  The link
        rate is the larger of datasheet and best measured.
        """
        device = system.device
        link = link_rate(device)
        domain = device.link.domain_size
        if device.link.topology == "pcie" or not system.p2p:
            domain = 1
        elif domain <= device.node_size:
            domain = min(domain, system.gpus_per_node)
        return cls(
            system=system,
            link_bytes_per_s=link,
            pair_bytes_per_s=_pair_rate(device, link),
            host_bytes_per_s=value_of(device.host_link.bytes_per_s_per_direction),
            network_bytes_per_s=_network_rate(system),
            domain=max(domain, 1),
            node=max(system.gpus_per_node, 1),
        )

    def path(
        self,
        ranks: ArrayLike,
        stride: ArrayLike = 1,
        groups: ArrayLike = 1,
        pattern: Pattern = "ring",
    ) -> Path:
        """Tier and rate of `groups` groups of `ranks` ranks that are `stride` apart.

        Group g has the ranks ``(g // stride) * ranks * stride + g % stride + i * stride``.  The
        slowest of the groups counts.  ``ring``: each rank talks to two neighbours, over as many
        rings as the links hold (all-reduce, all-gather); ``pairwise``: each to every other
        (all-to-all); ``next``: each sends one message to the next rank (a step of ring attention).

        Args:
            ranks: group size; 1 never leaves the device.
            stride: distance of neighbours in rank order.
            groups: groups that talk at the same time and share what they cross.
            pattern: who talks to whom; matters where links are shared or join two devices only.

        Returns:
            Columns of the broadcast shape.
        """
        n, s, g = (
            np.asarray(part, np.int64) for part in np.broadcast_arrays(ranks, stride, groups)
        )
        n, s, g = np.maximum(n, 1), np.maximum(s, 1), np.maximum(g, 1)
        if self.system.links:
            from perfmodel.topology_graph import graph_path

            return Path(*graph_path(self, n, s, g, pattern))
        in_domain = _inside(n, s, g, self.domain)
        in_node = _inside(n, s, g, self.node)
        tier = np.select(
            [n == 1, in_domain, in_node],
            [int(Tier.LOCAL), int(Tier.DOMAIN), int(Tier.HOST)],
            int(Tier.NETWORK),
        ).astype(np.int64)
        rate = np.select(
            [n == 1, in_domain, in_node],
            [
                np.full(n.shape, np.inf),
                self._domain_rate(n, pattern),
                self._host_rate(n, s, g, pattern),
            ],
            self.network_rate(n, s, g, pattern),
        )
        return Path(tier, rate)

    @property
    def usual(self) -> bool:
        """Nothing was said of the links, CPUs and peer access of its hosts."""
        system = self.system
        said = system.links or "sockets" in system.changed or "sockets" in system.named
        return not said and system.p2p == system.device.link.p2p

    def without_sockets(self) -> Topology:
        """The same with all devices of a host below one CPU."""
        return replace(self, system=replace(self.system, sockets=1))

    @property
    def copies(self) -> int:
        """Copies of a message inside a host: through host memory it is two."""
        return 1 if self.system.p2p else STAGED_COPIES

    def _domain_rate(self, ranks: Ints, pattern: Pattern) -> Floats:
        """Switch: the full rate.  Mesh: n - 1 direct links.  Ring: two neighbours share it.

        A message to the next rank takes the one link that joins the two.
        """
        shape = self.system.device.link.topology
        if pattern == "next":
            ranks = np.minimum(ranks, 2)
        if shape == "mesh":
            return np.asarray(
                np.minimum(self.link_bytes_per_s, self.pair_bytes_per_s * (ranks - 1.0)), np.float64
            )
        if shape == "ring":
            return np.where(ranks < self.domain, self.link_bytes_per_s / 2, self.link_bytes_per_s)
        return np.full(ranks.shape, self.link_bytes_per_s)

    def _host_rate(self, ranks: Ints, stride: Ints, groups: Ints, pattern: Pattern) -> Floats:
        """Through the CPU: own slot, staging without peer access, and the CPU-to-CPU link.

        Assumes full-duplex slots below one root complex per CPU that peers cross at slot rate,
        devices dealt evenly to the CPUs in rank order.  Many peers that write across the CPU link
        at once get far less of it than one stream does.
        """
        sockets = max(1, min(self.system.sockets, self.node))
        per_socket = -(-self.node // sockets)
        rate = np.full(ranks.shape, self.host_bytes_per_s)
        active = np.minimum(ranks * groups, self.node)
        if not self.system.p2p:
            staged = np.minimum(active, per_socket)
            rate = np.minimum(rate / self.copies, HOST_STAGING_BYTES_PER_S / (self.copies * staged))
        if sockets == 1:
            return rate
        crossing = ~_inside(ranks, stride, groups, per_socket)
        together = np.clip(np.minimum(groups, active // np.maximum(ranks, 1)), 1, None)
        share = _cut_share(SOCKET_LINK_BYTES_PER_S, ranks, together, pattern)
        if pattern == "pairwise" and self.system.p2p:
            peers = _cut_share(SOCKET_PEERS_BYTES_PER_S, ranks, together, pattern)
            share = np.where(ranks > 2, peers, share)
        return np.where(crossing, np.minimum(rate, share), rate)

    def network_rate(self, ranks: Ints, stride: Ints, groups: Ints, pattern: Pattern) -> Floats:
        """Between hosts, one network port a device.

        A ring leaves a host once, over the ports of all its members there (as NCCL's channels
        do); pairwise, each rank sends the part for other hosts through its own port; a message to
        the next rank goes through the port of its sender.
        """
        outer = max(self.node, self.domain)
        inside = _fewest_inside(ranks, stride, outer)
        if pattern == "ring":
            rate = self.network_bytes_per_s * inside
        elif pattern == "next":
            rate = np.full(ranks.shape, self.network_bytes_per_s)
        else:
            rate = self.network_bytes_per_s * (ranks - 1.0) / np.maximum(ranks - inside, 1)
        members = np.maximum(inside, 2)
        within = np.where(
            _inside(members, stride, groups, self.domain),
            self._domain_rate(members, pattern),
            self._host_rate(members, stride, groups, pattern),
        )
        # Without peer access the network port is fed from host memory as well.
        limited = (inside > 1) | (not self.system.p2p)
        return np.asarray(np.where(limited, np.minimum(rate, within), rate), np.float64)


def full_host(device: Device) -> Topology:
    """The links of one full host of the catalogue, its CPUs left out."""
    count = device.node_size
    system = System(
        device=device,
        num_gpus=count,
        nodes=1,
        gpus_per_node=count,
        usable_bytes=device.usable_bytes,
        p2p=device.link.p2p,
    )
    return Topology.of(system)


def link_rate(device: Device) -> float:
    """The larger of datasheet and best measured link rate, per device and direction [B/s]."""
    return max(value_of(device.link.bytes_per_s_per_direction), _best_seen(device))


def _best_seen(device: Device) -> float:
    """Best bus bandwidth measured, without all-reduce (a switch that adds can exceed its link).

    Two dies of a package gather faster than their switch ports allow (Ascend 910C).
    """
    measured = device.measured.collectives
    if measured is None:
        return 0.0
    return max(
        (
            rate
            for name, by_ranks in measured.busbw_bytes_per_s.items()
            if name != "all_reduce"
            for rate in by_ranks.values()
        ),
        default=0.0,
    )


def _network_rate(system: System) -> float:
    """Rate of one device's network port [B/s]; 0 in a single host that states none.

    Raises:
        MissingData: several hosts, and no network in the device's file.
    """
    device = system.device
    if device.network is not None:
        return value_of(device.network.bytes_per_s_per_direction)
    if system.nodes > 1:
        message = (
            f"hardware/{device.id}.yaml states no network, which joins {system.nodes} hosts: add "
            f"network.kind and network.bytes_per_s_per_direction, or ask for at most "
            f"{system.gpus_per_node} devices"
        )
        raise MissingData(Problem("no-network", message, "--gpus"))
    return 0.0


def _pair_rate(device: Device, link_bytes_per_s: float) -> float:
    """Rate of one direct link of a mesh: stated, or the total over all other devices."""
    figure = device.link.pair_bytes_per_s_per_direction
    if figure is not None and figure.value is not None:
        return figure.value
    return link_bytes_per_s / max(1, device.link.domain_size - 1)


def _inside(ranks: Ints, stride: Ints, groups: Ints, block: int) -> NDArray[np.bool_]:
    """Whether every group lies within one aligned block of `block` consecutive ranks.

    Groups tile the ranks in runs of ranks x stride.  They stay inside if all of them end before
    the first boundary, or if runs fit into blocks without remainder.
    """
    run = ranks * stride
    last = groups - 1
    extent = (last // stride) * run + (ranks - 1) * stride + last % stride + 1
    inside: NDArray[np.bool_] = (ranks == 1) | (extent <= block) | (block % run == 0)
    return inside


def _fewest_inside(ranks: Ints, stride: Ints, block: int) -> Ints:
    """Fewest members that a group has in any block it touches (a lower bound when runs overlap)."""
    common = np.gcd(ranks * stride, block)
    return np.asarray(np.clip(common // stride, 1, ranks), np.int64)


def _cut_share(capacity: float, ranks: Ints, together: Ints, pattern: Pattern) -> Floats:
    """Per-rank rate when `together` groups, half of each on either side, share a cut.

    Ring and next: a group crosses the cut once in each direction.  Pairwise: n/2 ranks each send
    (n/2)/(n - 1) of their traffic across.
    """
    if pattern != "pairwise":
        return np.asarray(capacity / together, np.float64)
    half = np.maximum(ranks // 2, 1)
    other = np.maximum(ranks - half, 1)
    return np.asarray(capacity * (ranks - 1) / np.maximum(half * other, 1) / together, np.float64)
