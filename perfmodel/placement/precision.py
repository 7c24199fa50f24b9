"""Precision of operators: quantised linears, modules that compute in fp32."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops import DTYPE_BITS, Conv, Gemm, Op, Pointwise

QUANTISED = ("fp8", "fp8_block", "int8", "nvfp4")


QUANTISE_LAUNCHES = 2
"""Kernels that quantise an activation: absolute maximum, then scaling."""


def quantise(op: Op, dtype: str) -> Op:
    """`op` under a quantised checkpoint: the product runs in `dtype`.

    The law of a low-precision product starts from a bf16 activation, so the kernels that quantise
    it are in its time (and here in its launches).  Other operators, and products that a quantised
    checkpoint keeps in bf16, are returned as they are.
    """
    if dtype not in QUANTISED or not isinstance(op, Gemm) or not op.quantizable:
        return op
    return replace(op, dtype=dtype, launches=op.launches + QUANTISE_LAUNCHES)


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
