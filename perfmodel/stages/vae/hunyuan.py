"""The HunyuanVideo VAEs: causal 3-D convolutions over a whole clip, or over temporal tiles.

HunyuanVideo cuts a clip of more than `tile_frames` frames into overlapping temporal tiles, with or
without spatial tiling; HunyuanVideo-1.5 runs the clip at once.  The attention of both spans all
frames of a pass under a mask that is built each time, quadratic in the positions.
Source: diffusers 0.42.1 ``AutoencoderKLHunyuanVideo``, ``AutoencoderKLHunyuanVideo15``
(https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from perfmodel.ops import Floats, Ints, Op, Pointwise
from perfmodel.shapes import ceil_div
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.base import Traits
from perfmodel.stages.layers import BF16_BYTES, FP32_BYTES, READ_WRITE, as_floats, as_ints, elements
from perfmodel.stages.vae.blocks import (
    RGB,
    UPSAMPLE_BYTES,
    Net,
    PaddedNet,
    clip_map,
    decoder,
    encoder,
)
from perfmodel.stages.vae.record import ADD_BYTES, Map

PAST_FRAMES = 2
# Per pair of positions: compare writes 1, select reads it and writes fp32, conversion to bf16.
MASK_BYTES = 1 + 1 + FP32_BYTES + FP32_BYTES + BF16_BYTES
MASK_ALIVE_BYTES = FP32_BYTES + BF16_BYTES
BLEND_KERNELS = 4
"""Kernels of one blended frame: two scalings, a sum, a copy back."""
COPY_KERNELS = 3


@dataclass(slots=True)
class CausalNet(PaddedNet):
    """3-D convolutions over past frames, edges repeated (HunyuanVideo)."""

    def shortcut(self, shape: Map, out: Map) -> None:
        """1x1x1 convolution; the published module pads (copies) its input by nothing."""
        self.padded_conv(shape, out, (1, 1, 1), (1, 1, 1))

    def attend(self, shape: Map) -> None:
        """Attention of all positions of the pass, each frame seeing itself and the past."""
        self.move("attention scale", shape, shape.size * READ_WRITE)
        pairs = elements(shape.tokens, shape.tokens)
        self.move("attention mask", shape, pairs * MASK_BYTES, 4)
        self.spread_attention(shape, heads=1, masked=True, whole_clip=True)
        self.alive(shape.size * 6 * BF16_BYTES, pairs * MASK_ALIVE_BYTES)

    def upsample(self, shape: Map, channels: int, *, doubles_time: bool) -> Map:
        """Nearest in space and, after the first frame, in time; then a convolution."""
        wide = shape.scaled(lambda side: 2 * side)
        if doubles_time:
            wide = replace(wide, frames=2 * shape.frames - 1)
        self.move("up-sample first frame", shape, shape.frame * UPSAMPLE_BYTES)
        several = as_ints(1 * (np.asarray(shape.frames) > 1))
        rest = (wide.size - wide.frame + 3 * (shape.size - shape.frame)) * BF16_BYTES
        joined = elements(wide.size, several) * READ_WRITE
        self.move("up-sample", shape, rest + joined, COPY_KERNELS)
        # The pieces that were joined are still there.
        self.conv(wide, wide, kept=shape.size + elements(wide.size, several))
        return wide

    def downsample(self, shape: Map, channels: int, *, halves_time: bool) -> Map:
        """Causal convolution of stride 2."""
        out = shape.scaled(lambda side: (side - 1) // 2 + 1)
        if halves_time:
            out = replace(out, frames=(shape.frames - 1) // 2 + 1)
        self.padded_conv(shape, out, (3, 3, 3), (2 if halves_time else 1, 2, 2))
        return out


@dataclass(slots=True)
class PackedNet(CausalNet):
    """RMS norms; resampling packs positions into channels (HunyuanVideo-1.5)."""

    def norm(self, shape: Map, *, silu: bool, kept: Floats = 0.0) -> None:
        """RMS norm over channels in fp32."""
        self.rms_norm_fp32(shape, silu=silu, kept=kept)

    def shortcut(self, shape: Map, out: Map) -> None:
        """1x1x1 convolution."""
        self.convolve(shape, out, (1, 1, 1), read=shape.size)

    def attention(self, shape: Map) -> None:
        """Single-head attention over the clip, its projections as convolutions."""
        self.norm(shape, silu=False)
        for _ in range(3):
            self.shortcut(shape, shape)
            self.move("q, k, v layout", shape, shape.size * READ_WRITE, is_copy=True)
        pairs = elements(shape.tokens, shape.tokens)
        self.move("attention mask", shape, pairs * BF16_BYTES)
        # The mask is opened row by row, a kernel each; a row sees half of the positions on average.
        self.add(
            Pointwise(
                name=self.name("attention mask row", shape),
                count=shape.tokens,
                bytes_moved=elements(shape.tokens) / 2 * BF16_BYTES,
            )
        )
        self.spread_attention(shape, heads=1, masked=True, whole_clip=True)
        self.alive(shape.size * 6 * BF16_BYTES, pairs * BF16_BYTES)
        self.move("attention layout", shape, shape.size * READ_WRITE, is_copy=True)
        self.shortcut(shape, shape)
        self.residual(shape)

    def enter(self, latent: Map, out: Map) -> None:
        """First convolution, and the latent repeated over its channels added."""
        self.conv(latent, out)
        self.move("add repeated latent", out, out.size * (READ_WRITE + ADD_BYTES), 2)

    def leave(self, shape: Map, moments: Map) -> None:
        """Norm, SiLU, last convolution, and the averaged input added."""
        self.move("average channels", shape, (shape.size + moments.size) * BF16_BYTES)
        self.norm(shape, silu=True)
        self.conv(shape, moments)
        self.move("residual", moments, moments.size * ADD_BYTES)

    def upsample(self, shape: Map, channels: int, *, doubles_time: bool) -> Map:
        """Convolution to 4 (8 with time) times the channels, unpacked; the input repeated added."""
        factor = 8 if doubles_time else 4
        wide = replace(shape, channels=channels * factor)
        out = replace(shape.scaled(lambda side: 2 * side), channels=channels)
        if doubles_time:
            out = replace(out, frames=2 * shape.frames - 1)
        self.conv(shape, wide, kept=shape.size)
        joins = 2 if doubles_time else 0
        moved = 2 * wide.size + 2 * shape.size + 2 * out.size + joins * 2 * out.size
        self.move("unpack", shape, moved * BF16_BYTES, 8 if doubles_time else 3, is_copy=True)
        self.move("residual", out, out.size * ADD_BYTES)
        self.alive((shape.size + wide.size + 3 * out.size) * BF16_BYTES)
        return out

    def downsample(self, shape: Map, channels: int, *, halves_time: bool) -> Map:
        """Convolution to a quarter (an eighth) of the channels, packed; averaged input added."""
        factor = 8 if halves_time else 4
        thin = replace(shape, channels=channels // factor)
        out = replace(shape.scaled(lambda side: side // 2), channels=channels)
        if halves_time:
            out = replace(out, frames=(shape.frames - 1) // 2 + 1)
        self.conv(shape, thin, kept=shape.size)
        joins = 3 if halves_time else 0
        moved = 2 * thin.size + 3 * shape.size + out.size + joins * 2 * out.size
        self.move("pack", shape, moved * BF16_BYTES, 9 if halves_time else 3, is_copy=True)
        self.move("residual", out, out.size * ADD_BYTES)
        self.alive((2 * shape.size + thin.size + 3 * out.size) * BF16_BYTES)
        return out


@dataclass(frozen=True, slots=True)
class Piece:
    """Temporal tiles of one length: their frames, and how many there are."""

    name: str
    frames: Ints
    count: Ints


def pieces(frames: Ints, size: int, stride: int, longest: int) -> tuple[Piece, ...]:
    """Temporal tiles of a clip: full ones, the last but one and the last (both may be short).

    Args:
        frames: of the clip.
        size: frames of a tile, the shared first one included.
        stride: step between tiles.
        longest: a clip of up to so many frames is not cut.
    """
    starts = np.where(np.asarray(frames) > longest, ceil_div(frames, stride), 1)
    found = []
    for name, back in (("tile before last", 1), ("last tile", 0)):
        start = (starts - 1 - back) * stride
        length = np.where(start >= 0, np.minimum(frames - start, size), 1)
        # An uncut clip is its own last tile, however long.
        length = np.where((starts == 1) & (back == 0), frames, length)
        found.append(Piece(name, as_ints(length), as_ints(1 * (start >= 0))))
    full = Piece("tile", size, as_ints(np.maximum(starts - 2, 0)))
    return (full, *found)


def decode(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Operators that decode one map of `height` x `width` latent positions."""
    found: list[Op] = []
    for piece in _latent_pieces(vae, latent_frames):
        net = _decoder(vae, piece.name, piece.frames, height, width)
        found += net.operators(piece.count)
    sides = (height * vae.spatial_ratio, width * vae.spatial_ratio)
    return (*found, *_blend("decode", vae, latent_frames, RGB, sides, vae.temporal_ratio))


