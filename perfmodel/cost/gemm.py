"""Matrix products: tiles and waves, split-K, store, strips through the cache, launch.

The time of ``out[batch, m, n] = a[batch, m, k] x w[k, n]`` is the best of a few tile shapes and
splits of k (what a vendor library's heuristic looks for), each of them non-decreasing in every
dimension, so the law is monotone by construction:

    tiles   = batch * ceil(m / tile_m) * ceil(n / tile_n) * split
    waves   = blend of tiles / SMs (never below 1) and its ceiling
    matrix  = waves * 2 * tile_m * tile_n * (k / split) / (rate of one SM with this tile)
              + split_s and two bytes of traffic for each output and part, where k is split
    store   = store_frac * output bytes / bandwidth          (writing that no product hides)
    traffic = operands and output once + the operand that is read again for every strip
    waited  = traffic - beside_frac * output       (what products wait for; 1: operands only)
    fed     = smooth maximum of (matrix + store, waited / bandwidth)
    time    = launch + larger of (fed, beside_frac * traffic / bandwidth)
              + quantising the activations and rescaling the output (low-precision dtypes)

Tiles are run in strips, `strip` columns wide or twice as many rows high (clusters of the measured
kernels are two tiles high): one strip after the other.  The operand that lies along the strip is
read again for each strip, from memory where the last-level cache cannot hold it.  Where the kernels
of the library are known (`tiling`), their own order of tiles takes the place of the strips.

Long kernels run at a lower clock than short ones because the board reaches its power limit: time
grows by `throttle_frac` around `throttle_s`, less for long k (fewer outputs to write for the same
work).
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.cost.fits import Law, Parameter, values_of
from perfmodel.cost.gemm_traffic import (
    gemm_bytes,
    missed_frac,
    output_bytes,
    reread_bytes,
    store_s,
    walked_bytes,
)
from perfmodel.cost.machine import Machine, Rates
from perfmodel.cost.result import (
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
from perfmodel.cost.tiling import DEFAULT_TILES, KERNELS, TILES, Tiles, Way, ways
from perfmodel.ops import Gemm, dtype_bytes

_HEAD = (
    Parameter("rate_frac", 0.85, 0.3, 1.1, "rate of the largest tile over the datasheet peak"),
    Parameter("small_tile_frac", 0.6, 0.2, 1.0, "rate of 64 x 64 tiles over the largest's"),
    Parameter("middle_tile_frac", 0.9, 0.2, 1.0, "rate of 128 x 128 tiles over the largest's"),
    Parameter("wave_frac", 0.45, 0.0, 1.0, "weight of whole waves against smooth occupancy"),
    Parameter("launch_s", 3e-6, 3e-7, 3e-5, "shortest kernel", log=True),
    Parameter("memory_frac", 0.75, 0.2, 1.0, "achieved over datasheet memory bandwidth"),
    Parameter("store_frac", 0.5, 0.0, 1.0, "share of writing the output that nothing hides"),
    Parameter("strip", 500.0, 64.0, 16384.0, "columns, or half the rows, run at once", log=True),
)
_SPLIT = Parameter("split_s", 3e-6, 0.0, 3e-5, "extra time of a split-K reduction")
_TAIL = (
    Parameter("throttle_frac", 0.12, 0.0, 0.3, "extra time of long kernels at the power limit"),
    Parameter("throttle_s", 5e-4, 2e-5, 1e-1, "kernel time where the clock falls", log=True),
    Parameter("throttle_k", 3e4, 3e3, 1e6, "k above which the power limit is relieved", log=True),
    Parameter("cache_frac", 0.5, 0.05, 1.0, "share of the cache that holds what is used again"),
    Parameter("l2_gain", 1.0, 1.0, 8.0, "bandwidth gain of buffers that stay in cache", log=True),
    Parameter("overlap_power", 3.0, 1.0, 8.0, "matrix and memory time: 1 add up, 8 the larger"),
    Parameter("host_floor_s", 1e-6, 1e-7, 5e-4, "host time a call of the collector", log=True),
)
_WIDE = (
    Parameter("pitch_frac", 0.0, 0.0, 0.5, "extra time of rows that lie 32 KiB apart"),
    Parameter("beside_frac", 0.0, 0.0, 1.0, "share of the output written beside the products"),
)
PARAMETERS = (*_HEAD, _SPLIT, *_TAIL, *_WIDE)

PITCH_BYTES = 32768.0
"""Distance of rows that meet in the same bank of memory, where a device shows it: products of the
Ascend 910C take 1.2 times as long at k = 16384 in bf16, as long as expected in int8."""

QUANTISED_PARAMETERS = (
    *_HEAD,
    *_TAIL,
    Parameter("row_s", 2e-9, 0.0, 3e-8, "quantising an activation row, fixed part"),
    Parameter("chunk_s", 1e-9, 0.0, 3e-8, "quantising each 2048 elements of a row"),
    Parameter("input_pass_bytes", 1.0, 0.0, 30.0, "traffic of an activation beyond the cache"),
    Parameter("output_pass_bytes", 0.5, 0.0, 20.0, "traffic of rescaling an output"),
)
"""Low-precision products carry the quantisation of their activations: the kernels that were
measured start from bf16 activations.  None of them splits k."""

INPUT_TERMS = ("row_s", "chunk_s", "input_pass_bytes")
"""What quantising the activations takes, in the law of a product that starts from bf16 ones."""

FP8_PARAMETERS = (
    *QUANTISED_PARAMETERS,
    Parameter(
        "step_bytes", 2e4, 5e2, 1e6, "row length on which blocks keep in step (`tiling`)", log=True
    ),
)
"""fp8 runs kernels whose order of tiles is known on some families; others keep their strips."""

CHUNK = 2048.0
"""Elements of a row that a block of the quantising kernel takes at once: 256 threads, 8 loads each
(the measured time of a row steps at its multiples)."""

SPLITS = (1, 2, 3, 4, 6, 8)
SPLIT_COLUMN = np.array(SPLITS, np.float64)
MERGE_BYTES = 2.0
"""Memory traffic of one partial result: fp32 written and read, mostly through the cache."""

BESIDE_POWER = 8.0
"""How sharply the time of all traffic takes over where outputs are written beside the products."""

SMALL_AREA, MIDDLE_AREA = 64.0 * 64.0, 128.0 * 128.0

HOT_KNEES = 2.0
"""Kernel times, in knees of the law, from which the power limit holds in full (16/17 of it)."""

FLOOR_POWER = 8.0
"""How sharply the collector's host time per call takes over (infinite = the larger one)."""


