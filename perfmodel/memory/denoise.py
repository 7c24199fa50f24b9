"""Activations of the denoiser on one rank: the widest moment of a block, of entry and of exit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.memory.terms import Terms
from perfmodel.ops import Attention, Gemm, Ints, Op, Role, Rows, Split
from perfmodel.shapes import Shape, ceil_div
from perfmodel.spec.parallel import Layouts
from perfmodel.stages.base import DenoiseWork

Column = NDArray[np.float64]

ACTIVATION_BYTES = 2.0
"""bf16 or fp16; quantised matrix products still write 16-bit activations."""
FLOAT_BYTES = 4.0
LATENT_COPIES = 8
"""Latents, noise predictions of two branches and two steps, the solver's sample and its copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """Bytes on one rank by configuration: activations, exchange buffers, library workspace."""

    activations: Column
    collectives: Column
    workspace: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Widths:
    """Elements per latent token of a transformer block.

    Attributes:
        hidden: of the residual stream.
        query, key: of q and of k or v.
        wide: of all inputs of the widest down projection and of the map before it (gate, up and
            their product; or one map and its activation).
        text_key: elements of cached text keys and values per text token and branch, all blocks.
    """

    hidden: float
    query: float
    key: float
    wide: float
    text_key: float


def widths(work: DenoiseWork) -> Widths:
    """Read the widths off the operators of a forward."""
    tokens = [op for op in work.per_forward if isinstance(op, Gemm) and op.rows == Rows.TOKENS]
    down = max(
        (_scalar(op.k) for op in tokens if op.split == Split.ROW),
        default=float(work.inner_width or work.hidden),
    )
    columns = [op for op in tokens if op.split == Split.COLUMN and _scalar(op.n) == down]
    rows = [op for op in tokens if op.split == Split.ROW and _scalar(op.k) == down]
    into, out = (sum(_scalar(op.count) for op in ops) for ops in (columns, rows))
    cached = any(
        isinstance(op, Attention)
        and op.role == Role.SELF
        and np.any(np.asarray(op.prefix_kv) > np.asarray(op.prefix_q))
        for op in work.per_forward
    )
    head = work.head_dim
    return Widths(
        hidden=float(work.hidden),
        query=float(work.heads * head),
        key=float(work.kv_heads * head),
        wide=down * (max(round(into / max(out, 1.0)), 1) + 1),
        text_key=2.0 * work.kv_heads * head * work.blocks if cached else 0.0,
    )


def denoise(work: DenoiseWork, shape: Shape, layouts: Layouts, terms: Terms, outputs: Ints) -> Live:
    """Live bytes of the denoise phase of a request for `outputs` videos or images.

    Formula: max(block, entry, exit) + latents + text keys, where
        block = tokens/SP x max(attention, feed-forward) and, of Split.COLUMN widths, 1/tp;
        attention = residual + q, k, v before and after the rotary map + output;
        feed-forward = residual + its norm + the maps into the down projection;
        entry, exit = all tokens on every rank: hidden state and its fp32 norm, gathered output.
    Ulysses adds two copies of its widest message, ring two chunks of keys and values.
    """
    w = widths(work)
    batch = np.asarray(shape.batch, np.float64)
    total = np.asarray(shape.tokens, np.float64) * batch
    sp = layouts.sequence_parallel
    local = ceil_div(np.asarray(shape.tokens, np.int64), sp) * batch
    element = ACTIVATION_BYTES + terms.extra_bytes_per_element
    tp = layouts.tp.astype(np.float64)
    heads = (2 * (w.query + w.key) + w.key + w.query) / tp
    norm = w.hidden * FLOAT_BYTES / ACTIVATION_BYTES
    attention = w.hidden + np.maximum(heads, norm + w.hidden)
    feed = 2 * w.hidden + w.wide / tp
    block = local * np.maximum(attention, feed) * element
    full = np.where(
        sp > 1,
        total * (work.exit_width + w.hidden * (1 + FLOAT_BYTES / ACTIVATION_BYTES)),
        total * w.hidden * (1 + FLOAT_BYTES / ACTIVATION_BYTES),
    )
    latents = work.velocity_elements * np.asarray(outputs, float) * FLOAT_BYTES * LATENT_COPIES
    branches = ceil_div(shape.branches, layouts.cfg)
    text = w.text_key * np.asarray(shape.text_tokens, np.float64) * branches * batch / tp
    exchange = np.where(layouts.ulysses > 1, 2 * local * w.query / tp * ACTIVATION_BYTES, 0.0)
    ring = np.where(layouts.ring > 1, 4 * local * w.key / tp * ACTIVATION_BYTES, 0.0)
    gathered = np.where(layouts.allgather > 1, 2 * total * w.key / tp * ACTIVATION_BYTES, 0.0)
    return Live(
        activations=np.maximum(block, full * ACTIVATION_BYTES) + latents + text * ACTIVATION_BYTES,
        collectives=exchange + ring + gathered,
        workspace=total / sp * work.heads / tp * FLOAT_BYTES,
    )


def text_live(ops: tuple[Op, ...], layouts: Layouts) -> Column:
    """Live bytes of text encoding: twice the widest operator's input and output rows."""
    widest = max(
        (float(np.max(_rows(op) * (op.n + op.k))) for op in ops if isinstance(op, Gemm)),
        default=0.0,
    )
    return np.full(len(layouts), 2 * widest * ACTIVATION_BYTES)


def _rows(op: Gemm) -> NDArray[np.float64]:
    return np.asarray(op.batch, np.float64) * op.m


def _scalar(value: Ints) -> float:
    return float(np.max(value))