def encode(vae: VaeSpec, frames: Ints, height: Ints, width: Ints, traits: Traits) -> tuple[Op, ...]:
    """Operators that encode one map of pixels."""
    found: list[Op] = []
    for piece in _pixel_pieces(vae, frames):
        found += _encoder(vae, piece.name, piece.frames, height, width).operators(piece.count)
    sides = (height // vae.spatial_ratio, width // vae.spatial_ratio)
    latent = (frames - 1) // vae.temporal_ratio + 1
    return (*found, *_blend("encode", vae, latent, 2 * vae.z_channels, sides, 1))


def decode_peak_bytes(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, fast_path: str = "off"
) -> Floats:
    """Most bytes alive in one pass, weights and the output clip left out (no fast path)."""
    peak: Floats = 0.0
    for piece in _latent_pieces(vae, latent_frames):
        live = _decoder(vae, piece.name, piece.frames, height, width).peak_bytes
        peak = np.maximum(peak, live * (np.asarray(piece.count) > 0))
    return as_floats(peak)


def encode_peak_bytes(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Floats:
    """Most bytes alive in one pass, weights and the input clip left out."""
    peak: Floats = 0.0
    for piece in _pixel_pieces(vae, frames):
        live = _encoder(vae, piece.name, piece.frames, height, width).peak_bytes
        peak = np.maximum(peak, live * (np.asarray(piece.count) > 0))
    return as_floats(peak)


@lru_cache(maxsize=16)
def params(vae: VaeSpec) -> tuple[int, int]:
    """Parameters of the encoder and of the decoder, 1x1x1 convolutions included."""
    side = vae.spatial_ratio
    return _encoder(vae, "", 1, side, side).params, _decoder(vae, "", 1, 1, 1).params


def _latent_pieces(vae: VaeSpec, frames: Ints) -> tuple[Piece, ...]:
    if not vae.tile_frames:
        return (Piece("", frames, 1),)
    size, stride = (n // vae.temporal_ratio for n in (vae.tile_frames, vae.tile_stride_frames))
    return pieces(frames, size + 1, stride, size)


def _pixel_pieces(vae: VaeSpec, frames: Ints) -> tuple[Piece, ...]:
    if not vae.tile_frames:
        return (Piece("", frames, 1),)
    return pieces(frames, vae.tile_frames + 1, vae.tile_stride_frames, vae.tile_frames)


def _decoder(vae: VaeSpec, phase: str, frames: Ints, height: Ints, width: Ints) -> Net:
    latent = clip_map(vae.z_channels, frames, height, width)
    if vae.kind == "hunyuanvideo15":
        packed = PackedNet("decode", phase)
        decoder(packed, vae, latent, vae.temporal[::-1])
        return packed
    net = CausalNet("decode", phase)
    net.convolve(latent, latent, (1, 1, 1), read=latent.size)
    # From the latent, in the order of the encoder: its decoder is not the encoder's mirror image.
    decoder(net, vae, latent, vae.temporal)
    return net


def _encoder(vae: VaeSpec, phase: str, frames: Ints, height: Ints, width: Ints) -> Net:
    pixels = clip_map(RGB, frames, height, width)
    if vae.kind == "hunyuanvideo15":
        packed = PackedNet("encode", phase)
        encoder(packed, vae, pixels, vae.temporal)
        return packed
    net = CausalNet("encode", phase)
    moments = encoder(net, vae, pixels, vae.temporal)
    net.convolve(moments, moments, (1, 1, 1), read=moments.size)
    return net


def _blend(
    stage: str,
    vae: VaeSpec,
    latent_frames: Ints,
    channels: int,
    sides: tuple[Ints, Ints],
    step: int,
) -> tuple[Op, ...]:
    """Blend the overlap of neighbouring temporal tiles frame by frame, then join them.

    `step`: frames that the pieces have for one latent frame.
    """
    if not vae.tile_frames:
        return ()
    tiles = sum(np.asarray(piece.count) for piece in _latent_pieces(vae, latent_frames))
    overlap = (vae.tile_frames - vae.tile_stride_frames) // vae.temporal_ratio * step
    frame = elements(channels, *sides)
    seams = as_ints(np.asarray(tiles) - 1)
    moved = 2 * READ_WRITE + ADD_BYTES + READ_WRITE
    whole = elements((latent_frames - 1) * step + 1, frame) * READ_WRITE
    return (
        Pointwise(
            name=f"{stage}: blend frames",
            count=seams,
            bytes_moved=overlap * frame * moved,
            launches=overlap * BLEND_KERNELS,
        ),
        Pointwise(
            name=f"{stage}: join tiles",
            count=as_ints(1 * (np.asarray(tiles) > 1)),
            bytes_moved=whole,
            is_copy=True,
        ),
    )
