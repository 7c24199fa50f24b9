"""The Wan transformer as operators, and its parameters.

Eager traffic is that of the diffusers modules (fp32 LayerNorms and RMS norms kernel by kernel);
fused traffic is one pass for each norm with its modulation, residual or rotary embedding.
Source: diffusers 0.42.1 ``transformer_wan.py`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from perfmodel.ops import Attention, Conv, Gemm, Ints, Op, Pointwise, Role, Rows, Split
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.stages.base import Component, Traits
from perfmodel.stages.layers import (
    BF16_BYTES,
    READ_WRITE,
    Eager,
    linear,
    rms_chain,
    rope_chain,
    traffic,
)

# Eager bytes per element.  Modulated LayerNorm: cast 6, norm 8, scale 8, shift 8, cast 6.
MODULATED_NORM_BYTES, MODULATED_NORM_LAUNCHES = 36.0, 6
PLAIN_NORM_BYTES, PLAIN_NORM_LAUNCHES = 20.0, 3
# RMS norm over the full width: cast 6, square 8, mean 4, scale 8, weight 8, cast 6.
RMS: Eager = (40.0, 8)
# Interleaved rotary embedding: four half products 8, two sums 6, two strided copies 4.
ROPE: Eager = (18.0, 8)
# Gate and residual in fp32: cast 6, gate 6, sum 12, cast 6; the second also casts its input.
GATE_BYTES, GATE_LAUNCHES = 30.0, 4
SECOND_GATE_BYTES, SECOND_GATE_LAUNCHES = 38.0, 5
# Per-token modulation: six vectors of the width are cast 6, added 8, and used at full size.
TOKEN_MODULATION_BYTES = 124.0
TOKEN_MODULATION_FUSED_BYTES = 12.0
MODULATIONS = 6


def block_params(model: ModelSpec) -> int:
    """Parameters of one block: two attentions with norms, feed-forward, modulation table."""
    spec, hidden = model.transformer, model.transformer.hidden
    square = hidden * hidden + hidden
    feed_forward = 2 * hidden * spec.ffn + spec.ffn + hidden
    image = 2 * square + hidden if spec.image_width else 0
    return 8 * square + 4 * hidden + 2 * hidden + feed_forward + MODULATIONS * hidden + image


def params(model: ModelSpec) -> int:
    """Parameters of one transformer."""
    spec, hidden = model.transformer, model.transformer.hidden
    square = hidden * hidden + hidden
    text = (spec.text_width or 0) * hidden + hidden + square
    time = spec.time_width * hidden + hidden + square + MODULATIONS * square
    ends = spec.patch_width_in * hidden + hidden
    ends += hidden * spec.patch_width_out + spec.patch_width_out + 2 * hidden
    image = 0
    if spec.image_width:
        wide = spec.image_width
        image = 2 * wide + wide * wide + wide + wide * hidden + hidden + 2 * hidden
    return spec.layers * block_params(model) + text + time + ends + image


def component(model: ModelSpec, name: str) -> Component:
    """One transformer; tensor parallelism divides the linears of its blocks."""
    spec, hidden = model.transformer, model.transformer.hidden
    linears = 8 * hidden * hidden + 2 * hidden * spec.ffn
    linears += 2 * hidden * hidden if spec.image_width else 0
    return Component(
        name=name,
        kind="transformer",
        params=params(model),
        block_params=spec.layers * block_params(model),
        blocks=spec.layers,
        tp_params=spec.layers * linears,
        quantizable_params=spec.layers * linears,
        when=("denoise",),
    )


def forward(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """One forward of one branch, all outputs of the request as a batch."""
    return (*_entry(model, shape), *blocks(model, shape, traits), *_exit(model, shape))


def blocks(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """All blocks of `model`."""
    return (
        *_self_attention(model, shape, traits),
        *_cross_attention(model, shape, traits),
        *_feed_forward(model, shape),
    )


def _rows(shape: Shape) -> tuple[Rows, Ints]:
    return Rows.TOKENS, shape.batch * shape.tokens


def _text_rows(shape: Shape) -> tuple[Rows, Ints]:
    return Rows.TEXT, shape.batch * shape.text_tokens


def _times_each_token(model: ModelSpec, shape: Shape) -> bool:
    return model.tasks[shape.task].per_token_timestep


def _entry(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    """Patch embedding, time and text embedding: in full on every rank."""
    spec, hidden = model.transformer, model.transformer.hidden
    full = (Rows.FULL, shape.batch * shape.tokens)
    time = full if _times_each_token(model, shape) else (Rows.NONE, shape.batch)
    return (
        *patches("patch embedding", model, shape, spec.in_channels),
        _embedding("time projection 1", time, (hidden, spec.time_width)),
        _embedding("time projection 2", time, (hidden, hidden)),
        _embedding("modulation projection", time, (MODULATIONS * hidden, hidden)),
        _embedding("text projection 1", _text_rows(shape), (hidden, spec.text_width or hidden)),
        _embedding("text projection 2", _text_rows(shape), (hidden, hidden)),
        traffic("text activation", _text_rows(shape), (READ_WRITE * hidden,) * 2),
        *_image_entry(model, shape),
    )


def patches(name: str, model: ModelSpec, shape: Shape, channels: int) -> tuple[Op, ...]:
    """A latent of `channels` channels to tokens."""
    spec, hidden = model.transformer, model.transformer.hidden
    patch = Conv(
        name=name,
        batch=shape.batch,
        in_channels=channels,
        out_channels=hidden,
        kernel=spec.patch,
        stride=spec.patch,
        out_t=shape.latent_frames,
        out_h=shape.latent_height // spec.patch[1],
        out_w=shape.latent_width // spec.patch[2],
    )
    full = (Rows.FULL, shape.batch * shape.tokens)
    return (patch, traffic("token layout", full, (READ_WRITE * hidden,) * 2, is_copy=True))


def _embedding(name: str, rows: tuple[Rows, Ints], width: tuple[Ints, Ints]) -> Gemm:
    return linear(name, rows, width, quantizable=False)


def _image_rows(model: ModelSpec, shape: Shape) -> tuple[Rows, Ints]:
    return Rows.TEXT, shape.batch * model.transformer.image_tokens


def _image_entry(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    spec = model.transformer
    if not spec.image_width:
        return ()
    rows = _image_rows(model, shape)
    return (
        _embedding("image projection 1", rows, (spec.image_width, spec.image_width)),
        _embedding("image projection 2", rows, (spec.hidden, spec.image_width)),
    )


def _self_attention(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    spec, hidden, count = model.transformer, model.transformer.hidden, model.transformer.layers
    rows = _rows(shape)
    width = spec.q_width + 2 * spec.kv_width
    projections: tuple[Op, ...]
    if traits.fused_qkv:
        projections = (
            linear("q, k, v projection", rows, (width, hidden), count=count, split=Split.COLUMN),
        )
    else:
        projections = tuple(
            linear(f"{name} projection", rows, (n, hidden), count=count, split=Split.COLUMN)
            for name, n in (("q", spec.q_width), ("k", spec.kv_width), ("v", spec.kv_width))
        )
    qk_width = spec.q_width + spec.kv_width
    rms = rms_chain(traits, RMS, torch_module=True)
    rope = rope_chain(traits, ROPE)
    qk_norm = traffic(
        "q, k norm and rope",
        rows,
        (READ_WRITE * qk_width, (rms[0] + rope[0]) * qk_width),
        count=count,
        launches=2,
        eager_launches=2 * (rms[1] + rope[1]),
        split=Split.COLUMN,
    )
    attention = Attention(
        name="self-attention",
        count=count,
        batch=shape.batch,
        seq_q=shape.tokens,
        seq_kv=shape.tokens,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        role=Role.SELF,
    )
    out = linear("attention output", rows, (hidden, spec.q_width), count=count, split=Split.ROW)
    return (*_first_norm(model, shape), *projections, qk_norm, attention, out)


def _first_norm(model: ModelSpec, shape: Shape) -> tuple[Pointwise, ...]:
    """LayerNorm and modulation; with a timestep a token, six vectors a token besides."""
    hidden, count = model.transformer.hidden, model.transformer.layers
    norm = traffic(
        "norm and modulation",
        _rows(shape),
        (READ_WRITE * hidden, MODULATED_NORM_BYTES * hidden),
        count=count,
        eager_launches=MODULATED_NORM_LAUNCHES + 2,
    )
    if not _times_each_token(model, shape):
        return (norm,)
    vectors = traffic(
        "modulation of each token",
        _rows(shape),
        (TOKEN_MODULATION_FUSED_BYTES * hidden, TOKEN_MODULATION_BYTES * hidden),
        count=count,
        launches=0,
        eager_launches=2,
    )
    return (norm, vectors)


def _cross_attention(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """Gated residual, norm, attention to the text (and image) states, residual."""
    spec, hidden, count = model.transformer, model.transformer.hidden, model.transformer.layers
    rows = _rows(shape)
    return (
        traffic(
            "gate, residual and norm",
            rows,
            (2 * READ_WRITE * hidden, (GATE_BYTES + PLAIN_NORM_BYTES) * hidden),
            count=count,
            eager_launches=GATE_LAUNCHES + PLAIN_NORM_LAUNCHES,
        ),
        linear("cross q projection", rows, (spec.q_width, hidden), count=count, split=Split.COLUMN),
        _rms("cross q norm", rows, spec.q_width, count, traits),
        *_keys(model, "text", _text_rows(shape), traits),
        _cross(model, shape, "text cross-attention", shape.text_tokens),
        *_image_attention(model, shape, traits),
        linear("cross output", rows, (hidden, spec.q_width), count=count, split=Split.ROW),
    )


def _keys(model: ModelSpec, name: str, rows: tuple[Rows, Ints], traits: Traits) -> tuple[Op, ...]:
    spec, count = model.transformer, model.transformer.layers
    return (
        *(
            linear(
                f"{name} {letter} projection",
                rows,
                (spec.kv_width, spec.hidden),
                count=count,
                split=Split.COLUMN,
            )
            for letter in "kv"
        ),
        _rms(f"{name} k norm", rows, spec.kv_width, count, traits),
    )


def _rms(name: str, rows: tuple[Rows, Ints], width: int, count: Ints, traits: Traits) -> Pointwise:
    rms = rms_chain(traits, RMS, torch_module=True)
    return traffic(
        name,
        rows,
        (READ_WRITE * width, rms[0] * width),
        count=count,
        eager_launches=rms[1],
        split=Split.COLUMN,
    )


def _cross(model: ModelSpec, shape: Shape, name: str, keys: Ints) -> Attention:
    spec = model.transformer
    return Attention(
        name=name,
        count=spec.layers,
        batch=shape.batch,
        seq_q=shape.tokens,
        seq_kv=keys,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        role=Role.CROSS,
    )


def _image_attention(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    spec = model.transformer
    if not spec.image_width:
        return ()
    add = traffic(
        "add text and image attention",
        _rows(shape),
        (3 * BF16_BYTES * spec.q_width,) * 2,
        count=spec.layers,
        split=Split.COLUMN,
    )
    return (
        *_keys(model, "image", _image_rows(model, shape), traits),
        _cross(model, shape, "image cross-attention", spec.image_tokens),
        add,
    )


def _feed_forward(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    spec, hidden, count = model.transformer, model.transformer.hidden, model.transformer.layers
    rows = _rows(shape)
    residual_norm = (3 * BF16_BYTES + MODULATED_NORM_BYTES) * hidden
    return (
        traffic(
            "residual, norm and modulation",
            rows,
            (2 * READ_WRITE * hidden, residual_norm),
            count=count,
            eager_launches=1 + MODULATED_NORM_LAUNCHES,
        ),
        linear("feed-forward in", rows, (spec.ffn, hidden), count=count, split=Split.COLUMN),
        traffic(
            "activation",
            rows,
            (READ_WRITE * spec.ffn,) * 2,
            count=count,
            split=Split.COLUMN,
        ),
        linear("feed-forward out", rows, (hidden, spec.ffn), count=count, split=Split.ROW),
        traffic(
            "gate and residual",
            rows,
            (3 * BF16_BYTES * hidden, SECOND_GATE_BYTES * hidden),
            count=count,
            eager_launches=SECOND_GATE_LAUNCHES,
        ),
    )


def _exit(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    """Norm and projection of the rank's own tokens: the sequence is gathered after them."""
    spec, rows = model.transformer, _rows(shape)
    norm = traffic(
        "final norm",
        rows,
        (READ_WRITE * spec.hidden, MODULATED_NORM_BYTES * spec.hidden),
        eager_launches=MODULATED_NORM_LAUNCHES,
    )
    project = _embedding("output projection", rows, (spec.patch_width_out, spec.hidden))
    full = (Rows.FULL, shape.batch * shape.tokens)
    unpatchify = traffic("unpatchify", full, (READ_WRITE * spec.patch_width_out,) * 2, is_copy=True)
    return (norm, project, unpatchify)
