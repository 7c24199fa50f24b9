"""The microbenchmark shapes of given operators: exactly what a set of configurations runs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from itertools import product

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.cases import AttentionCase, Case, ConvCase, GemmCase, TransferCase
from perfmodel.calibrate.presets import collective_case, media_case, pointwise_case
from perfmodel.ops import (
    Attention,
    Collective,
    Conv,
    Gemm,
    Media,
    Op,
    Pointwise,
    Transfer,
    dtype_bytes,
)

_COPY_WIDTH = 2048
_COPY_PASSES = 2
_CLIP_SIZE = (1280, 720)


def for_ops(ops: Iterable[Op]) -> list[Case]:
    """The distinct cases that per-rank operators run: arrays flattened, zero counts dropped.

    A batched GEMM shares its weight, so its rows are ``batch*m``.  Pointwise operators become
    copies of the same traffic, to two digits.  Host work has no shape and is left out.
    """
    seen: dict[Case, None] = {}
    for op in ops:
        seen.update(dict.fromkeys(_cases(op)))
    return sorted(seen, key=lambda case: (case.op, case.flops, case.memory_bytes, case.key()))


def _columns(op: Op, *dims: object) -> list[tuple[float, ...]]:
    """Distinct rows of the broadcast dimensions where the operator runs at all."""
    arrays = [np.ravel(a) for a in np.broadcast_arrays(op.count, *(np.asarray(d) for d in dims))]
    table: NDArray[np.float64] = np.stack([a.astype(np.float64) for a in arrays], axis=1)
    live = np.unique(table[table[:, 0] > 0, 1:], axis=0)
    return [tuple(row) for row in live.tolist()]


@singledispatch
def _cases(op: Op) -> list[Case]:
    del op
    return []


@_cases.register
def _(op: Gemm) -> list[Case]:
    rows = _columns(op, op.batch, op.m, op.n, op.k)
    return [GemmCase(op.dtype, "", int(b * m), int(n), int(k)) for b, m, n, k in rows]


@_cases.register
def _(op: Attention) -> list[Case]:
    dims = (op.batch, op.seq_q, op.seq_kv, op.heads, op.kv_heads)
    return [
        AttentionCase(op.dtype, "", op.causal, int(b), int(q), int(kv), int(h), int(g), op.head_dim)
        for b, q, kv, h, g in _columns(op, *dims)
    ]


@_cases.register
def _(op: Conv) -> list[Case]:
    channels = (op.in_channels, op.out_channels)
    return [
        ConvCase(op.dtype, "", *channels, *op.kernel, *op.stride, *(int(value) for value in row))
        for row in _columns(op, op.batch, op.out_t, op.out_h, op.out_w)
    ]


@_cases.register
def _(op: Pointwise) -> list[Case]:
    sizes = {float(f"{moved:.1e}") for (moved,) in _columns(op, op.bytes_moved) if moved > 0}
    per_row = _COPY_PASSES * _COPY_WIDTH * dtype_bytes("bf16")
    rows = {max(1, round(size / per_row)) for size in sizes}
    return [pointwise_case("copy", count, _COPY_WIDTH) for count in sorted(rows)]


@_cases.register
def _(op: Collective) -> list[Case]:
    rows = _columns(op, op.ranks, op.full_bytes)
    return [collective_case(op.op, int(n), size) for n, size in rows if n > 1 and size > 0]


@_cases.register
def _(op: Transfer) -> list[Case]:
    direction = op.direction if op.direction in ("h2d", "d2h") else "h2h"
    kinds = ("pinned", "pageable") if direction != "h2h" else ("pageable",)
    sizes = [int(size) for (size,) in _columns(op, op.bytes_moved) if size >= 1]
    return [TransferCase(kind, direction, n) for kind, n in product(kinds, sizes)]


@_cases.register
def _(op: Media) -> list[Case]:
    width, height = _CLIP_SIZE
    counts = [round(pixels / (width * height)) for (pixels,) in _columns(op, op.pixels)]
    return [media_case(width, height, max(1, count)) for count in counts]
