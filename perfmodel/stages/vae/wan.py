"""The Wan2.1 and Wan2.2 video VAEs: layers of a decode or encode, chunk by chunk.

Decode: one latent frame a chunk; the first makes one frame and skips the temporal up-sampling, the
later ones make four.  Encode: the first frame alone, then four a chunk.
Source: diffusers 0.42.1 ``AutoencoderKLWan`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np

from perfmodel.ops import Conv, Floats, Ints, Op, Pointwise
from perfmodel.shapes import causal_latent_frames
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.base import Traits
from perfmodel.stages.layers import BF16_BYTES, READ_WRITE, elements
from perfmodel.stages.vae.graph import Chunk
from perfmodel.stages.vae.record import ADD_BYTES, Map

RGB = 3
OFF = "off"


def decode(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Operators that decode one map of `height` x `width` latent positions (a tile or the whole).

    Args:
        vae: the dimensions.
        latent_frames: chunks of the loop.
        height: latent rows.
        width: latent columns.
        traits: ``vae_fast_path`` selects the data movement.
    """
    fast_path = traits.vae_fast_path
    first = _decoder_chunk(vae, "first", fast_path, height, width)
    later = _decoder_chunk(vae, "later", fast_path, height, width)
    latent = Map(vae.z_channels, 1, height, width)
    entry = _whole_conv("decode: post-quantisation conv", latent, latent_frames, fast_path)
    return (
        *entry,
        *first.operators(1),
        *later.operators(latent_frames - 1),
        *_decoder_output(vae, latent_frames, height, width, fast_path),
    )


