"""The LTX video VAEs: pixels folded 4 x 4 into channels, resampling by packing, no attention.

A clip runs at once.  LTX-2 (``ltx2``) and LTX-Video 0.9.5 and later (``ltx``), whose decoder is
conditioned on a timestep.
Source: diffusers 0.42.1 ``AutoencoderKLLTX2Video``, ``AutoencoderKLLTXVideo``
(https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

from perfmodel.ops import Floats, Gemm, Ints
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.layers import BF16_BYTES, FP32_BYTES, READ_WRITE
from perfmodel.stages.vae.blocks import RGB, Net, clip_map
from perfmodel.stages.vae.one_pass import OnePass
from perfmodel.stages.vae.record import ADD_BYTES, Map

PAST_FRAMES = 2
STRIDES = {"spatial": (1, 2, 2), "temporal": (2, 1, 1), "spatiotemporal": (2, 2, 2)}
UP_STRIDE = STRIDES["spatiotemporal"]
NARROWING = 2
"""Every up-sampling halves the channels."""
TIME_FREQUENCIES = 256
# Per element: square 4, mean 2, divide 4 (the small maps between them count as kernels).
NORM_BYTES, NORM_LAUNCHES = 10.0, 5
# Per element: cast to fp32 6, square 8, mean 4, scale 6, cast back 6.
NORM_FP32_BYTES, NORM_FP32_LAUNCHES = 30.0, 7


@dataclass(slots=True)
class PackedClip(Net):
    """A whole clip through 3-D convolutions whose first (and last) frames are repeated.

    Attributes:
        reflects: rows and columns are padded by a copy (the decoder of LTX-2), not by the kernel.
        fp32_norm: norms run in fp32 (LTX-Video).
        timed: norms are scaled and shifted by a timestep (decoder of LTX-Video).
    """

    reflects: bool = False
    fp32_norm: bool = False
    timed: bool = False

    def norm(self, shape: Map, *, silu: bool, kept: Floats = 0.0) -> None:
        """RMS norm over channels without weights, the timestep's scale and shift, and the SiLU."""
        each, launches = NORM_BYTES, NORM_LAUNCHES
        if self.fp32_norm:
            each, launches = NORM_FP32_BYTES, NORM_FP32_LAUNCHES
        self.move("norm", shape, shape.size * each, launches)
        if self.timed:
            self.move("scale, shift", shape, shape.size * 2 * READ_WRITE, 2)
        self.activation(shape)
        wide = 2 * shape.size * (FP32_BYTES if self.fp32_norm else BF16_BYTES)
        self.alive((kept + shape.size) * BF16_BYTES, wide)

    def conv(self, shape: Map, out: Map, *, kept: Floats = 0.0) -> None:
        """3x3x3 convolution of the map and two repeated frames."""
        joined = shape.over(shape.frames + PAST_FRAMES)
        # The encoder is causal: one edge, repeated twice; the decoder repeats both.
        edges = 1 if self.stage == "encode" else 2
        moved = shape.over(2 * PAST_FRAMES) * BF16_BYTES
        self.move("repeat edges", shape, moved, edges, is_copy=True)
        self.move("join edges", shape, joined * READ_WRITE, is_copy=True)
        read = joined
        if self.reflects:
            read = shape.padded(shape.frames + PAST_FRAMES)
            self.move("reflect edges", shape, (joined + read) * BF16_BYTES, is_copy=True)
        self.convolve(shape, out, (3, 3, 3), read=read)
        beside = shape.over(PAST_FRAMES) + (joined if self.reflects else 0.0)
        self.around_conv(kept + beside, shape.size, out.size, read)

    def residual(self, shape: Map) -> None:
        """Sum with the block's input."""
        self.move("residual", shape, shape.size * ADD_BYTES)

    def blocks(self, shape: Map, count: int, held: Floats | None = None) -> None:
        """`count` residual blocks of the same width; `held` as in `resnets`."""
        self.resnets(shape, [shape.channels] * count, held)
        if self.timed:
            self.params += count * 4 * shape.channels

    def pack(self, shape: Map, channels: int, stride: tuple[int, int, int]) -> Map:
        """Convolution to a fraction of the channels, packed; the averaged input added."""
        longer = replace(shape, frames=shape.frames + stride[0] - 1, mark="+")
        thin = replace(longer, channels=channels // prod(stride))
        out = Map(
            channels,
            longer.frames // stride[0],
            shape.height // stride[1],
            shape.width // stride[2],
            shape.level + 1,
            clip=True,
        )
        self.move("repeat first frame", shape, longer.size * READ_WRITE, is_copy=True)
        self.move("pack input", shape, longer.size * READ_WRITE, is_copy=True)
        self.move("average", shape, (longer.size + out.size) * BF16_BYTES)
        self.conv(longer, thin, kept=2 * shape.size)
        self.move("pack", out, out.size * READ_WRITE, is_copy=True)
        self.move("residual", out, out.size * ADD_BYTES, more=" packed")
        return out

    def unpack(
        self,
        shape: Map,
        stride: tuple[int, int, int] = UP_STRIDE,
        narrowing: int = NARROWING,
        *,
        shortcut: bool = True,
    ) -> Map:
        """Convolution to more channels, unpacked by `stride`; the input repeated added."""
        wide = replace(shape, channels=shape.channels * prod(stride) // narrowing)
        whole = Map(
            shape.channels // narrowing,
            stride[0] * shape.frames,
            stride[1] * shape.height,
            stride[2] * shape.width,
            shape.level + 1,
            clip=True,
        )
        out = replace(whole, frames=stride[0] * shape.frames - (stride[0] - 1))
        if shortcut:
            self.move("unpack input", shape, shape.size * READ_WRITE, is_copy=True)
            self.move("repeat input", out, (shape.size + whole.size) * BF16_BYTES, is_copy=True)
        self.conv(shape, wide, kept=shape.size + (whole.size if shortcut else 0.0))
        self.move("unpack", out, whole.size * READ_WRITE, is_copy=True)
        if shortcut:
            self.move("residual", out, out.size * ADD_BYTES, more=" unpacked")
        self.alive((shape.size + (3 if shortcut else 2) * whole.size) * BF16_BYTES)
        return out

    def time_embedding(self, width: int, name: str) -> None:
        """Two linear layers of the timestep (one row)."""
        for inner in (TIME_FREQUENCIES, width):
            self.params += width * (inner + 1)
            self.add(Gemm(name=f"{self.stage}: time {name} {inner}", m=1, n=width, k=inner))


def _decoder(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Net:
    multipliers = vae.decoder_multipliers or vae.multipliers
    older = vae.kind == "ltx"
    net = PackedClip("decode", reflects=not older, fp32_norm=older, timed=older)
    latent = clip_map(vae.z_channels, frames, height, width)
    here = replace(latent, channels=vae.decoder_width * multipliers[-1])
    net.conv(latent, here)
    if net.timed:
        net.time_embedding(4 * here.channels, "middle")
    net.blocks(here, vae.decoder_layers[-1])
    for level, layers in enumerate(vae.decoder_layers[-2::-1]):
        net.held, entry = 0.0, here
        here = net.unpack(here, *_step(vae, multipliers, level), shortcut=not vae.up)
        if net.timed:
            net.time_embedding(4 * here.channels, f"level {level}")
        net.blocks(here, layers, entry.size)
    if net.timed:
        net.time_embedding(2 * here.channels, "out")
        net.params += 2 * here.channels + 1
    net.held = 0.0
    net.norm(here, silu=True)
    folded = replace(here, channels=RGB * vae.pixel_patch**2)
    net.conv(here, folded)
    net.move("unfold pixels", folded, folded.size * READ_WRITE, is_copy=True)
    return net


def _step(
    vae: VaeSpec, multipliers: tuple[int, ...], level: int
) -> tuple[tuple[int, int, int], int]:
    """What the change of level number `level` from the latent doubles, and narrows by."""
    if not vae.up:
        return UP_STRIDE, NARROWING
    place = len(multipliers) - 1 - level
    narrowing = multipliers[place] // multipliers[place - 1] if place else NARROWING
    return STRIDES[vae.up[place]], narrowing


def _encoder(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Net:
    net = PackedClip("encode", fp32_norm=vae.kind == "ltx")
    patch = vae.pixel_patch
    folded = clip_map(RGB * patch**2, frames, height // patch, width // patch)
    net.move("fold pixels", folded, folded.size * READ_WRITE, is_copy=True)
    here = replace(folded, channels=vae.z_channels)
    net.conv(folded, here)
    for layers, multiplier, kind in zip(vae.layers, vae.multipliers, vae.down, strict=False):
        net.blocks(here, layers)
        here = net.pack(here, vae.encoder_width * multiplier, STRIDES[kind])
    net.blocks(here, vae.layers[-1])
    net.held = 0.0
    net.norm(here, silu=True)
    # One variance for all channels, repeated.
    moments = replace(here, channels=vae.z_channels + 1)
    net.conv(here, moments)
    net.move("repeat variance", moments, 3 * moments.size * READ_WRITE, 2, is_copy=True)
    return net


_pass = OnePass(_encoder, _decoder)
decode, decode_peak_bytes = _pass.decode, _pass.decode_peak_bytes
encode, encode_peak_bytes = _pass.encode, _pass.encode_peak_bytes
params = _pass.params
