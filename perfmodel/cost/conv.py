"""Convolutions as implicit matrix products.

    m = output voxels, n = out_channels, k = in_channels * kt * kh * kw

on the matrix units of the product law of the dtype (tiles, waves, power limit), at `conv_rate_frac`
of its rate (address generation, halo reads and layout), with the traffic of the real tensors:

    time = launch_s + smooth maximum of (matrix / conv_rate_frac + store, bytes / bandwidth)

A convolution that was measured (``conv/bf16`` in the fit) uses its own parameters and no fraction.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.cost import gemm
from perfmodel.cost.fits import values_of
from perfmodel.cost.gemm_traffic import store_s
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
from perfmodel.ops import Conv, dtype_bytes

OF_PRODUCTS_ALONE = frozenset(
    {"strip", "cache_frac", "l2_gain", "host_floor_s", "pitch_frac", "beside_frac"}
)
"""Parameters of products that hold nothing of a convolution."""
PARAMETERS = tuple(p for p in gemm.PARAMETERS if p.name not in OF_PRODUCTS_ALONE)


def conv_bytes(
    dtype: str,
    voxels: FloatArray,
    in_channels: FloatArray | float,
    out_channels: FloatArray | float,
    taps: FloatArray | float,
    stride: FloatArray | float,
) -> FloatArray:
    """Compulsory traffic: input and output once, weights once."""
    elements = voxels * (in_channels * stride + out_channels)
    return as_float((elements + taps * in_channels * out_channels) * dtype_bytes(dtype))


def conv_time_s(
    values: Mapping[str, float],
    rates: Rates,
    dtype: str,
    voxels: FloatArray,
    in_channels: FloatArray | float,
    out_channels: FloatArray | float,
    taps: FloatArray | float,
    stride: FloatArray | float = 1.0,
    *,
    rate: FloatArray | float = 1.0,
) -> FloatArray:
    """Seconds of the kernel alone, without the clip at the roofline.

    Args:
        values: parameters of the law.
        rates: of the device.
        dtype: that the matrix units multiply in.
        voxels: of the output.
        in_channels: of the input.
        out_channels: of the output.
        taps: positions of the kernel.
        stride: input positions for each of the output.
        rate: over that of the law's products.
    """
    voxels, width = as_float(voxels), as_float(out_channels) + 0.0 * as_float(voxels)
    inner, one = as_float(in_channels * as_float(taps)), np.ones_like(voxels)
    matrix = gemm.matrix_s(values, rates, dtype, voxels, width, inner, one)
    store = store_s(values, rates, dtype, voxels, width, one)
    # Neighbouring outputs read the same inputs from cache: the traffic is that of the tensors.
    traffic = conv_bytes(dtype, voxels, in_channels, out_channels, taps, stride)
    moving = traffic / (rates.memory_bytes_per_s * values["memory_frac"])
    kernel = p_max(as_float(matrix / rate + store), as_float(moving), values["overlap_power"])
    return kernel + values["launch_s"]


def multiplied_in(dtype: str, rates: Rates) -> str:
    """fp32 convolutions run as tf32 where the device has it (torch)."""
    return "tf32" if dtype == "fp32" and "tf32" in rates.peak_flop_per_s else dtype


def cost_conv(op: Conv, machine: Machine, *, sustained: bool = True) -> Costed:
    """Cost of one convolution."""
    rates = machine.rates
    dtype = multiplied_in(op.dtype, rates)
    law = next((found for name in _laws(op.dtype) if (found := machine.laws.get(name))), None)
    base = law or machine.laws.get(gemm.gemm_law_name(dtype)) or machine.laws.get("gemm/bf16")
    values = values_of(PARAMETERS, base)
    if sustained:
        values = gemm.steady(values, machine.laws)
    frac = 1.0 if law else machine.term("conv_rate_frac", 0.75)
    slow = machine.sustained("conv") if sustained else 1.0
    taps, stride = float(np.prod(op.kernel)), float(np.prod(op.stride))
    sizes = (op.in_channels, op.out_channels, taps, stride)
    roof_rate = rates.roof(dtype)

    def evaluate(voxels: FloatArray) -> tuple[FloatArray, ...]:
        voxels = as_float(voxels)
        kernel = conv_time_s(values, rates, dtype, voxels, *sizes, rate=frac * slow)
        flops = 2.0 * voxels * op.out_channels * op.in_channels * taps
        traffic = conv_bytes(dtype, voxels, *sizes)
        matrix_roof, memory_roof = flops / roof_rate, traffic / rates.roof_memory_bytes_per_s
        roof = np.maximum(matrix_roof, memory_roof)
        time = np.maximum(np.maximum(kernel, roof), values["launch_s"] + memory_roof)
        code = np.where(memory_roof > matrix_roof, MEMORY, MATRIX)
        code = np.where(values["launch_s"] > 0.5 * time, LATENCY, code)
        runs = voxels > 0
        return time * runs, roof * runs, code, flops, traffic * runs

    voxels = np.asarray(op.batch, np.int64) * op.out_t * op.out_h * op.out_w
    time, roof, code, flops, traffic = on_distinct(evaluate, {"voxels": voxels})
    runs = np.asarray(op.count) > 0
    return Costed(
        time * runs,
        roof * runs,
        code.astype(np.int8),
        flops,
        traffic,
        law.provenance if law else machine.term_provenance("conv_rate_frac"),
        outside(
            law.range if law else {},
            {"in_channels": as_float(op.in_channels), "out_channels": as_float(op.out_channels)},
        ),
        law.name if law else "conv",
    )


def _laws(dtype: str) -> tuple[str, ...]:
    """Laws that may hold convolutions of tensors in `dtype`: its own, else of a type as fast."""
    same = {"fp16": "bf16", "bf16": "fp16", "fp32": "tf32"}
    return f"conv/{dtype}", f"conv/{same.get(dtype, dtype)}"
