"""Activation quantisation before a low-precision product: two memory-bound kernels.

Products measured with their quantisation carry it in their own law (`perfmodel.cost.gemm`); this
law describes the kernels alone.

    time = launch_s + smooth maximum of (m * k * b / bandwidth, row_s * m)

b is 2 bytes for the scale (reads 16 bits) and 3 for the matrix (reads 16 bits, writes 8).  In a
microbenchmark that repeats one shape, buffers that stay in cache move `l2_gain` times as fast.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfmodel.cost.fits import Parameter
from perfmodel.cost.result import FloatArray, as_float, p_max

if TYPE_CHECKING:
    from perfmodel.cost.machine import Rates

PARAMETERS = (
    Parameter("launch_s", 2.5e-6, 1e-7, 3e-5, "shortest kernel", log=True),
    Parameter("memory_frac", 0.6, 0.05, 1.2, "achieved over datasheet memory bandwidth"),
    Parameter("l2_gain", 1.0, 1.0, 8.0, "bandwidth gain of buffers that stay in cache", log=True),
    Parameter("row_s", 1e-9, 1e-11, 5e-8, "time a row costs whatever its width", log=True),
)
ROWS_POWER = 2.0
"""How sharply the bytes take over from the rows."""

PASSES_BYTES = {"compute_scale": 2.0, "scale_matrix": 3.0}
"""Bytes an element moves in each kernel: read bf16; read bf16 and write one byte."""


def quantize_kernel_s(
    values: Mapping[str, float],
    rates: Rates,
    what: str,
    m: FloatArray,
    k: FloatArray,
    *,
    resident: bool = False,
) -> FloatArray:
    """Seconds of one quantisation kernel over ``[m, k]``."""
    traffic = as_float(m) * k * PASSES_BYTES[what]
    bandwidth = rates.memory_bytes_per_s * values["memory_frac"]
    time = traffic / bandwidth
    if resident and values["l2_gain"] > 1.0:
        share = 1.0 / (1.0 + (traffic / max(rates.l2_bytes, 1.0)) ** 4)
        time = time * (1.0 - share * (1.0 - 1.0 / values["l2_gain"]))
    rows = values["row_s"] * as_float(m)
    return values["launch_s"] + p_max(as_float(time), rows + 0.0 * time, ROWS_POWER)
