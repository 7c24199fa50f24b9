"""Quantised linears: the product in the low precision, and the kernels that quantise its input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.ops import Gemm, Op, Pointwise, dtype_bytes

QUANTISED = ("fp8", "fp8_block", "int8", "nvfp4")


def quantise(op: Op, dtype: str) -> list[Op]:
    """`op` under a quantised checkpoint: an activation-quantisation kernel, then the product.

    The kernel reads the bf16 activation twice (absolute maximum, then scaling) and writes it in
    `dtype`: ``m * k * (2 * 2 + bytes)``.  Other operators, and products that a quantised checkpoint
    keeps in bf16, are returned as they are.
    """
    if dtype not in QUANTISED or not isinstance(op, Gemm) or not op.quantizable:
        return [op]
    elements = np.asarray(op.batch, float) * op.m * op.k
    kernel = Pointwise(
        name=f"{op.name} input quantisation",
        count=op.count,
        bytes_moved=elements * (2 * dtype_bytes("bf16") + dtype_bytes(dtype)),
        launches=2,
        rows=op.rows,
    )
    return [kernel, replace(op, dtype=dtype)]
