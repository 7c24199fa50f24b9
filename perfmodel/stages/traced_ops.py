"""Operators of a traced class at a shape, and what parallelism may divide of each.

A size that grows with the rows and columns of the token grid counts latent tokens, one that grows
with the text alone counts text; what grows with both is one stream of text and latent tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfmodel.ops import Attention, Conv, Gemm, Op, Pointwise, Role, Rows
from perfmodel.spec.forms import Powers, Terms, Values, amount, holds, parse, part, whole
from perfmodel.spec.traced import AnyOp, TracedAttention, TracedConv, TracedGemm, TracedMoves


def of_grid(powers: Powers) -> bool:
    """A term that grows with rows or columns of the grid."""
    return holds(powers, "hw")


def rows_of(terms: Terms) -> Rows:
    """What a size counts."""
    if part(terms, of_grid):
        return Rows.TOKENS
    return Rows.TEXT if part(terms, lambda powers: holds(powers, "t")) else Rows.NONE


def role_of(op: TracedAttention) -> Role:
    """How sequence parallelism treats an attention.

    Keys from the grid are exchanged; queries of the grid against other keys, and small windows
    that are as many as the grid is large, stay local.
    """
    queries, keys, batch = (rows_of(parse(form)) for form in (op.queries, op.keys, op.batch))
    if keys is Rows.TOKENS:
        return Role.SELF
    if Rows.TOKENS in (queries, batch):
        return Role.CROSS
    return Role.TEXT


def divisible(ops: Iterable[AnyOp]) -> bool:
    """Whether tokens can be divided over ranks that exchange heads or pass keys.

    Every attention over the grid must have the same latent tokens as queries and as keys, all with
    the same heads, and no product may sum over tokens or have them as columns.
    """
    heads = set()
    for op in ops:
        if isinstance(op, TracedGemm):
            if Rows.TOKENS in (rows_of(parse(op.n)), rows_of(parse(op.k))):
                return False
        elif isinstance(op, TracedAttention):
            queries, keys = (part(parse(form), of_grid) for form in (op.queries, op.keys))
            if keys and queries != keys:
                return False
            if keys:
                heads.add((op.heads, op.kv_heads))
    return len(heads) == 1


def operators(ops: Iterable[AnyOp], values: Values, *, split: bool = False) -> tuple[Op, ...]:
    """The operators at a shape.

    Args:
        ops: as a model file lists them.
        values: what the variables stand for.
        split: tag what a sequence group divides (a denoiser); else nothing is tagged.
    """
    found: list[Op] = []
    for op in ops:
        if isinstance(op, TracedGemm):
            found.append(_gemm(op, values, split))
        elif isinstance(op, TracedAttention):
            found.append(_attention(op, values, split))
        elif isinstance(op, TracedConv):
            found.append(_conv(op, values))
        else:
            found.append(_moves(op, values, split))
    return tuple(found)


def _rows(op: AnyOp, terms: Terms, split: bool) -> Rows:
    if not split:
        return Rows.NONE
    rows = rows_of(terms)
    return Rows.FULL if op.whole and rows is Rows.TOKENS else rows


def _gemm(op: TracedGemm, values: Values, split: bool) -> Gemm:
    m, batch = parse(op.m), parse(op.batch)
    rows = _rows(op, m, split)
    folded = rows is Rows.NONE and split and rows_of(batch) is Rows.TOKENS and not op.whole
    if folded:
        # Small products, as many as the grid is large: they are divided by their number.
        rows = Rows.TOKENS
    kept = part(m, lambda powers: not of_grid(powers)) if rows is Rows.TOKENS else {}
    return Gemm(
        name=op.name,
        count=whole(parse(op.count), values),
        batch=1 if folded else whole(batch, values),
        m=whole(m, values) * (whole(batch, values) if folded else 1),
        n=whole(parse(op.n), values),
        k=whole(parse(op.k), values),
        dtype=op.dtype,
        rows=rows,
        fixed_rows=0 if folded else whole(kept, values),
        quantizable=op.weight,
    )


def _attention(op: TracedAttention, values: Values, split: bool) -> Attention:
    role = role_of(op) if split else Role.MAP
    queries, keys = parse(op.queries), parse(op.keys)
    prefix_q, prefix_kv = (
        whole(part(terms, lambda powers: not of_grid(powers)), values) if role is Role.SELF else 0
        for terms in (queries, keys)
    )
    return Attention(
        name=op.name,
        count=whole(parse(op.count), values),
        batch=whole(parse(op.batch), values),
        seq_q=whole(queries, values),
        seq_kv=whole(keys, values),
        heads=op.heads,
        kv_heads=op.kv_heads,
        head_dim=op.head_dim,
        prefix_q=prefix_q,
        prefix_kv=prefix_kv,
        causal=op.causal,
        masked=op.masked,
        role=role,
        tensor_split=False,
    )


def _conv(op: TracedConv, values: Values) -> Conv:
    frames, rows, columns = (whole(parse(form), values) for form in op.out)
    return Conv(
        name=op.name,
        count=whole(parse(op.count), values),
        batch=whole(parse(op.batch), values),
        in_channels=op.in_channels,
        out_channels=op.out_channels,
        kernel=op.kernel,
        stride=op.stride,
        out_t=frames,
        out_h=rows,
        out_w=columns,
        dtype=op.dtype,
    )


def _moves(op: TracedMoves, values: Values, split: bool) -> Pointwise:
    eager = parse(op.eager)
    kernels = whole(parse(op.kernels), values)
    return Pointwise(
        name=op.name,
        count=whole(parse(op.count), values),
        launches=np.minimum(kernels, 1) if np.ndim(kernels) else min(kernels, 1),
        eager_launches=kernels,
        bytes_moved=amount(parse(op.fused), values),
        eager_bytes=amount(eager, values),
        rows=_rows(op, eager, split),
        is_copy=op.copy_only,
    )