def gemm_time_s(
    values: Mapping[str, float],
    rates: Rates,
    dtype: str,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    batch: FloatArray | float = 1.0,
    *,
    kernel_rate: FloatArray | float = 1.0,
    resident: bool = False,
) -> FloatArray:
    """Seconds of the kernel alone, without the clip at the roofline.

    `resident`: as in a microbenchmark that repeats one shape: operands that fit in the last-level
    cache are still there from the last call, and the host cannot call faster than its floor.
    """
    m, n, k = as_float(m), as_float(n), as_float(k)
    batch = as_float(batch)
    kernel = base = values["launch_s"] + quantise_s(values, rates, m * batch, n, k)
    known = KERNELS.get((rates.family, dtype), ()) if "step_bytes" in values else ()
    if known:
        times = [
            _body_s(values, rates, dtype, w.m, w.n, w.k, batch, kernel_rate, resident, w)
            for w in ways(known, m, n, k)
        ]
        kernel = kernel + np.minimum.reduce(np.broadcast_arrays(*times))
    else:
        kernel = kernel + _body_s(values, rates, dtype, m, n, k, batch, kernel_rate, resident)
        even = np.floor(k * dtype_bytes(dtype) / PITCH_BYTES) * PITCH_BYTES / dtype_bytes(dtype)
        if values.get("pitch_frac", 0.0) > 0.0 and even.any():
            # no product is faster than the shorter one below it whose rows meet in a bank
            met = _body_s(values, rates, dtype, m, n, even, batch, kernel_rate, resident)
            slow = base + (1.0 + values["pitch_frac"]) * met
            kernel = np.where(even > 0.0, np.maximum(kernel, slow), kernel)
    if resident:
        kernel = p_max(kernel, as_float(values["host_floor_s"]), FLOOR_POWER)
    return kernel


