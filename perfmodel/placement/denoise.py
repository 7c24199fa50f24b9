"""The denoise stage on one rank: unsharded work and a layout in, per-rank operators out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops import Attention, Floats, Ints, Op, Pointwise, Role
from perfmodel.placement import guidance, patches, sequence, tensor, weights
from perfmodel.placement.precision import quantise, widening
from perfmodel.shapes import Shape
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.workload import Options
from perfmodel.stages.base import DenoiseWork


class EngineTable(Protocol):
    """What placement asks of an engine."""

    @property
    def ulysses_copies(self) -> int:
        """Full copies around each all-to-all."""

    @property
    def pad_masked(self) -> bool:
        """Whether padding builds an attention mask."""

    @property
    def hsdp_breaks_graph(self) -> bool:
        """Whether weight sharding leaves pointwise chains unfused."""

    @property
    def fused_quantise(self) -> bool:
        """Whether activations are quantised inside the kernels that write them."""

    @property
    def patch_warmup_steps(self) -> int | None:
        """Synchronous steps before patches follow one another; None: stages take turns."""

    @property
    def attention_backend(self) -> str:
        """Kernel family of the self-attention."""

    @property
    def ring_attention_kernel(self) -> str:
        """Kernel family of the chunks of ring attention."""

    @property
    def torch_attention_kernel(self) -> str:
        """Kernel family behind torch's attention without a mask."""

    @property
    def cross_attention_backend(self) -> str:
        """Kernel family of attention outside the sequence-parallel plan."""


@dataclass(frozen=True, slots=True)
class PlacedDenoise:
    """Operators of the busiest rank; ``count`` is per request.

    Attributes:
        ops: compute and messages.
        forwards: transformer forwards of the rank.
        local_tokens: latent tokens of the rank.
    """

    ops: tuple[Op, ...]
    forwards: NDArray[np.int64]
    local_tokens: NDArray[np.int64]


def place_denoise(
    work: DenoiseWork, shape: Shape, layouts: Layouts, table: EngineTable, options: Options
) -> PlacedDenoise:
    """Operators of the busiest rank for every layout.

    Args:
        work: unsharded operators of the stage.
        shape: the request; its numbers are scalars or columns as long as `layouts`.
        layouts: the configurations.
        table: engine behaviour.
        options: dtype of the linears, what a step cache skips and a sparse attention leaves out.
    """
    forwards = guidance.forwards_of_a_rank(shape, layouts)
    branches = guidance.branches_of_a_rank(shape, layouts)
    per_forward = _place_all(work.per_forward, work, layouts, table, options)
    per_forward += [
        sequence.exit_gather(shape.tokens, shape.batch, work.exit_width, layouts),
        weights.stage_hand_over(work.hidden, shape, layouts),
        *weights.shard_messages(work.block_params, work.blocks, options.dtype, layouts),
    ]
    per_forward += tensor.norm_all_reduces(
        work.row_reduces,
        sequence.local_tokens(shape.tokens, layouts),
        shape.text_tokens,
        layouts,
    )
    per_forward += sequence.row_gathers(work.sequence_gathers, shape.tokens, shape.batch, layouts)
    per_forward += sequence.state_reduces(work.sequence_reduces, shape.batch, layouts)
    per_forward += tensor.width_gathers(
        work.width_gathers,
        sequence.local_tokens(shape.tokens, layouts) + shape.text_tokens,
        shape.batch,
        layouts,
    )
    per_request = _place_all(work.per_request, work, layouts, table, options)
    ops = [
        *_times(per_request, branches),
        *_forwards(per_forward, work, shape, layouts, table, forwards * (1 - options.cache_skip)),
        *_times(work.per_step, shape.steps),
        guidance.velocity_gather(work.velocity_elements, shape, layouts),
    ]
    return PlacedDenoise(
        ops=tuple(ops),
        forwards=forwards,
        local_tokens=sequence.local_tokens(shape.tokens, layouts),
    )


def _forwards(
    ops: list[Op],
    work: DenoiseWork,
    shape: Shape,
    layouts: Layouts,
    table: EngineTable,
    forwards: Floats,
) -> list[Op]:
    """The operators of all forwards; those in patches beside those of the whole latent."""
    if table.patch_warmup_steps is None or np.all(layouts.pp == 1):
        return _times(ops, forwards)
    whole, piped = patches.executions(
        forwards,
        guidance.branches_of_a_rank(shape, layouts),
        work.blocks,
        table.patch_warmup_steps,
        layouts,
    )
    kv_width = work.kv_heads * work.head_dim
    cached = patches.stale_cache(work.blocks, kv_width, shape, layouts)
    return [
        *_times(ops, whole),
        *_times([*patches.in_patches(ops, layouts), cached], piped),
    ]


def place_op(
    op: Op, work: DenoiseWork, layouts: Layouts, table: EngineTable, options: Options
) -> list[Op]:
    """One unsharded operator as the rank runs it, followed by the messages it causes."""
    split = tensor.split_widths(op, layouts)
    if isinstance(split, Attention) and split.role is Role.SELF:
        builds_mask = table.pad_masked or work.sequence_parallel_masked
        placed = sequence.split_self_attention(
            _on_kernel(split, table.attention_backend, table),
            layouts,
            builds_mask=builds_mask,
            copies=table.ulysses_copies,
            ring_backend=table.ring_attention_kernel,
        )
        return sequence.sparse(placed, options.attention_density)
    if isinstance(split, Attention):
        split = _on_kernel(split, table.cross_attention_backend, table)
        if split.role is Role.HEADS:
            return sequence.exchange_keys(split, layouts)
    split = sequence.split_rows(split, layouts)
    if table.hsdp_breaks_graph:
        split = _unfuse(split, layouts.hsdp > 1)
    return [
        *widening(split, options.dtype),
        quantise(split, options.dtype, fused=table.fused_quantise),
        *tensor.row_all_reduce(split, layouts),
    ]


def _place_all(
    ops: Iterable[Op], work: DenoiseWork, layouts: Layouts, table: EngineTable, options: Options
) -> list[Op]:
    return [placed for op in ops for placed in place_op(op, work, layouts, table, options)]


def _times(ops: Iterable[Op], executions: Floats | Ints) -> list[Op]:
    return [replace(op, count=op.count * np.asarray(executions)) for op in ops]


def _on_kernel(op: Attention, backend: str, table: EngineTable) -> Attention:
    """`op` on the engine's kernel; a mask leaves torch only its memory-efficient kernel.

    Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.scaled_dot_product_attention.html
    (the flash kernel takes no mask).
    """
    if backend == "TORCH_SDPA" and op.masked is True:
        return replace(op, backend="SDPA_EFFICIENT")
    if backend == "TORCH_SDPA":
        return replace(op, backend=table.torch_attention_kernel)
    return replace(op, backend=backend)


def _unfuse(op: Op, unfused: NDArray[np.bool_]) -> Op:
    if not isinstance(op, Pointwise) or op.eager_bytes is None:
        return op
    return replace(op, bytes_moved=np.where(unfused, op.eager_bytes, op.bytes_moved))
