"""Small constructors that the families share: linears, norms, copies, rounding notes.

Traffic is counted per element of a bf16 activation.  ``eager`` figures are those of the unfused
torch kernels of the published modules: an RMS norm in fp32 is eight kernels, a rotary embedding
five.  Source: module code of diffusers 0.42.1 (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import Problem
from perfmodel.ops import Conv, Floats, Gemm, Ints, Pointwise, Rows, Split, dtype_bytes

if TYPE_CHECKING:
    from perfmodel.stages.base import Traits

BF16_BYTES = dtype_bytes("bf16")
FP32_BYTES = dtype_bytes("fp32")
READ_WRITE = 2 * BF16_BYTES
"""Traffic of reading and writing one bf16 element."""
Eager = tuple[float, int]
"""Bytes an element and kernels of unfused code."""
ONE_PASS: Eager = (READ_WRITE, 1)
SCHEDULER_TENSORS = 24
"""Tensor reads and writes of one order-2 UniPC step (predictor, corrector, conversions)."""
SCHEDULER_LAUNCHES = 40


def elements(*sizes: Ints | Floats) -> Floats:
    """Product of sizes as float64 (large maps overflow int32 platforms and lose no precision)."""
    product: Floats = 1.0
    for size in sizes:
        product = product * (float(size) if isinstance(size, int) else np.asarray(size, float))
    return float(product) if np.ndim(product) == 0 else product


def as_ints(values: NDArray[Any] | np.generic) -> Ints:
    """An int for a single value, else int64 columns."""
    return int(values) if np.ndim(values) == 0 else np.asarray(values, np.int64)


def as_floats(values: Floats | NDArray[Any] | np.generic) -> Floats:
    """A float for a single value, else float64 columns."""
    return float(values) if np.ndim(values) == 0 else np.asarray(values, np.float64)


def linear(
    name: str,
    rows: tuple[Rows, Ints],
    width: tuple[Ints, Ints],
    *,
    count: Ints = 1,
    split: Split = Split.NONE,
    quantizable: bool = True,
) -> Gemm:
    """``[rows, k] x [k, n]`` with `width` = (n, k); a bias is folded in."""
    n, k = width
    return Gemm(
        name=name,
        count=count,
        m=rows[1],
        n=n,
        k=k,
        rows=rows[0],
        split=split,
        quantizable=quantizable,
    )


def line_conv(
    name: str,
    channels: tuple[int, int],
    kernel: int,
    length: Ints,
    batch: Ints = 1,
    count: int = 1,
) -> Conv:
    """A convolution along time to `length` positions, `channels` = (in, out)."""
    return Conv(
        name=name,
        count=count,
        batch=batch,
        in_channels=channels[0],
        out_channels=channels[1],
        kernel=(1, 1, kernel),
        out_t=1,
        out_h=1,
        out_w=length,
    )


def traffic(
    name: str,
    rows: tuple[Rows, Ints],
    per_row: tuple[float, float],
    *,
    count: Ints = 1,
    launches: int = 1,
    eager_launches: int = 1,
    split: Split = Split.NONE,
    is_copy: bool = False,
    scattered: float = 0.0,
    rowwise: tuple[float, float] = (0.0, 0.0),
) -> Pointwise:
    """A memory-bound operator from its bytes a row: `per_row` = (fused, eager).

    `scattered`: of the eager ones, those of kernels with a vector broadcast over rows.
    `rowwise`: those of norms with a block a row, and what such a block moves.
    """
    fused, eager = per_row
    return Pointwise(
        name=name,
        count=count,
        launches=launches,
        eager_launches=eager_launches,
        bytes_moved=elements(rows[1]) * fused,
        eager_bytes=elements(rows[1]) * eager,
        rows=rows[0],
        split=split,
        is_copy=is_copy,
        scattered_frac=scattered / eager if eager else 0.0,
        rowwise_frac=rowwise[0] / eager if eager else 0.0,
        row_bytes=rowwise[1],
    )


def scheduler_step(latent_elements: Floats, *, guided: bool) -> tuple[Pointwise, ...]:
    """Guidance combination and UniPC update of one step; every rank does them, never compiled."""
    step = Pointwise(
        name="scheduler step",
        launches=SCHEDULER_LAUNCHES,
        bytes_moved=latent_elements * SCHEDULER_TENSORS * FP32_BYTES,
    )
    if not guided:
        return (step,)
    # uncond + scale * (cond - uncond): three kernels, each two tensors in and one out at most.
    combine = Pointwise(
        name="guidance combine",
        launches=3,
        bytes_moved=latent_elements * 8 * BF16_BYTES,
    )
    return (combine, step)


def rms_chain(traits: Traits, eager: Eager, *, torch_module: bool = False) -> Eager:
    """Eager bytes an element and kernels of an RMS norm under an engine.

    Args:
        traits: of the engine.
        eager: of the published module, kernel by kernel.
        torch_module: the published module is torch's own.
    """
    fused = traits.fused_norm_rope or (torch_module and traits.fused_torch_norms)
    return ONE_PASS if fused and eager[1] else eager


def rope_chain(traits: Traits, eager: Eager) -> Eager:
    """The same of a rotary embedding."""
    return ONE_PASS if traits.fused_norm_rope and eager[1] else eager


def rounding(rule_id: str, message: str, field: str) -> Problem:
    """A warning that a size or length runs as another."""
    return Problem(rule_id, message, field=field, severity="warning")
