"""What ranks exchange around a VAE, and how tiles are joined, against torch's bytes and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
from meta_modules import Kernels, torch

from perfmodel.ops import Attention, Collective, Conv
from perfmodel.placement.tiles import Tiling
from perfmodel.placement.vae import Maps, band_messages, blend, deal_maps, gather

TILE, STRIDE, RATIO, FRAMES = 32, 24, 8, 17
"""A tile of 256 pixels at stride 192, in latent rows."""


def maps(rows: int, columns: int, ranks: int = 1, world: int = 1, band: str = "") -> Maps:
    sizes = {"frames": FRAMES, "height": rows, "width": columns, "ranks": ranks, "world": world}
    columns_of = {name: np.array([value]) for name, value in sizes.items()}
    return Maps(
        **columns_of, replicas=np.array([1]), tiled=np.array([not band]),
        tiling=Tiling(TILE, STRIDE), band_axis=band,
    )  # fmt: skip


def one(value: Any) -> float:
    return float(np.ravel(np.asarray(value))[0])


def test_a_seam_is_blended_row_by_row_as_diffusers_does() -> None:
    """``blend_v`` of diffusers' autoencoders on two tiles, one above the other."""
    asked = maps(2 * STRIDE, STRIDE)
    dealt = deal_maps(asked)
    overlap, wide = (TILE - STRIDE) * RATIO, STRIDE * RATIO
    above, below = (
        torch.zeros(1, 3, FRAMES, rows * RATIO, wide, dtype=torch.bfloat16, device="meta")
        for rows in (TILE, STRIDE)
    )
    with Kernels() as kernels:
        for y in range(overlap):
            below[..., y, :] = above[..., y - overlap, :] * (1 - y / overlap) + below[..., y, :] * (
                y / overlap
            )
    joined, copied = blend(dealt, asked.tiling, overlap, np.array([above.nbytes]))
    assert one(joined.count) * one(joined.launches) == kernels.calls
    # The count of torch's bytes takes the row that a copy overwrites for one that it reads.
    overwritten = overlap * below[..., 0, :].numel() * below.element_size()
    assert one(joined.count) * one(joined.bytes_moved) == kernels.moved - overwritten
    assert one(copied.count) * one(copied.bytes_moved) == 2 * 2 * above.nbytes


def test_every_rank_of_the_replica_receives_padded_tiles() -> None:
    asked = maps(2 * STRIDE, 2 * STRIDE, ranks=3, world=8)
    tile = 1000.0
    agree, whole = gather(asked, deal_maps(asked), np.array([tile]))
    # four tiles on three ranks: two on one of them, and eight ranks take part
    assert one(whole.full_bytes) == 8 * 2 * tile
    assert one(whole.ranks) == one(agree.ranks) == 8
    assert one(agree.full_bytes) < 1024  # a shape


def test_bands_exchange_rows_with_both_neighbours_and_gather_keys_and_values() -> None:
    conv = Conv(
        name="conv", out_t=FRAMES, out_h=64, out_w=96, in_channels=8, out_channels=8,
        kernel=(1, 3, 3),
    )  # fmt: skip
    attention = Attention(name="mid", seq_q=6144, seq_kv=6144, heads=1, kv_heads=1, head_dim=8)
    asked = maps(64, 96, ranks=4, world=4, band="height")
    halo, join, keys = band_messages(lambda *_: (conv, attention), asked, joins=True)
    row = torch.zeros(1, 8, FRAMES, 1, 96, dtype=torch.bfloat16, device="meta")
    band = torch.zeros(1, 8, FRAMES, 16, 96, dtype=torch.bfloat16, device="meta")
    assert isinstance(halo, Collective)
    assert one(halo.full_bytes) == row.nbytes
    assert one(halo.launches) == 2
    assert one(join.bytes_moved) == 2 * band.nbytes
    whole = torch.zeros(2, 6144, 8, dtype=torch.bfloat16, device="meta")
    assert one(keys.full_bytes) == whole.nbytes
