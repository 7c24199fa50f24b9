"""Building blocks of a causal video VAE chunk: what each layer computes, moves and keeps alive.

A chunk is the part of the clip that one pass of the network handles (one latent frame when
decoding; one, then four pixel frames when encoding).  Layers of the same shape are one record with
a higher count.  ``fast_path`` selects the data movement:

- ``off``: the published torch module: an fp32 RMS norm of eight kernels, clone and concatenate and
  pad before every causal convolution, fp32 up-sampling.
- ``lossless``: fused norm + SiLU, one assembling kernel a convolution, copies fused into adds.
- ``channels_last``: besides, convolution weights and maps are kept in the layout of the
  kernels, so that nothing is converted, and biases are added by the consumer.

With channels-first maps cuDNN converts input, filter and output of every convolution; that is the
``layout conversion`` record.  ATen adds a convolution's bias in a pass of its own (``bias``).
Sources: diffusers 0.42.1 ``autoencoder_kl_wan.py`` (https://pypi.org/project/diffusers/0.42.1/),
vLLM-Omni 0.30.0 ``wan_vae_fastpath`` (https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from perfmodel.ops import Attention, Conv, Floats, Ints, Op, Pointwise, Role
from perfmodel.stages.layers import BF16_BYTES, FP32_BYTES, READ_WRITE, elements

CACHED_FRAMES = 2
"""Past frames that every causal convolution of temporal kernel 3 keeps."""

# Per element: cast to fp32 6, norm 4, divide 8, cast back 6, two scalings and a sum 4 each.
NORM_EAGER_BYTES, NORM_EAGER_LAUNCHES = 36.0, 8
# Reduction reads 2, epilogue reads and writes 2 each; one pass when channels are innermost.
NORM_LOSSLESS_BYTES, NORM_LOSSLESS_LAUNCHES = 6.0, 3
# Per input element: cast 6, nearest-exact 4 + 16, cast back 16 + 8; fused: read 2, write 4 x 2.
UPSAMPLE_EAGER_BYTES, UPSAMPLE_FAST_BYTES = 50.0, 10.0
ADD_BYTES = 3 * BF16_BYTES


@dataclass(frozen=True, slots=True)
class Map:
    """A feature map inside a chunk.

    Attributes:
        channels: channels.
        frames: frames of this chunk.
        height, width: rows and columns (ints or int64 arrays).
        level: resolution, counted in changes of level since the entry (keeps names apart).
    """

    channels: int
    frames: int
    height: Ints
    width: Ints
    level: int = 0

    @property
    def frame(self) -> Floats:
        """Elements of one frame."""
        return elements(self.channels, self.height, self.width)

    @property
    def size(self) -> Floats:
        """Elements of the map."""
        return elements(self.channels, self.frames, self.height, self.width)

    @property
    def label(self) -> str:
        """Level, channels and frames, e.g. ``L1 1024x2``."""
        return f"L{self.level} {self.channels}x{self.frames}"

    def padded(self, frames: int) -> Floats:
        """Elements with one row and column of zeros on each side and `frames` frames."""
        return elements(self.channels, frames, self.height + 2, self.width + 2)

    def scaled(self, function: Callable[[Ints], Ints]) -> Map:
        """The same channels on the next level: rows and columns mapped by `function`."""
        height, width = function(self.height), function(self.width)
        return replace(self, height=height, width=width, level=self.level + 1)


@dataclass(slots=True)
class Chunk:
    """Collects the operators of one chunk.

    Attributes:
        stage: ``decode`` or ``encode``, in the names.
        phase: ``first`` or ``later``: the first has no past frames and no temporal resampling.
        fast_path: off, lossless or channels_last.
        records: operators by name, each for one execution, and how often a chunk runs it.
        params: weights of the layers seen.
        cache_bytes: past frames kept between chunks.
        peak_bytes: most bytes alive at once inside a layer (maps and their converted copies).
    """

    stage: str
    phase: str
    fast_path: str
    records: dict[str, tuple[Op, int]] = field(default_factory=dict)
    params: int = 0
    cache_bytes: Floats = 0.0
    peak_bytes: Floats = 0.0

    @property
    def eager(self) -> bool:
        """The published module without the fast path."""
        return self.fast_path == "off"

    @property
    def converts(self) -> bool:
        """Whether maps are channels-first, so that convolutions convert them."""
        return self.fast_path != "channels_last"

    def operators(self, executions: Ints) -> tuple[Op, ...]:
        """All records, `executions` chunks long."""
        return tuple(replace(op, count=executions * times) for op, times in self.records.values())

    def add(self, op: Op) -> None:
        """One more execution; equal names are equal shapes."""
        seen = self.records.get(op.name, (op, 0))
        self.records[op.name] = (seen[0], seen[1] + 1)

    def name(self, what: str, shape: Map, more: str = "") -> str:
        """``decode later: norm L2 512x4``: different shapes have different names."""
        return f"{self.stage} {self.phase}: {what} {shape.label}{more}"

    def move(
        self,
        what: str,
        shape: Map,
        bytes_moved: Floats,
        launches: int = 1,
        *,
        is_copy: bool = False,
        more: str = "",
    ) -> None:
        """A memory-bound layer; nothing is recorded when it moves nothing."""
        if launches == 0:
            return
        self.add(
            Pointwise(
                name=self.name(what, shape, more),
                bytes_moved=bytes_moved,
                launches=launches,
                is_copy=is_copy,
            )
        )

    def alive(self, *sizes_bytes: Floats) -> None:
        """Maps that live at the same time."""
        total: Floats = 0.0
        for size in sizes_bytes:
            total = total + size
        self.peak_bytes = np.maximum(self.peak_bytes, total)

    def convolve(
        self,
        shape: Map,
        out: Map,
        kernel: tuple[int, int, int],
        *,
        stride: tuple[int, int, int] = (1, 1, 1),
        read: Floats,
        folds_bias: bool = False,
    ) -> None:
        """A convolution, the layout conversions around it and the pass that adds its bias."""
        label = f" to {out.label} k{kernel[0]}{kernel[1]}{kernel[2]}"
        label += f" s{stride[0]}{stride[1]}" if stride != (1, 1, 1) else ""
        # 2-D layers see frames as a batch; as one map the work is the same.
        self.add(
            Conv(
                name=self.name("conv", shape, label),
                in_channels=shape.channels,
                out_channels=out.channels,
                kernel=kernel,
                out_t=out.frames,
                out_h=out.height,
                out_w=out.width,
                stride=stride,
            )
        )
        weights = shape.channels * out.channels * kernel[0] * kernel[1] * kernel[2]
        self.params += weights + out.channels
        if self.converts:
            moved = (read + out.size + weights) * READ_WRITE
            self.move("layout conversion", shape, moved, 3, is_copy=True, more=label)
        if not folds_bias:
            self.move("bias", out, out.size * READ_WRITE, more=label)

    def norm(self, shape: Map, *, silu: bool, kept: Floats = 0.0) -> None:
        """RMS norm over channels, and the SiLU after it.

        Args:
            shape: the map.
            silu: whether a SiLU follows.
            kept: elements of other maps that stay alive (the residual input).
        """
        self.params += shape.channels
        if self.eager:
            bytes_each = NORM_EAGER_BYTES + (READ_WRITE if silu else 0.0)
            launches = NORM_EAGER_LAUNCHES + (1 if silu else 0)
            self.alive((kept + shape.size) * BF16_BYTES, 2 * shape.size * FP32_BYTES)
        elif self.converts:
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
        target = shape.padded(frames) if pad else shape.frame * frames
        kept = 1 if self.phase == "first" else CACHED_FRAMES
        self.cache_bytes = self.cache_bytes + kept * shape.frame * BF16_BYTES
        more = " padded" if pad else ""
        if not self.eager:
            past = 0 if self.phase == "first" else CACHED_FRAMES
            moved = (shape.frames + past) + frames + CACHED_FRAMES
            self.move(
                "assemble", shape, moved * shape.frame * BF16_BYTES, 1, is_copy=True, more=more
            )
            return
        if self.phase == "first":
            moved_elements = 2 * shape.frame + shape.size + target
            launches = 2
        else:
            # clone (and join with the previous frame), join with the past, pad.
            clone = 3 if shape.frames == 1 else 2
            moved_elements = (2 * clone + 2 * frames + frames) * shape.frame + target
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
        tokens = shape.height * shape.width
        self.norm(shape, silu=False)
        self.convolve(shape, qkv, (1, 1, 1), read=shape.size)
        self.move("q, k, v layout", qkv, qkv.size * READ_WRITE, is_copy=True)
        self.add(
            Attention(
                name=self.name("attention", shape),
                batch=shape.frames,
                seq_q=tokens,
                seq_kv=tokens,
                heads=1,
                kv_heads=1,
                head_dim=shape.channels,
                role=Role.MAP,
            )
        )
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
        read = shape.frame * (shape.frames + CACHED_FRAMES)
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
