"""Text and image encoders that run before the denoiser, never compiled and never split.

Dimensions are in `stages.encoders`; parameters and FLOP equal those of the published modules.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops import Attention, Conv, Floats, Ints, Op, Pointwise, Role, Rows
from perfmodel.stages.base import Component
from perfmodel.stages.encoders import ENCODERS, Encoder
from perfmodel.stages.layers import elements, linear

__all__ = ["ENCODERS", "Encoder", "component", "encode", "params"]

# Bytes per element of the unfused kernels: RMS norm in fp32; tanh-GELU written out in eight
# products and sums; LayerNorm; GELU, SiLU; quick GELU (scale, sigmoid, product).
RMS_BYTES, RMS_LAUNCHES = 34.0, 8
T5_GELU_BYTES, T5_GELU_LAUNCHES = 42.0, 9
QUICK_GELU_BYTES, QUICK_GELU_LAUNCHES = 14.0, 3
LAYER_NORM_BYTES = 4.0
GELU_BYTES = 4.0
GATE_BYTES = 6.0
RESIDUAL_BYTES = 6.0
CLONE_BYTES = 4.0
# Rotary embedding by halves: negate 2, concatenate 4, two products 4 + 6 (per element), sum 6.
ROPE_BYTES, ROPE_LAUNCHES = 20.0, 5
# Relative-position bias of a layer, per head and token pair: gather, copy; 150 B a pair for the
# bucket arithmetic that all heads share (int64 and fp32 maps, some twenty kernels).
T5_BIAS_BYTES, T5_BUCKET_BYTES, T5_BIAS_LAUNCHES = 6.0, 150.0, 24
T5_BUCKETS = 32
BERT_POSITIONS = 512
RGB = 3


def params(encoder: Encoder) -> int:
    """Parameters: gated blocks without biases, or plain ones with."""
    embedding = encoder.vocabulary * encoder.hidden
    total = encoder.layers * _block_params(encoder) + embedding
    if encoder.kind == "t5":
        tables = 1 if encoder.shared_positions else encoder.layers
        return total + tables * T5_BUCKETS * encoder.heads + encoder.hidden
    if encoder.kind == "decoder":
        return total + encoder.hidden + encoder.head_params + encoder.idle_params
    positions = encoder.tokens * encoder.hidden
    last_norm = 2 * encoder.hidden
    if encoder.kind == "bert":
        # Positions up to 512, a table of two segments, a norm, the pooled token's projection.
        square = encoder.hidden * encoder.hidden + encoder.hidden
        return total + (BERT_POSITIONS + 2) * encoder.hidden + 2 * encoder.hidden + square
    if encoder.kind == "clip":
        head = encoder.hidden**2 if encoder.projection else 0
        return total + positions + last_norm + head
    return total + positions + last_norm + _vision_ends(encoder)


def _block_params(encoder: Encoder) -> int:
    hidden, width, kv_width = encoder.hidden, encoder.width, encoder.kv_width
    attention = 2 * hidden * width + 2 * hidden * kv_width
    if encoder.is_gated:
        biases = width + 2 * kv_width if encoder.qkv_bias else 0
        norms = encoder.norms * hidden + (2 * encoder.head_dim if encoder.qk_norm else 0)
        return attention + biases + (encoder.ffn_inputs + 1) * hidden * encoder.ffn + norms
    biases = width + 2 * kv_width + hidden + encoder.ffn + hidden
    return attention + 2 * hidden * encoder.ffn + biases + 4 * hidden


def _vision_ends(encoder: Encoder) -> int:
    """Patch embedding, class token and its norm, or the pooling head."""
    hidden = encoder.hidden
    patches = RGB * encoder.patch_px**2 * hidden
    if encoder.class_token:
        return patches + hidden + 2 * hidden
    head = 4 * hidden * hidden + 4 * hidden + 2 * hidden * encoder.ffn + encoder.ffn + hidden
    return patches + hidden + (head + hidden + 2 * hidden if encoder.pooled_head else 0)


def component(name: str, position: int = 1) -> Component:
    """The encoder's weights, needed only before the denoise stage.

    Args:
        name: key of `ENCODERS`.
        position: place among the model's text encoders, from 1.
    """
    encoder = ENCODERS[name]
    plain = "text_encoder" if encoder.is_text else "image_encoder"
    return Component(
        name=plain if position == 1 else f"{plain}_{position}",
        kind="text_encoder",
        params=params(encoder),
        when=("text_encode",),
        layer_params=encoder.layers * _block_params(encoder),
        layers=encoder.layers,
        width=encoder.hidden,
    )


def encode(name: str, runs: Ints, tokens: Ints | None = None) -> tuple[Op, ...]:
    """Operators of `runs` forwards of the encoder called `name`, batch 1 each.

    Args:
        name: key of `ENCODERS`.
        runs: forwards.
        tokens: length of the sequence; the encoder's own padded length when None.
    """
    encoder = ENCODERS[name]
    length = encoder.tokens if tokens is None else tokens
    hidden, width, kv_width = encoder.hidden, encoder.width, encoder.kv_width
    count = encoder.layers * runs
    rows = (Rows.NONE, length)
    start = encoder.start
    attention = Attention(
        name=f"{start}attention",
        count=count,
        seq_q=length,
        seq_kv=length,
        heads=encoder.heads,
        kv_heads=encoder.kv_heads or encoder.heads,
        head_dim=encoder.head_dim,
        role=Role.MAP,
        causal=encoder.kind in ("decoder", "clip"),
        masked=encoder.kind in ("t5", "bert"),
    )
    return (
        *_entry(encoder, length, runs),
        linear(f"{start}q", rows, (width, hidden), count=count),
        linear(f"{start}k, v", rows, (kv_width, hidden), count=2 * count),
        attention,
        linear(f"{start}attention output", rows, (hidden, width), count=count),
        linear(
            f"{start}feed-forward in",
            rows,
            (encoder.ffn, hidden),
            count=count * encoder.ffn_inputs,
        ),
        linear(f"{start}feed-forward out", rows, (hidden, encoder.ffn), count=count),
        *_pointwise(encoder, length, count),
        *_exit(encoder, length, runs),
    )


def _exit(encoder: Encoder, length: Ints, runs: Ints) -> tuple[Op, ...]:
    """Projection of the pooled token, or one query that attends to all tokens, and its network."""
    start, hidden, one = encoder.start, encoder.hidden, (Rows.NONE, 1)
    if encoder.language_head:
        logits = linear(
            f"{start}logits", (Rows.NONE, length), (encoder.vocabulary, hidden), count=runs
        )
        return (logits,)
    if encoder.projection:
        return (linear(f"{start}projection", one, (hidden, hidden), count=runs),)
    if not encoder.pooled_head:
        return ()
    pool = linear(f"{start}pool", one, (length, encoder.head_dim), count=2 * runs)
    return (
        linear(f"{start}pool k, v", (Rows.NONE, length), (2 * hidden, hidden), count=runs),
        replace(pool, batch=encoder.heads),
        linear(f"{start}pool q, output", one, (hidden, hidden), count=2 * runs),
        linear(f"{start}pool feed-forward in", one, (encoder.ffn, hidden), count=runs),
        linear(f"{start}pool feed-forward out", one, (hidden, encoder.ffn), count=runs),
    )


def _entry(encoder: Encoder, length: Ints, runs: Ints) -> tuple[Op, ...]:
    if encoder.is_text:
        moved = elements(length, encoder.hidden) * CLONE_BYTES
        return (_moved(f"{encoder.start}embedding", runs, moved, 1),)
    side = encoder.image_px // encoder.patch_px
    return (
        Conv(
            name=f"{encoder.start}patch embedding",
            count=runs,
            in_channels=RGB,
            out_channels=encoder.hidden,
            kernel=(1, encoder.patch_px, encoder.patch_px),
            stride=(1, encoder.patch_px, encoder.patch_px),
            out_t=1,
            out_h=side,
            out_w=side,
        ),
    )


def _pointwise(encoder: Encoder, length: Ints, count: Ints) -> tuple[Op, ...]:
    """Norms, activation, positions, residuals and layout copies of all layers."""
    start, hidden = encoder.start, elements(length, encoder.hidden)
    shared = (
        _moved(f"{start}residual", 2 * count, hidden * RESIDUAL_BYTES, 1),
        _moved(f"{start}attention layout", count, elements(length, encoder.width) * CLONE_BYTES, 1),
        *_activation(encoder, length, count),
    )
    if not encoder.is_gated:
        norm = _moved(f"{start}norm", 2 * count, hidden * LAYER_NORM_BYTES, 1)
        return (norm, *shared)
    norm = _moved(f"{start}norm", encoder.norms * count, hidden * RMS_BYTES, RMS_LAUNCHES)
    return (norm, *_positions(encoder, length, count), *shared)


def _activation(encoder: Encoder, length: Ints, count: Ints) -> tuple[Op, ...]:
    wide = elements(length, encoder.ffn)
    each, launches = {
        "t5": (T5_GELU_BYTES, T5_GELU_LAUNCHES),
        "decoder": (GELU_BYTES + GATE_BYTES, 2),
        "clip": (GELU_BYTES, 1),
        "bert": (GELU_BYTES, 1),
        "vision": (GELU_BYTES, 1),
    }[encoder.kind]
    if encoder.plain_ffn:
        each, launches = GELU_BYTES, 1
    if encoder.quick_gelu:
        each, launches = QUICK_GELU_BYTES, QUICK_GELU_LAUNCHES
    return (_moved(f"{encoder.start}activation", count, wide * each, launches),)


def _positions(encoder: Encoder, length: Ints, count: Ints) -> tuple[Op, ...]:
    start = encoder.start
    if encoder.kind == "decoder":
        width = elements(length, encoder.width + encoder.kv_width)
        rope = _moved(f"{start}rotary embedding", count, width * ROPE_BYTES, 2 * ROPE_LAUNCHES)
        if not encoder.qk_norm:
            return (rope,)
        return (rope, _moved(f"{start}q, k norm", count, width * RMS_BYTES, 2 * RMS_LAUNCHES))
    pairs = elements(length, length)
    if encoder.shared_positions:
        return (_moved(f"{start}position bias", count, pairs * encoder.heads * T5_BIAS_BYTES, 1),)
    bias = pairs * (encoder.heads * T5_BIAS_BYTES + T5_BUCKET_BYTES)
    return (_moved(f"{start}position bias", count, bias, T5_BIAS_LAUNCHES),)


def _moved(name: str, count: Ints, bytes_moved: Floats, launches: int) -> Pointwise:
    return Pointwise(name=name, count=count, bytes_moved=bytes_moved, launches=launches)