def _body_s(
    values: Mapping[str, float],
    rates: Rates,
    dtype: str,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    batch: FloatArray,
    kernel_rate: FloatArray | float,
    resident: bool,
    way: Way | None = None,
) -> FloatArray:
    """Products that wait for their operands, beside all traffic: what follows the launch."""
    tiles = way.kernel.tiles if way else None
    matrix = matrix_s(values, rates, dtype, m, n, k, batch, tiles) / kernel_rate
    store = store_s(values, rates, dtype, m, n, batch)
    traffic = gemm_bytes(m, n, k, batch, dtype)
    written = output_bytes(m, n, batch, dtype)
    bandwidth = rates.memory_bytes_per_s * values["memory_frac"]
    if resident and values["l2_gain"] > 1.0:
        missed = missed_frac(values, rates, traffic)
        share = missed + (1.0 - missed) / values["l2_gain"]
        traffic, store, written = traffic * share, store * share, written * share
    again = (
        walked_bytes(values, rates, dtype, way)
        if way
        else reread_bytes(values, rates, dtype, m, n, k)
    )
    traffic_s = (traffic + batch * again) / bandwidth
    beside = values.get("beside_frac", 0.0)
    fed_s = traffic_s - beside * written / bandwidth
    fed = p_max(matrix + store, fed_s, values["overlap_power"])
    return p_max(fed, beside * traffic_s, BESIDE_POWER) if beside > 0.0 else fed


def quantise_s(
    values: Mapping[str, float], rates: Rates, rows: FloatArray, n: FloatArray, k: FloatArray
) -> FloatArray:
    """Quantising ``[rows, k]`` and rescaling ``[rows, n]``; 0 for a law without these terms.

    A row costs `row_s` (its block and its share of the common maximum) and `chunk_s` for each
    `CHUNK` elements; activations that do not stay in the cache cost memory traffic besides.
    """
    if "row_s" not in values:
        return np.zeros(())
    moved = values["input_pass_bytes"] * k * missed_frac(values, rates, 2.0 * rows * k)
    moved = moved + values["output_pass_bytes"] * n
    fixed = values["row_s"] + values["chunk_s"] * np.ceil(k / CHUNK)
    return rows * (fixed + moved / rates.memory_bytes_per_s)


def matrix_s(
    values: Mapping[str, float],
    rates: Rates,
    dtype: str,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
    batch: FloatArray,
    tiles: Tiles | None = None,
) -> FloatArray:
    """Time on the matrix units: the best tile and split, then the power limit."""
    units = rates.multiprocessors
    rate = rates.peak(dtype) * values["rate_frac"] / units
    wave_frac = values["wave_frac"]
    m, n, k, batch = np.broadcast_arrays(m, n, k, batch)
    # the parts of all splits at once: [splits, cases]
    splits = SPLIT_COLUMN if "split_s" in values else SPLIT_COLUMN[:1]
    splits = splits.reshape(-1, *(1,) * m.ndim)
    depth = k / splits
    if len(splits) > 1:
        merge = MERGE_BYTES * batch * m * n * splits[1:] / rates.memory_bytes_per_s
        merge = merge + values["split_s"]
    best: FloatArray | None = None
    for tile in tiles or TILES.get(rates.family, DEFAULT_TILES):
        count = batch * np.ceil(m / tile[0]) * np.ceil(n / tile[1])
        area = float(tile[0] * tile[1])
        occupancy = count * (splits / units)
        waves = (1.0 - wave_frac) * np.maximum(occupancy, 1.0) + wave_frac * np.ceil(occupancy)
        times = waves * depth * (2.0 * area / (rate * tile_frac(values, area)))
        if len(splits) > 1:
            times[1:] += merge
        time = times.min(axis=0)
        best = time if best is None else np.minimum(best, time)
    assert best is not None
    relief = 1.0 + (k / values["throttle_k"]) ** 2
    # The clock of a device that is busy for long follows its load, not this kernel's length.
    hot = np.maximum(best, values.get("hot_s", 0.0))
    return best * throttle(hot, values["throttle_frac"] / relief, values["throttle_s"])


