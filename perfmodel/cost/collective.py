"""Collectives: latency and bandwidth by operation and group size, two protocols, switch, tiers.

For a group of n ranks and nccl-tests' full size S, one pass over the ring (all_gather,
reduce_scatter) or over the pairs (all_to_all) sends ``S * (n-1)/n`` from each rank; an all_reduce
is a reduce_scatter and an all_gather in a row, two passes.  With B the link rate of the path
(`pair_frac` of it in the second protocol of two ranks: on a mesh they share one link) and per pass:

    idle    = small_s + rank_s * (n - 2)                                       (of the operation)
    latency = idle * (1 - short_frac / (1 + S / 16 KiB))    (flags inside the data, then beside it)
    first   = smooth maximum of latency
              and idle * (1 - short_frac) + passes * S / (B * small_frac * (n/2)^small_power)
    per     = smooth maximum of (n-1)/n / wire_frac and copy_frac    (wire, passes over the buffer)
    second  = smooth maximum of passes * (plateau_s + plateau_rank_s * (n - 2))
              and latency + passes * (fill_s * S / (S + fill_bytes) + S * per / B)
    time    = first below the change of protocol; second above, never below first at the change

The first protocol stores data and flag together and is slowed by that on the whole buffer, so its
slope follows S and not the bytes on the wire.  A library changes where it expects the second to
win: with latencies of ``a + b * passes * (n-1)`` and bytes of ``passes * S * (n-1)/n`` that is at

    S = switch_bytes * (n + n / (passes * (n-1)))     for a = b

which is what the tables show: two ranks change at twice the bytes a rank, an all_reduce of two
before an all_gather of two, and large groups at a constant size a rank.  `gather_switch_frac` is
for libraries that set the change of all_gather by hand.  Times, not rates, are joined and never
fall, so the law is monotone in bytes.  The three ring operations share the change, the plateau and
the pair rate (one law, ``ring``); the rest is each one's own.

Where the switch can sum, an all_reduce uses it for the numbers of ranks where its rate,
``B * in_switch_frac / (1 + 1/n)``, beats the ring's: ``latency + in_switch_s + S / rate``.  That is
a change of algorithm, so time need not grow with ranks there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.fits import Law, Parameter, values_of
from perfmodel.cost.machine import Machine, Rates
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
from perfmodel.ops import Collective
from perfmodel.units import KIB, MIB

OWN_PARAMETERS = (
    Parameter("small_s", 6e-6, 5e-7, 2e-4, "latency of two ranks", log=True),
    Parameter("rank_s", 1e-6, 2e-8, 2e-5, "latency of each further rank", log=True),
    Parameter("small_frac", 0.3, 0.01, 1.5, "rate of the first protocol over the link", log=True),
    Parameter("small_power", 0.0, 0.0, 1.2, "how the first protocol gains from links in parallel"),
    Parameter("fill_s", 1e-5, 1e-7, 3e-4, "filling the pipeline of chunks", log=True),
    Parameter("fill_bytes", 4e6, 3e5, 1e8, "size where the pipeline is half full", log=True),
    Parameter("wire_frac", 0.8, 0.1, 1.2, "rate on the wire over the link", log=True),
    Parameter("copy_frac", 0.9, 0.05, 4.0, "local passes over the buffer, link times", log=True),
)
RING_SWITCH_GRID = tuple(MIB * 2 ** (quarter / 4 - 0.05) for quarter in range(-9, 4))
PAIR_SWITCH_GRID = tuple(0.96 * 2 ** (half / 2) for half in range(26, 41))
"""Changes that are searched: just below powers of two, which themselves run the second protocol."""


def _shared(grid: tuple[float, ...], default: float) -> tuple[Parameter, ...]:
    return (
        Parameter("short_frac", 0.1, 0.0, 0.5, "latency that messages of a few KiB save"),
        Parameter("plateau_s", 2e-5, 1e-6, 5e-4, "shortest second protocol, two ranks", log=True),
        Parameter("plateau_rank_s", 3e-6, 1e-8, 6e-5, "the same for each further rank", log=True),
        Parameter("pair_frac", 1.0, 0.3, 1.2, "rate of two ranks over that of more", log=True),
        Parameter(
            "switch_bytes",
            default,
            grid[0],
            grid[-1],
            "size a rank where the protocol changes",
            log=True,
            grid=grid,
        ),
    )


RING_OPS = ("all_gather", "reduce_scatter", "all_reduce")
RING_SHARED = (
    *_shared(RING_SWITCH_GRID, RING_SWITCH_GRID[len(RING_SWITCH_GRID) // 2]),
    Parameter(
        "gather_switch_frac",
        1.0,
        0.5,
        1.0,
        "change of all_gather over the others'",
        grid=(1.0, 0.5),
        pull=1.5,
    ),
    Parameter("in_switch_frac", 0.65, 0.3, 1.2, "rate of the reduction inside the switch"),
    Parameter("in_switch_s", 3e-5, 1e-6, 1e-4, "starting it", log=True),
)
RING_PARAMETERS = (
    *RING_SHARED,
    *(
        replace(p, name=f"{op}.{p.name}", meaning=f"{op}: {p.meaning}")
        for op in RING_OPS
        for p in OWN_PARAMETERS
    ),
)
PAIR_PARAMETERS = (
    *_shared(PAIR_SWITCH_GRID, PAIR_SWITCH_GRID[len(PAIR_SWITCH_GRID) // 2]),
    *(
        replace(p, name=f"all_to_all.{p.name}", meaning=f"all_to_all: {p.meaning}")
        for p in OWN_PARAMETERS
    ),
)

LAW_OF = {
    "all_gather": "collective/ring",
    "reduce_scatter": "collective/ring",
    "all_reduce": "collective/ring",
    "broadcast": "collective/ring",
    "all_to_all": "collective/all_to_all",
    "p2p": "collective/all_to_all",
}
"""Law of each operation; broadcast and p2p are derived."""

NETWORK_TIER = 3
RING: Literal["ring", "pairwise"] = "ring"
PAIRWISE: Literal["ring", "pairwise"] = "pairwise"


def wire_factor(op: str, ranks: FloatArray) -> FloatArray:
    """Bytes a rank sends over S: the bus-bandwidth factors of nccl-tests."""
    share = (ranks - 1.0) / ranks
    return 2.0 * share if op == "all_reduce" else share


def parameters_of(law_name: str) -> tuple[Parameter, ...]:
    """Parameters of the law ``collective/ring`` or ``collective/all_to_all``."""
    return RING_PARAMETERS if law_name.endswith("ring") else PAIR_PARAMETERS


def collective_time_s(
    values: Mapping[str, float],
    op: str,
    full_bytes: FloatArray,
    ranks: FloatArray,
    link_bytes_per_s: FloatArray | float,
    *,
    in_switch: bool = False,
) -> FloatArray:
    """Seconds of one measured collective inside one tier; 0 for one rank."""
    size, ranks = as_float(full_bytes), np.maximum(as_float(ranks), 1.0)
    own = {p.name: values[f"{op}.{p.name}"] for p in OWN_PARAMETERS}
    passes = 2.0 if op == "all_reduce" else 1.0
    idle = own["small_s"] + own["rank_s"] * np.maximum(ranks - 2.0, 0.0)
    parallel = (0.5 * np.maximum(ranks, 2.0)) ** own["small_power"]
    slope = passes / (link_bytes_per_s * own["small_frac"] * parallel)

    def latency(at: FloatArray) -> FloatArray:
        return idle * (1.0 - values["short_frac"] / (1.0 + at / SHORT_BYTES))

    def first(at: FloatArray) -> FloatArray:
        stream = idle * (1.0 - values["short_frac"]) + at * slope
        return p_max(latency(at), stream, FIRST_POWER)

    change = switch_size(values, op, passes, ranks)
    second = _second_s(values, own, op, size, ranks, link_bytes_per_s, latency(size), in_switch)
    time = np.where(
        size >= change, np.maximum(second, first(np.minimum(size, change))), first(size)
    )
    return np.where(ranks > 1, time, 0.0)


SHORT_BYTES = 16.0 * KIB
FIRST_POWER, WIRE_POWER, PLATEAU_POWER = 4.0, 4.0, 4.0


def switch_size(
    values: Mapping[str, float], op: str, passes: float, ranks: FloatArray
) -> FloatArray:
    """Full size in bytes from which `op` runs the second protocol."""
    steps = passes * np.maximum(ranks - 1.0, 1.0)
    frac = values["gather_switch_frac"] if op == "all_gather" else 1.0
    return as_float(values["switch_bytes"] * frac * (ranks + ranks / steps))


def _second_s(
    values: Mapping[str, float],
    own: Mapping[str, float],
    op: str,
    size: FloatArray,
    ranks: FloatArray,
    link_bytes_per_s: FloatArray | float,
    latency: FloatArray,
    in_switch: bool,
) -> FloatArray:
    """Time of the second protocol: over the ring, or inside the switch where that is faster."""
    passes = 2.0 if op == "all_reduce" else 1.0
    link = link_bytes_per_s * np.where(ranks <= 2, values["pair_frac"], 1.0)
    wire = (ranks - 1.0) / ranks / own["wire_frac"]
    per_pass = p_max(wire, own["copy_frac"] + 0.0 * ranks, WIRE_POWER)
    fill = own["fill_s"] * size / (size + own["fill_bytes"])
    plateau = values["plateau_s"] + values["plateau_rank_s"] * np.maximum(ranks - 2.0, 0.0)
    stream = latency + passes * (fill + size * per_pass / link)
    ring = p_max(stream, passes * plateau + 0.0 * stream, PLATEAU_POWER)
    if op != "all_reduce" or not in_switch:
        return ring
    inside = (1.0 + 1.0 / ranks) / values["in_switch_frac"]
    switch = latency + values["in_switch_s"] + size * inside / link
    return np.where(inside < passes * per_pass, switch, ring)


def _evaluate(
    machine: Machine,
    op: str,
    law: Law | None,
    size: FloatArray,
    ranks: FloatArray,
    link: FloatArray,
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
        return collective_time_s(values, "all_gather", size, ranks, link)
    in_switch = machine.rates.in_switch_reduce
    return collective_time_s(values, op, size, ranks, link, in_switch=in_switch)


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
    pattern = PAIRWISE if op.op == "all_to_all" else RING
    path = machine.topology.path(ranks, op.stride, op.groups, pattern)
    tier, rate = np.asarray(path.tier), np.asarray(path.bytes_per_s_per_direction, float)
    law_name = LAW_OF[op.op]
    law = machine.laws.get(law_name)
    network_s = machine.term("network_latency_s", 1.5e-5)

    def evaluate(
        size: FloatArray, n: FloatArray, at: FloatArray, link: FloatArray
    ) -> tuple[FloatArray, ...]:
        size, n = as_float(size), as_float(n)
        link = np.where(n > 1, np.where(link > 0, link, np.inf), 1.0)
        time = _evaluate(machine, op.op, law, size, n, link)
        time = time + np.where((at >= NETWORK_TIER) & (n > 1), network_s * np.log2(n), 0.0)
        roof = roof_s(machine.rates, op.op, size, n, link)
        runs = (n > 1) & (size > 0)
        time = np.maximum(time, roof) * runs
        return time, roof * runs, np.where(roof > 0.4 * time, LINK, LATENCY)

    size = as_float(op.full_bytes)
    time, roof, code = on_distinct(evaluate, {"size": size, "n": ranks, "at": tier, "link": rate})
    runs = np.asarray(op.count) > 0
    return Costed(
        time * runs,
        roof * runs,
        code.astype(np.int8),
        np.zeros(()),
        size,
        _provenance(law, op.op, tier),
        _outside(law, size, ranks),
        law_name,
    )


def _provenance(law: Law | None, op: str, tier: NDArray[np.int64]) -> str:
    """Fitted inside the link domain that was measured; other tiers lend fractions only."""
    if law is None or op in ("p2p", "broadcast") or np.any(tier > 1):
        return "prior"
    return law.provenance


def _outside(law: Law | None, size: FloatArray, ranks: NDArray[np.int64]) -> NDArray[np.bool_]:
    ranges = law.range if law else {}
    flag = outside(ranges, {"message_bytes": size, "num_ranks": as_float(ranks)})
    return np.asarray(flag & (ranks > 1))
