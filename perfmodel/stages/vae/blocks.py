"""The residual autoencoder that most VAEs are: levels of residual blocks around an attention.

A kind is a subclass of `Net` that says what its norm, convolution, resampling and attention do;
`decoder` and `encoder` walk the levels.  All run as published: eager torch, every kernel its own
pass over memory.
Source: diffusers 0.42.1 ``models/autoencoders`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.ops import Floats, Ints
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.layers import BF16_BYTES, READ_WRITE
from perfmodel.stages.vae.record import ADD_BYTES, Map, Recorder

RGB = 3
STATISTICS_LAUNCHES = 2
# Under torch.autocast, which runs group norms in fp32 (op lists of torch 2.13.0), the input is cast
# up (2 + 4 bytes an element) and read (4), normalised (4 + 4), activated (4 + 4), padded where a
# causal convolution follows (4 + 4), and cast down for the convolution (4 + 2); each cast is a
# kernel of its own.  Traffic over that in bf16, and these kernels:
AUTOCAST_STATISTICS = (10 / 2, 1)
AUTOCAST_NORM = (8 / 4, 0)
AUTOCAST_ACTIVATION = (14 / 4, 1)
AUTOCAST_PAD = (8 / 4, 0)
UPSAMPLE_BYTES = 10.0
"""Nearest doubling of rows and columns, per input element: read 2, write 4 x 2."""


@dataclass(slots=True)
class Net(Recorder):
    """A network over a whole image or clip: group norms, 2-D convolutions (AutoencoderKL).

    Attributes:
        held: elements of the level's entry, which its caller keeps until the level is done.
    """

    held: Floats = 0.0

    def alive(self, *sizes_bytes: Floats) -> None:
        """Maps that live at the same time, besides the level's entry."""
        Recorder.alive(self, self.held * BF16_BYTES, *sizes_bytes)

    def resnets(self, entry: Map, widths: Sequence[int], held: Floats | None = None) -> Map:
        """Residual blocks of these widths.

        Args:
            entry: of the first block; kept by the caller from the second on.
            widths: channels after each block.
            held: elements that the caller keeps instead, where the level began with a resampling.
        """
        self.held = 0.0 if held is None else held
        here = entry
        for width in widths:
            here = self.resnet(here, width)
            self.held = entry.size if held is None else held
        return here

    def norm(self, shape: Map, *, silu: bool, kept: Floats = 0.0) -> None:
        """Group norm (statistics in a pass of their own) and the SiLU after it."""
        self.group_norm(shape)
        if silu:
            self.activation(shape)
        self.alive((kept + (3 if silu else 2) * shape.size) * BF16_BYTES)

    def group_norm(self, shape: Map) -> None:
        """Group norm with its scale and shift, the statistics in a pass of their own."""
        self.params += 2 * shape.channels
        self.move(
            "group norm statistics",
            shape,
            shape.size * BF16_BYTES,
            STATISTICS_LAUNCHES,
            autocast=AUTOCAST_STATISTICS,
        )
        self.move("group norm", shape, shape.size * READ_WRITE, autocast=AUTOCAST_NORM)

    def activation(self, shape: Map) -> None:
        """SiLU into a new map."""
        self.move("SiLU", shape, shape.size * READ_WRITE, autocast=AUTOCAST_ACTIVATION)

    def conv(self, shape: Map, out: Map, *, kept: Floats = 0.0) -> None:
        """3x3 convolution of every frame; zeros are padded inside the kernel."""
        self.convolve(shape, out, (1, 3, 3), read=shape.size)
        self.around_conv(kept, shape.size, out.size)

    def around_conv(
        self, kept: Floats, source: Floats, out: Floats, padded: Floats | None = None
    ) -> None:
        """Alive in a convolution: what is kept, input, output, and converted copies of both."""
        read = source if padded is None else padded
        assembled = 0.0 if padded is None else padded
        self.alive((kept + source + assembled + out + read + out) * BF16_BYTES)

    def shortcut(self, shape: Map, out: Map) -> None:
        """1x1 convolution beside a residual block that changes channels."""
        self.convolve(shape, out, (1, 1, 1), read=shape.size)

    def residual(self, shape: Map) -> None:
        """Sum with the block's input, and the division by the output scale (of 1)."""
        self.move("residual", shape, shape.size * ADD_BYTES)
        self.move("output scale", shape, shape.size * READ_WRITE)

    def resnet(self, shape: Map, channels: int) -> Map:
        """Norm, SiLU, convolution, twice, and the residual sum."""
        out = replace(shape, channels=channels)
        self.norm(shape, silu=True, kept=shape.size)
        self.conv(shape, out, kept=shape.size)
        self.norm(out, silu=True, kept=shape.size)
        self.conv(out, out, kept=shape.size)
        if channels != shape.channels:
            self.shortcut(shape, out)
        self.residual(out)
        return out

    def attention(self, shape: Map) -> None:
        """Single-head attention over each frame, its projections as linear layers."""
        self.norm(shape, silu=False)
        self.move("attention layout", shape, shape.size * READ_WRITE, is_copy=True)
        self.matrix("q, k, v", shape, shape, count=3)
        for _ in range(3):
            self.move("q, k, v bias", shape, shape.size * READ_WRITE)
        self.attend(shape)
        self.matrix("attention output", shape, shape)
        self.move("attention result layout", shape, shape.size * READ_WRITE, is_copy=True)
        self.residual(shape)

    def attend(self, shape: Map) -> None:
        """The attention itself."""
        self.spread_attention(shape, heads=1)
        self.alive(6 * shape.size * BF16_BYTES)

    def middle(self, shape: Map) -> None:
        """Residual block, attention, residual block."""
        self.held = 0.0
        self.resnet(shape, shape.channels)
        self.held = shape.size
        self.attention(shape)
        self.resnet(shape, shape.channels)

    def upsample(self, shape: Map, channels: int, *, doubles_time: bool) -> Map:
        """Nearest doubling of rows and columns, then a convolution of as many channels.

        Args:
            shape: the map.
            channels: width of the next level, for kinds whose resampling changes it.
            doubles_time: whether time is up-sampled too.
        """
        wide = shape.scaled(lambda side: 2 * side)
        self.move("up-sample", shape, shape.size * UPSAMPLE_BYTES)
        self.conv(wide, wide, kept=shape.size)
        return wide

    def downsample(self, shape: Map, channels: int, *, halves_time: bool) -> Map:
        """Pad by one row and column, 3x3 convolution of stride 2."""
        out = shape.scaled(lambda side: side // 2)
        read = shape.grown(0, 1)
        self.move("pad", shape, (shape.size + read) * BF16_BYTES, is_copy=True)
        self.convolve(shape, out, (1, 3, 3), stride=(1, 2, 2), read=read)
        self.around_conv(0.0, shape.size, out.size, read)
        return out

    def enter(self, latent: Map, out: Map) -> None:
        """First convolution of the decoder."""
        self.conv(latent, out)

    def leave(self, shape: Map, moments: Map) -> None:
        """Norm, SiLU and last convolution of the encoder."""
        self.held = 0.0
        self.norm(shape, silu=True)
        self.conv(shape, moments)


@dataclass(slots=True)
class PaddedNet(Net):
    """3-D convolutions, each of a copy of its map that is padded first."""

    def conv(self, shape: Map, out: Map, *, kept: Floats = 0.0) -> None:
        """3x3x3 convolution of a copy padded by two past frames and by one on each side."""
        self.padded_conv(shape, out, (3, 3, 3), (1, 1, 1), kept)

    def padded_conv(
        self,
        shape: Map,
        out: Map,
        kernel: tuple[int, int, int],
        stride: tuple[int, int, int],
        kept: Floats = 0.0,
    ) -> None:
        """Convolution of a copy padded by past frames, and evenly on each side.

        Args:
            shape: the map.
            out: the result.
            kernel: frames, rows and columns.
            stride: of each.
            kept: elements of other maps that stay alive.
        """
        read = shape.grown(kernel[0] - 1, (kernel[1] - 1) // 2 * 2)
        self.move(
            "pad",
            shape,
            (shape.size + read) * BF16_BYTES,
            is_copy=True,
            autocast=AUTOCAST_PAD if kernel[0] > 1 else (1.0, 0),
            more=f" k{kernel[0]}{kernel[1]}",
        )
        self.convolve(shape, out, kernel, stride=stride, read=read)
        self.around_conv(kept, shape.size, out.size, read)

    def residual(self, shape: Map) -> None:
        """Sum with the block's input."""
        self.move("residual", shape, shape.size * ADD_BYTES)


def widths(vae: VaeSpec, width: int) -> list[int]:
    """Channels of the levels, pixels first."""
    return [width * multiplier for multiplier in vae.multipliers]


def decoder(net: Net, vae: VaeSpec, latent: Map, doubles_time: tuple[bool, ...]) -> Map:
    """Record the decoder.

    Args:
        net: receives the layers.
        vae: dimensions.
        latent: the entry.
        doubles_time: for each change of level, latent first.
    """
    channels = widths(vae, vae.decoder_width)[::-1]
    here = replace(latent, channels=channels[0])
    net.enter(latent, here)
    net.middle(here)
    for level, width in enumerate(channels):
        here = net.resnets(here, [width] * (vae.resnets + 1))
        if level + 1 < len(channels):
            here = net.upsample(here, channels[level + 1], doubles_time=doubles_time[level])
    net.held = 0.0
    net.norm(here, silu=True)
    out = replace(here, channels=RGB)
    net.conv(here, out)
    return out


def encoder(net: Net, vae: VaeSpec, pixels: Map, halves_time: tuple[bool, ...]) -> Map:
    """Record the encoder; `halves_time` for each change of level, pixels first."""
    channels = widths(vae, vae.encoder_width)
    here = replace(pixels, channels=channels[0])
    net.conv(pixels, here)
    for level, width in enumerate(channels):
        here = net.resnets(here, [width] * vae.resnets)
        if level + 1 < len(channels):
            here = net.downsample(here, channels[level + 1], halves_time=halves_time[level])
    net.middle(here)
    out = replace(here, channels=2 * vae.z_channels)
    net.leave(here, out)
    return out


def clip_map(channels: int, frames: Ints, height: Ints, width: Ints) -> Map:
    """A map whose frames vary with the request."""
    return Map(channels, frames, height, width, clip=True)
