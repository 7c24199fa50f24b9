"""The VAE on the ranks: tiles or bands of one map, the gather of the pieces, the blend.

Untiled and undivided, every rank runs the whole map and no message is sent.  Tile parallel: whole
tiles are dealt to ranks, their padded outputs are gathered over all ranks of the replica, and rank
0 blends the overlaps row by row.  Spatial shard: every feature map is cut into bands along one
axis, each convolution that looks sideways first exchanges one row with both neighbours, the
attention gathers its map, and the result is gathered.  Source: vLLM-Omni 0.30.0,
``distributed/autoencoders``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.ops import Attention, Collective, Conv, Op, Pointwise, dtype_bytes
from perfmodel.placement.tiles import Dealing, Tiling, deal
from perfmodel.shapes import ceil_div

BLEND_KERNELS_PER_ROW = 4
"""Kernels of one blended row or column: two scalings, a sum, a copy back (diffusers blend_v/h)."""

VAE_BYTES = dtype_bytes("bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class MapCase:
    """One map to run: its size, and how it is divided.

    Attributes:
        frames, height, width: of the map in its own units (latent for decode, pixels for encode).
        ranks: ranks that share the map (vae_patch, at most the world).
        world: ranks of the replica, over which pieces are gathered.
        replicas: replicas at work at the same time.
        tiling: tile edge and step, None = untiled.
        band_axis: ``height`` or ``width`` for a spatial shard instead of tiles, else "".
    """

    frames: int
    height: int
    width: int
    ranks: int
    world: int
    replicas: int
    tiling: Tiling | None
    band_axis: str = ""

    def dealing(self) -> Dealing:
        """Tiles of each rank (the whole map on one rank when it is not tiled)."""
        if self.band_axis == "height":
            return deal(int(ceil_div(self.height, self.ranks)), self.width, 1, None)
        if self.band_axis == "width":
            return deal(self.height, int(ceil_div(self.width, self.ranks)), 1, None)
        return deal(self.height, self.width, self.ranks, self.tiling)


def gather(case: MapCase, dealing: Dealing, tile_bytes: float) -> tuple[Collective, ...]:
    """All-gather of the padded pieces: ``world * max_tiles * tile_bytes`` over the replica.

    Args:
        case: the map.
        dealing: its tiles.
        tile_bytes: output of the largest tile (or of one band).
    """
    if case.ranks == 1:
        return ()
    shape_bytes = 64.0
    common = {"ranks": case.world, "stride": 1, "groups": case.replicas, "axis": "vae"}
    return (
        Collective(name="VAE shape all-reduce", op="all_reduce", full_bytes=shape_bytes, **common),
        Collective(
            name="VAE tile gather",
            op="all_gather",
            full_bytes=float(case.world * dealing.max_tiles) * tile_bytes,
            **common,
        ),
    )


def broadcast(case: MapCase, result_bytes: float) -> tuple[Collective, ...]:
    """Result from rank 0 to all, for engines or stages that need it everywhere."""
    if case.ranks == 1:
        return ()
    return (
        Collective(
            name="VAE broadcast",
            op="broadcast",
            full_bytes=result_bytes,
            ranks=case.world,
            stride=1,
            groups=case.replicas,
            axis="vae",
        ),
    )


def blend(case: MapCase, dealing: Dealing, overlap: int, tile_bytes: float) -> tuple[Op, ...]:
    """Rank 0 blends `overlap` rows (and columns) of neighbouring tiles, then concatenates them."""
    rows, columns = dealing.grid
    seams = (rows - 1) * columns + rows * (columns - 1)
    if case.tiling is None or case.band_axis or seams == 0:
        return ()
    launches = overlap * BLEND_KERNELS_PER_ROW
    seam_bytes = tile_bytes / max(int(dealing.heights.max()), 1)
    return (
        Pointwise(
            name="tile blend",
            count=seams,
            bytes_moved=3 * seam_bytes * BLEND_KERNELS_PER_ROW,
            launches=launches,
            eager_launches=launches,
        ),
        Pointwise(
            name="tile concatenation",
            count=1,
            bytes_moved=2 * tile_bytes * dealing.tiles,
            launches=dealing.tiles,
            is_copy=True,
        ),
    )


def band_messages(ops: tuple[Op, ...], case: MapCase) -> list[Op]:
    """Halo rows of every convolution and the gather of the attention map, for banded maps."""
    messages: list[Op] = []
    for op in ops:
        if isinstance(op, Conv) and op.kernel[1] > 1:
            frames = op.out_t * op.stride[0] + op.kernel[0] - 1
            across = op.out_w if case.band_axis == "height" else op.out_h
            row = np.asarray(op.batch, float) * op.in_channels * frames * across * op.stride[2]
            messages.append(_halo(op, row * VAE_BYTES, case))
        elif isinstance(op, Attention):
            full = np.asarray(op.batch, float) * op.seq_kv * op.heads * op.head_dim * VAE_BYTES
            messages.append(
                Collective(
                    name=f"{op.name} gather",
                    count=op.count,
                    op="all_gather",
                    full_bytes=2 * full,
                    ranks=case.world,
                    groups=case.replicas,
                    axis="vae",
                )
            )
    return messages


def _halo(op: Conv, row_bytes: np.ndarray, case: MapCase) -> Collective:
    return Collective(
        name=f"{op.name} halo",
        count=op.count,
        op="p2p",
        full_bytes=row_bytes,
        ranks=case.world,
        groups=case.replicas,
        axis="vae",
        launches=2,
    )
