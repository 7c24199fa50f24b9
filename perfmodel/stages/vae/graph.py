"""Building blocks of a causal video VAE chunk: what each layer computes, moves and keeps alive.

A chunk is the part of the clip that one pass of the network handles (one latent frame when
decoding; one, then four pixel frames when encoding).  Layers of the same shape are one record with
a higher count.  ``fast_path`` selects the data movement:

- ``off``: the published torch module: an fp32 RMS norm of eight kernels, clone and concatenate and
  pad before every causal convolution, fp32 up-sampling.
- ``lossless``: fused norm + SiLU, one assembling kernel a convolution, copies fused into adds.
- ``channels_last``: besides, convolution weights and maps are kept in the layout of the
  kernels, so that nothing is converted, and biases are added by the consumer.

Sources: diffusers 0.42.1 ``autoencoder_kl_wan.py`` (https://pypi.org/project/diffusers/0.42.1/),
vLLM-Omni 0.30.0 ``wan_vae_fastpath`` (https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.ops import Floats
from perfmodel.stages.layers import BF16_BYTES, FP32_BYTES, READ_WRITE
from perfmodel.stages.vae.record import ADD_BYTES, Map, Recorder

CACHED_FRAMES = 2
"""Past frames that every causal convolution of temporal kernel 3 keeps."""

# Reduction reads 2, epilogue reads and writes 2 each; one pass when channels are innermost.
NORM_LOSSLESS_BYTES, NORM_LOSSLESS_LAUNCHES = 6.0, 3
# Per input element: cast 6, nearest-exact 4 + 16, cast back 16 + 8; fused: read 2, write 4 x 2.
UPSAMPLE_EAGER_BYTES, UPSAMPLE_FAST_BYTES = 50.0, 10.0


@dataclass(slots=True)
class Chunk(Recorder):
    """Collects the operators of one chunk.

    The first chunk (phase ``first``) has no past frames and no temporal resampling.

    Attributes:
        fast_path: off, lossless or channels_last.
    """

    fast_path: str = "off"

    @property
    def eager(self) -> bool:
        """The published module without the fast path."""
        return self.fast_path == "off"

    @property
    def converts(self) -> bool:
        """Whether maps are channels-first, so that convolutions convert them."""
        return self.fast_path != "channels_last"

    def norm(self, shape: Map, *, silu: bool, kept: Floats = 0.0) -> None:
        """RMS norm over channels, and the SiLU after it.

        Args:
            shape: the map.
            silu: whether a SiLU follows.
            kept: elements of other maps that stay alive (the residual input).
        """
        if self.eager:
            self.rms_norm_fp32(shape, silu=silu, kept=kept)
            return
        self.params += shape.channels
        if self.converts:
            bytes_each, launches = NORM_LOSSLESS_BYTES, NORM_LOSSLESS_LAUNCHES
        else:
            bytes_each, launches = READ_WRITE, 1
        what = "norm, SiLU" if silu else "norm"
        self.move(what, shape, bytes_each * shape.size, launches)

    def causal_conv(
        self, shape: Map, out: Map, *, kept: Floats = 0.0, folds_bias: bool = False
    ) -> None:
        """3x3x3 convolution over the chunk and two past frames (zeros in the first chunk)."""
        self.cached(shape, pad=True)
        frames = shape.frames + CACHED_FRAMES
        padded = shape.padded(frames)
        self.convolve(shape, out, (3, 3, 3), read=padded, folds_bias=folds_bias)
        # The first chunk has no past frames to join: its input is only padded.
        assembled = 2 * padded if self.eager and self.phase == "later" else padded
        converted = padded + out.size if self.converts else 0.0
        self.alive((kept + shape.size + assembled + out.size + converted) * BF16_BYTES)

    def cached(self, shape: Map, *, pad: bool) -> None:
        """Assemble the input of a causal convolution and keep its last two frames."""
        frames = shape.frames + CACHED_FRAMES
        target = shape.padded(frames) if pad else shape.over(frames)
        kept = 1 if self.phase == "first" else CACHED_FRAMES
        self.cache_bytes = self.cache_bytes + kept * shape.frame * BF16_BYTES
        more = " padded" if pad else ""
        if not self.eager:
            past = 0 if self.phase == "first" else CACHED_FRAMES
            moved = (shape.frames + past) + frames + CACHED_FRAMES
            self.move("assemble", shape, shape.over(moved) * BF16_BYTES, 1, is_copy=True, more=more)
            return
        if self.phase == "first":
            moved_elements = 2 * shape.frame + shape.size + target
            launches = 2
        else:
            # clone (and join with the previous frame), join with the past, pad.
            clone = 3 if shape.frames == 1 else 2
            moved_elements = shape.over(2 * clone + 2 * frames + frames) + target
            launches = 4 if shape.frames == 1 else 3
        self.move(
            "clone, join, pad",
            shape,
            moved_elements * BF16_BYTES,
            launches,
            is_copy=True,
            more=more,
        )

    def pointwise_conv(self, shape: Map, out: Map) -> None:
        """1x1x1 convolution; the published module pads (copies) its input by nothing."""
        if self.eager:
            self.move("empty pad", shape, shape.size * READ_WRITE, is_copy=True)
        self.convolve(shape, out, (1, 1, 1), read=shape.size)

    def resnet(self, shape: Map, channels: int, *, kept: Floats = 0.0) -> Map:
        """Norm, SiLU, convolution, twice, and the residual sum."""
        out = replace(shape, channels=channels)
        beside = kept
        if channels != shape.channels:
            self.pointwise_conv(shape, out)
            beside = kept + out.size
        self.norm(shape, silu=True, kept=beside)
        self.causal_conv(shape, out, kept=beside + shape.size, folds_bias=not self.converts)
        self.norm(out, silu=True, kept=kept + out.size)
        self.causal_conv(out, out, kept=kept + out.size, folds_bias=not self.eager)
        self.move("residual", out, out.size * ADD_BYTES)
        return out

    def attention(self, shape: Map) -> None:
        """Single-head attention over the rows and columns of each frame."""
        qkv = replace(shape, channels=3 * shape.channels)
        self.norm(shape, silu=False)
        self.convolve(shape, qkv, (1, 1, 1), read=shape.size)
        self.move("q, k, v layout", qkv, qkv.size * READ_WRITE, is_copy=True)
        self.spread_attention(shape, heads=1)
        self.move("attention layout", shape, shape.size * READ_WRITE, is_copy=True)
        self.convolve(shape, shape, (1, 1, 1), read=shape.size)
        self.move("residual", shape, shape.size * ADD_BYTES)

    def middle(self, shape: Map) -> None:
        """Residual block, attention, residual block."""
        self.resnet(shape, shape.channels)
        self.attention(shape)
        self.resnet(shape, shape.channels)

    def double_time(self, shape: Map) -> Map:
        """Temporal up-sampling: a (3,1,1) convolution to twice the channels, interleaved."""
        wide = replace(shape, channels=2 * shape.channels)
        out = replace(shape, frames=2 * shape.frames)
        self.cached(shape, pad=False)
        read = shape.over(shape.frames + CACHED_FRAMES)
        self.convolve(shape, wide, (3, 1, 1), read=read)
        self.move(
            "interleave frames", out, out.size * READ_WRITE, 1 if self.eager else 2, is_copy=True
        )
        return out

    def upsample(self, shape: Map, channels: int, *, folds_bias: bool, kept: Floats) -> Map:
        """Nearest-exact doubling of rows and columns, then a 3x3 convolution frame by frame."""
        wide = shape.scaled(lambda side: 2 * side)
        out = replace(wide, channels=channels)
        if self.eager:
            self.move("up-sample", shape, shape.size * UPSAMPLE_EAGER_BYTES, 3)
            self.alive((kept + shape.size + wide.size) * BF16_BYTES, wide.size * FP32_BYTES)
        else:
            self.move("up-sample", shape, shape.size * UPSAMPLE_FAST_BYTES)
        self.convolve(
            wide, out, (1, 3, 3), read=wide.size, folds_bias=folds_bias and not self.eager
        )
        converted = wide.size + out.size if self.converts else 0.0
        self.alive((kept + wide.size + out.size + converted) * BF16_BYTES)
        return out
