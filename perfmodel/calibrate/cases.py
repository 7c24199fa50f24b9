"""What a microbenchmark measures: one frozen record a shape, its fields the columns of its CSV.

The classes are the public record format: ``<op>.csv`` has the columns ``op``, then the fields of
the class in order, then `RESULT_COLUMNS`.  ``kernel`` names what ran (a library, a backend, eager
or compiled) and is part of a row's key.  No torch here: readers and planners use this module too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import ClassVar

from perfmodel.ops import dtype_bytes

Value = str | int | float | bool

RESULT_COLUMNS = (
    "latency_us",
    "device",
    "software",
    "spread_us",
    "repeats",
    "clock_mhz",
    "threads",
    "host_cpu",
    "torch",
    "date",
)
"""After the shape: median latency; who measured; then what other readers may ignore."""


@dataclass(frozen=True, slots=True)
class Case:
    """Common part of all cases."""

    op: ClassVar[str] = ""
    file: ClassVar[str] = ""

    @property
    def flops(self) -> float:
        """FLOP of one call; 0 for data movement."""
        return 0.0

    @property
    def memory_bytes(self) -> float:
        """Memory that one set of buffers of the call takes [B]."""
        return 0.0

    @property
    def kernel_name(self) -> str:
        """The value of the ``kernel`` column ("" where the class has none)."""
        return str(getattr(self, "kernel", ""))

    def columns(self) -> dict[str, Value]:
        """``op`` and the shape columns of the CSV row."""
        return {"op": self.op} | {f.name: getattr(self, f.name) for f in fields(self)}

    def key(self) -> tuple[str, ...]:
        """The row's key as text, equal to the text of the same columns in a file."""
        return tuple(str(value) for value in self.columns().values())


@dataclass(frozen=True, slots=True)
class GemmCase(Case):
    """``out[m, n] = a[m, k] x w[k, n]``: activations row-major, weights as `nn.Linear` has them."""

    op: ClassVar[str] = "gemm"
    file: ClassVar[str] = "gemm.csv"

    dtype: str
    kernel: str
    m: int
    n: int
    k: int

    @property
    def flops(self) -> float:
        """``2*m*n*k``."""
        return 2.0 * self.m * self.n * self.k

    @property
    def memory_bytes(self) -> float:
        """Operands in `dtype`; the result in 16 bit at least."""
        width = dtype_bytes(self.dtype)
        operands = (self.m * self.k + self.k * self.n) * width
        return operands + self.m * self.n * max(width, 2.0)


@dataclass(frozen=True, slots=True)
class AttentionCase(Case):
    """Scaled dot-product attention of ``q[batch, seq_q, num_heads, head_dim]``."""

    op: ClassVar[str] = "attention"
    file: ClassVar[str] = "attention.csv"

    dtype: str
    kernel: str
    causal: bool
    batch: int
    seq_q: int
    seq_kv: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def flops(self) -> float:
        """``4*B*H*Sq*Skv*D``, half of it if causal."""
        scores = self.batch * self.num_heads * float(self.seq_q) * self.seq_kv
        return scores * self.head_dim * (2.0 if self.causal else 4.0)

    @property
    def memory_bytes(self) -> float:
        """q, k, v and the output; the mathematical kernel also keeps its score matrix twice."""
        rows = 2 * self.seq_q * self.num_heads + 2 * self.seq_kv * self.num_kv_heads
        tensors = float(self.batch) * rows * self.head_dim * dtype_bytes(self.dtype)
        if self.kernel.endswith("math"):
            tensors += 2.0 * self.batch * self.num_heads * self.seq_q * self.seq_kv * 4
        return tensors


