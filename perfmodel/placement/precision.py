"""Quantised linears: the product in the low precision, and the kernels that quantise its input."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.ops import DTYPE_BITS, Conv, Gemm, Op, Pointwise, dtype_bytes

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


def widened(ops: tuple[Op, ...], bits: int) -> tuple[Op, ...]:
    """`ops` of a module that computes in fp32 where they were counted in bf16 (`bits` 32).

    Products and convolutions change their dtype, memory traffic grows with the element; 16 bits
    return the operators as they are.
    """
    if bits == DTYPE_BITS["bf16"]:
        return ops
    return tuple(_wide(op, bits / DTYPE_BITS["bf16"]) for op in ops)


def _wide(op: Op, ratio: float) -> Op:
    if isinstance(op, Gemm | Conv):
        return replace(op, dtype="fp32")
    if isinstance(op, Pointwise):
        eager = None if op.eager_bytes is None else op.eager_bytes * ratio
        return replace(op, bytes_moved=op.bytes_moved * ratio, eager_bytes=eager)
    return op
