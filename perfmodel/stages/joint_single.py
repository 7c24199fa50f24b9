"""Single-stream blocks: attention and feed-forward side by side on joined text and latent tokens.

FLUX.1 and HunyuanVideo project q, k, v and the feed-forward network apart; FLUX.2 in one product.
``row``: tensor parallelism splits both inputs by columns and the joint output product by rows.
``gather`` is what vLLM-Omni 0.30.0 does: FLUX.1 divides only q, k, v and the heads, then gathers
the attention output; FLUX.2 splits both products by columns and gathers each result, so attention
and activation run in full on every rank (``models/flux``, ``models/flux2``,
https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from perfmodel.ops import Op, Pointwise, Split
from perfmodel.spec.model import TransformerSpec
from perfmodel.stages.base import Traits
from perfmodel.stages.joint import (
    GATE_BYTES,
    GATE_LAUNCHES,
    GATE_SCATTERED,
    GATED_BYTES,
    GATED_FUSED_BYTES,
    MODULATED_NORM_BYTES,
    MODULATED_NORM_LAUNCHES,
    MODULATION_SCATTERED,
    SINGLE_MODULATION,
    Style,
    joint_attention,
    modulation,
)
from perfmodel.stages.joint_rows import Sizes, joined_linear, joined_traffic
from perfmodel.stages.layers import BF16_BYTES, READ_WRITE


def blocks(
    spec: TransformerSpec, sizes: Sizes, style: Style, *, merged: bool, gather: bool
) -> tuple[Op, ...]:
    """All single-stream blocks of a forward.

    Args:
        spec: dimensions.
        sizes: of the forward.
        style: small operators; `single_copy_bytes` are its extra copies.
        merged: q, k, v and the feed-forward network are one product.
        gather: tensor parallelism gathers instead of summing.
    """
    count, hidden = spec.single_layers, spec.hidden
    divided = not (gather and merged)
    own = modulation(spec, sizes, "single", SINGLE_MODULATION, count)
    out_split = Split.ROW if not gather else Split.COLUMN if merged else Split.NONE
    return (
        *(own if style.own_modulation else ()),
        *joined_traffic(
            "single norm and modulation",
            sizes,
            (READ_WRITE * hidden, MODULATED_NORM_BYTES * hidden),
            count,
            launches=(1, MODULATED_NORM_LAUNCHES),
            scattered=MODULATION_SCATTERED * hidden,
        ),
        *_inputs(spec, sizes, style, merged=merged, gather=gather),
        *_norm_and_rope(spec, sizes, style, Split.COLUMN if divided else Split.NONE),
        *_activation(spec, sizes, Split.NONE if gather else Split.COLUMN),
        *joint_attention(spec, sizes, style, "single attention", count, divided=divided),
        *joined_traffic(
            "single join attention and feed-forward",
            sizes,
            (READ_WRITE * spec.q_width, READ_WRITE * (spec.q_width + spec.ffn)),
            count,
            is_copy=True,
            split=Split.NONE if gather else Split.COLUMN,
        ),
        joined_linear("single output", sizes, (hidden, spec.q_width + spec.ffn), count, out_split),
        *joined_traffic(
            "single gate and residual",
            sizes,
            (3 * BF16_BYTES * hidden, GATE_BYTES * hidden),
            count,
            launches=(1, GATE_LAUNCHES),
            scattered=GATE_SCATTERED * hidden,
        ),
        *_copies(spec, sizes, style),
    )


def gathers(
    spec: TransformerSpec, traits: Traits, *, merged: bool
) -> tuple[tuple[str, int, int], ...]:
    """The messages of ``gather``: (name, count a forward, width); none where rows are split."""
    if traits.single_stream_tensor != "gather":
        return ()
    count = spec.single_layers
    if not merged:
        return (("single attention gather", count, spec.q_width),)
    inner = spec.q_width + 2 * spec.kv_width + 2 * spec.ffn
    return (
        ("single inputs gather", count, inner),
        ("single output gather", count, spec.hidden),
    )


def join_streams(spec: TransformerSpec, sizes: Sizes, count: int) -> tuple[Op, ...]:
    """Text and latent tokens written behind each other, `count` times."""
    width = READ_WRITE * spec.hidden
    return joined_traffic("join streams", sizes, (width, width), count, is_copy=True)


def _inputs(
    spec: TransformerSpec, sizes: Sizes, style: Style, *, merged: bool, gather: bool
) -> tuple[Op, ...]:
    count, hidden = spec.single_layers, spec.hidden
    qkv = spec.q_width + 2 * spec.kv_width
    if merged:
        inner = (qkv + 2 * spec.ffn, hidden)
        return (joined_linear("single inputs", sizes, inner, count, Split.COLUMN),)
    parts, width = (1, qkv) if style.fused_qkv else (3, spec.q_width)
    wide = spec.ffn * (2 if spec.activation == "swiglu" else 1)
    return (
        joined_linear(
            "single q, k, v projection", sizes, (width, hidden), count * parts, Split.COLUMN
        ),
        joined_linear(
            "single feed-forward in",
            sizes,
            (wide, hidden),
            count,
            Split.NONE if gather else Split.COLUMN,
        ),
    )


def _norm_and_rope(
    spec: TransformerSpec, sizes: Sizes, style: Style, split: Split
) -> tuple[Op, ...]:
    width = spec.q_width + spec.kv_width
    rope = style.rope_bytes
    latent, text = joined_traffic(
        "single q, k norm and rope",
        sizes,
        (READ_WRITE * width, (style.rms_bytes + rope) * width),
        spec.single_layers,
        launches=(2, 2 * (style.rms_launches + style.rope_launches)),
        split=split,
    )
    if style.text_rope:
        return latent, text
    plain = joined_traffic(
        "single q, k norm and rope",
        sizes,
        (READ_WRITE * width, style.rms_bytes * width),
        spec.single_layers,
        split=split,
    )
    return latent, plain[1]


def _activation(spec: TransformerSpec, sizes: Sizes, split: Split) -> tuple[Op, ...]:
    gated = spec.activation == "swiglu"
    each = (GATED_FUSED_BYTES, GATED_BYTES) if gated else (READ_WRITE, READ_WRITE)
    return joined_traffic(
        "single activation",
        sizes,
        (each[0] * spec.ffn, each[1] * spec.ffn),
        spec.single_layers,
        launches=(1, 2 if gated else 1),
        split=split,
    )


def _copies(spec: TransformerSpec, sizes: Sizes, style: Style) -> tuple[Pointwise, ...]:
    if style.single_copy_bytes == 0:
        return ()
    return joined_traffic(
        "single join of rotated q, k",
        sizes,
        (READ_WRITE * spec.hidden, style.single_copy_bytes * spec.hidden),
        spec.single_layers,
        launches=(1, 4),
        split=Split.COLUMN,
        is_copy=True,
    )
