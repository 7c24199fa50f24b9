"""Operator records: what is computed or moved, never how long it takes.

A record describes one operator of a stage for many configurations at once: every dimension is an
int or an int64 array over configurations, and scalars broadcast.  The *unsharded* operator that a
family in ``stages/`` writes and the *per-rank* operator that ``placement/`` derives from it are the
same record with other numbers; the tags (`Rows`, `Split`, `Role`) say what each axis may divide.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Ints = int | NDArray[np.int64]
Floats = float | NDArray[np.floating]

DTYPE_BITS = {
    "fp64": 64,
    "fp32": 32,
    "tf32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "fp8_block": 8,
    "mxfp8": 8,
    "int8": 8,
    "nvfp4": 4,
    "mxfp4": 4,
    "fp8wo": 8,
    "int8wo": 8,
    "fp8cast": 8,
    "fp6wo": 6,
    "nf4": 4,
}


def dtype_bytes(dtype: str) -> float:
    """Bytes of one element of `dtype` (0.5 for 4-bit formats)."""
    return DTYPE_BITS[dtype] / 8


class Rows(StrEnum):
    """What the row dimension of an operator counts, so what sequence parallelism divides."""

    TOKENS = "tokens"
    """Latent tokens: split over ulysses x ring."""
    FULL = "full"
    """Latent tokens that every rank of the sequence group computes in full (embedding, exit)."""
    TEXT = "text"
    """Text (or other condition) tokens, replicated over the sequence group."""
    NONE = "none"
    """Neither: a vector, a scheduler step, a VAE map."""


class Split(StrEnum):
    """What tensor parallelism divides."""

    NONE = "none"
    """Nothing: replicated over the tensor group."""
    COLUMN = "column"
    """The output width n (or the width of a pointwise map, or the heads of attention)."""
    ROW = "row"
    """The inner width k; the product is summed by an all-reduce of [rows, n]."""


class Role(StrEnum):
    """How sequence parallelism treats an attention."""

    SELF = "self"
    """Queries and keys are latent tokens, with an optional replicated key prefix: exchanged."""
    CROSS = "cross"
    """Local queries against replicated keys: no communication."""
    HEADS = "heads"
    """Queries on every rank (sound), keys are latent tokens: exchanged for a share of the heads."""
    LOCAL = "local"
    """Latent tokens that a rank keeps together (one position over time): the batch is divided."""
    TEXT = "text"
    """Text tokens among themselves: replicated over the sequence group."""
    MAP = "map"
    """Inside a VAE or an image encoder: not split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """Common part of all operators.

    Attributes:
        name: stable name, the same in every configuration.
        count: executions; 0 switches the operator off (its time is exactly 0).
        launches: kernel launches of one execution in compiled mode.
        eager_launches: the same in eager mode; None means as `launches`.
    """

    name: str
    count: Ints = 1
    launches: Ints = 1
    eager_launches: Ints | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemm(Op):
    """Matrix product ``out[batch, m, n] = a[batch, m, k] x w[k, n]``: ``2*batch*m*n*k`` FLOP."""

    m: Ints
    n: Ints
    k: Ints
    batch: Ints = 1
    dtype: str = "bf16"
    rows: Rows = Rows.NONE
    split: Split = Split.NONE
    quantizable: bool = True
    """Whether a quantised checkpoint stores this product's weight in the low precision."""
    input_quantised: bool = False
    """Whether the kernel before it wrote its activation in the low precision."""
    fixed_rows: Ints = 0
    """Rows of `m` that every sequence rank keeps in full: text joined to latent tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Op):
    """Scaled dot-product attention: ``4*batch*heads*seq_q*seq_kv*head_dim`` FLOP, half if causal.

    ``seq_kv`` includes ``prefix_kv`` replicated keys (text) that come before the latent tokens;
    ``seq_q`` includes ``prefix_q`` text queries of a joint attention, also replicated.
    """

    seq_q: Ints
    seq_kv: Ints
    heads: Ints
    kv_heads: Ints
    head_dim: int
    batch: Ints = 1
    prefix_kv: Ints = 0
    prefix_q: Ints = 0
    causal: bool = False
    dtype: str = "bf16"
    role: Role = Role.SELF
    backend: str | None = None
    """Engine attention backend (``CUDNN_ATTN``...); None: the torch default (VAE, encoders)."""
    masked: bool | NDArray[np.bool_] = False
    """True where padding forces a masked (varlen) kernel path."""
    tensor_split: bool = True
    """Whether tensor parallelism divides the heads (else every tensor rank runs all of them)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv(Op):
    """Convolution: ``2*batch*out_channels*out_t*out_h*out_w*in_channels*kt*kh*kw`` FLOP.

    In a denoiser `rows` and `split` say what parallelism divides; both divide `out_w`, which then
    holds all positions (a share of the channels is as much work as a share of the positions).
    """

    in_channels: int
    out_channels: int
    kernel: tuple[int, int, int]
    out_t: Ints
    out_h: Ints
    out_w: Ints
    batch: Ints = 1
    stride: tuple[int, int, int] = (1, 1, 1)
    dtype: str = "bf16"
    rows: Rows = Rows.NONE
    split: Split = Split.NONE


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointwise(Op):
    """Norm, rotary embedding, activation, residual, copy, concatenation: memory traffic only.

    `bytes_moved` is the traffic (reads plus writes) of one execution when the compiler or a fused
    kernel does it in one pass; `eager_bytes` that of the unfused sequence of torch kernels.
    """

    bytes_moved: Floats
    eager_bytes: Floats | None = None
    rows: Rows = Rows.NONE
    split: Split = Split.NONE
    is_copy: bool = False
    """A pure copy or layout change (reported as kind ``copy``)."""
    in_convolution: bool = False
    """A layout conversion inside a convolution call (reported as kind ``conv``)."""
    strided: bool = False
    """Channels-first reduction or transpose: neighbouring threads read distant bytes."""
    autocast: tuple[float, int] = (1.0, 0)
    """Under ``torch.autocast``: traffic over that in bf16, and further kernels, which cast."""
    scattered_frac: float | NDArray[np.float64] = 0.0
    """Share of the eager bytes in kernels that compute an address for each 16-bit element: products
    and sums with a vector that is broadcast over rows."""
    rowwise_frac: float | NDArray[np.float64] = 0.0
    """Share of the eager bytes in kernels that give a block of threads to each row of a norm."""
    row_bytes: float | NDArray[np.float64] = 0.0
    """What such a kernel moves for one row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective(Op):
    """Communication inside a process group.

    Attributes:
        op: all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, p2p.
        full_bytes: nccl-tests convention: the gathered buffer for all_gather and reduce_scatter,
            one rank's buffer for all_reduce and all_to_all, the message for p2p and broadcast.
        ranks: group size; 1 costs exactly 0.
        stride: distance in global rank between neighbours of the group (tp is fastest).
        groups: how many such groups run at the same time on the job.
        axis: which degree it belongs to (ulysses, ring, tp, cfg, hsdp, vae, pp).
        overlaps: name of the compute it may hide behind ("" = exposed).
    """

    op: str
    full_bytes: Floats
    ranks: Ints
    stride: Ints = 1
    groups: Ints = 1
    axis: str = ""
    overlaps: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Op):
    """Bytes over the host link (``h2d``, ``d2h``) or between processes on the host (``ipc``)."""

    bytes_moved: Floats
    direction: str = "d2h"
    pinned: bool = False
    """The host side is page-locked, as weights are that an engine streams block by block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Media(Op):
    """Encoding of `pixels` (width x height x frames) to a container on the host CPU."""

    pixels: Floats
    codec: str = "h264"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostWork(Op):
    """Host time that no kernel hides: `term` names the engine term (seconds each)."""

    term: str


def gemm_flops(op: Gemm) -> Floats:
    """FLOP of one execution, multiply-add = 2."""
    return 2.0 * np.asarray(op.batch, float) * op.m * op.n * op.k


def attention_flops(op: Attention) -> Floats:
    """FLOP of one execution: ``4*B*H*Sq*Skv*D``; causal counts half."""
    dense = 4.0 * np.asarray(op.batch, float) * op.heads * op.seq_q * op.seq_kv * op.head_dim
    return dense / 2 if op.causal else dense


def conv_flops(op: Conv) -> Floats:
    """FLOP of one execution, zero padding counted as work (as the kernels do)."""
    kt, kh, kw = op.kernel
    voxels = np.asarray(op.batch, float) * op.out_t * op.out_h * op.out_w
    return 2.0 * voxels * op.out_channels * op.in_channels * (kt * kh * kw)


def flops(op: Op) -> Floats:
    """FLOP of one execution of any operator; 0 for data movement."""
    if isinstance(op, Gemm):
        return gemm_flops(op)
    if isinstance(op, Attention):
        return attention_flops(op)
    if isinstance(op, Conv):
        return conv_flops(op)
    return 0.0
