"""The VAE of MiniMax-H3: a causal encoder of convolutions, a transformer that decodes.

The encoder takes 17 frames at a time (five latent ones; the last three of a clip are dropped), one
frame alone.  The decoder takes seven latent frames at a time, five further each, as tokens that all
attend to each other with five that no position has; what two passes made of a frame is blended.
Source: diffusers 0.42.1 ``autoencoder_kl_minimax_h3.py``
(https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from perfmodel.ops import Floats, Ints, Op
from perfmodel.shapes import ceil_div
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.base import Traits
from perfmodel.stages.layers import BF16_BYTES, FP32_BYTES, READ_WRITE, as_ints
from perfmodel.stages.vae.blocks import RGB, Net
from perfmodel.stages.vae.record import ADD_BYTES, Map, Recorder

CLIP_FRAMES, CLIP_LATENT, DROPPED, OVERLAP = 17, 5, 3, 2
LAYERS, HEADS, WIDER = 36, 32, 4
REGISTERS, EXTRA = 4, 5
"""Learnt tokens, and those together with an empty one."""
RESNETS = 2
SPATIAL, TEMPORAL = (2, 2, 2, 2, 1, 1), (1, 2, 2, 1, 1, 1)
PAST_FRAMES = 2
# The stream is in fp32: norm 8 and cast 6, scale of the branch 6, sum 12, of each half of a block.
HALF_BYTES, HALF_LAUNCHES = 32.0, 5
# q, k: to fp32 and back 12, norm 8, three quarters rotated 19.
QK_BYTES, QK_LAUNCHES = 39.0, 11
GATE_BYTES, GATE_LAUNCHES = 10.0, 2
BLEND_BYTES = 14.0


@dataclass(slots=True)
class _Clip(Net):
    """Frames through 3-D convolutions with reflected sides and two empty frames before them."""

    def norm(self, shape: Map, *, silu: bool, kept: Floats = 0.0) -> None:
        """Group norm of every frame, laid out for it and back."""
        Net.norm(self, shape, silu=silu, kept=kept)
        self.move("norm layout", shape, 2 * shape.size * READ_WRITE, 2, is_copy=True)

    def conv(self, shape: Map, out: Map, *, kept: Floats = 0.0) -> None:
        """3x3x3 convolution."""
        read = shape.padded(shape.frames + PAST_FRAMES)
        self.move("pad", shape, 2 * (shape.size + read) * BF16_BYTES, 2, is_copy=True)
        self.convolve(shape, out, (3, 3, 3), read=read)
        self.around_conv(kept, shape.size, out.size, read)

    def residual(self, shape: Map) -> None:
        """Sum with the block's input."""
        self.move("residual", shape, shape.size * ADD_BYTES)

    def shrink(self, shape: Map, time: int, side: int) -> Map:
        """3x3x3 convolution of these strides."""
        out = Map(
            shape.channels,
            (shape.frames - 1) // time + 1,
            ceil_div(shape.height, side),
            ceil_div(shape.width, side),
            shape.level + 1,
        )
        read = shape.grown(PAST_FRAMES, 1)
        self.move("pad", shape, 2 * (shape.size + read) * BF16_BYTES, 2, is_copy=True, more=" once")
        self.convolve(shape, out, (3, 3, 3), stride=(time, side, side), read=read)
        self.around_conv(0.0, shape.size, out.size, read)
        return out