@dataclass(frozen=True, slots=True)
class ConvCase(Case):
    """Convolution; ``kt`` 1 runs as a 2-D convolution over ``batch*out_t`` images.

    A 3-D one reads an input padded in advance (as causal video VAEs do); `kernel` ends in
    ``.channels_last`` where the tensors have that memory format.
    """

    op: ClassVar[str] = "conv"
    file: ClassVar[str] = "conv.csv"

    dtype: str
    kernel: str
    in_channels: int
    out_channels: int
    kt: int
    kh: int
    kw: int
    stride_t: int
    stride_h: int
    stride_w: int
    batch: int
    out_t: int
    out_h: int
    out_w: int

    @property
    def out_voxels(self) -> int:
        """Output positions of all images."""
        return self.batch * self.out_t * self.out_h * self.out_w

    @property
    def in_shape(self) -> tuple[int, int, int]:
        """Frames, rows and columns of the padded input."""
        return (
            (self.out_t - 1) * self.stride_t + self.kt,
            (self.out_h - 1) * self.stride_h + self.kh,
            (self.out_w - 1) * self.stride_w + self.kw,
        )

    @property
    def flops(self) -> float:
        """``2*voxels*out_channels*in_channels*kt*kh*kw``."""
        taps = self.kt * self.kh * self.kw
        return 2.0 * self.out_voxels * self.out_channels * self.in_channels * taps

    @property
    def memory_bytes(self) -> float:
        """Padded input, output and one layout copy of each."""
        frames, rows, cols = self.in_shape
        inputs = float(self.batch) * frames * rows * cols * self.in_channels
        outputs = float(self.out_voxels) * self.out_channels
        return 2.0 * (inputs + outputs) * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class PointwiseCase(Case):
    """A memory-bound operator on ``[rows, width]``.

    `kernel` is ``eager.<what>`` or ``compile.<what>``.  `bytes_moved` is the traffic (reads plus
    writes) of the kernels that really run: one pass where the operator is one kernel or compiled,
    the sum over the unfused kernels where it is not; `launches` is how many run.
    """

    op: ClassVar[str] = "pointwise"
    file: ClassVar[str] = "pointwise.csv"

    dtype: str
    kernel: str
    what: str
    rows: int
    width: int
    bytes_moved: int
    launches: int

    @property
    def memory_bytes(self) -> float:
        """Three tensors, and temporaries of the unfused form."""
        return 6.0 * self.rows * self.width * dtype_bytes(self.dtype)


@dataclass(frozen=True, slots=True)
class QuantizeCase(Case):
    """Activation quantisation before an fp8 GEMM: ``compute_scale`` or ``scale_matrix``."""

    op: ClassVar[str] = "quantize"
    file: ClassVar[str] = "quantize.csv"

    what: str
    kernel: str
    dtype: str
    m: int
    k: int

    @property
    def memory_bytes(self) -> float:
        """A 16-bit input, an 8-bit output and the fp32 intermediate."""
        return 7.0 * self.m * self.k


@dataclass(frozen=True, slots=True)
class CollectiveCase(Case):
    """One collective in a group on one node; `message_bytes` is the full buffer (nccl-tests)."""

    op: ClassVar[str] = "collective"
    file: ClassVar[str] = "collective.csv"

    collective: str
    library: str
    num_ranks: int
    elements: int
    element_bytes: int
    message_bytes: int

    @property
    def memory_bytes(self) -> float:
        """Input and output of a rank at most."""
        return 2.0 * self.message_bytes


@dataclass(frozen=True, slots=True)
class NodesCollectiveCase(CollectiveCase):
    """A collective whose group spans `nodes` nodes with `ranks_per_node` ranks on each.

    It has a folder of its own, so that a reader of ``collective.csv`` never mixes in the network.
    """

    op: ClassVar[str] = "collective"
    file: ClassVar[str] = "network/collective.csv"

    nodes: int
    ranks_per_node: int


@dataclass(frozen=True, slots=True)
class HostCase(Case):
    """Host time per launch of `launches` tiny kernels; `mode` is eager, compiled or graph.

    `kernel` names the chain: pointwise, linear, or block (the mix of a transformer block).
    """

    op: ClassVar[str] = "host"
    file: ClassVar[str] = "host.csv"

    kernel: str
    mode: str
    launches: int


@dataclass(frozen=True, slots=True)
class TransferCase(Case):
    """A copy between host and device (``h2d``, ``d2h``) or within host memory (``h2h``).

    `kernel` says what the host memory is: ``pinned`` or ``pageable``.
    """

    op: ClassVar[str] = "transfer"
    file: ClassVar[str] = "transfer.csv"

    kernel: str
    direction: str
    bytes_moved: int

    @property
    def memory_bytes(self) -> float:
        """Source and destination."""
        return 2.0 * self.bytes_moved


@dataclass(frozen=True, slots=True)
class MediaCase(Case):
    """Encoding of uint8 RGB frames, already in host memory, to an MP4 in memory."""

    op: ClassVar[str] = "media"
    file: ClassVar[str] = "media.csv"

    kernel: str
    codec: str
    preset: str
    width: int
    height: int
    frames: int
    fps: int
    pixels: int

    @property
    def memory_bytes(self) -> float:
        """The frames."""
        return 3.0 * self.pixels


CASES: Mapping[str, type[Case]] = {
    cls.op: cls
    for cls in (
        GemmCase,
        AttentionCase,
        ConvCase,
        PointwiseCase,
        QuantizeCase,
        CollectiveCase,
        HostCase,
        TransferCase,
        MediaCase,
    )
}
"""Operator name (``--ops``) to its case class."""


def header(case: type[Case]) -> tuple[str, ...]:
    """Columns of the class's CSV, in order."""
    return ("op", *(f.name for f in fields(case)), *RESULT_COLUMNS)
