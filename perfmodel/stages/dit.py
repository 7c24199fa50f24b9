"""Transformer blocks that attend to text apart, and what their families share.

A block: modulated norm, self-attention, gate; attention to text; modulated norm, feed-forward,
gate.  Families differ in the small operators, given as eager (bytes an element, kernels) read off
the modules of diffusers 0.42.1 (https://pypi.org/project/diffusers/0.42.1/ models/transformers);
fused traffic is one pass for a norm with its modulation, residual or rotary embedding.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.ops import Attention, Gemm, Ints, Op, Pointwise, Role, Rows, Split
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec, TransformerSpec
from perfmodel.stages import text_encoder
from perfmodel.stages.base import Traits
from perfmodel.stages.joint import activation
from perfmodel.stages.joint_model import embedding
from perfmodel.stages.joint_rows import Sizes
from perfmodel.stages.layers import READ_WRITE, Eager, linear, traffic

RowCount = tuple[Rows, Ints]
NOTHING: Eager = (0.0, 0)
SINGLE_MODULATION = 6
"""Vectors of one shared projection of the timestep: shift, scale, gate, twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains:
    """Unfused chains of a block, each (bytes an element, kernels).

    Attributes:
        start: norm and modulation before the self-attention.
        qk: norm and rotary embedding of q and k, an element of both.
        layout: copies around an attention, an element of its output.
        middle: gate, residual and, where the block has one, the norm before cross-attention.
        cross_q: norm (and rotary embedding) of the queries to text.
        text_k: norm of the text keys.
        cross_end: residual, norm and modulation before the feed-forward network.
        end: gate and residual.
        scattered: of `start`, `middle`, `cross_end` and `end`, the bytes of kernels with a 16-bit
            vector broadcast over tokens.
    """

    start: Eager
    qk: Eager = NOTHING
    layout: Eager = (4.0, 1)
    middle: Eager
    cross_q: Eager = NOTHING
    text_k: Eager = NOTHING
    cross_end: Eager
    end: Eager = (10.0, 2)
    scattered: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Streams:
    """Rows of a block.

    Attributes:
        own: tokens of the self-attention and the feed-forward network.
        asking: tokens that attend to text (all of `own`, or a part).
        text: text tokens.
        batch, length, asking_length, text_length: the same, an output.
    """

    own: RowCount
    asking: RowCount
    text: RowCount
    batch: Ints
    length: Ints
    asking_length: Ints
    text_length: Ints


def streams(sizes: Sizes) -> Streams:
    """Rows where all tokens attend to text."""
    return Streams(
        own=sizes.latent_rows,
        asking=sizes.latent_rows,
        text=sizes.text_rows,
        batch=sizes.batch,
        length=sizes.tokens,
        asking_length=sizes.tokens,
        text_length=sizes.text,
    )


def chain(
    name: str,
    rows: RowCount,
    width: int,
    eager: Eager,
    count: Ints,
    *,
    passes: float = 1.0,
    launches: int = 1,
    split: Split = Split.NONE,
    scattered: float = 0.0,
) -> tuple[Pointwise, ...]:
    """A chain of `width` elements a row; fused it is `passes` reads and writes; none if empty."""
    if eager[1] == 0:
        return ()
    return (
        traffic(
            name,
            rows,
            (passes * READ_WRITE * width, eager[0] * width),
            count=count,
            launches=launches,
            eager_launches=eager[1],
            split=split,
            scattered=scattered * width,
        ),
    )


def cross_block(
    spec: TransformerSpec, rows: Streams, chains: Chains, *, fused_qkv: bool, count: int
) -> tuple[Op, ...]:
    """`count` blocks of `spec` over `rows`."""
    hidden, (start, middle, _, _) = spec.hidden, chains.scattered
    return (
        *chain("norm and modulation", rows.own, hidden, chains.start, count, scattered=start),
        *self_attention(spec, rows, chains, fused_qkv=fused_qkv, count=count),
        *chain(
            "gate, residual and norm",
            rows.asking,
            hidden,
            chains.middle,
            count,
            passes=2.0,
            scattered=middle,
        ),
        *cross_attention(spec, rows, chains, count),
        *feed_forward(spec, rows, chains, count),
    )


def qkv(spec: TransformerSpec, rows: RowCount, count: int, *, fused: bool) -> tuple[Op, ...]:
    """q, k and v of the self-attention, as one product or three."""
    width = spec.q_width + 2 * spec.kv_width if fused else spec.q_width
    times = 1 if fused else 3
    return (
        linear(
            "q, k, v projection",
            rows,
            (width, spec.hidden),
            count=times * count,
            split=Split.COLUMN,
        ),
    )


def self_attention(
    spec: TransformerSpec, rows: Streams, chains: Chains, *, fused_qkv: bool, count: int
) -> tuple[Op, ...]:
    """Attention of the tokens among themselves, with its products."""
    width = spec.q_width + spec.kv_width
    attention = Attention(
        name="self-attention",
        count=count,
        batch=rows.batch,
        seq_q=rows.length,
        seq_kv=rows.length,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        role=Role.SELF,
    )
    return (
        *qkv(spec, rows.own, count, fused=fused_qkv),
        *chain(
            "q, k norm and rope", rows.own, width, chains.qk, count, launches=2, split=Split.COLUMN
        ),
        attention,
        *_layout("self-attention layout", rows.own, spec.q_width, chains, count),
        linear(
            "attention output", rows.own, (spec.hidden, spec.q_width), count=count, split=Split.ROW
        ),
    )


