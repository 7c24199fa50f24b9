"""Precision of operators: quantised linears, modules that compute in fp32."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.ops import DTYPE_BITS, Conv, Gemm, Op, Pointwise

QUANTISED = ("fp8", "fp8_block", "int8", "nvfp4")


QUANTISE_LAUNCHES = 2
"""Kernels that quantise an activation: absolute maximum, then scaling."""


def quantise(op: Op, dtype: str, *, fused: bool = False) -> Op:
    """`op` under a quantised checkpoint: the product runs in `dtype`.

    The law of a low-precision product starts from a bf16 activation, so the kernels that quantise
    it are in its time (and here in its launches), unless `fused`: a compiler joined them to the
    kernel that writes the activation, which stores one byte instead of two and reads once more
    where the scale is one of the whole tensor.  Other operators, and products that a quantised
    checkpoint keeps in bf16, are returned as they are.
    """
    if dtype not in QUANTISED or not isinstance(op, Gemm) or not op.quantizable:
        return op
    if fused:
        return replace(op, dtype=dtype, input_quantised=True)
    return replace(op, dtype=dtype, launches=op.launches + QUANTISE_LAUNCHES)


WIDENED_BYTES = {
    "fp8wo": (3.0, 19.0),
    "int8wo": (3.0, 3.0),
    "nf4": (2.5, 2.5),
    "fp8cast": (6.0, 6.0),
}
"""Bytes that widening a stored weight moves, fused and in single torch operations.

torchao 0.9.0 converts an int8 weight before the product and scales its output
(``dtypes/uintx/plain_layout.py``), and takes an fp8 weight to fp32, scales it and narrows it
(``dtypes/floatx/float8_layout.py``).  bitsandbytes reads half a byte and writes bf16.  diffusers'
layerwise casting converts a module's weights to bf16 and back around each call
(``hooks/layerwise_casting.py``).  The product of fp6 weights widens them in its own kernel.
"""


def widening(op: Op, dtype: str) -> list[Op]:
    """The kernel that widens the weight of a product before it runs in bf16, if there is one."""
    if dtype not in WIDENED_BYTES or not isinstance(op, Gemm) or not op.quantizable:
        return []
    fused, eager = WIDENED_BYTES[dtype]
    elements = np.asarray(op.n, float) * op.k
    return [
        Pointwise(
            name=f"{op.name}, weight widened",
            count=op.count,
            bytes_moved=fused * elements,
            eager_bytes=eager * elements,
            launches=1,
            eager_launches=3 if eager > fused else 1,
        )
    ]


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


def autocast(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    """`ops` of a half-precision module under ``torch.autocast``.

    Each operator says what it moves and launches there (`Pointwise.autocast`).
    """
    return tuple(_autocast(op) for op in ops)


def _autocast(op: Op) -> Op:
    if not isinstance(op, Pointwise):
        return op
    ratio, casts = op.autocast
    return replace(op, bytes_moved=op.bytes_moved * ratio, launches=op.launches + casts)
