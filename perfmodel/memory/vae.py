"""Memory of the VAE on one rank: whole maps, tiles, what is gathered and blended on rank 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from perfmodel.memory.terms import Terms
from perfmodel.ops import Floats, Ints
from perfmodel.shapes import Shape, ceil_div
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.workload import Options
from perfmodel.stages.base import Traits
from perfmodel.units import BITS_PER_BYTE

Column = NDArray[np.float64]
Peak = Callable[[Ints, Ints, Ints], Floats]

RGB = 3
FLOAT_BYTES = 4.0
EAGER_CLIP_COPIES = 3
"""Chunks, joined clip and its unfolded copy; the fast path writes into one clip."""
BLEND_COPIES = 4
"""Blended rows, joined clip, unfolded clip, clamped clip (``tile_merge`` of the engine)."""
FLOAT_COPIES = 3
"""The clip in fp32, scaled, shifted (``reduce_video_to_uint8_frames`` of the engine)."""
WIDEST_SHARE = 8
"""The widest map of a decode is about an eighth of what lives beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VaeMemory:
    """What the memory model needs to know of a VAE.

    Attributes:
        bits: of an activation.
        spatial_ratio: pixels per latent row or column.
        tile_px, tile_stride_px: edge and step of a tile in pixels.
        decode_live: (latent frames, latent height, latent width) -> most bytes alive in a chunk of
            one map, past frames included, the clip left out, at 16 bits.
        encode_live: (frames, height, width) -> the same of an encode, without the pixels.
        clip_copies: clips alive while an untiled decode joins its chunks.
        encode_mode: how ranks that share a decode share an encode: ``tile``, ``band`` or ``whole``
            (each encodes all).
    """

    bits: int
    spatial_ratio: int
    decode_live: Peak
    encode_live: Peak
    tile_px: int = 256
    tile_stride_px: int = 192
    clip_copies: int = 1
    encode_mode: str = "tile"


@dataclass(frozen=True, slots=True, kw_only=True)
class VaeLive:
    """Bytes of one pass by configuration.

    Attributes:
        activations: live tensors on the rank that holds most.
        collectives: padded tiles of all ranks (VAE patch parallelism).
        slack: reserved by the allocator beyond the live tensors.
    """

    activations: Column
    collectives: Column
    slack: Column


def vae_memory(model: ModelSpec, traits: Traits, encode_mode: str = "tile") -> VaeMemory:
    """The facts of a catalogue model's VAE, from its layer list (``stages/vae/``)."""
    from perfmodel.stages import vae

    spec, fast = model.vae, traits.vae_fast_path
    return VaeMemory(
        bits=spec.bits,
        spatial_ratio=spec.spatial_ratio,
        tile_px=spec.tile_px,
        tile_stride_px=spec.tile_stride_px,
        clip_copies=EAGER_CLIP_COPIES if fast == "off" else 1,
        encode_mode=encode_mode,
        decode_live=lambda t, h, w: vae.decode_peak_bytes(model, t, h, w, fast),
        encode_live=lambda f, h, w: vae.encode_peak_bytes(model, f, h, w),
    )


def tiled(vae: VaeMemory, shape: Shape, layouts: Layouts, mode: str) -> NDArray[np.bool_]:
    """Configurations whose decode is cut into tiles; a map of one tile never is."""
    larger = (np.asarray(shape.width) > vae.tile_px) | (np.asarray(shape.height) > vae.tile_px)
    wanted = (layouts.vae_patch > 1) | (layouts.vae_tiling > 0) | (mode == "on")
    return cast("NDArray[np.bool_]", np.broadcast_to(larger & wanted, (len(layouts),)))


def _sharded(layouts: Layouts, bands: bool) -> NDArray[np.bool_]:
    """Configurations whose ranks cut every map into bands, however small it is."""
    return (layouts.vae_patch > 1) & bands


def _band(shape: Shape, layouts: Layouts, options: Options, sharded: NDArray[np.bool_]) -> Floats:
    """Share of the largest band: ``ceil(lines / ranks) / lines`` of the latent's; 1 where whole."""
    wide = options.vae_mode == "spatial_shard_width"
    lines = np.asarray(shape.latent_width if wide else shape.latent_height)
    return np.where(sharded, ceil_div(lines, layouts.vae_patch) / lines, 1.0)


def decode(
    vae: VaeMemory, shape: Shape, layouts: Layouts, options: Options, terms: Terms
) -> VaeLive:
    """Live bytes of the decode phase on rank 0.

    Untiled: the widest layer of one map, past frames and the clip, plus allocator slack.
    Tiled: the tiles of this rank, the padded copies that are gathered from all ranks, then the
    blended rows, the joined clip, its unfolded and its clamped copy, which all live at once; but
    no less than the decode of a clip that is one tile, whose blocks stay with the allocator.
    Spatially sharded: a share of the map, and the clip of all ranks.
    Turning the clip into bytes on the device adds three fp32 copies after either; they are larger
    than the maps before them, so that the allocator's cached blocks do not serve them.
    """
    scale = vae.bits / 16
    batch = np.asarray(shape.batch, np.float64)
    pixels = batch * shape.frames * np.asarray(shape.height, np.float64) * shape.width * RGB
    clip, floats = pixels * vae.bits / BITS_PER_BYTE, pixels * FLOAT_BYTES
    to_bytes = floats * (FLOAT_COPIES if terms.uint8_on_device else 0)
    grid = (shape.latent_frames, shape.latent_height, shape.latent_width)
    whole = batch * scale * np.asarray(vae.decode_live(*grid), np.float64)
    sharded = _sharded(layouts, options.vae_mode != "tile")
    share = whole * _band(shape, layouts, options, sharded)
    joined = np.where(sharded, 2, vae.clip_copies) * clip
    live = np.maximum(np.maximum(share + clip, joined), clip + to_bytes)
    fresh = np.where(floats > share / WIDEST_SHARE, to_bytes, 0.0)
    slack = share * terms.vae_slack_frac + terms.cached_frac * np.maximum(
        share + joined + fresh - live, 0.0
    )
    tile = batch * scale * _tile_live(vae, shape)
    all_tiles, own, gathered = _tiles(vae, shape, layouts, vae.bits / BITS_PER_BYTE)
    blend = BLEND_COPIES * clip
    tile_live = np.maximum(np.maximum(own + tile, all_tiles + blend), clip + to_bytes)
    cached = terms.cached_frac * np.maximum(own + tile + blend + to_bytes - tile_live, 0.0)
    tile_slack = np.maximum(cached, _one_tile(vae, shape, tile, terms) - tile_live)
    tiles = tiled(vae, shape, layouts, options.vae_tiling) & ~sharded
    return VaeLive(
        activations=np.where(tiles, tile_live, live),
        collectives=np.where(tiles, gathered, np.where(sharded, clip, 0.0)),
        slack=np.where(tiles, tile_slack, slack),
    )


