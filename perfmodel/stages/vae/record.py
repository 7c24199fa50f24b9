"""What a VAE network does, layer by layer: maps, and a recorder of operators and live memory.

Layers of the same shape are one record with a higher count.  With channels-first maps cuDNN
converts input, filter and output of every convolution; that is the ``layout conversion`` record.
ATen adds a convolution's bias in a pass of its own (``bias``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from perfmodel.ops import Attention, Conv, Floats, Gemm, Ints, Op, Pointwise, Role
from perfmodel.stages.layers import BF16_BYTES, FP32_BYTES, READ_WRITE, elements

ADD_BYTES = 3 * BF16_BYTES
# Per element: cast to fp32 6, norm 4, divide 8, cast back 6, two scalings and a sum 4 each.
NORM_EAGER_BYTES, NORM_EAGER_LAUNCHES = 36.0, 8


@dataclass(frozen=True, slots=True)
class Map:
    """A feature map.

    Attributes:
        channels: channels.
        frames: frames of this chunk (or of the clip).
        height, width: rows and columns (ints or int64 arrays).
        level: resolution, counted in changes of level since the entry (keeps names apart).
        clip: the frames vary with the request, so they stay out of the label.
        mark: tells maps of the same level and channels but other frames apart in the label.
    """

    channels: int
    frames: Ints
    height: Ints
    width: Ints
    level: int = 0
    clip: bool = False
    mark: str = ""

    @property
    def frame(self) -> Floats:
        """Elements of one frame."""
        return elements(self.channels, self.height, self.width)

    @property
    def size(self) -> Floats:
        """Elements of the map."""
        return elements(self.channels, self.frames, self.height, self.width)

    def over(self, frames: Ints) -> Floats:
        """Elements of `frames` such frames."""
        return elements(self.channels, frames, self.height, self.width)

    @property
    def tokens(self) -> Ints:
        """Positions of the map."""
        return self.frames * self.height * self.width

    @property
    def label(self) -> str:
        """Level, channels and frames, e.g. ``L1 1024x2``."""
        frames = "" if self.clip else f"x{self.frames}"
        return f"L{self.level} {self.channels}{frames}{self.mark}"

    def padded(self, frames: Ints) -> Floats:
        """Elements with one row and column of zeros on each side and `frames` frames."""
        return elements(self.channels, frames, self.height + 2, self.width + 2)

    def grown(self, frames: int, sides: int) -> Floats:
        """Elements with more frames, and with as many more rows and columns."""
        return elements(
            self.channels, self.frames + frames, self.height + sides, self.width + sides
        )

    def scaled(self, function: Callable[[Ints], Ints]) -> Map:
        """The same channels on the next level: rows and columns mapped by `function`."""
        height, width = function(self.height), function(self.width)
        return replace(self, height=height, width=width, level=self.level + 1)


@dataclass(slots=True)
class Recorder:
    """Collects the operators of one pass of a network.

    Attributes:
        stage: ``decode`` or ``encode``, in the names.
        phase: which pass (``first``, ``later``...), in the names.
        records: operators by name, each for one execution, and how often a pass runs it.
        params: weights of the layers seen.
        cache_bytes: past frames kept between passes.
        peak_bytes: most bytes alive at once inside a layer (maps and their converted copies).
    """

    stage: str
    phase: str = ""
    records: dict[str, tuple[Op, int]] = field(default_factory=dict)
    params: int = 0
    cache_bytes: Floats = 0.0
    peak_bytes: Floats = 0.0

    @property
    def converts(self) -> bool:
        """Whether maps are channels-first, so that convolutions convert them."""
        return True

    def operators(self, executions: Ints) -> tuple[Op, ...]:
        """All records, `executions` passes long."""
        return tuple(
            replace(op, count=executions * times * op.count) for op, times in self.records.values()
        )

    def add(self, op: Op) -> None:
        """One more execution; equal names are equal shapes."""
        seen = self.records.get(op.name, (op, 0))
        self.records[op.name] = (seen[0], seen[1] + 1)

    def name(self, what: str, shape: Map, more: str = "") -> str:
        """``decode later: norm L2 512x4``: different shapes have different names."""
        place = f"{self.stage} {self.phase}" if self.phase else self.stage
        return f"{place}: {what} {shape.label}{more}"

    def move(
        self,
        what: str,
        shape: Map,
        bytes_moved: Floats,
        launches: int = 1,
        *,
        is_copy: bool = False,
        in_convolution: bool = False,
        autocast: tuple[float, int] = (1.0, 0),
        more: str = "",
    ) -> None:
        """A memory-bound layer (see `ops.Pointwise`); nothing is recorded when it moves nothing."""
        if launches == 0:
            return
        self.add(
            Pointwise(
                name=self.name(what, shape, more),
                bytes_moved=bytes_moved,
                launches=launches,
                is_copy=is_copy,
                in_convolution=in_convolution,
                autocast=autocast,
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
        bias: bool = True,
        groups: int = 1,
    ) -> None:
        """A convolution, the layout conversions around it and the pass that adds its bias.

        A grouped convolution is the dense one of a group's input channels: the same work.
        """
        label = f" to {out.label} k{kernel[0]}{kernel[1]}{kernel[2]}"
        label += f" s{stride[0]}{stride[1]}" if stride != (1, 1, 1) else ""
        label += f" g{groups}" if groups > 1 else ""
        # 2-D layers see frames as a batch; as one map the work is the same.
        inner = shape.channels // groups
        self.add(
            Conv(
                name=self.name("conv", shape, label),
                in_channels=inner,
                out_channels=out.channels,
                kernel=kernel,
                out_t=out.frames,
                out_h=out.height,
                out_w=out.width,
                stride=stride,
            )
        )
        weights = inner * out.channels * kernel[0] * kernel[1] * kernel[2]
        self.params += weights + (out.channels if bias else 0)
        if self.converts:
            moved = (read + out.size + weights) * READ_WRITE
            self.move(
                "layout conversion",
                shape,
                moved,
                3,
                is_copy=True,
                in_convolution=True,
                more=label,
            )
        if bias and not folds_bias:
            self.move("bias", out, out.size * READ_WRITE, more=label)

    def matrix(
        self,
        what: str,
        shape: Map,
        out: Map,
        *,
        bias: bool = True,
        count: int = 1,
        uses: Ints = 1,
    ) -> None:
        """`count` linear layers over the channels of every position, biases added apart.

        `uses` is 0 where the layers exist but do not run.
        """
        self.params += count * out.channels * (shape.channels + (1 if bias else 0))
        self.add(
            Gemm(
                name=self.name(what, shape, f" to {out.channels}"),
                count=count * uses,
                m=shape.tokens,
                n=out.channels,
                k=shape.channels,
            )
        )

    def spread_attention(
        self, shape: Map, heads: int, *, masked: bool = False, whole_clip: bool = False
    ) -> None:
        """Attention of all positions of a frame (or of the whole clip) with one another."""
        tokens = shape.tokens if whole_clip else shape.height * shape.width
        self.add(
            Attention(
                name=self.name("attention", shape),
                batch=1 if whole_clip else shape.frames,
                seq_q=tokens,
                seq_kv=tokens,
                heads=heads,
                kv_heads=heads,
                head_dim=shape.channels // heads,
                role=Role.MAP,
                masked=masked,
            )
        )

    def rms_norm_fp32(self, shape: Map, *, silu: bool, kept: Floats = 0.0) -> None:
        """RMS norm over channels in fp32, unfused (eight kernels), and the SiLU after it.

        Args:
            shape: the map.
            silu: whether a SiLU follows.
            kept: elements of other maps that stay alive (the residual input).
        """
        self.params += shape.channels
        bytes_each = NORM_EAGER_BYTES + (READ_WRITE if silu else 0.0)
        launches = NORM_EAGER_LAUNCHES + (1 if silu else 0)
        self.alive((kept + shape.size) * BF16_BYTES, 2 * shape.size * FP32_BYTES)
        what = "norm, SiLU" if silu else "norm"
        self.move(what, shape, bytes_each * shape.size, launches)
