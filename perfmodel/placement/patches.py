"""PipeFusion: patches of the latent that follow one another through the pipeline stages.

Each of `p` ranks holds ``ceil(blocks / p)`` blocks.  After a few synchronous warm-up steps the
latent passes in `p` patches: a stage runs its blocks on one patch against the keys and values of
all, of which the other patches' are a step old.  A rank then runs as many kernels a step as one
device, each on ``1/p`` of the tokens.  A patch enters the next step when it leaves the last stage,
so the hand-overs of its way are exposed.  Source: xDiT 0.7.0 (https://pypi.org/project/xfuser/),
``model_executor/pipelines/pipeline_pixart_alpha.py _async_pipeline``, ``config/config.py``
(as many patches as stages), ``core/cache_manager/cache_manager.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops import (
    Attention,
    Collective,
    Conv,
    Floats,
    Gemm,
    Ints,
    Op,
    Pointwise,
    Role,
    Rows,
    dtype_bytes,
)
from perfmodel.placement.sequence import local_tokens
from perfmodel.shapes import Shape, ceil_div
from perfmodel.spec.parallel import Layouts

LATENT = (Rows.TOKENS, Rows.FULL)
CACHE_PASSES = 2
"""Keys and values of a patch are joined, then copied into the cache."""


def in_patches(ops: Iterable[Op], layouts: Layouts) -> list[Op]:
    """Operators of a forward on one rank, each over the tokens of one patch; text stays whole."""
    return [_patch(op, layouts.pp) for op in ops]


def _patch(op: Op, patches: NDArray[np.int64]) -> Op:
    if isinstance(op, Gemm) and op.rows in LATENT:
        return replace(op, m=ceil_div(op.m - op.fixed_rows, patches) + op.fixed_rows)
    if isinstance(op, Attention) and op.role in (Role.SELF, Role.CROSS):
        return replace(op, seq_q=ceil_div(op.seq_q - op.prefix_q, patches) + op.prefix_q)
    if isinstance(op, Pointwise) and op.rows in LATENT:
        eager = None if op.eager_bytes is None else op.eager_bytes / patches
        return replace(op, bytes_moved=op.bytes_moved / patches, eager_bytes=eager)
    if isinstance(op, Conv) and op.rows in LATENT:
        return replace(op, out_w=ceil_div(op.out_w, patches))
    if isinstance(op, Collective):
        return replace(op, full_bytes=op.full_bytes / patches)
    return op


def stale_cache(blocks: int, kv_width: int, shape: Shape, layouts: Layouts) -> Pointwise:
    """Writing the keys and values of a patch into the cache, in every block of a forward."""
    tokens = local_tokens(shape.tokens, layouts) / layouts.pp
    elements = np.asarray(shape.batch, float) * tokens * 2 * kv_width / layouts.tp
    return Pointwise(
        name="stale keys and values",
        count=blocks,
        bytes_moved=2 * CACHE_PASSES * elements * dtype_bytes("bf16"),
        launches=CACHE_PASSES,
        is_copy=True,
    )


def executions(
    forwards: Floats, branches: Ints, blocks: int, warmup_steps: int, layouts: Layouts
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Forwards that the whole latent passes, and forwards in patches.

    Formula: whole = warm-up steps x branches (all forwards where there is one stage);
        patches = (forwards - whole + (p - 1)/p x branches) x the largest stage's share of its even
        one, ``ceil(blocks / p) x p / blocks``: the first patch fills the pipeline once.
    """
    stages = layouts.pp
    whole = np.minimum(np.asarray(forwards), warmup_steps * np.asarray(branches))
    left = forwards - whole
    fill = (stages - 1) / stages * branches
    largest = ceil_div(blocks, stages) * stages / blocks
    piped = np.where((stages > 1) & (left > 0), (left + fill) * largest, 0.0)
    return np.where(stages > 1, whole, forwards), piped


def cache_bytes(
    blocks: int, kv_width: int, tokens: NDArray[np.number], layouts: Layouts
) -> NDArray[np.float64]:
    """Keys and values of all patches in the blocks of one stage; `tokens` are those of a rank."""
    held = ceil_div(blocks, layouts.pp) * tokens * 2 * kv_width / layouts.tp * dtype_bytes("bf16")
    return np.asarray(np.where(layouts.pp > 1, held, 0.0))