def _one_tile(vae: VaeMemory, shape: Shape, tile: Column, terms: Terms) -> Column:
    """Reserved bytes of the first tile: what a whole decode of its size holds, slack included."""
    sides = np.minimum(shape.height, vae.tile_px) * np.minimum(shape.width, vae.tile_px)
    frames = np.asarray(shape.batch, np.float64) * shape.frames
    clip = frames * sides * RGB * vae.bits / BITS_PER_BYTE
    joined = vae.clip_copies * clip
    live = np.maximum(tile + clip, joined)
    cached = terms.cached_frac * np.maximum(tile + joined - live, 0.0)
    return np.asarray(live + tile * terms.vae_slack_frac + cached)


def _tile_live(vae: VaeMemory, shape: Shape) -> Column:
    edge = vae.tile_px // vae.spatial_ratio
    height = np.minimum(shape.latent_height, edge)
    width = np.minimum(shape.latent_width, edge)
    return np.asarray(vae.decode_live(shape.latent_frames, height, width), np.float64)


def _tiles(
    vae: VaeMemory, shape: Shape, layouts: Layouts, width_bytes: float
) -> tuple[Column, Column, Column]:
    """Bytes of decoded tiles: while blending on one rank, of this rank's share, of the gather.

    With VAE patch parallelism a rank holds its tiles and their packed copy, padded to full tiles
    and to the largest number on any rank; every rank receives the packed tiles of the world.
    """
    frame = np.asarray(shape.batch, np.float64) * shape.frames * RGB * width_bytes
    rows, high = _covered(shape.height, vae)
    columns, wide = _covered(shape.width, vae)
    tiles = frame * high * wide
    padded = frame * np.minimum(shape.height, vae.tile_px) * np.minimum(shape.width, vae.tile_px)
    ranks = np.minimum(layouts.vae_patch, layouts.world_size)
    most = ceil_div(rows * columns, ranks) * padded
    split = ranks > 1
    return (
        np.where(split, 0.0, tiles),
        np.where(split, 2.0 * most, tiles),
        np.where(split, layouts.world_size * most, 0.0),
    )


def _covered(extent: Ints, vae: VaeMemory) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tiles along one side, and the sum of their sizes (the last ones are cut off)."""
    size = np.asarray(extent, np.int64)
    count = np.asarray(ceil_div(size, vae.tile_stride_px), np.int64)
    starts = np.arange(int(np.max(count))) * vae.tile_stride_px
    sizes = np.clip(size[..., None] - starts, 0, vae.tile_px)
    return count, np.asarray(sizes.sum(axis=-1), np.int64)


def encode(
    vae: VaeMemory, shape: Shape, layouts: Layouts, options: Options, terms: Terms
) -> VaeLive:
    """Live bytes of the encode phase: the clip, its folded copy and one map (or tile, or share).

    0 without an image or video condition.
    """
    none = np.zeros(len(layouts))
    frames = np.asarray(shape.condition_frames, np.float64)
    if not np.any(frames > 0):
        return VaeLive(activations=none, collectives=none, slack=none)
    batch = np.asarray(shape.batch, np.float64)
    pixels = batch * frames * np.asarray(shape.height, np.float64) * shape.width * RGB
    clip = pixels * vae.bits / BITS_PER_BYTE
    scale = batch * np.where(frames > 0, 1.0, 0.0) * (vae.bits / 16)
    sides = (shape.height, shape.width)
    edges = [np.minimum(side, vae.tile_px) for side in sides]
    whole = scale * np.asarray(vae.encode_live(shape.condition_frames, *sides), np.float64)
    tile = scale * np.asarray(vae.encode_live(shape.condition_frames, *edges), np.float64)
    sharded = _sharded(layouts, options.vae_mode != "tile" and vae.encode_mode == "band")
    share = whole * _band(shape, layouts, options, sharded)
    alone = vae.encode_mode == "whole"
    divided = replace(layouts, vae_patch=np.ones_like(layouts.vae_patch)) if alone else layouts
    tiles = tiled(vae, shape, divided, options.vae_tiling) & ~sharded
    return VaeLive(
        activations=np.where(tiles, tile, share) + 2 * clip,
        collectives=none,
        slack=np.where(tiles, 0.0, share * terms.vae_slack_frac),
    )


def with_bits(vae: VaeMemory, bits: int) -> VaeMemory:
    """The same VAE loaded at another width."""
    return replace(vae, bits=bits) if bits else vae
