"""The CogVideoX VAE: a few latent frames at a time, each convolution keeping its past frames.

Decode: two latent frames a chunk, three in the first of an odd clip.  Encode: eight frames a chunk,
the rest of a division by eight in the first too.  Every norm of the decoder is scaled and shifted
by two 1x1x1 convolutions of the latent, resized to the map.
Source: diffusers 0.42.1 ``AutoencoderKLCogVideoX``
(https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from perfmodel.ops import Floats, Ints, Op, Pointwise
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.base import Traits
from perfmodel.stages.layers import BF16_BYTES, READ_WRITE, as_floats, as_ints, elements
from perfmodel.stages.vae.blocks import (
    RGB,
    Net,
    clip_map,
    decoder,
    encoder,
)
from perfmodel.stages.vae.record import ADD_BYTES, Map

PAST_FRAMES = 2
LATENT_CHUNK, PIXEL_CHUNK = 2, 8
"""Frames of every chunk but the first."""


@dataclass(slots=True)
class ChunkNet(Net):
    """One chunk.

    Attributes:
        z_channels: latent channels that condition the norms (decoder); 0: plain group norms.
    """

    z_channels: int = 0

    def alive(self, *sizes_bytes: Floats) -> None:
        """Maps that live at the same time, with the past frames kept so far."""
        Net.alive(self, self.cache_bytes, *sizes_bytes)

    def conv(self, shape: Map, out: Map, *, kept: Floats = 0.0) -> None:
        """3x3x3 convolution over the chunk and two past frames, the last two kept."""
        read = shape.over(shape.frames + PAST_FRAMES)
        past = shape.over(PAST_FRAMES)
        self.move("join past", shape, read * READ_WRITE, is_copy=True)
        self.move("keep past", shape, past * READ_WRITE, is_copy=True)
        self.cache_bytes = self.cache_bytes + past * BF16_BYTES
        self.convolve(shape, out, (3, 3, 3), read=read)
        self.around_conv(kept, shape.size, out.size, read)

    def norm(self, shape: Map, *, silu: bool, kept: Floats = 0.0) -> None:
        """Group norm, in the decoder scaled and shifted by the resized latent, and the SiLU."""
        if not self.z_channels:
            Net.norm(self, shape, silu=silu, kept=kept)
            return
        latent = replace(shape, channels=self.z_channels)
        # The first chunk resizes its first frame apart and joins it.
        copies = 3 if self.phase == "first" else 1
        self.move("resize latent", latent, copies * latent.size * BF16_BYTES, copies, is_copy=True)
        for _ in range(2):
            self.move("keep latent", latent, latent.size * READ_WRITE, is_copy=True)
            self.cache_bytes = self.cache_bytes + latent.size * BF16_BYTES
            self.convolve(latent, shape, (1, 1, 1), read=latent.size)
        self.group_norm(shape)
        self.move("scale, shift", shape, 2 * shape.size * ADD_BYTES, 2)
        self.activation(shape)
        self.alive((kept + 5 * shape.size + latent.size) * BF16_BYTES)

    def residual(self, shape: Map) -> None:
        """Sum with the block's input."""
        self.move("residual", shape, shape.size * ADD_BYTES)

    def middle(self, shape: Map) -> None:
        """Two residual blocks."""
        self.resnets(shape, [shape.channels] * 2)

    def upsample(self, shape: Map, channels: int, *, doubles_time: bool) -> Map:
        """Nearest in space and, but for the first of an odd number, in time; 3x3 convolution."""
        wide = shape.scaled(lambda side: 2 * side)
        if doubles_time:
            wide = replace(wide, frames=2 * shape.frames - shape.frames % 2)
        first = doubles_time and self.phase == "first"
        moved = (shape.size + wide.size) * BF16_BYTES + (wide.size * READ_WRITE if first else 0.0)
        self.move("up-sample", shape, moved, 3 if first else 1)
        copied = wide if doubles_time else shape
        self.move("frames to a batch", copied, copied.size * READ_WRITE, is_copy=True)
        self.convolve(wide, wide, (1, 3, 3), read=wide.size)
        self.around_conv(shape.size, wide.size, wide.size)
        return wide

    def downsample(self, shape: Map, channels: int, *, halves_time: bool) -> Map:
        """Average of pairs of frames, pad by one row and column, 3x3 convolution of stride 2."""
        here = shape
        if halves_time:
            here = replace(shape, frames=(shape.frames + 1) // 2)
            first = self.phase == "first"
            moved = shape.size * READ_WRITE + (shape.size + here.size) * BF16_BYTES
            moved = moved + (here.size * READ_WRITE if first else 0.0)
            self.move("average frames", shape, moved, 3 if first else 2)
        out = here.scaled(lambda side: side // 2)
        read = here.grown(0, 1)
        self.move("pad", here, (here.size + read) * BF16_BYTES, is_copy=True, more=f" {out.label}")
        self.move("frames to a batch", out, read * READ_WRITE, is_copy=True)
        self.convolve(here, out, (1, 3, 3), stride=(1, 2, 2), read=read)
        self.around_conv(shape.size, here.size, out.size, read)
        return out


def decode(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Operators that decode one map of `height` x `width` latent positions."""
    chunks, frames = _first_chunk(latent_frames, LATENT_CHUNK)
    first = _decoder(vae, "first", frames, height, width)
    later = _decoder(vae, "later", LATENT_CHUNK, height, width)
    side = vae.spatial_ratio
    pixels = (latent_frames - 1) * vae.temporal_ratio + 1
    clip = elements(RGB, pixels, height * side, width * side)
    return (
        *first.operators(1),
        *later.operators(chunks - 1),
        Pointwise(name="decode: join chunks", bytes_moved=clip * READ_WRITE, is_copy=True),
    )


def encode(vae: VaeSpec, frames: Ints, height: Ints, width: Ints, traits: Traits) -> tuple[Op, ...]:
    """Operators that encode one map of pixels."""
    chunks, first_frames = _first_chunk(frames, PIXEL_CHUNK)
    first = _encoder(vae, "first", first_frames, height, width)
    later = _encoder(vae, "later", PIXEL_CHUNK, height, width)
    return (*first.operators(1), *later.operators(chunks - 1))


def decode_peak_bytes(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, fast_path: str = "off"
) -> Floats:
    """Most bytes alive in a chunk, kept past frames included (there is no fast path)."""
    chunks, frames = _first_chunk(latent_frames, LATENT_CHUNK)
    first = _decoder(vae, "first", frames, height, width)
    later = _decoder(vae, "later", LATENT_CHUNK, height, width)
    return _peak(first, later, chunks)


def encode_peak_bytes(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Floats:
    """Most bytes alive in a chunk, kept past frames included."""
    chunks, first_frames = _first_chunk(frames, PIXEL_CHUNK)
    first = _encoder(vae, "first", first_frames, height, width)
    later = _encoder(vae, "later", PIXEL_CHUNK, height, width)
    return _peak(first, later, chunks)


@lru_cache(maxsize=16)
def params(vae: VaeSpec) -> tuple[int, int]:
    """Parameters of the encoder and of the decoder."""
    side = vae.spatial_ratio
    return (
        _encoder(vae, "later", PIXEL_CHUNK, side, side).params,
        _decoder(vae, "later", LATENT_CHUNK, 1, 1).params,
    )


def _peak(first: Net, later: Net, chunks: Ints) -> Floats:
    """A later chunk keeps new past frames while the old ones are still there."""
    second = np.where(np.asarray(chunks) > 1, later.peak_bytes + later.cache_bytes, 0.0)
    return as_floats(np.maximum(first.peak_bytes, second))


def _first_chunk(frames: Ints, chunk: int) -> tuple[Ints, Ints]:
    """Chunks of the clip, and the frames of the first."""
    chunks = as_ints(np.maximum(frames // chunk, 1))
    return chunks, frames - chunk * (chunks - 1)


def _decoder(vae: VaeSpec, phase: str, frames: Ints, height: Ints, width: Ints) -> Net:
    net = ChunkNet("decode", phase, z_channels=vae.z_channels)
    # From the latent, in the order of the encoder: the first changes of both include time.
    decoder(net, vae, clip_map(vae.z_channels, frames, height, width), vae.temporal)
    return net


def _encoder(vae: VaeSpec, phase: str, frames: Ints, height: Ints, width: Ints) -> Net:
    net = ChunkNet("encode", phase)
    encoder(net, vae, clip_map(RGB, frames, height, width), vae.temporal)
    return net
