"""Tensor parallelism: column and row splits, and the all-reduces that row splits need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.ops import Attention, Collective, Conv, Gemm, Op, Pointwise, Role, Split, dtype_bytes
from perfmodel.placement.groups import tensor_group
from perfmodel.shapes import ceil_div
from perfmodel.spec.parallel import Layouts

FP32_BYTES = dtype_bytes("fp32")


def split_widths(op: Op, layouts: Layouts) -> Op:
    """`op` as one tensor rank runs it.

    Column: output width ``n`` (or the width of a map, or the heads) over tp.  Row: inner width
    ``k`` over tp.  Widths that do not divide are refused by the engine; here they are rounded up.
    """
    tp = layouts.tp
    if isinstance(op, Gemm) and op.split is Split.COLUMN:
        return replace(op, n=ceil_div(op.n, tp))
    if isinstance(op, Gemm) and op.split is Split.ROW:
        return replace(op, k=ceil_div(op.k, tp))
    if isinstance(op, Conv) and op.split is Split.COLUMN:
        return replace(op, out_w=ceil_div(op.out_w, tp))
    if isinstance(op, Pointwise) and op.split is Split.COLUMN:
        eager = None if op.eager_bytes is None else op.eager_bytes / tp
        return replace(op, bytes_moved=op.bytes_moved / tp, eager_bytes=eager)
    if isinstance(op, Attention) and op.role is not Role.MAP and op.tensor_split:
        return replace(op, heads=ceil_div(op.heads, tp), kv_heads=ceil_div(op.kv_heads, tp))
    return op


def row_all_reduce(op: Op, layouts: Layouts) -> tuple[Collective, ...]:
    """The all-reduce after a row-split product: ``[batch, m, n]`` in the activation dtype.

    `op` must already carry the rows of this rank.  Empty for any other operator.
    """
    if not isinstance(op, Gemm) or op.split is not Split.ROW:
        return ()
    full_bytes = np.asarray(op.batch, float) * op.m * op.n * dtype_bytes("bf16")
    group = tensor_group(layouts)
    return (group.message(f"{op.name} all-reduce", "all_reduce", full_bytes, op.count),)


def norm_all_reduces(
    row_reduces: tuple[tuple[str, int, int, bool], ...],
    local_tokens: np.ndarray,
    text_tokens: np.ndarray | int,
    layouts: Layouts,
) -> tuple[Collective, ...]:
    """Small fp32 all-reduces of a norm that spans all heads: ``rows x elements x 4`` bytes."""
    group = tensor_group(layouts)
    return tuple(
        group.message(
            name,
            "all_reduce",
            np.asarray(local_tokens if of_tokens else text_tokens, float) * elements * FP32_BYTES,
            count,
        )
        for name, count, elements, of_tokens in row_reduces
    )


def width_gathers(
    gathers: tuple[tuple[str, int, int], ...],
    local_rows: np.ndarray,
    batch: np.ndarray | int,
    layouts: Layouts,
) -> tuple[Collective, ...]:
    """All-gathers of maps that were computed column by column: ``[batch, rows, width]`` in bf16."""
    group = tensor_group(layouts)
    rows_bytes = np.asarray(batch, float) * local_rows
    return tuple(
        group.message(name, "all_gather", rows_bytes * width * dtype_bytes("bf16"), count)
        for name, count, width in gathers
    )
