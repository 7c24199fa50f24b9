"""Sequence parallelism: tokens outside attention, heads or key chunks inside it.

Ulysses (degree P): every rank holds ``S/P`` tokens; inside attention it holds all tokens of its
ring member and ``heads/P`` heads, reached by four all-to-alls a layer (q, k, v in, o out), each
with layout copies around it. Ring (degree R): a rank keeps its queries and sees the keys of the
others in ``R`` chunks, passed round in ``R - 1`` steps beside the attention. All-gather: queries
stay, K and V are gathered. Text queries of a joint attention join the local queries on every rank
(under Ulysses each rank takes its heads of them), and their output is gathered over the heads.
Tokens are embedded in full on every rank before the split, and the hidden state is gathered at the
exit. Source: vLLM-Omni 0.30.0 ``attention/parallel/*``, ``hooks/sequence_parallel.py``.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops import (
    Attention,
    Conv,
    Gemm,
    Ints,
    Op,
    Pointwise,
    Role,
    Rows,
    dtype_bytes,
)
from perfmodel.placement.groups import (
    allgather_group,
    ring_group,
    sequence_group,
    ulysses_group,
)
from perfmodel.shapes import ceil_div
from perfmodel.spec.parallel import Layouts

ACTIVATION_BYTES = dtype_bytes("bf16")
LATER_CHUNKS = ", ring chunk"
WIDE_BYTES = dtype_bytes("fp32")
MERGE_BYTES = ACTIVATION_BYTES + 9 * WIDE_BYTES
"""Per output element of a ring merge, torch operations that nothing fuses: the chunk widened,
subtracted from the accumulator, weighted, and subtracted from it again."""
MERGE_LAUNCHES = 4
"""Those four; what updates the log-sum-exp of a row launches while they run."""
ACCUMULATOR_BYTES = 2 * (ACTIVATION_BYTES + WIDE_BYTES)
"""Per output element: the first chunk widened to the accumulator, and the result narrowed."""


def local_tokens(tokens: Ints, layouts: Layouts) -> NDArray[np.int64]:
    """Tokens of one rank, ``ceil(S / sp)``: the tail is padded with zero rows."""
    return np.asarray(ceil_div(tokens, layouts.sequence_parallel), np.int64)


def split_rows(op: Op, layouts: Layouts) -> Op:
    """`op` (not a self-attention) over the tokens of one rank; text and full rows stay."""
    sp = layouts.sequence_parallel
    if isinstance(op, Gemm) and op.rows is Rows.TOKENS:
        return replace(op, m=ceil_div(op.m - op.fixed_rows, sp) + op.fixed_rows)
    if isinstance(op, Pointwise) and op.rows is Rows.TOKENS:
        eager = None if op.eager_bytes is None else op.eager_bytes / sp
        return replace(op, bytes_moved=op.bytes_moved / sp, eager_bytes=eager)
    if isinstance(op, Conv) and op.rows is Rows.TOKENS:
        return replace(op, out_w=ceil_div(op.out_w, sp))
    if isinstance(op, Attention) and op.role is Role.CROSS:
        return replace(op, seq_q=ceil_div(op.seq_q, sp))
    if isinstance(op, Attention) and op.role is Role.LOCAL:
        return replace(op, batch=ceil_div(op.batch, sp))
    return op


def split_self_attention(
    op: Attention,
    layouts: Layouts,
    *,
    builds_mask: bool,
    copies: int,
    ring_backend: str | None = None,
) -> list[Op]:
    """A self-attention (heads already over tp) as one sequence rank runs it, with its messages.

    Args:
        op: unsharded over the sequence; ``seq_q - prefix_q`` latent tokens, and as many keys after
            ``prefix_kv``.
        layouts: the configurations.
        builds_mask: padding forces a masked kernel in this model.
        copies: full copies of the buffer around each all-to-all.
        ring_backend: kernel family of ring chunks; None as without a ring.
    """
    tokens = op.seq_q - op.prefix_q
    padded = local_tokens(tokens, layouts) * layouts.sequence_parallel
    masked = (padded > tokens) & builds_mask | op.masked
    chunk = padded // layouts.ring
    queries = chunk // layouts.allgather + op.prefix_q
    heads = ceil_div(op.heads, layouts.ulysses)
    kv_heads = ceil_div(op.kv_heads, layouts.ulysses)
    ring = layouts.ring > 1
    first = replace(
        op,
        count=op.count * ~ring,
        seq_q=queries,
        seq_kv=chunk + op.prefix_kv,
        heads=heads,
        kv_heads=kv_heads,
        masked=masked,
    )
    first_chunk = replace(
        first,
        name=f"{op.name}, first ring chunk",
        count=op.count * ring,
        backend=ring_backend or op.backend,
    )
    later = replace(
        first_chunk,
        name=f"{op.name}{LATER_CHUNKS}",
        count=op.count * (layouts.ring - 1),
        seq_kv=chunk,
        prefix_kv=0,
    )
    return [
        first,
        first_chunk,
        later,
        *_ring_merge(op, layouts, queries, heads),
        *_ulysses_messages(op, layouts, padded // layouts.sequence_parallel, copies),
        *_ring_messages(op, layouts, chunk, kv_heads),
        *_allgather_messages(op, layouts, padded),
        *_text_gather(op, layouts),
    ]


def exchange_keys(op: Attention, layouts: Layouts) -> list[Op]:
    """Queries that every rank holds, over the tokens of all: a share of the heads each.

    Two all-to-alls bring keys and values of these heads, an all-gather joins the outputs.
    Source: vLLM-Omni 0.30.0 ``models/ltx2/ltx2_sequence_parallel.py``.
    """
    group = ulysses_group(layouts)
    local = local_tokens(op.seq_kv, layouts)
    width = np.asarray(op.batch, float) * op.kv_heads * op.head_dim * ACTIVATION_BYTES
    output = np.asarray(op.batch, float) * op.seq_q * op.heads * op.head_dim * ACTIVATION_BYTES
    divided = replace(
        op,
        heads=ceil_div(op.heads, layouts.ulysses),
        kv_heads=ceil_div(op.kv_heads, layouts.ulysses),
    )
    two = 2 * np.asarray(op.count)
    return [
        divided,
        group.message(f"{op.name}: exchange k, v", "all_to_all", width * local, two),
        group.message(f"{op.name}: gather heads", "all_gather", output, op.count),
    ]


def sparse(ops: list[Op], density: float) -> list[Op]:
    """`ops` of a self-attention of which a share of the query-key products is computed.

    Formula: every query meets ``density x seq_kv`` keys.  q, k, v and the output are reordered, so
        that what is left out falls on whole tiles of the kernel: four copies of permuted views.
    Source: NATTEN 0.21 ``token_permute`` (https://natten.org), FastVideo's video sparse attention
        ``tile`` and ``untile``; both run dense kernels over the tiles that are left.
    """
    if density >= 1.0:
        return ops
    found: list[Op] = []
    for op in ops:
        if not isinstance(op, Attention):
            found.append(op)
            continue
        kept = np.maximum(np.rint(np.asarray(op.seq_kv) * density), 1).astype(np.int64)
        rows = np.asarray(op.batch, float) * op.head_dim * ACTIVATION_BYTES
        queries, keys = rows * op.seq_q * op.heads, rows * op.seq_kv * op.kv_heads
        tiles = Pointwise(
            name=f"{op.name}, tiles reordered",
            count=op.count,
            bytes_moved=4 * (queries + keys),
            launches=4,
            is_copy=True,
            strided=True,
        )
        found += [replace(op, seq_kv=kept), tiles]
    return found


def exit_gather(tokens: Ints, batch: Ints, width: int, layouts: Layouts) -> Op:
    """All-gather of the module output at the end of the split: ``[batch, S_padded, width]``."""
    return row_gathers((("sequence exit gather", 1, width),), tokens, batch, layouts)[0]


def row_gathers(
    gathers: tuple[tuple[str, int, int], ...], tokens: Ints, batch: Ints, layouts: Layouts
) -> list[Op]:
    """All-gathers of latent rows over the sequence group: (name, count, elements of a row)."""
    group = sequence_group(layouts)
    padded = local_tokens(tokens, layouts) * layouts.sequence_parallel
    rows_bytes = np.asarray(batch, float) * padded * ACTIVATION_BYTES
    return [
        group.message(name, "all_gather", rows_bytes * width, count)
        for name, count, width in gathers
    ]


def state_reduces(
    reduces: tuple[tuple[str, int, int], ...], batch: Ints, layouts: Layouts
) -> list[Op]:
    """Sums over the sequence group of a linear attention's state: fp32, (name, count, elements)."""
    group = sequence_group(layouts)
    each = np.asarray(batch, float) * dtype_bytes("fp32")
    return [
        group.message(name, "all_reduce", each * elements, count)
        for name, count, elements in reduces
    ]


def _ulysses_messages(
    op: Attention, layouts: Layouts, local: NDArray[np.int64], copies: int
) -> list[Op]:
    group = ulysses_group(layouts)
    rows_bytes = np.asarray(op.batch, float) * local * op.head_dim * ACTIVATION_BYTES
    query_bytes, key_bytes = rows_bytes * op.heads, rows_bytes * op.kv_heads
    two = 2 * np.asarray(op.count)
    layout_copies = Pointwise(
        name="Ulysses layout copies",
        count=two * (group.ranks > 1),
        # Each copy reads and writes the buffer once.
        bytes_moved=2 * copies * (query_bytes + key_bytes),
        launches=2 * copies,
        is_copy=True,
        rows=Rows.TOKENS,
    )
    return [
        group.message("Ulysses all-to-all q, o", "all_to_all", query_bytes, two),
        group.message("Ulysses all-to-all k, v", "all_to_all", key_bytes, two),
        layout_copies,
    ]


def _ring_messages(
    op: Attention, layouts: Layouts, chunk: NDArray[np.int64], kv_heads: Ints
) -> list[Op]:
    group = ring_group(layouts)
    one_bytes = np.asarray(op.batch, float) * chunk * kv_heads * op.head_dim * ACTIVATION_BYTES
    steps = op.count * (group.ranks - 1)
    send = group.message("ring send k, v", "p2p", 2 * one_bytes, steps)
    # Of r chunks the last runs with nothing in flight.
    return [replace(send, overlaps=f"{op.name}{LATER_CHUNKS}", launches=2)]


def _ring_merge(
    op: Attention, layouts: Layouts, queries: NDArray[np.int64], heads: Ints
) -> list[Op]:
    elements = np.asarray(op.batch, float) * queries * heads * op.head_dim
    merge = Pointwise(
        name="ring merge",
        count=op.count * (layouts.ring - 1),
        bytes_moved=elements * MERGE_BYTES,
        launches=MERGE_LAUNCHES,
        rows=Rows.TOKENS,
    )
    accumulator = Pointwise(
        name="ring accumulator",
        count=op.count * (layouts.ring > 1),
        bytes_moved=elements * ACCUMULATOR_BYTES,
        launches=2,
        rows=Rows.TOKENS,
    )
    return [merge, accumulator]


def _allgather_messages(op: Attention, layouts: Layouts, padded: NDArray[np.int64]) -> list[Op]:
    group = allgather_group(layouts)
    full = np.asarray(op.batch, float) * padded * op.kv_heads * op.head_dim * ACTIVATION_BYTES
    return [group.message("all-gather k, v", "all_gather", full, 2 * np.asarray(op.count))]


def _text_gather(op: Attention, layouts: Layouts) -> list[Op]:
    """Text output of a joint attention, gathered over the heads: ``[batch, text, heads, D]``."""
    if not np.any(np.asarray(op.prefix_q) > 0):
        return []
    rows = np.asarray(op.batch, float) * op.prefix_q
    full_bytes = rows * op.heads * op.head_dim * ACTIVATION_BYTES
    group = ulysses_group(layouts)
    return [group.message("Ulysses text gather", "all_gather", full_bytes, op.count)]
