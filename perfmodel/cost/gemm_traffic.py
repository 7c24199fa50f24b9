"""Memory traffic of a matrix product: what it must move, reads again and stores by itself."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.cost.machine import Rates
from perfmodel.cost.result import FloatArray
from perfmodel.cost.tiling import Way, passes
from perfmodel.ops import dtype_bytes

CACHE_POWER, WALK_POWER = 3.0, 1.5
"""How sharply a buffer falls out of the cache once it is larger than its share, and one that is
walked through again and again: the cache does not replace the oldest line first."""

OUTPUT_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp64": 8.0}


def gemm_bytes(
    m: FloatArray, n: FloatArray, k: FloatArray, batch: FloatArray, dtype: str
) -> FloatArray:
    """Compulsory traffic: both operands in `dtype` and the output (bf16 for the low dtypes)."""
    width = dtype_bytes(dtype)
    return batch * (m * k + k * n) * width + output_bytes(m, n, batch, dtype)


def output_bytes(m: FloatArray, n: FloatArray, batch: FloatArray, dtype: str) -> FloatArray:
    """What a product writes."""
    return batch * m * n * OUTPUT_BYTES.get(dtype, 2.0)


def store_s(
    values: Mapping[str, float],
    rates: Rates,
    dtype: str,
    m: FloatArray,
    n: FloatArray,
    batch: FloatArray,
) -> FloatArray:
    """Writing the output while the matrix units wait: a tile is stored after its last product."""
    written = output_bytes(m, n, batch, dtype)
    return values["store_frac"] * written / (rates.memory_bytes_per_s * values["memory_frac"])


def reread_bytes(
    values: Mapping[str, float],
    rates: Rates,
    dtype: str,
    m: FloatArray,
    n: FloatArray,
    k: FloatArray,
) -> FloatArray:
    """Memory traffic of reading an operand again for every strip: the cheaper way of the two."""
    width = dtype_bytes(dtype)
    left, right = m * k * width, k * n * width
    columns = left * np.maximum(n / values["strip"] - 1.0, 0.0) * missed_frac(values, rates, left)
    rows = (
        right
        * np.maximum(m / (2.0 * values["strip"]) - 1.0, 0.0)
        * missed_frac(values, rates, right)
    )
    return np.minimum(columns, rows)


def walked_bytes(values: Mapping[str, float], rates: Rates, dtype: str, way: Way) -> FloatArray:
    """Memory traffic of walking the operand along the lines of a known kernel again.

    Blocks side by side share what they read until they have drifted apart: for rows of `step_bytes`
    half of them still do.
    """
    row = way.k * dtype_bytes(dtype)
    operand = row * (way.m if way.along_m else way.n)
    often = passes(way, rates.multiprocessors, 1.0 / (1.0 + row / values["step_bytes"]))
    return operand * (often - 1.0) * missed_frac(values, rates, operand, WALK_POWER)


def missed_frac(
    values: Mapping[str, float], rates: Rates, size: FloatArray, power: float = CACHE_POWER
) -> FloatArray:
    """Share of a buffer that the cache has lost when it is read again; grows with its size."""
    ratio = np.maximum(size, 1.0) / max(values["cache_frac"] * rates.l2_bytes, 1.0)
    result: FloatArray = 1.0 - 1.0 / (1.0 + ratio**power)
    return result
