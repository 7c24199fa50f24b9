"""The VAE on the ranks: tiles or bands of one map, the gather of the pieces, the blend.

Untiled and undivided, every rank runs the whole map and no message is sent.  Tile parallel: whole
tiles are dealt to ranks, their padded outputs are gathered over all ranks of the replica, and rank
0 blends the overlaps row by row.  Spatial shard: every feature map is cut into bands along one
axis, each convolution that looks sideways first exchanges one row with both neighbours, the
attention gathers its map, and the result is gathered.  Source: vLLM-Omni 0.30.0,
``distributed/autoencoders``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops import Attention, Collective, Conv, Floats, Ints, Op, Pointwise, dtype_bytes
from perfmodel.placement.tiles import Dealing, Tiling, deal
from perfmodel.shapes import ceil_div

Ints64 = NDArray[np.int64]

BLEND_KERNELS_PER_ROW = 4
"""Kernels of one blended row or column: two scalings, a sum, a copy back (diffusers blend_v/h)."""

BLEND_PASSES = 9
"""Rows that they read and write: two of each scaling, three of the sum, two of the copy."""

VAE_BYTES = dtype_bytes("bf16")
SHAPE_BYTES = 64.0
"""Message in which the ranks agree on the padded tile shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Maps:
    """C maps to run, and how each is divided; columns of length C.

    Attributes:
        frames, height, width: of a map in its own units (latent for decode, pixels for encode).
        ranks: ranks that share a map (vae_patch, at most the world).
        world: ranks of the replica, over which pieces are gathered.
        replicas: replicas at work at the same time.
        tiled: whether it is cut into tiles.
        tiling: tile edge and step.
        band_axis: ``height`` or ``width`` for a spatial shard instead of tiles, else "".
    """

    frames: Ints64
    height: Ints64
    width: Ints64
    ranks: Ints64
    world: Ints64
    replicas: Ints64
    tiled: NDArray[np.bool_]
    tiling: Tiling
    band_axis: str = ""

    def __len__(self) -> int:
        """Number of maps."""
        return len(self.frames)

    @property
    def divided(self) -> NDArray[np.bool_]:
        """Whether several ranks share the map."""
        return self.ranks > 1


@dataclass(frozen=True, slots=True)
class Dealt:
    """Pieces of C maps: K distinct piece shapes, at most J of them on a map, R ranks.

    Attributes:
        shapes: distinct (frames, height, width), ``[K, 3]``.
        kind: index into `shapes` of each piece shape of a map, ``[C, J]``.
        counts: pieces of each shape on each rank, ``[C, R, J]``; unused places are 0.
        max_tiles: most pieces on one rank, ``[C]``.
        largest: (height, width) of the largest piece, ``[C, 2]``.
        seams: neighbouring pairs of tiles, ``[C]``.
    """

    shapes: Ints64
    kind: NDArray[np.intp]
    counts: Ints64
    max_tiles: Ints64
    largest: Ints64
    seams: Ints64


def deal_maps(maps: Maps) -> Dealt:
    """Cut and deal all maps; the discrete work is done once per distinct size and division."""
    height, width = maps.height, maps.width
    if maps.band_axis == "height":
        height = np.where(maps.divided, ceil_div(height, maps.ranks), height)
    if maps.band_axis == "width":
        width = np.where(maps.divided, ceil_div(width, maps.ranks), width)
    # Bands take the place of tiles where a map is divided; an undivided one may still be tiled.
    tiled = maps.tiled & ~(maps.divided & bool(maps.band_axis))
    sharing = np.where(tiled, maps.ranks, 1)
    table = np.stack([height, width, sharing, tiled], axis=1)
    keys, index = np.unique(table, axis=0, return_inverse=True)
    dealings = [_dealing(maps, *row) for row in keys.tolist()]
    ranks = max(d.counts.shape[0] for d in dealings)
    places = max(d.counts.shape[1] for d in dealings)
    counts = np.zeros((len(keys), ranks, places), np.int64)
    pieces = np.zeros((len(keys), places, 2), np.int64)
    for number, dealing in enumerate(dealings):
        rows, kinds = dealing.counts.shape
        counts[number, :rows, :kinds] = dealing.counts
        pieces[number] = (int(dealing.heights[0]), int(dealing.widths[0]))
        pieces[number, :kinds, 0], pieces[number, :kinds, 1] = dealing.heights, dealing.widths
    index = index.reshape(-1)
    each = pieces[index]
    frames = np.broadcast_to(maps.frames[:, None], each.shape[:2])
    flat = np.concatenate([frames[..., None], each], axis=2).reshape(-1, 3)
    shapes, kind = np.unique(flat, axis=0, return_inverse=True)
    seams = np.array(
        [d.seams if maps_row[3] else 0 for d, maps_row in zip(dealings, keys, strict=True)]
    )
    return Dealt(
        shapes=shapes,
        kind=kind.reshape(each.shape[:2]),
        counts=counts[index],
        max_tiles=counts.sum(axis=2).max(axis=1)[index],
        largest=pieces.max(axis=1)[index],
        seams=seams[index],
    )