def decode(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Operators of all passes over a map of latent positions."""
    return _decoder(vae, height, width).operators(_passes(latent_frames))


def encode(vae: VaeSpec, frames: Ints, height: Ints, width: Ints, traits: Traits) -> tuple[Op, ...]:
    """Operators that encode a map of pixels, in passes of 17 frames or of one."""
    one = _encoder(vae, 1, height, width).operators(1 * (np.asarray(frames) == 1))
    clips = ceil_div(frames, CLIP_FRAMES) * (np.asarray(frames) > 1)
    return (*one, *_encoder(vae, CLIP_FRAMES, height, width).operators(clips))


def decode_peak_bytes(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, fast_path: str = "off"
) -> Floats:
    """Most bytes alive in a pass of the decoder."""
    return _decoder(vae, height, width).peak_bytes


def encode_peak_bytes(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Floats:
    """Most bytes alive in a pass of the encoder."""
    one = _encoder(vae, 1, height, width).peak_bytes
    clip = _encoder(vae, CLIP_FRAMES, height, width).peak_bytes
    alive: Floats = np.where(np.asarray(frames) == 1, one, clip)
    return alive


@lru_cache(maxsize=4)
def params(vae: VaeSpec) -> tuple[int, int]:
    """Parameters of the encoder and of the decoder, 1x1 convolutions included."""
    side = vae.spatial_ratio
    return _encoder(vae, 1, side, side).params, _decoder(vae, 1, 1).params


def _passes(latent_frames: Ints) -> Ints:
    return as_ints(np.maximum(ceil_div(latent_frames + DROPPED, CLIP_LATENT) - 1, 1))


def _decoder(vae: VaeSpec, height: Ints, width: Ints) -> Recorder:
    net = Recorder("decode")
    latent = Map(vae.z_channels, CLIP_LATENT + OVERLAP, height, width)
    net.convolve(latent, latent, (1, 1, 1), read=latent.size)
    tokens = Map(vae.decoder_width, 1, latent.tokens, 1)
    net.matrix("entry", replace(latent, level=1), tokens)
    rows = replace(tokens, height=latent.tokens + EXTRA, level=1)
    net.params += REGISTERS * tokens.channels
    net.move("join tokens", rows, rows.size * READ_WRITE, is_copy=True)
    for _ in range(LAYERS):
        _block(net, rows)
    net.params += 2 * rows.channels
    net.move("last norm", rows, rows.size * 2 * FP32_BYTES)
    pixels = RGB * vae.temporal_ratio * vae.spatial_ratio**2
    out = replace(rows, channels=pixels)
    net.matrix("exit", rows, out)
    net.move("unfold pixels", out, out.size * READ_WRITE, is_copy=True)
    net.move("blend", out, out.size * BLEND_BYTES * OVERLAP / CLIP_LATENT, 4)
    net.alive(rows.size * FP32_BYTES, 2 * out.size * BF16_BYTES)
    return net


def _block(net: Recorder, rows: Map) -> None:
    """Attention and SwiGLU, each between a norm and a scale."""
    wide = replace(rows, channels=WIDER * rows.channels)
    net.params += 4 * rows.channels
    net.move("norm, scale and residual", rows, rows.size * HALF_BYTES, HALF_LAUNCHES)
    net.matrix("q, k, v", rows, rows, count=3)
    net.move("q, k norm and rope", rows, 2 * rows.size * QK_BYTES, 2 * QK_LAUNCHES)
    net.spread_attention(rows, HEADS, whole_clip=True)
    net.matrix("attention output", rows, rows)
    net.move("norm, scale and residual", rows, rows.size * HALF_BYTES, HALF_LAUNCHES)
    net.matrix("feed-forward in", rows, replace(wide, channels=2 * wide.channels))
    net.move("SwiGLU", wide, wide.size * GATE_BYTES, GATE_LAUNCHES)
    net.matrix("feed-forward out", wide, rows)
    net.alive(rows.size * (FP32_BYTES + BF16_BYTES), 4 * wide.size * BF16_BYTES)


def _encoder(vae: VaeSpec, frames: int, height: Ints, width: Ints) -> Net:
    net = _Clip("encode", phase="frame" if frames == 1 else "clip")
    pixels = Map(RGB, frames, height, width)
    channels = [vae.encoder_width * multiplier for multiplier in vae.multipliers]
    here = replace(pixels, channels=channels[0])
    net.conv(pixels, here)
    for wide, time, side in zip(channels, TEMPORAL, SPATIAL, strict=True):
        here = net.resnets(here, [wide] * RESNETS)
        if time * side > 1:
            net.held = 0.0
            here = net.shrink(here, time, side)
    net.held = 0.0
    moments = replace(here, channels=2 * vae.z_channels)
    net.norm(here, silu=True)
    net.conv(here, moments)
    net.convolve(moments, moments, (1, 1, 1), read=moments.size)
    return net
