"""Activation quantisation before a low-precision product: two memory-bound kernels.

scale  = launch + m*k*2 bytes read / achieved bandwidth
matrix = launch + m*k*(2 + 1) bytes / achieved bandwidth
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from perfmodel.cost.fits import Parameter, values_of
from perfmodel.cost.result import FloatArray, as_float

if TYPE_CHECKING:
    from perfmodel.cost.machine import Machine, Rates

PARAMETERS = (
    Parameter("launch_s", 2.5e-6, 2e-7, 3e-5, "shortest kernel", log=True),
    Parameter("memory_frac", 0.6, 0.05, 1.2, "achieved over datasheet memory bandwidth"),
    Parameter("l2_gain", 1.0, 1.0, 8.0, "bandwidth gain of buffers that stay in cache", log=True),
    Parameter("row_s", 1e-10, 0.0, 5e-8, "time of a row on its multiprocessor times their number"),
)

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
    return values["launch_s"] + time + values["row_s"] * as_float(m)


def quantize_s(machine: Machine, m: FloatArray, k: FloatArray) -> FloatArray:
    """Both kernels for an activation matrix ``[m, k]``."""
    total: FloatArray | float = 0.0
    for what in PASSES_BYTES:
        law = machine.laws.get(f"quantize/{what}")
        total = total + quantize_kernel_s(values_of(PARAMETERS, law), machine.rates, what, m, k)
    return as_float(total)
