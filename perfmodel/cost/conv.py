"""Convolutions as implicit matrix products.

    m = output voxels, n = out_channels, k = in_channels * kt * kh * kw

on the matrix units of the product law of the dtype (tiles, waves, power limit), at `conv_rate_frac`
of its rate (address generation, halo reads and layout), with the traffic of the real tensors:

    time = launch_s + smooth maximum of (matrix / conv_rate_frac + store, bytes / bandwidth)

A convolution that was measured (``conv/bf16`` in the fit) uses its own parameters and no fraction.
"""

from __future__ import annotations

import numpy as np

from perfmodel.cost import gemm
from perfmodel.cost.fits import values_of
from perfmodel.cost.gemm_traffic import store_s
from perfmodel.cost.machine import Machine
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

PARAMETERS = gemm.PARAMETERS


def conv_bytes(op: Conv, voxels: FloatArray) -> FloatArray:
    """Compulsory traffic: input and output once, weights once."""
    per_stride = float(np.prod(op.stride))
    kernel = float(np.prod(op.kernel))
    elements = voxels * (op.in_channels * per_stride + op.out_channels)
    return (elements + kernel * op.in_channels * op.out_channels) * dtype_bytes(op.dtype)


def cost_conv(op: Conv, machine: Machine, *, sustained: bool = True) -> Costed:
    """Cost of one convolution; fp32 convolutions run as tf32 where the device has it (torch)."""
    rates = machine.rates
    dtype = "tf32" if op.dtype == "fp32" and "tf32" in rates.peak_flop_per_s else op.dtype
    law = machine.laws.get(f"conv/{dtype}")
    base = law or machine.laws.get(gemm.gemm_law_name(dtype)) or machine.laws.get("gemm/bf16")
    values = values_of(PARAMETERS, base)
    if sustained:
        values = gemm.steady(values, machine.laws)
    frac = 1.0 if law else machine.term("conv_rate_frac", 0.75)
    slow = machine.sustained("conv") if sustained else 1.0
    inner = float(op.in_channels * np.prod(op.kernel))
    roof_rate = rates.roof(dtype)

    def evaluate(voxels: FloatArray) -> tuple[FloatArray, ...]:
        voxels = as_float(voxels)
        width = as_float(float(op.out_channels))
        one = np.ones_like(voxels)
        matrix = gemm.matrix_s(values, rates, dtype, voxels, width, as_float(inner), one)
        store = store_s(values, rates, dtype, voxels, width, one)
        flops = 2.0 * voxels * op.out_channels * inner
        # Neighbouring outputs read the same inputs from cache: the traffic is that of the tensors.
        traffic = conv_bytes(op, voxels)
        moving = traffic / (rates.memory_bytes_per_s * values["memory_frac"])
        busy = matrix / (frac * slow) + store
        kernel = p_max(busy, moving, values["overlap_power"]) + values["launch_s"]
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
        outside(law.range if law else {}, {"m": as_float(voxels)}),
        law.name if law else "conv",
    )
