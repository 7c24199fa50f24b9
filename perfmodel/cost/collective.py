"""Collectives: latency and bandwidth by operation and group size, protocols, their change, tiers.

For a group of n ranks and nccl-tests' full size S, one pass over the ring (all_gather,
reduce_scatter) or over the pairs (all_to_all) sends ``W = S * (n-1)/n`` from each rank; an
all_reduce is a reduce_scatter and an all_gather in a row, two passes.  A pass takes n - 1 steps.
With B the link rate of the path (`pair_frac` of it in the later protocols of two ranks: on a mesh
they share one link):

    idle    = small_s + rank_s * (n - 2)                                       (of the operation)
    latency = idle * (1 - short_frac / (1 + S / 16 KiB))    (flags inside the data, then beside it)
    first   = smooth maximum of latency
              and idle * (1 - short_frac) + passes * S / (B * small_frac * (n/2)^small_power)
    per     = smooth maximum of (n-1)/n / wire_frac and copy_frac    (wire, passes over the buffer)
    middle  = latency + middle_s + passes * S * per / (B * middle_frac)
    second  = smooth maximum of latency + plateau_s + plateau_step_s * steps
              and latency * stream_frac + passes * (fill_s * S / (S + fill_bytes) + S * per / B)
    time    = the protocol that the library picks; never below what it was at the last change

The first protocol stores data and flag together and is slowed by that on the whole buffer, so its
slope follows S and not the bytes on the wire.  The second moves chunks: below a chunk a channel
the library takes fewer channels instead of smaller chunks, so every step costs a whole chunk.  The
middle one has neither cost, but sends flags with its data.

Streams of HCCL's all_to_all hide part of the latency (`stream_frac`; 1 for NCCL).  What does not
fit into its buffer is exchanged in rounds by more than two ranks: beyond 200 MB the bytes take
``1 / rounds_frac`` of their time, and no less than those that fit.

`perfmodel.cost.protocols` says which protocol a library picks.  Groups that leave the host have no
plateau where some were measured; each pass fills a second pipeline and is slower on the wire:

    second  = latency + passes * (fill_s * S / (S + fill_bytes) + far_s * S / (S + far_bytes)
                                  + S * per / (B * far_frac))

Where none was measured they take ``network_latency_s * log2(n)`` more.  A message to the next rank
(p2p) is one hop in a group of any size and takes it once, as do groups that would fit a host where
larger ones were measured.

Times, not rates, are joined and never fall, so the law is monotone in bytes.  The three ring
operations are one law, ``ring``, and share what is the library's or the network's: change, plateau,
middle protocol, fill, pair rate, what leaves the host; the rest is each one's own.

Where the switch can sum, an all_reduce uses it for the numbers of ranks where its rate,
``B * in_switch_frac / (1 + 1/n)``, beats the ring's: ``latency + in_switch_s + S / rate``.  That is
a change of algorithm, so time need not grow with ranks there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.fits import Law, values_of
from perfmodel.cost.machine import Machine, Rates, TopologyLike
from perfmodel.cost.protocols import (
    BUFFER_BYTES,
    OWN_PARAMETERS,
    parameters_of,
    passes_of,
    switch_sizes,
)
from perfmodel.cost.result import (
    LATENCY,
    LINK,
    Costed,
    FloatArray,
    as_float,
    on_distinct,
    outside,
    p_max,
)
from perfmodel.cost.seen import SEEN_BYTES, figures, seen_ratio
from perfmodel.ops import Collective
from perfmodel.topology import Pattern, Topology, full_host
from perfmodel.units import KIB

LAW_OF = {
    "all_gather": "collective/ring",
    "reduce_scatter": "collective/ring",
    "all_reduce": "collective/ring",
    "broadcast": "collective/ring",
    "all_to_all": "collective/all_to_all",
    "p2p": "collective/all_to_all",
}
"""Law of each operation; broadcast and p2p are derived."""

NETWORK_TIER, PAIR = 3, 2
INSIDE_TIER = 1
"""The link domain, which laws are fitted in; other tiers lend their fractions only."""

PATTERNS: dict[str, Pattern] = {"all_to_all": "pairwise", "p2p": "next"}
"""Who talks to whom (`perfmodel.topology`); the others form rings."""


def wire_factor(op: str, ranks: FloatArray) -> FloatArray:
    """Bytes a rank sends over S: the bus-bandwidth factors of nccl-tests."""
    share = (ranks - 1.0) / ranks
    return 2.0 * share if op == "all_reduce" else share


def collective_time_s(
    values: Mapping[str, float],
    op: str,
    full_bytes: FloatArray,
    ranks: FloatArray,
    link_bytes_per_s: FloatArray | float,
    *,
    in_switch: bool = False,
    far: NDArray[np.bool_] | bool = False,
) -> FloatArray:
    """Seconds of one measured collective; 0 for one rank.

    Args:
        values: parameters of the law of `op`.
        op: a measured operation.
        full_bytes: S of the module's text.
        ranks: n.
        link_bytes_per_s: B.
        in_switch: the switch sums all-reduces.
        far: the group leaves the host, and the law was fitted to some that do.
    """
    size, ranks = as_float(full_bytes), np.maximum(as_float(ranks), 1.0)
    curve = _Curve.of(values, op, ranks, link_bytes_per_s)
    change, last = switch_sizes(values, op, ranks, link_bytes_per_s, far)
    second = curve.second_s(size, far)
    if op == "all_reduce" and in_switch:
        second, inside = curve.in_switch_s(size, second)
        last = np.where(inside, change, last)
    later = np.maximum(second, curve.first_s(np.minimum(size, change)))
    if np.any(last > change):
        least = curve.first_s(change)
        middle = np.maximum(curve.middle_s(np.minimum(size, last)), least)
        both = np.where(size < last, middle, np.maximum(later, middle))
        later = np.where(last > change, both, later)
    time = np.where(size >= change, later, curve.first_s(size))
    return np.where(ranks > 1, time, 0.0)


SHORT_BYTES = 16.0 * KIB
FIRST_POWER, WIRE_POWER, PLATEAU_POWER = 4.0, 4.0, 4.0


@dataclass(frozen=True, slots=True)
class _Curve:
    """What the protocols of one operation have in common, of groups of `ranks`."""

    values: Mapping[str, float]
    passes: float
    steps: FloatArray
    ranks: FloatArray
    link: FloatArray
    idle_s: FloatArray
    slope_s: FloatArray
    per_pass: FloatArray
    fill_s: float

    @classmethod
    def of(
        cls,
        values: Mapping[str, float],
        op: str,
        ranks: FloatArray,
        link_bytes_per_s: FloatArray | float,
    ) -> _Curve:
        own = {p.name: values[f"{op}.{p.name}"] for p in OWN_PARAMETERS}
        passes = passes_of(op)
        links = (0.5 * np.maximum(ranks, 2.0)) ** values["small_power"]
        wire = (ranks - 1.0) / ranks / own["wire_frac"]
        return cls(
            values=values,
            passes=passes,
            steps=passes * np.maximum(ranks - 1.0, 1.0),
            ranks=ranks,
            link=as_float(link_bytes_per_s * np.where(ranks <= PAIR, values["pair_frac"], 1.0)),
            idle_s=own["small_s"] + own["rank_s"] * np.maximum(ranks - 2.0, 0.0),
            slope_s=as_float(passes / (link_bytes_per_s * own["small_frac"] * links)),
            per_pass=p_max(wire, own["copy_frac"] + 0.0 * ranks, WIRE_POWER),
            fill_s=own["fill_s"],
        )

    def latency_s(self, size: FloatArray) -> FloatArray:
        """Of a message of that size, before its bytes."""
        return self.idle_s * (1.0 - self.values["short_frac"] / (1.0 + size / SHORT_BYTES))

    def first_s(self, size: FloatArray) -> FloatArray:
        """Data and flags stored together."""
        stream = self.idle_s * (1.0 - self.values["short_frac"]) + size * self.slope_s
        return p_max(self.latency_s(size), stream, FIRST_POWER)

    def middle_s(self, size: FloatArray) -> FloatArray:
        """Flags beside the data, no chunks."""
        byte_s = self.passes * self.per_pass / self.link / self.values["middle_frac"]
        return self.latency_s(size) + self.values["middle_s"] + size * byte_s

    def wire_bytes(self, size: FloatArray) -> FloatArray:
        """Bytes that take as long as a message in rounds does, never fewer than one that fits."""
        slower = np.maximum(size / self.values.get("rounds_frac", 1.0), BUFFER_BYTES)
        return np.where((size > BUFFER_BYTES) & (self.ranks > PAIR), slower, size)

    def second_s(self, size: FloatArray, far: NDArray[np.bool_] | bool) -> FloatArray:
        """Chunks: over the ring or the pairs, or over the network too."""
        values, latency = self.values, self.latency_s(size)
        fill = self.fill_s * size / (size + values["fill_bytes"])
        byte_s = self.per_pass / self.link
        shown = values.get("stream_frac", 1.0)
        stream = latency * shown + self.passes * (fill + self.wire_bytes(size) * byte_s)
        least = latency + values["plateau_s"] + values["plateau_step_s"] * self.steps
        near = p_max(stream, least, PLATEAU_POWER)
        if "far_s" not in values or not np.any(far):
            return near
        far_fill = values["far_s"] * size / (size + values["far_bytes"])
        slower = size * byte_s * (1.0 / values["far_frac"] - 1.0)
        return np.where(far, stream + self.passes * (far_fill + slower), near)

    def in_switch_s(
        self, size: FloatArray, ring_s: FloatArray
    ) -> tuple[FloatArray, NDArray[np.bool_]]:
        """The second protocol inside the switch where its rate is higher, and where that is."""
        inside = (1.0 + 1.0 / self.ranks) / self.values["in_switch_frac"]
        better = inside < self.passes * self.per_pass
        time = self.latency_s(size) + self.values["in_switch_s"] + size * inside / self.link
        return np.where(better, time, ring_s), better


def _evaluate(
    machine: Machine,
    op: str,
    law: Law | None,
    size: FloatArray,
    ranks: FloatArray,
    link: FloatArray,
    far: NDArray[np.bool_],
) -> FloatArray:
    """Time of `op`, with p2p and broadcast derived from measured collectives.

    p2p of S bytes crosses the link once: the all_to_all of two ranks with 2 S, without its local
    half.  A broadcast delivers S to every rank: the all_gather whose wire bytes are S.
    """
    values = values_of(parameters_of(LAW_OF[op]), law)
    if op == "p2p":
        two = np.where(ranks > 1, 2.0, 1.0)
        wire = {**values, "all_to_all.copy_frac": 0.0}
        return collective_time_s(wire, "all_to_all", 2.0 * size, two, link)
    if op == "broadcast":
        size = size * ranks / np.maximum(ranks - 1.0, 1.0)
        return collective_time_s(values, "all_gather", size, ranks, link, far=far)
    in_switch = machine.rates.in_switch_reduce
    return collective_time_s(values, op, size, ranks, link, in_switch=in_switch, far=far)


def roof_s(
    rates: Rates, op: str, size: FloatArray, ranks: FloatArray, link: FloatArray
) -> FloatArray:
    """Wire bytes over the link rate; a switch that sums halves what an all-reduce must move."""
    factor = np.where(ranks > 1, 1.0, 0.0) if op in ("p2p", "broadcast") else wire_factor(op, ranks)
    if op == "all_reduce" and rates.in_switch_reduce:
        factor = np.minimum(factor, np.where(ranks > 1, 1.0, 0.0))
    return as_float(size * factor / link)


def cost_collective(op: Collective, machine: Machine) -> Costed:
    """Cost of one collective on the links that its groups cross."""
    ranks = np.maximum(np.asarray(op.ranks, np.int64), 1)
    law_name = LAW_OF[op.op]
    law = machine.laws.get(law_name)
    tier, rate, held_rate = _paths(machine, op, law, ranks)
    network_s, seen = machine.term("network_latency_s", 1.5e-5), _measured_far(machine, law)

    def evaluate(
        size: FloatArray, n: FloatArray, at: FloatArray, link: FloatArray, held_link: FloatArray
    ) -> tuple[FloatArray, ...]:
        size, n = as_float(size), as_float(n)
        link, most = (
            np.where(n > 1, np.where(rate > 0, rate, np.inf), 1.0)
            for rate in (held_link, np.maximum(link, held_link))
        )
        outer = (at >= NETWORK_TIER) & (n > 1)
        far = outer & (op.op != "p2p") & seen
        time = _evaluate(machine, op.op, law, size, n, link, far)
        held = far & (n > machine.rates.host_ranks)
        hops = np.where(far | (op.op == "p2p"), 1.0, np.log2(n))
        time = time + np.where(outer & ~held, network_s * hops, 0.0)
        roof = roof_s(machine.rates, op.op, size, n, most)
        runs = (n > 1) & (size > 0)
        time = np.maximum(time, roof) * runs
        return time, roof * runs, np.where(roof > 0.4 * time, LINK, LATENCY)

    size = as_float(op.full_bytes)
    time, roof, code = on_distinct(
        evaluate, {"size": size, "n": ranks, "at": tier, "link": rate, "held_link": held_rate}
    )
    runs = np.asarray(op.count) > 0
    return Costed(
        time * runs,
        roof * runs,
        code.astype(np.int8),
        np.zeros(()),
        size,
        "prior" if law is None or op.op in ("p2p", "broadcast") else law.provenance,
        _outside(law, size, ranks),
        law_name,
        guessed=tier > INSIDE_TIER,
    )


def _paths(
    machine: Machine, op: Collective, law: Law | None, ranks: NDArray[np.int64]
) -> tuple[NDArray[np.int64], FloatArray, FloatArray]:
    """Tier and rate of the groups, and that rate as the device was measured to use it.

    The last differs only inside usual hosts of a device whose law is lent (`perfmodel.cost.seen`).
    """
    topology: TopologyLike = machine.topology
    lent = law is not None and law.of_family and getattr(topology, "usual", False)
    held = lent and bool(figures(machine.device, op.op))
    if held and isinstance(topology, Topology):
        topology = topology.without_sockets()
    path = topology.path(ranks, op.stride, op.groups, PATTERNS.get(op.op, "ring"))
    tier, rate = np.asarray(path.tier), np.asarray(path.bytes_per_s_per_direction, float)
    if not held:
        return tier, rate, rate

    def lent_bytes_per_s(name: str, counts: FloatArray) -> FloatArray:
        path = full_host(machine.device).path(
            counts.astype(np.int64), pattern=PATTERNS.get(name, "ring")
        )
        size, near = np.full(counts.shape, SEEN_BYTES), np.zeros(counts.shape, bool)
        link = as_float(path.bytes_per_s_per_direction)
        time = _evaluate(machine, name, law, size, counts, link, near)
        return as_float(wire_factor(name, counts) * size / time)

    ratio = seen_ratio(machine.device, op.op, as_float(ranks), lent_bytes_per_s)
    return tier, rate, rate * np.where(tier < NETWORK_TIER, ratio, 1.0)


def _measured_far(machine: Machine, law: Law | None) -> bool:
    """Whether the law was fitted to groups that fit no host: the network is in its times."""
    most = law.range.get("num_ranks", (0.0, 0.0))[1] if law else 0.0
    return most > machine.rates.host_ranks


def _outside(law: Law | None, size: FloatArray, ranks: NDArray[np.int64]) -> NDArray[np.bool_]:
    ranges = law.range if law else {}
    flag = outside(ranges, {"message_bytes": size, "num_ranks": as_float(ranks)})
    return np.asarray(flag & (ranks > 1))