def cross_attention(
    spec: TransformerSpec, rows: Streams, chains: Chains, count: int
) -> tuple[Op, ...]:
    """Attention of the tokens to text; keys and values are projected in every forward."""
    heads, head_dim = spec.cross_heads or spec.heads, spec.cross_head_dim or spec.head_dim
    width, states = heads * head_dim, spec.text_stream_width or spec.hidden
    attention = Attention(
        name="text cross-attention",
        count=count,
        batch=rows.batch,
        seq_q=rows.asking_length,
        seq_kv=rows.text_length,
        heads=heads,
        kv_heads=heads,
        head_dim=head_dim,
        role=Role.CROSS,
    )
    column = Split.COLUMN
    return (
        linear("cross q projection", rows.asking, (width, spec.hidden), count=count, split=column),
        *chain("cross q norm", rows.asking, width, chains.cross_q, count, split=column),
        linear("text k, v projection", rows.text, (width, states), count=2 * count, split=column),
        *chain("text k norm", rows.text, width, chains.text_k, count, split=column),
        attention,
        *_layout("cross-attention layout", rows.asking, width, chains, count),
        linear("cross output", rows.asking, (spec.hidden, width), count=count, split=Split.ROW),
    )


def feed_forward(
    spec: TransformerSpec, rows: Streams, chains: Chains, count: int
) -> tuple[Op, ...]:
    """Residual, norm, two products (SwiGLU: gate and value in one), gated residual."""
    hidden, own, (_, _, cross_end, end) = spec.hidden, rows.own, chains.scattered
    wide = spec.ffn * (2 if spec.activation == "swiglu" else 1)
    return (
        *chain(
            "residual, norm and modulation",
            own,
            hidden,
            chains.cross_end,
            count,
            passes=2.0,
            scattered=cross_end,
        ),
        linear("feed-forward in", own, (wide, hidden), count=count, split=Split.COLUMN),
        replace(activation("feed-forward", spec, own, count), split=Split.COLUMN),
        linear("feed-forward out", own, (hidden, spec.ffn), count=count, split=Split.ROW),
        *chain("gate and residual", own, hidden, chains.end, count, passes=1.5, scattered=end),
    )


def _layout(
    name: str, rows: RowCount, width: int, chains: Chains, count: int
) -> tuple[Pointwise, ...]:
    if chains.layout[1] == 0:
        return ()
    return (
        traffic(
            name,
            rows,
            (0.0, chains.layout[0] * width),
            count=count,
            launches=0,
            eager_launches=chains.layout[1],
            split=Split.COLUMN,
        ),
    )


def time_embedding(
    spec: TransformerSpec, rows: RowCount, vectors: int = SINGLE_MODULATION
) -> tuple[Gemm, ...]:
    """Two products for the timestep and one that turns it into the vectors of all blocks."""
    hidden = spec.hidden
    return (
        embedding("time projection 1", rows, (hidden, spec.time_width)),
        embedding("time projection 2", rows, (hidden, hidden)),
        embedding("modulation projection", rows, (vectors * hidden, hidden)),
    )


def caption_embedding(spec: TransformerSpec, rows: RowCount) -> tuple[Op, ...]:
    """Two products with an activation that bring text states to the width of the blocks."""
    hidden = spec.hidden
    return (
        embedding("text projection 1", rows, (hidden, spec.text_width or hidden)),
        traffic("text activation", rows, (READ_WRITE * hidden,) * 2),
        embedding("text projection 2", rows, (hidden, hidden)),
    )


def full_rows(shape: Shape | Sizes) -> RowCount:
    """Latent tokens that every rank of the sequence group computes."""
    return Rows.FULL, shape.batch * shape.tokens


def token_linear(spec: TransformerSpec, sizes: Sizes, *, extra_channels: int = 0) -> tuple[Op, ...]:
    """Latent patches to tokens by a product, with the copy that lays the patches out."""
    volume = spec.patch[0] * spec.patch[1] * spec.patch[2]
    width, rows = spec.patch_width_in + extra_channels * volume, full_rows(sizes)
    copy = traffic("patch layout", rows, (READ_WRITE * width,) * 2, is_copy=True)
    return (copy, embedding("latent embedding", rows, (spec.hidden, width)))


def output(
    spec: TransformerSpec, sizes: Sizes, norm: Eager = (12.0, 4), *, width: int | None = None
) -> tuple[Op, ...]:
    """Final norm and projection of the rank's own tokens, and the layout of all of them."""
    rows, wide = sizes.latent_rows, width or spec.patch_width_out
    return (
        *chain("final norm", rows, spec.hidden, norm, 1),
        embedding("output projection", rows, (wide, spec.hidden)),
        traffic("unpatchify", full_rows(sizes), (READ_WRITE * wide,) * 2, is_copy=True),
    )


def text_encode(
    model: ModelSpec, shape: Shape, traits: Traits, runs: Ints | None = None
) -> tuple[Op, ...]:
    """Text encoders once a guidance branch; a single encoder runs at the request's length."""
    runs = min(shape.branches, 2) if runs is None else runs
    names = model.text_encoders
    length = shape.text_tokens if len(names) == 1 else None
    return tuple(op for name in names for op in text_encoder.encode(name, runs, length))
