"""How an attention kernel cuts its work: query rows of a tile, and parts of the keys.

FlashAttention 3 (Hopper) takes tiles of 192 query rows to a head_dim of 96 and of 128 beyond; the
kernels of Blackwell run two tiles of 128 rows together.  Where there are too few tiles for the
multiprocessors, FlashAttention 3 and 4 split the keys of each.  The law takes as many parts as run
at once:

    parts = floor(SMs / tiles), at least 1, at most the blocks of keys; 1 for up to 4 blocks

Measured rows show it (head_dim 64, one head, H200, whose 132 multiprocessors hold 2 parts of up to
66 tiles): 12,288 tokens, 64 tiles, take 86 us, and 14,400 tokens, 75 tiles, take 186.  The library
itself sometimes takes more parts than run at once, and larger problems are then faster (9,216
tokens take 91 us, 10,816 take 79); the law does not, and is too fast there.  The causal kernels of
Blackwell (TensorRT-LLM's) split nothing.

Parts are taken whether they pay or not, as the library does, so time falls where a larger problem
is cut better: 5 blocks of keys are up to 10 % faster than 4 (half on an H20, whose products are
slow beside a merge), and with causal masks over short keys one tile more than fits in parts is up
to a quarter faster than the last that does.  The rows say so: where the law may leave keys whole,
the 12 of H100 and H200 that it then leaves whole come out 11 % too fast, not 3.

The tile sizes are those of the library (https://github.com/Dao-AILab/flash-attention, its Hopper
kernels), as generally known: the source was not read for this.  The rows bear out the query rows;
blocks of keys only bound the parts of short keys.

Kernels that were not measured, as cuDNN's, may have either tile: the law takes the better one at
each shape, so that an unknown tile is not charged for a wave that it would leave half empty.  On
other families it takes the best of a few parts.  Torch's memory-efficient kernel for heads beyond
those of the flash kernels takes 32 query rows and all keys on every CUDA family from Ampere on
(``fmha_cutlassF_bf16_aligned_32x128_gmem_sm80``; header ``mem_eff_attention/kernels/cutlassF.h`` of
PyTorch 2.13, BSD-3-Clause).  Four or more of its tiles share a multiprocessor; how much of its rate
one alone reaches is not known, so a tile alone is taken to reach all of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.result import FloatArray, as_float

ROWS, WIDE_HEAD_ROWS = 128.0, 32.0
"""Query rows of a tile where nothing else is known, and of torch's kernel for the widest heads."""
SPLITS = (1.0, 2.0, 4.0)
"""Parts that the keys of a tile are split into when there are too few tiles."""

HOPPER, BLACKWELL = "hopper", "blackwell"
WIDEST_TALL = 96.0
"""head_dim to which FlashAttention 3 takes its tall tiles."""
TALL_ROWS, PAIR_ROWS = 192.0, 256.0
FEWEST_BLOCKS, BLOCK = 4.0, 128.0
"""Blocks of keys up to which none are split; keys of a block."""


def partitions(
    family: str,
    multiprocessors: float,
    *,
    seq_q: FloatArray,
    seq_kv: FloatArray,
    heads: FloatArray,
    head_dim: FloatArray,
    causal: NDArray[np.bool_] | bool,
    measured: bool = True,
    rows: float = 0.0,
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """(query rows of a tile, parts of its keys): what the kernels of `family` choose from.

    Args:
        family: of the device.
        multiprocessors: of the device.
        seq_q: query tokens.
        seq_kv: keys.
        heads: query heads of the whole batch.
        head_dim: width of a head.
        causal: the mask; such kernels read K and V from pages, in blocks of 128 keys.
        measured: the kernel is one of those whose tiles the records show.
        rows: of the tiles of a kernel that never splits keys; 0 for the others.
    """
    if rows:
        yield np.asarray(rows), np.asarray(1.0)
        return
    head_dim, heads = as_float(head_dim), as_float(heads)
    if family not in (HOPPER, BLACKWELL):
        for split in SPLITS:
            yield np.asarray(ROWS), np.asarray(split)
        return
    hopper = family == HOPPER
    own = np.where(head_dim <= WIDEST_TALL, TALL_ROWS, ROWS) if hopper else np.asarray(PAIR_ROWS)
    block = key_block(head_dim, causal) if hopper else np.asarray(BLOCK)
    for tile in (own,) if measured else (own, np.asarray(ROWS)):
        tiles, blocks = heads * np.ceil(seq_q / tile), np.ceil(seq_kv / block)
        parts = parts_at_once(tiles, blocks, multiprocessors)
        yield tile, parts if hopper else np.where(causal, 1.0, parts)


def key_block(head_dim: FloatArray, causal: NDArray[np.bool_] | bool) -> FloatArray:
    """Keys that FlashAttention 3 takes at once."""
    free = np.where(head_dim <= 64.0, 192.0, np.where(head_dim <= WIDEST_TALL, 144.0, 176.0))
    return as_float(np.where(causal, BLOCK, free))


def parts_at_once(tiles: FloatArray, blocks: FloatArray, multiprocessors: float) -> FloatArray:
    """Parts of the keys, from the tiles of all heads and the blocks of keys (module text)."""
    room = np.floor(multiprocessors / np.maximum(tiles, 1.0))
    split = np.clip(room, 1.0, np.maximum(blocks, 1.0))
    return as_float(np.where(blocks > FEWEST_BLOCKS, split, 1.0))
