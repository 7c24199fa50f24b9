"""Collectives: latency and bandwidth by operation and group size, two protocols, switch, tiers.

For a group of n ranks and nccl-tests' full size S, with the wire factor f (all_gather,
reduce_scatter, all_to_all ``(n-1)/n``; all_reduce ``2(n-1)/n``) and the link rate B of the path:

    small = small_s + small_rank_s * (n-1) + S * f / (B * small_frac)
    large = large_s + large_rank_s * (n-1) + S * (f / wire_frac + copy) / B
    time  = small up to switch_bytes, then a rise to max(small, large) over one octave

The second protocol starts later but moves bytes faster; because times, not rates, are joined and
never fall, the law is monotone in bytes.  All-reduce takes the better of the ring and the
reduction inside the switch, ``S * (1 + 1/n) / (B * in_switch_frac)``, where the switch can sum.
"""

from __future__ import annotations

from collections.abc import Mapping
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
)
from perfmodel.ops import Collective

PARAMETERS = (
    Parameter("small_s", 5e-6, 5e-7, 2e-4, "latency of two ranks, first protocol", log=True),
    Parameter("small_rank_s", 1e-6, 0.0, 2e-5, "latency of each further rank"),
    Parameter("small_frac", 0.25, 0.005, 1.0, "rate of the first protocol over the link", log=True),
    Parameter("large_s", 2.5e-5, 1e-6, 5e-4, "latency of two ranks, second protocol", log=True),
    Parameter("large_rank_s", 2e-6, 0.0, 5e-5, "latency of each further rank"),
    Parameter("wire_frac", 0.85, 0.02, 1.3, "rate on the wire over the link"),
    Parameter("copy_frac", 0.3, 0.0, 4.0, "local passes over the buffer, in link times"),
    Parameter("switch_bytes", 4e6, 1e4, 1e8, "size where the protocol changes", log=True),
    Parameter("in_switch_frac", 0.85, 0.0, 1.3, "rate of the reduction inside the switch"),
)

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
NETWORK_TIER = 3
RING: Literal["ring", "pairwise"] = "ring"
PAIRWISE: Literal["ring", "pairwise"] = "pairwise"


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
) -> FloatArray:
    """Seconds of one collective inside one tier; 0 for one rank."""
    size, ranks = as_float(full_bytes), np.maximum(as_float(ranks), 1.0)
    factor, more = wire_factor(op, ranks), np.maximum(ranks - 2.0, 0.0)
    small = (
        values["small_s"]
        + values["small_rank_s"] * more
        + size * factor / (link_bytes_per_s * values["small_frac"])
    )
    per_byte = factor / values["wire_frac"] + values["copy_frac"]
    if op == "all_reduce" and in_switch and values["in_switch_frac"] > 0:
        per_byte = np.minimum(per_byte, (1.0 + 1.0 / ranks) / values["in_switch_frac"])
    large = values["large_s"] + values["large_rank_s"] * more + size * per_byte / link_bytes_per_s
    rise = np.clip(np.log2(np.maximum(size, 1.0) / values["switch_bytes"]), 0.0, 1.0)
    time = small + rise * np.maximum(large - small, 0.0)
    above = size >= 2.0 * values["switch_bytes"]
    # Above the change the second protocol rules even where the first would be faster there,
    # but never below what the first needed at the change.
    at_change = collective_small_s(
        values, factor, more, 2.0 * values["switch_bytes"], link_bytes_per_s
    )
    time = np.where(above, np.maximum(large, np.minimum(at_change, small)), time)
    return np.where(ranks > 1, time, 0.0)


def collective_small_s(
    values: Mapping[str, float],
    factor: FloatArray,
    more: FloatArray,
    size: float,
    link_bytes_per_s: FloatArray | float,
) -> FloatArray:
    """Time of the first protocol at `size`."""
    return as_float(
        values["small_s"]
        + values["small_rank_s"] * more
        + size * factor / (link_bytes_per_s * values["small_frac"])
    )


def _law(machine: Machine, op: str) -> Law | None:
    return machine.laws.get(f"collective/{op}")


def _evaluate(
    machine: Machine,
    op: str,
    size: FloatArray,
    ranks: FloatArray,
    link: FloatArray,
) -> tuple[FloatArray, Law | None]:
    """Time of `op`, with p2p and broadcast derived from measured collectives.

    p2p of S bytes crosses the link once: the all_to_all of two ranks with 2 S.  A broadcast
    delivers S to every rank: the all_gather whose wire bytes are S.
    """
    if op == "p2p":
        law = _law(machine, "all_to_all")
        values = values_of(PARAMETERS, law)
        two = np.where(ranks > 1, 2.0, 1.0)
        wire = {**values, "copy_frac": 0.0}
        return collective_time_s(wire, "all_to_all", 2.0 * size, two, link), law
    if op == "broadcast":
        law = _law(machine, "all_gather")
        full = size * ranks / np.maximum(ranks - 1.0, 1.0)
        return collective_time_s(values_of(PARAMETERS, law), "all_gather", full, ranks, link), law
    law = _law(machine, op)
    in_switch = machine.rates.in_switch_reduce
    time = collective_time_s(values_of(PARAMETERS, law), op, size, ranks, link, in_switch=in_switch)
    return time, law


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
    law_name = f"collective/{op.op}"
    network_s = machine.term("network_latency_s", 1.5e-5)
    used: list[Law | None] = []

    def evaluate(
        size: FloatArray, n: FloatArray, at: FloatArray, link: FloatArray
    ) -> tuple[FloatArray, ...]:
        size, n = as_float(size), as_float(n)
        link = np.where(n > 1, np.where(link > 0, link, np.inf), 1.0)
        time, law = _evaluate(machine, op.op, size, n, link)
        used.append(law)
        time = time + np.where((at >= NETWORK_TIER) & (n > 1), network_s * np.log2(n), 0.0)
        roof = roof_s(machine.rates, op.op, size, n, link)
        runs = (n > 1) & (size > 0)
        time = np.maximum(time, roof) * runs
        return time, roof * runs, np.where(roof > 0.4 * time, LINK, LATENCY)

    size = as_float(op.full_bytes)
    time, roof, code = on_distinct(evaluate, {"size": size, "n": ranks, "at": tier, "link": rate})
    runs = np.asarray(op.count) > 0
    law = used[0]
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
