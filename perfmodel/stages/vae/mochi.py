"""The Mochi VAE: causal 3-D convolutions over a whole clip, attention over time when encoding.

Source: diffusers 0.42.1 ``AutoencoderKLMochi`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from perfmodel.ops import Attention, Floats, Ints, Pointwise, Role
from perfmodel.shapes import ceil_div
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.layers import BF16_BYTES, READ_WRITE, as_ints
from perfmodel.stages.vae.blocks import (
    AUTOCAST_NORM,
    AUTOCAST_STATISTICS,
    RGB,
    STATISTICS_LAUNCHES,
    Net,
    PaddedNet,
    clip_map,
    widths,
)
from perfmodel.stages.vae.one_pass import OnePass
from perfmodel.stages.vae.record import Map

NORM_FRAMES = 8
"""Frames that one call of the group norm takes."""
HEAD_DIM = 32
SPATIAL_STEP = 2
FOURIER_CHANNELS = 15
"""RGB, and sine and cosine of two multiples of it."""
# In fp32, per pixel: cast 18, repeat 36, scale 48, sine 48, cosine 48, join 120, cast back 90.
FOURIER_BYTES, FOURIER_LAUNCHES = 408.0, 10
# Per element of q and of k: norm 2, divide 6 (the norms between them are small).
QK_NORM_BYTES, QK_NORM_LAUNCHES = 8.0, 3


@dataclass(slots=True)
class MochiNet(PaddedNet):
    """A whole clip."""

    def norm(self, shape: Map, *, silu: bool, kept: Floats = 0.0) -> None:
        """Group norm of each frame, eight frames a call, joined; and the SiLU."""
        self.params += 2 * shape.channels
        calls = ceil_div(shape.frames, NORM_FRAMES)
        each = shape.size / np.asarray(calls, float)
        parts = (
            ("group norm layout", READ_WRITE, 1, True, (1.0, 0)),
            ("group norm statistics", BF16_BYTES, STATISTICS_LAUNCHES, False, AUTOCAST_STATISTICS),
            ("group norm", READ_WRITE, 1, False, AUTOCAST_NORM),
        )
        for what, bytes_each, launches, is_copy, autocast in parts:
            self.add(
                Pointwise(
                    name=self.name(what, shape),
                    count=calls,
                    bytes_moved=each * bytes_each,
                    launches=launches,
                    is_copy=is_copy,
                    autocast=autocast,
                )
            )
        self.move("join frames", shape, shape.size * READ_WRITE, is_copy=True)
        if silu:
            self.activation(shape)
        self.alive((kept + 3 * shape.size) * BF16_BYTES)

    def linear(self, what: str, shape: Map, out: Map, *, bias: bool = True) -> None:
        """A linear layer over channels, its bias in a pass of its own."""
        self.matrix(what, shape, out, bias=bias)
        if bias:
            self.move(f"{what} shift", out, out.size * READ_WRITE)

    def blocks(self, shape: Map, count: int, *, attends: bool = False) -> None:
        """Residual blocks, each followed by attention where the level has it."""
        self.held = 0.0
        for _ in range(count):
            self.resnet(shape, shape.channels)
            self.held = shape.size
            if attends:
                self.attention(shape)

    def attention(self, shape: Map) -> None:
        """Causal attention of every position over its frames; an image needs v alone."""
        self.norm(shape, silu=False)
        uses = as_ints(1 * (np.asarray(shape.frames) > 1))
        self.move("attention layout", shape, shape.size * READ_WRITE, is_copy=True)
        self.matrix("q, k", shape, shape, bias=False, count=2, uses=uses)
        self.matrix("v", shape, shape, bias=False)
        normed = 2 * shape.size * QK_NORM_BYTES
        self.add(
            Pointwise(
                name=self.name("q, k norm", shape),
                count=uses,
                bytes_moved=normed,
                launches=2 * QK_NORM_LAUNCHES,
            )
        )
        heads = shape.channels // HEAD_DIM
        self.add(
            Attention(
                name=self.name("attention", shape),
                count=uses,
                batch=shape.height * shape.width,
                seq_q=shape.frames,
                seq_kv=shape.frames,
                heads=heads,
                kv_heads=heads,
                head_dim=HEAD_DIM,
                causal=True,
                role=Role.MAP,
            )
        )
        self.linear("attention output", shape, shape)
        self.move("output scale", shape, shape.size * READ_WRITE)
        self.residual(shape)
        self.alive(8 * shape.size * BF16_BYTES)

    def grow(self, shape: Map, channels: int, step: int) -> Map:
        """Linear layer to all positions of the larger map, unpacked."""
        out = Map(
            channels,
            shape.frames * step,
            shape.height * SPATIAL_STEP,
            shape.width * SPATIAL_STEP,
            shape.level + 1,
            clip=True,
        )
        packed = replace(shape, channels=channels * step * SPATIAL_STEP**2)
        self.linear("up-sample", shape, packed)
        self.move("unpack", out, out.size * READ_WRITE, is_copy=True)
        self.alive((shape.size + 3 * out.size) * BF16_BYTES)
        return out

    def shrink(self, shape: Map, channels: int, step: int) -> Map:
        """Convolution whose kernel is its stride."""
        out = Map(
            channels,
            (shape.frames - 1) // step + 1,
            shape.height // SPATIAL_STEP,
            shape.width // SPATIAL_STEP,
            shape.level + 1,
            clip=True,
        )
        kernel = (step, SPATIAL_STEP, SPATIAL_STEP)
        self.padded_conv(shape, out, kernel, kernel)
        return out


def _decoder(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Net:
    net = MochiNet("decode")
    channels = widths(vae, vae.decoder_width)
    latent = clip_map(vae.z_channels, frames, height, width)
    here = replace(latent, channels=channels[-1])
    net.shortcut(latent, here)
    net.blocks(here, vae.layers[-1])
    levels = zip(vae.layers[1:-1], channels[:-1], vae.temporal_steps, strict=True)
    for layers, width_out, step in reversed(list(levels)):
        net.blocks(here, layers)
        here = net.grow(here, width_out, step)
    net.blocks(here, vae.layers[0])
    net.activation(here)
    net.linear("output", here, replace(here, channels=RGB))
    return net


def _encoder(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Net:
    net = MochiNet("encode")
    channels = widths(vae, vae.encoder_width)
    features = clip_map(FOURIER_CHANNELS, frames, height, width)
    pixels = features.size / FOURIER_CHANNELS
    net.move("Fourier features", features, pixels * FOURIER_BYTES, FOURIER_LAUNCHES)
    here = replace(features, channels=channels[0])
    net.linear("input", features, here)
    attends = vae.attention_levels
    net.blocks(here, vae.layers[0], attends=attends[0])
    for level, step in enumerate(vae.temporal_steps, start=1):
        here = net.shrink(here, channels[level], step)
        net.blocks(here, vae.layers[level], attends=attends[level])
    net.blocks(here, vae.layers[-1], attends=attends[-1])
    net.held = 0.0
    net.norm(here, silu=True)
    net.linear("moments", here, replace(here, channels=2 * vae.z_channels), bias=False)
    return net


_pass = OnePass(_encoder, _decoder)
decode, decode_peak_bytes = _pass.decode, _pass.decode_peak_bytes
encode, encode_peak_bytes = _pass.encode, _pass.encode_peak_bytes
params = _pass.params
