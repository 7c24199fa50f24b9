"""The deep-compression autoencoder of SANA: residual blocks, and linear attention when coarse.

An image is a batch of one; frames are a batch.  Attention weights are products of fp32 maps over
all positions (linear in them); below 33 positions the published module is quadratic instead,
which no image of a real size reaches.
Source: diffusers 0.42.1 ``AutoencoderDC`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.ops import Floats, Gemm, Ints
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.layers import BF16_BYTES, FP32_BYTES, READ_WRITE
from perfmodel.stages.vae.blocks import RGB, UPSAMPLE_BYTES, Net, clip_map, widths
from perfmodel.stages.vae.one_pass import OnePass
from perfmodel.stages.vae.record import ADD_BYTES, Map

HEAD_DIM = 32
SCALES = 2
"""The maps themselves and one 5x5 neighbourhood of them."""
EXPANSION = 4
# Per element: cast to fp32 6, square 8, mean 4, scale 6, cast back 6, weight 4, bias 4.
NORM_BYTES, NORM_LAUNCHES = 38.0, 9
FP32_READ_WRITE = 2 * FP32_BYTES


@dataclass(slots=True)
class DeepNet(Net):
    """One image."""

    def norm(self, shape: Map, *, silu: bool = False, kept: Floats = 0.0) -> None:
        """RMS norm over channels in fp32, with weight and bias."""
        self.params += 2 * shape.channels
        self.move("norm", shape, shape.size * NORM_BYTES, NORM_LAUNCHES)
        self.alive((kept + shape.size) * BF16_BYTES, 2 * shape.size * FP32_BYTES)

    def residual(self, shape: Map) -> None:
        """Sum with the block's input."""
        self.move("residual", shape, shape.size * ADD_BYTES)

    def plain_conv(self, shape: Map, out: Map, side: int, *, groups: int = 1) -> None:
        """Convolution without a bias; a depthwise one reads its map besides (no conversion)."""
        self.convolve(shape, out, (1, side, side), read=shape.size, bias=False, groups=groups)
        self.around_conv(shape.size, shape.size, out.size)

    def block(self, shape: Map, *, attends: bool) -> None:
        """A residual block of convolutions, or attention and a gated convolution."""
        if attends:
            self.linear_attention(shape)
            self.gated_conv(shape)
            return
        self.conv(shape, shape, kept=shape.size)
        self.activation(shape)
        self.plain_conv(shape, shape, 3)
        self.norm(shape, kept=shape.size)
        self.residual(shape)

    def blocks(self, shape: Map, count: int, *, attends: bool, held: Floats | None = None) -> None:
        """Blocks of a level: its entry, or the map before a resampling, is held meanwhile."""
        self.held = 0.0 if held is None else held
        for _ in range(count):
            self.block(shape, attends=attends)
            self.held = shape.size if held is None else held

    def linear_attention(self, shape: Map) -> None:
        """Attention by two products of fp32 maps per head and scale, and its projections."""
        triple = replace(shape, channels=3 * shape.channels)
        both = replace(shape, channels=SCALES * shape.channels)
        self.matrix("q, k, v", shape, shape, bias=False, count=3)
        self.move("join q, k, v", triple, triple.size * READ_WRITE, is_copy=True)
        self.plain_conv(triple, triple, 5, groups=triple.channels)
        self.plain_conv(triple, triple, 1, groups=triple.channels // HEAD_DIM)
        scaled = SCALES * triple.size
        self.move("join scales", triple, scaled * READ_WRITE, is_copy=True)
        self.move("to fp32", triple, scaled * (BF16_BYTES + FP32_BYTES))
        # Rectify q and k, append a row of ones to v, divide by the sum, back to bf16.
        rest = both.size * (4 * FP32_READ_WRITE + FP32_BYTES + BF16_BYTES)
        self.move("rectify, pad, divide", both, rest, 6)
        heads = both.channels // HEAD_DIM
        positions = shape.height * shape.width
        batch = shape.frames * heads
        name = self.name("attention weights", both)
        self.add(
            Gemm(name=name, m=HEAD_DIM + 1, n=HEAD_DIM, k=positions, batch=batch, dtype="fp32")
        )
        name = self.name("attention values", both)
        self.add(
            Gemm(name=name, m=HEAD_DIM + 1, n=positions, k=HEAD_DIM, batch=batch, dtype="fp32")
        )
        self.matrix("attention output", both, shape, bias=False)
        self.norm(shape)
        self.residual(shape)
        self.alive(shape.size * BF16_BYTES, scaled * (BF16_BYTES + FP32_BYTES))

    def gated_conv(self, shape: Map) -> None:
        """1x1 to eight times the channels, 3x3 depthwise, gate, 1x1 back, norm."""
        wide = replace(shape, channels=2 * EXPANSION * shape.channels)
        half = replace(shape, channels=EXPANSION * shape.channels)
        self.shortcut(shape, wide)
        self.activation(wide)
        self.convolve(wide, wide, (1, 3, 3), read=wide.size, groups=wide.channels)
        self.activation(half)
        self.move("gate", half, half.size * ADD_BYTES)
        self.plain_conv(half, shape, 1)
        self.norm(shape, kept=shape.size)
        self.residual(shape)
        self.alive((shape.size + 5 * wide.size) * BF16_BYTES)

    def shrink(self, shape: Map, channels: int) -> Map:
        """3x3 convolution of stride 2; the input, packed and averaged, added."""
        out = replace(shape.scaled(lambda side: side // 2), channels=channels)
        self.convolve(shape, out, (1, 3, 3), stride=(1, 2, 2), read=shape.size)
        moved = shape.size * (READ_WRITE + BF16_BYTES) + out.size * BF16_BYTES
        self.move("pack, average", shape, moved, 2)
        self.move("residual", out, out.size * ADD_BYTES, more=" packed")
        self.around_conv(shape.size, shape.size, out.size)
        return out

    def grow(self, shape: Map, channels: int) -> Map:
        """Nearest doubling and 3x3 convolution; the input, repeated and unpacked, added."""
        wide = shape.scaled(lambda side: 2 * side)
        out = replace(wide, channels=channels)
        self.move("up-sample", shape, shape.size * UPSAMPLE_BYTES)
        self.conv(wide, out, kept=shape.size)
        moved = (shape.size + out.size) * BF16_BYTES + out.size * READ_WRITE
        self.move("repeat, unpack", out, moved, 2, is_copy=True)
        self.move("residual", out, out.size * ADD_BYTES, more=" unpacked")
        return out


def _decoder(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Net:
    net = DeepNet("decode")
    channels = widths(vae, vae.decoder_width)
    latent = clip_map(vae.z_channels, frames, height, width)
    here = replace(latent, channels=channels[-1])
    net.conv(latent, here)
    net.move("add repeated latent", here, here.size * (READ_WRITE + ADD_BYTES), 2)
    for level in reversed(range(len(channels))):
        held = None
        if level + 1 < len(channels):
            net.held, held = 0.0, here.size
            here = net.grow(here, channels[level])
        layers, attends = vae.decoder_layers[level], vae.attention_levels[level]
        net.blocks(here, layers, attends=attends, held=held)
    net.held = 0.0
    net.norm(here)
    net.activation(here)
    net.conv(here, replace(here, channels=RGB))
    return net


def _encoder(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Net:
    net = DeepNet("encode")
    channels = widths(vae, vae.encoder_width)
    pixels = clip_map(RGB, frames, height, width)
    here = replace(pixels, channels=channels[0])
    net.conv(pixels, here)
    for level, layers in enumerate(vae.layers):
        net.blocks(here, layers, attends=vae.attention_levels[level])
        if level + 1 < len(channels):
            here = net.shrink(here, channels[level + 1])
    latent = replace(here, channels=vae.z_channels)
    net.conv(here, latent)
    net.move("average channels", here, (here.size + latent.size) * BF16_BYTES)
    net.residual(latent)
    return net


_pass = OnePass(_encoder, _decoder)
decode, decode_peak_bytes = _pass.decode, _pass.decode_peak_bytes
encode, encode_peak_bytes = _pass.encode, _pass.encode_peak_bytes
params = _pass.params