def tile_frac(values: Mapping[str, float], area: float) -> float:
    """Rate of a tile over the largest's, by its area: geometric between 64 x 64 and 128 x 128."""
    if area > MIDDLE_AREA:
        return 1.0
    weight = np.log(area / SMALL_AREA) / np.log(MIDDLE_AREA / SMALL_AREA)
    small, middle = values["small_tile_frac"], values["middle_tile_frac"]
    return float(min(small, middle) ** (1.0 - weight) * middle**weight)


def steady(values: Mapping[str, float], laws: Mapping[str, Law]) -> dict[str, float]:
    """Parameters of a device that has been busy for long: at its power limit whatever the kernel.

    A microbenchmark lets short kernels run at a clock that a long run of them cannot hold.  The
    bf16 products of the device show from which kernel length on the limit holds; another law may
    slow down at still longer kernels for another reason, which short ones do not share.

    Formula: the slowdown of a kernel of time t is that at ``max(t, HOT_KNEES x throttle_s)`` with
        `throttle_s` of the bf16 products.
    """
    knee_s = values_of(PARAMETERS, laws.get("gemm/bf16"))["throttle_s"]
    return {**values, "hot_s": HOT_KNEES * knee_s}


def throttle(time: FloatArray, frac: FloatArray | float, knee_s: float) -> FloatArray:
    """``1 + frac / (1 + (knee / t)^2)``: increasing in t, so t times it is too."""
    ratio = np.divide(knee_s, time, out=np.full_like(time, np.inf), where=time > 0)
    result: FloatArray = 1.0 + frac / (1.0 + ratio**4)
    return result


def gemm_law_name(dtype: str) -> str:
    """``gemm/bf16`` also serves fp16."""
    return f"gemm/{'bf16' if dtype == 'fp16' else dtype}"


def parameters_of(dtype: str) -> tuple[Parameter, ...]:
    """Parameters of the law of `dtype`."""
    if dtype == "fp8":
        return FP8_PARAMETERS
    return QUANTISED_PARAMETERS if dtype in QUANTISED else PARAMETERS


QUANTISED = frozenset({"fp8", "fp8_block", "mxfp8", "int8", "nvfp4", "mxfp4"})


def cost_gemm(op: Gemm, machine: Machine, *, sustained: bool = True) -> Costed:
    """Cost of a product; low-precision dtypes include quantising the activations."""
    rates, dtype = machine.rates, op.dtype
    roof_rate = rates.roof(dtype)
    law = machine.laws.get(gemm_law_name(dtype)) or machine.laws.get("gemm/bf16")
    exact = law is not None and law.name == gemm_law_name(dtype)
    values = values_of(parameters_of(dtype), law)
    if op.input_quantised:
        values.update({name: 0.0 for name in INPUT_TERMS if name in values})
    if sustained:
        values = steady(values, machine.laws)
    slow = machine.sustained("gemm") if sustained else 1.0

    def evaluate(
        m: FloatArray, n: FloatArray, k: FloatArray, batch: FloatArray
    ) -> tuple[FloatArray, ...]:
        m, n, k, batch = as_float(m), as_float(n), as_float(k), as_float(batch)
        kernel = gemm_time_s(values, rates, dtype, m, n, k, batch)
        traffic = gemm_bytes(m, n, k, batch, dtype)
        flops = 2.0 * batch * m * n * k
        matrix_roof, memory_roof = flops / roof_rate, traffic / rates.roof_memory_bytes_per_s
        roof = np.maximum(matrix_roof, memory_roof)
        kernel = np.maximum(values["launch_s"] + (kernel - values["launch_s"]) / slow, roof)
        code = np.where(
            values["launch_s"] > 0.5 * kernel,
            LATENCY,
            np.where(memory_roof > matrix_roof, MEMORY, MATRIX),
        )
        runs = flops > 0
        return kernel * runs, roof * runs, code, flops, traffic * runs

    runs = np.asarray(op.count) > 0
    dims = {"m": op.m, "n": op.n, "k": op.k, "batch": op.batch}
    time, roof, code, flops, traffic = on_distinct(evaluate, dims)
    return Costed(
        time * runs,
        roof * runs,
        code.astype(np.int8),
        flops,
        traffic,
        law.provenance if law is not None and exact else "prior",
        outside(law.range if law else {}, {x: as_float(v) for x, v in dims.items()}),
        law.name if law else "gemm",
    )
