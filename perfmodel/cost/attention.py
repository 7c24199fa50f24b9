"""Scaled dot-product attention: matrix roof and exponential roof, waves, head width, causal.

A tile of `q_tile` query rows walks over the keys, or over one of their parts (`partition`).  Per
key it costs two products of width head_dim (padded to 16) and `q_tile` exponentials:

    step    = max(products, exp) + (1 - overlap_frac) * min(products, exp)
    walked  = keys / parts + ramp_kv, and split_kv more where there are parts
    waves   = blend of tiles * parts / SMs (never below 1) and its ceiling, by wave_frac
    time    = launch_s + smooth maximum of (waves * walked * step, bytes / bandwidth)

Under a causal mask a tile walks over the mean of the keys (the diagonal tile is full).  Tiles are
dealt longest first, so their makespan is the mean work and `tail_frac` of the longest tile, never
below the longest nor above that of the full square.  The products, not the exponentials, slow down
by `throttle_frac` at the power limit; a head_dim that 16 does not divide takes `unaligned_frac`
more.

Causal kernels are those of language models: they read K and V from a paged cache, which costs
`kv_head_frac` of a query head for each K/V head.  Full attention has no such cache.  Each kernel
multiplies the rates by its own factors (`backends`).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.backends import kernel_choice, kernel_dtype
from perfmodel.cost.fits import Parameter, values_of
from perfmodel.cost.gemm import throttle
from perfmodel.cost.machine import Machine, Rates
from perfmodel.cost.partition import partitions
from perfmodel.cost.result import (
    EXP,
    LATENCY,
    MATRIX,
    MEMORY,
    Costed,
    FloatArray,
    as_float,
    on_distinct,
    outside,
    p_max,
)
from perfmodel.ops import Attention, dtype_bytes

PARAMETERS = (
    Parameter("rate_frac", 0.75, 0.2, 1.0, "rate of the two products over the datasheet peak"),
    Parameter("exp_frac", 0.8, 0.1, 3.0, "achieved over nominal exponentials per second", log=True),
    Parameter("overlap_frac", 0.7, 0.0, 1.0, "share of the exponentials hidden by the products"),
    Parameter("ramp_kv", 200.0, 0.0, 3000.0, "keys that starting and ending a tile costs"),
    Parameter("wave_frac", 0.5, 0.0, 1.0, "weight of whole waves against smooth occupancy"),
    Parameter("tail_frac", 0.3, 0.0, 1.5, "longest tiles that a causal schedule leaves over"),
    Parameter("kv_head_frac", 0.05, 0.0, 0.6, "work of a paged K/V head, in query heads"),
    Parameter("split_kv", 300.0, 0.0, 8000.0, "further keys that a split tile and its merge cost"),
    Parameter("launch_s", 8e-6, 5e-7, 1e-4, "shortest kernel", log=True),
    Parameter("memory_frac", 0.6, 0.1, 1.0, "achieved over datasheet memory bandwidth"),
    Parameter("throttle_frac", 0.05, 0.0, 0.6, "extra product time at the power limit"),
    Parameter("throttle_s", 1e-3, 2e-5, 1e-1, "kernel time where the clock falls", log=True),
    Parameter("unaligned_frac", 0.08, 0.0, 0.6, "extra time of a head_dim that 16 does not divide"),
)

OVERLAP_POWER = 4.0

BIAS_BACKENDS = frozenset({"SDPA_EFFICIENT", "FLASHINFER_ATTN"})
"""Backends that read a mask as a value for every pair of tokens, in every head."""


def attention_time_s(
    values: Mapping[str, float],
    rates: Rates,
    dtype: str,
    *,
    seq_q: FloatArray,
    seq_kv: FloatArray,
    heads: FloatArray,
    kv_heads: FloatArray,
    head_dim: FloatArray,
    batch: FloatArray,
    causal: NDArray[np.bool_] | bool,
    kernel_rate: FloatArray | float = 1.0,
    kernel_exp: FloatArray | float = 1.0,
    measured: bool = True,
    rows: float = 0.0,
    stored: str = "",
) -> FloatArray:
    """Seconds of the kernel alone, without the clip at the roofline.

    `measured`: records hold the kernel, so its tiles are known (`partition`); `rows`: of the tiles
    of a kernel that never splits keys.  `stored`: type of the tensors where the kernel multiplies
    in another `dtype`.
    """
    paged = np.where(causal, values["kv_head_frac"], 0.0)
    loads = as_float(batch) * (heads + paged * as_float(kv_heads))
    options = []
    for q_tile, split in partitions(
        rates.family,
        rates.multiprocessors,
        seq_q=seq_q,
        seq_kv=seq_kv,
        heads=as_float(batch) * heads,
        head_dim=head_dim,
        causal=causal,
        measured=measured,
        rows=rows,
    ):
        rounds = _rounds(values, rates, seq_q, seq_kv, loads, q_tile, causal, split)
        options.append(_compute_s(values, rates, dtype, head_dim, q_tile, rounds, kernel_exp))
    best = np.minimum.reduce(np.broadcast_arrays(*options)) / kernel_rate
    traffic = attention_bytes(seq_q, seq_kv, heads, kv_heads, head_dim, batch, stored or dtype)
    memory = traffic / (rates.memory_bytes_per_s * values["memory_frac"])
    return values["launch_s"] + p_max(best, memory, OVERLAP_POWER)


def _rounds(
    values: Mapping[str, float],
    rates: Rates,
    seq_q: FloatArray,
    seq_kv: FloatArray,
    loads: FloatArray,
    q_tile: FloatArray,
    causal: NDArray[np.bool_] | bool,
    split: FloatArray,
) -> FloatArray:
    """Keys that the busiest multiprocessor walks, one tile after the other."""
    ramp = values["ramp_kv"] + np.where(split > 1.0, values["split_kv"], 0.0)
    wave_frac = values["wave_frac"]
    occupancy = loads * np.ceil(as_float(seq_q) / q_tile) * (split / rates.multiprocessors)
    longest = as_float(seq_kv) / split + ramp
    waves = (1.0 - wave_frac) * np.maximum(occupancy, 1.0) + wave_frac * np.ceil(occupancy)
    half = as_float(seq_kv) - 0.5 * np.minimum(seq_q, seq_kv)
    mean = np.minimum(half + 0.5 * q_tile, seq_kv) / split + ramp
    dealt = np.maximum(occupancy * mean + values["tail_frac"] * longest, longest)
    return np.where(causal, np.minimum(dealt, waves * longest), waves * longest)


def _compute_s(
    values: Mapping[str, float],
    rates: Rates,
    dtype: str,
    head_dim: FloatArray,
    q_tile: FloatArray,
    rounds: FloatArray,
    kernel_exp: FloatArray | float,
) -> FloatArray:
    """Rounds times the step; the products slow down at the power limit, exponentials do not."""
    padded = np.ceil(as_float(head_dim) / 16.0) * 16.0
    per_unit = rates.peak(dtype) * values["rate_frac"] / rates.multiprocessors
    products = 4.0 * q_tile * padded / per_unit * rounds
    exp_per_s = rates.exp_per_s * values["exp_frac"] * kernel_exp
    exps = q_tile * rates.multiprocessors / exp_per_s * rounds
    products = products * throttle(products, values["throttle_frac"], values["throttle_s"])
    low, high = np.minimum(products, exps), np.maximum(products, exps)
    step = high + (1.0 - values["overlap_frac"]) * low
    return as_float(step * np.where(padded == head_dim, 1.0, 1.0 + values["unaligned_frac"]))


def attention_bytes(
    seq_q: FloatArray,
    seq_kv: FloatArray,
    heads: FloatArray,
    kv_heads: FloatArray,
    head_dim: FloatArray,
    batch: FloatArray,
    dtype: str,
) -> FloatArray:
    """Compulsory traffic: q and o once, k and v once per key/value head."""
    elements = 2.0 * as_float(seq_q) * heads + 2.0 * as_float(seq_kv) * kv_heads
    return elements * batch * head_dim * dtype_bytes(dtype)


def cost_attention(op: Attention, machine: Machine, *, sustained: bool = True) -> Costed:
    """Cost of an attention with the kernel behind the engine's backend."""
    rates, dtype = machine.rates, kernel_dtype(op, machine)
    law = machine.laws.get("attention/bf16")
    values = values_of(PARAMETERS, law)
    if sustained:
        # A device that has been busy for long is at its power limit whatever the kernel.
        values = {**values, "throttle_s": 0.0}
    choice = kernel_choice(machine, law, op)
    slow = machine.sustained("attention") if sustained else 1.0
    biased = (op.backend or "").upper() in BIAS_BACKENDS
    masked_frac = machine.term("attention_bias_frac" if biased else "masked_attention_frac", 1.0)

    def evaluate(**dims: FloatArray) -> tuple[FloatArray, ...]:
        masked = dims.pop("masked").astype(bool)
        dims = {name: as_float(v) for name, v in dims.items()}
        kernel = np.minimum.reduce(
            [
                attention_time_s(
                    values, rates, dtype, causal=op.causal, stored=op.dtype, **{**dims, **kernel_is}
                )
                for kernel_is in choice.arguments()
            ]
        )
        kernel = values["launch_s"] + (kernel - values["launch_s"]) / slow
        kernel = kernel * np.where(masked, max(1.0, masked_frac), 1.0)
        flops, matrix_roof, exp_roof, traffic = _work(op, rates, dtype, dims)
        memory_roof = traffic / rates.roof_memory_bytes_per_s
        roof = np.maximum(np.maximum(matrix_roof, exp_roof), memory_roof)
        time = np.maximum(kernel, roof)
        compute_code = np.where(exp_roof > matrix_roof, EXP, MATRIX)
        code = np.where(memory_roof >= roof, MEMORY, compute_code)
        code = np.where(values["launch_s"] > 0.5 * time, LATENCY, code)
        runs = flops > 0
        return time * runs, roof * runs, code, flops, traffic * runs

    dims = {
        "seq_q": op.seq_q,
        "seq_kv": op.seq_kv,
        "heads": op.heads,
        "kv_heads": op.kv_heads,
        "head_dim": op.head_dim,
        "batch": op.batch,
    }
    time, roof, code, flops, traffic = on_distinct(evaluate, {**dims, "masked": op.masked})
    runs = np.asarray(op.count) > 0
    fitted = law is not None and law.provenance == "fitted"
    return Costed(
        time * runs,
        roof * runs,
        code.astype(np.int8),
        flops,
        traffic,
        choice.provenance if fitted else "prior",
        outside(law.range if law else {}, {x: as_float(v) for x, v in dims.items()}),
        "attention/bf16",
    )


def _work(
    op: Attention, rates: Rates, dtype: str, dims: Mapping[str, FloatArray]
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """FLOP, matrix roof, exponential roof and bytes (padding and diagonal not counted)."""
    pairs = dims["batch"] * dims["heads"] * dims["seq_q"] * dims["seq_kv"]
    pairs = pairs / 2 if op.causal else pairs
    flops = 4.0 * pairs * dims["head_dim"]
    traffic = attention_bytes(
        dims["seq_q"], dims["seq_kv"], dims["heads"], dims["kv_heads"], dims["head_dim"],
        dims["batch"], op.dtype,
    )  # fmt: skip
    return flops, flops / rates.roof(dtype), pairs / roof_exp_per_s(rates), traffic


def roof_exp_per_s(rates: Rates) -> float:
    """Exponentials per second no kernel exceeds.

    Kernels emulate part of the exponentials with polynomials on the FMA units (FlashAttention-4),
    so the roof is twice the special-function rate.
    """
    return 2.0 * rates.exp_per_s
