"""The vision tower of Qwen2.5-VL, which reads condition images before the language model.

Patches of 14 pixels; 28 of 32 blocks attend within windows of 8 x 8 patches, four over the whole
image; a merger joins 2 x 2 patches to one token of the language model's width.  Without
FlashAttention the module calls the attention once a window, in a loop that first reads the lengths
of the windows from the device, so that nothing hides the host's time.
Source: transformers 5.24.0 ``models/qwen2_5_vl/modeling_qwen2_5_vl.py``
(https://pypi.org/project/transformers/5.24.0/).
"""

from __future__ import annotations

import numpy as np

from perfmodel.ops import Attention, HostWork, Ints, Op, Pointwise, Role, Rows
from perfmodel.shapes import ceil_div
from perfmodel.stages.layers import as_ints, elements, linear
from perfmodel.stages.text_encoder import (
    CLONE_BYTES,
    GATE_BYTES,
    GELU_BYTES,
    RESIDUAL_BYTES,
    RMS_BYTES,
    RMS_LAUNCHES,
    ROPE_BYTES,
    ROPE_LAUNCHES,
)

HIDDEN, HEADS, HEAD_DIM, FFN, BLOCKS, FULL_BLOCKS = 1280, 16, 80, 3420, 32, 4
PATCH_INPUT = 3 * 2 * 14 * 14
WINDOW = 64
WINDOW_TOKENS = 4
"""Side of a window in language tokens."""
MERGED, OUT_WIDTH, PATCHES_PER_TOKEN = 4 * HIDDEN, 3584, 4


def params() -> int:
    """Parameters: patch embedding, blocks with biases, merger."""
    attention = HIDDEN * 3 * HIDDEN + 3 * HIDDEN + HIDDEN * HIDDEN + HIDDEN
    network = 3 * HIDDEN * FFN + 2 * FFN + HIDDEN
    merger = HIDDEN + MERGED * MERGED + MERGED + MERGED * OUT_WIDTH + OUT_WIDTH
    return PATCH_INPUT * HIDDEN + BLOCKS * (attention + network + 2 * HIDDEN) + merger


def encode(tokens: Ints, runs: Ints) -> tuple[Op, ...]:
    """Operators that turn images into `tokens` language tokens each, `runs` times."""
    patches = tokens * PATCHES_PER_TOKEN
    rows, merged = (Rows.NONE, patches), (Rows.NONE, tokens)
    count = BLOCKS * runs
    return (
        linear("vision patch embedding", rows, (HIDDEN, PATCH_INPUT), count=runs),
        linear("vision q, k, v", rows, (3 * HIDDEN, HIDDEN), count=count),
        _attention("vision attention", patches, 1, FULL_BLOCKS * runs),
        _attention(
            "vision window attention",
            WINDOW,
            ceil_div(patches, WINDOW),
            (BLOCKS - FULL_BLOCKS) * runs,
        ),
        HostWork(
            name="vision window calls",
            count=(BLOCKS - FULL_BLOCKS) * runs * windows(tokens),
            term="attention_window_s",
        ),
        linear("vision attention output", rows, (HIDDEN, HIDDEN), count=count),
        linear("vision feed-forward in", rows, (FFN, HIDDEN), count=2 * count),
        linear("vision feed-forward out", rows, (HIDDEN, FFN), count=count),
        linear("vision merger 1", merged, (MERGED, MERGED), count=runs),
        linear("vision merger 2", merged, (OUT_WIDTH, MERGED), count=runs),
        *_pointwise(patches, count),
    )


def windows(tokens: Ints) -> Ints:
    """Windows of a square image of `tokens` language tokens; those at the edges are smaller."""
    sides = np.ceil(np.sqrt(np.asarray(tokens, float)) / WINDOW_TOKENS).astype(np.int64)
    return as_ints(sides**2)


def _attention(name: str, length: Ints, windows: Ints, count: Ints) -> Attention:
    return Attention(
        name=name,
        count=count,
        batch=windows,
        seq_q=length,
        seq_kv=length,
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=HEAD_DIM,
        role=Role.MAP,
    )


def _pointwise(patches: Ints, count: Ints) -> tuple[Pointwise, ...]:
    rows, wide = elements(patches, HIDDEN), elements(patches, FFN)
    each = (
        ("norm", 2, rows * RMS_BYTES, RMS_LAUNCHES),
        ("rotary embedding", 2, rows * ROPE_BYTES, ROPE_LAUNCHES),
        ("activation", 1, wide * (GELU_BYTES + GATE_BYTES), 2),
        ("residual", 2, rows * RESIDUAL_BYTES, 1),
        ("layout", 1, rows * CLONE_BYTES, 1),
    )
    return tuple(
        Pointwise(name=f"vision {name}", count=times * count, bytes_moved=moved, launches=launches)
        for name, times, moved, launches in each
    )