def encode(vae: VaeSpec, frames: Ints, height: Ints, width: Ints, traits: Traits) -> tuple[Op, ...]:
    """Operators that encode one map of `frames` x `height` x `width` pixels.

    The fast path covers the decoder only, so the encoder always runs the published module.
    """
    chunks = causal_latent_frames(frames, vae.temporal_ratio)
    first = _encoder_chunk(vae, "first", height, width)
    later = _encoder_chunk(vae, "later", height, width)
    pixels = elements(RGB, frames, height, width)
    latent = Map(2 * vae.z_channels, 1, height // vae.spatial_ratio, width // vae.spatial_ratio)
    fold: tuple[Op, ...] = ()
    if vae.pixel_patch > 1:
        fold = (_copy("encode: fold pixels", pixels * READ_WRITE),)
    return (
        *fold,
        *first.operators(1),
        *later.operators(chunks - 1),
        *_joins("encode: join chunks", latent.size, chunks, 1),
        *_whole_conv("encode: quantisation conv", latent, chunks, OFF),
    )


def decode_peak_bytes(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, fast_path: str = OFF
) -> Floats:
    """Most bytes that one chunk of a decode keeps alive, weights and the output clip left out.

    The worst layer of a later chunk (its input, the residual kept beside it, fp32 copies of an
    unfused norm, the assembled and padded input, the output, converted copies of both) plus the
    past frames that all convolutions keep.

    Args:
        vae: the dimensions.
        latent_frames: chunks; 1 is an image.
        height: latent rows of the map (a tile or the whole).
        width: latent columns.
        fast_path: off, lossless or channels_last.
    """
    phase = "later" if np.any(np.asarray(latent_frames) > 1) else "first"
    if np.ndim(height) == 0 and np.ndim(width) == 0:
        alive: Floats = _one_alive(vae, phase, fast_path, int(height), int(width))
    else:
        alive = _decoder_alive(vae, phase, fast_path, height, width)
    return alive


def _decoder_alive(vae: VaeSpec, phase: str, fast_path: str, height: Ints, width: Ints) -> Floats:
    chunk = _decoder_chunk(vae, phase, fast_path, height, width)
    return chunk.peak_bytes + chunk.cache_bytes


@lru_cache(maxsize=64)
def _one_alive(vae: VaeSpec, phase: str, fast_path: str, height: int, width: int) -> Floats:
    """The bytes of one map, which every variant of a question asks for again."""
    return _decoder_alive(vae, phase, fast_path, height, width)


def encode_peak_bytes(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Floats:
    """Most bytes that one chunk of an encode keeps alive, weights and the input clip left out.

    As `decode_peak_bytes`, for a map of `frames` x `height` x `width` pixels.
    """
    phase = "later" if np.any(np.asarray(frames) > 1) else "first"
    chunk = _encoder_chunk(vae, phase, height, width)
    return chunk.peak_bytes + chunk.cache_bytes


@lru_cache(maxsize=16)
def params(vae: VaeSpec) -> tuple[int, int]:
    """Parameters of the encoder and of the decoder, 1x1 (post-)quantisation included."""
    side = vae.spatial_ratio
    encoder = _encoder_chunk(vae, "later", side, side).params
    decoder = _decoder_chunk(vae, "later", OFF, 1, 1).params
    moments = 2 * vae.z_channels
    return (
        encoder + moments * moments + moments,
        decoder + vae.z_channels * vae.z_channels + vae.z_channels,
    )


def _decoder_chunk(vae: VaeSpec, phase: str, fast_path: str, height: Ints, width: Ints) -> Chunk:
    chunk = Chunk(stage="decode", phase=phase, fast_path=fast_path)
    widths = [vae.decoder_width * m for m in (*vae.multipliers, vae.multipliers[-1])][::-1]
    latent = Map(vae.z_channels, 1, height, width)
    here = replace(latent, channels=widths[0])
    chunk.causal_conv(latent, here)
    chunk.middle(here)
    for level, channels in enumerate(widths[1:]):
        here = _decoder_level(vae, chunk, here, channels, level)
    chunk.norm(here, silu=True)
    chunk.causal_conv(here, replace(here, channels=RGB * vae.pixel_patch**2))
    return chunk


def _decoder_level(vae: VaeSpec, chunk: Chunk, entry: Map, channels: int, level: int) -> Map:
    """Residual blocks, then temporal and spatial up-sampling with the Wan2.2 shortcut."""
    # vae.temporal lists changes of level from the pixels, so the decoder walks it backwards.
    changes = vae.temporal[::-1]
    grows = level < len(changes)
    kept = entry.size if vae.residual else 0.0
    if vae.residual and chunk.eager:
        chunk.move("keep block input", entry, entry.size * READ_WRITE, is_copy=True)
    here = entry
    for _ in range(vae.resnets + 1):
        here = chunk.resnet(here, channels, kept=kept)
    if not grows:
        return here
    doubles_time = changes[level] and chunk.phase == "later"
    if doubles_time:
        here = chunk.double_time(here)
    out = channels if vae.residual else channels // 2
    here = chunk.upsample(here, out, folds_bias=vae.residual, kept=kept)
    if vae.residual:
        _duplicate_shortcut(chunk, entry, here, factor_t=2 if changes[level] else 1)
    return here


def _duplicate_shortcut(chunk: Chunk, entry: Map, out: Map, *, factor_t: int) -> None:
    """Add the block's input, repeated in time and space (parameter-free)."""
    if not chunk.eager:
        moved = (2 * out.size + entry.size) * BF16_BYTES
        chunk.move("add repeated input", out, moved)
        return
    # Repeat, permute, (drop the first frame,) add; the repeat happens before the drop.
    full = elements(out.channels, entry.frames * factor_t, out.height, out.width)
    moved = (entry.size + 3 * full) * BF16_BYTES + out.size * ADD_BYTES
    chunk.move("add repeated input", out, moved, 3)


def _encoder_chunk(vae: VaeSpec, phase: str, height: Ints, width: Ints) -> Chunk:
    chunk = Chunk(stage="encode", phase=phase, fast_path=OFF)
    patch = vae.pixel_patch
    frames = 1 if phase == "first" else vae.temporal_ratio
    pixels = Map(RGB * patch**2, frames, height // patch, width // patch)
    here = replace(pixels, channels=vae.encoder_width)
    chunk.causal_conv(pixels, here)
    for level, multiplier in enumerate(vae.multipliers):
        here = _encoder_level(vae, chunk, here, vae.encoder_width * multiplier, level)
    chunk.middle(here)
    chunk.norm(here, silu=True)
    chunk.causal_conv(here, replace(here, channels=2 * vae.z_channels))
    return chunk


def _encoder_level(vae: VaeSpec, chunk: Chunk, entry: Map, channels: int, level: int) -> Map:
    shrinks = level < len(vae.temporal)
    kept = entry.size if vae.residual else 0.0
    if vae.residual:
        chunk.move("keep block input", entry, entry.size * READ_WRITE, is_copy=True)
    here = entry
    for _ in range(vae.resnets):
        here = chunk.resnet(here, channels, kept=kept)
    halves_time = shrinks and vae.temporal[level]
    if shrinks:
        here = _downsample(chunk, here, halves_time=halves_time)
    if vae.residual:
        _average_shortcut(chunk, entry, here, factor_t=2 if halves_time else 1)
    return here


def _downsample(chunk: Chunk, shape: Map, *, halves_time: bool) -> Map:
    """Pad by one row and column, 3x3 convolution of stride 2; then (3,1,1) of stride 2."""
    out = shape.scaled(lambda side: side // 2)
    padded = elements(shape.channels, shape.frames, shape.height + 1, shape.width + 1)
    chunk.move("pad", shape, (shape.size + padded) * BF16_BYTES, is_copy=True)
    chunk.convolve(shape, out, (1, 3, 3), stride=(1, 2, 2), read=padded)
    if not halves_time:
        return out
    chunk.cache_bytes = chunk.cache_bytes + out.frame * BF16_BYTES
    if chunk.phase == "first":
        chunk.move("keep frame", out, out.size * READ_WRITE, is_copy=True)
        return out
    joined = out.over(out.frames + 1)
    half = replace(out, frames=out.frames // 2)
    moved = (out.frame + 2 * joined) * READ_WRITE
    chunk.move("join last frame", out, moved, 3, is_copy=True)
    chunk.convolve(out, half, (3, 1, 1), stride=(2, 1, 1), read=joined)
    return half


def _average_shortcut(chunk: Chunk, entry: Map, out: Map, *, factor_t: int) -> None:
    """Add the block's input, averaged over the positions that fold into one (parameter-free)."""
    frames = -(-entry.frames // factor_t) * factor_t
    padded = entry.over(frames)
    moved = (entry.size + 4 * padded + out.size) * BF16_BYTES + out.size * ADD_BYTES
    chunk.move("add averaged input", out, moved, 4, more=f" of {entry.label}")


def _decoder_output(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, fast_path: str
) -> tuple[Op, ...]:
    """Join the chunks, unfold pixels, clamp; the fast path writes each chunk into its place."""
    frame = _frame_elements(vae, height, width)
    folds = vae.pixel_patch > 1
    passes = 2 if folds else 1
    if fast_path != OFF:
        first = _copy("decode first: write frames", passes * frame * READ_WRITE, passes)
        later = _copy(
            "decode later: write frames", passes * vae.temporal_ratio * frame * READ_WRITE, passes
        )
        return (first, replace(later, count=latent_frames - 1))
    frames = (latent_frames - 1) * vae.temporal_ratio + 1
    whole = frame * np.asarray(frames, float)
    return (
        *_joins("decode: join chunks", frame, latent_frames, vae.temporal_ratio),
        _copy("decode: unfold, clamp", passes * whole * READ_WRITE, passes),
    )


def _joins(name: str, frame: Floats, chunks: Ints, stride: int) -> tuple[Op, ...]:
    """The growing concatenation: after chunk ``i`` all ``1 + stride*i`` frames are copied."""
    mean_frames = 1 + stride * np.asarray(chunks, float) / 2
    return (replace(_copy(name, mean_frames * frame * READ_WRITE), count=chunks - 1),)


def _whole_conv(name: str, shape: Map, frames: Ints, fast_path: str) -> tuple[Op, ...]:
    """1x1x1 convolution over all latent frames at once, padded (copied) by nothing when eager."""
    size = shape.frame * np.asarray(frames, float)
    conv = Conv(
        name=name,
        in_channels=shape.channels,
        out_channels=shape.channels,
        kernel=(1, 1, 1),
        out_t=frames,
        out_h=shape.height,
        out_w=shape.width,
    )
    if fast_path != OFF:
        return (conv,)
    return (_copy(f"{name}: empty pad", size * READ_WRITE), conv)


def _copy(name: str, bytes_moved: Floats, launches: int = 1) -> Pointwise:
    return Pointwise(name=name, bytes_moved=bytes_moved, launches=launches, is_copy=True)


def _frame_elements(vae: VaeSpec, height: Ints, width: Ints) -> Floats:
    return elements(RGB, height * vae.spatial_ratio, width * vae.spatial_ratio)