def _dealing(maps: Maps, height: int, width: int, ranks: int, tiled: int) -> Dealing:
    return deal(height, width, ranks, maps.tiling if tiled else None)


def gather(maps: Maps, dealt: Dealt, piece_bytes: Floats) -> tuple[Op, ...]:
    """All-gather of the padded pieces: ``world * max_tiles * piece_bytes`` over the replica.

    Args:
        maps: the maps.
        dealt: their pieces.
        piece_bytes: output of the largest piece (or of one band), ``[C]``.
    """
    whole = maps.world * dealt.max_tiles * np.asarray(piece_bytes, float)
    agree = _collective(maps, "VAE shape all-reduce", "all_reduce", np.full(len(maps), SHAPE_BYTES))
    return agree, _collective(maps, "VAE tile gather", "all_gather", whole)


def broadcast(maps: Maps, result_bytes: Floats) -> Collective:
    """Result from rank 0 to all, for engines or stages that need it everywhere."""
    return _collective(maps, "VAE broadcast", "broadcast", np.asarray(result_bytes, float))


def _collective(maps: Maps, name: str, op: str, full_bytes: Floats, count: Ints = 1) -> Collective:
    return Collective(
        name=name,
        count=count * maps.divided,
        op=op,
        full_bytes=full_bytes,
        ranks=np.where(maps.divided, maps.world, 1),
        stride=1,
        groups=maps.replicas,
        axis="vae",
    )


def blend(dealt: Dealt, tiling: Tiling, overlap: int, piece_bytes: Floats) -> tuple[Op, ...]:
    """Rank 0 blends `overlap` rows (or columns) at every seam, then concatenates the tiles.

    Of the largest piece ``(size - stride) / rows`` overlaps, in as many rows of the output.
    """
    rows = np.maximum(dealt.largest[:, 0], 1)
    shared = (tiling.size - tiling.stride) / rows
    row_bytes = np.asarray(piece_bytes, float) * shared / max(overlap, 1)
    tiles = dealt.counts.sum(axis=(1, 2)) * (dealt.seams > 0)
    return (
        Pointwise(
            name="tile blend",
            count=dealt.seams * overlap,
            bytes_moved=BLEND_PASSES * row_bytes,
            launches=BLEND_KERNELS_PER_ROW,
        ),
        Pointwise(
            name="tile concatenation",
            count=tiles,
            bytes_moved=2 * np.asarray(piece_bytes, float),
            is_copy=True,
        ),
    )


def band_messages(
    build: Callable[[Ints64, Ints64, Ints64], tuple[Op, ...]], maps: Maps, *, joins: bool
) -> tuple[Op, ...]:
    """Halo rows of every convolution and the gathers of the attention map, for banded maps.

    Args:
        build: operators of maps of (frames, height, width).
        maps: the maps, undivided.
        joins: the rows that arrive are joined to the band in a copy of it, not written in place.
    """
    messages: list[Op] = []
    for op in build(maps.frames, maps.height, maps.width):
        if isinstance(op, Conv) and op.kernel[1] > 1:
            messages += _halo(op, maps, joins=joins)
        elif isinstance(op, Attention):
            full = np.asarray(op.batch, float) * op.seq_kv * op.heads * op.head_dim * VAE_BYTES
            messages.append(
                _collective(maps, f"{op.name} gather", "all_gather", 2 * full, op.count)
            )
    return tuple(messages)


def _halo(op: Conv, maps: Maps, *, joins: bool) -> list[Op]:
    """The rows of both neighbours that a convolution reads, and the copy that joins them."""
    frames = np.asarray(op.out_t) * op.stride[0] + op.kernel[0] - 1
    high, wide = op.out_h * op.stride[1], op.out_w * op.stride[2]
    across, along = (wide, high) if maps.band_axis == "height" else (high, wide)
    row_bytes = np.asarray(op.batch, float) * op.in_channels * frames * across
    row_bytes = row_bytes * dtype_bytes(op.dtype)
    halo = _collective(maps, f"{op.name} halo", "p2p", row_bytes, op.count)
    found: list[Op] = [replace(halo, launches=2)]
    if joins:
        band_bytes = row_bytes * along / maps.ranks
        found.append(
            Pointwise(
                name=f"{op.name} join rows",
                count=op.count * maps.divided,
                bytes_moved=2 * band_bytes,
                is_copy=True,
                strided=True,
            )
        )
    return found
