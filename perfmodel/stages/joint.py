"""Blocks of transformers whose attention joins text and latent tokens, shared by their families.

Two-stream blocks give text and latent tokens weights of their own and join them for attention only;
single-stream blocks run both as one sequence.  Under sequence parallelism latent tokens are divided
and text is kept on every rank, so a joined product has ``tokens/P + text`` rows.
Traffic a block element: fused is one pass for a norm with its modulation, residual or rotary
embedding; eager is the unfused kernels of diffusers 0.42.1
(https://pypi.org/project/diffusers/0.42.1/, ``models/transformers``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.ops import Attention, Ints, Op, Pointwise, Role, Rows, Split
from perfmodel.spec.model import TransformerSpec
from perfmodel.stages.base import Traits
from perfmodel.stages.joint_rows import Sizes, joined_traffic
from perfmodel.stages.layers import (
    BF16_BYTES,
    READ_WRITE,
    elements,
    linear,
    rms_chain,
    rope_chain,
    traffic,
)

# LayerNorm 4, times (1 + scale) 4, plus shift 4.
MODULATED_NORM_BYTES, MODULATED_NORM_LAUNCHES = 12.0, 4
MODULATION_SCATTERED, GATE_SCATTERED = 8.0, 4.0
"""Of these and of a gate, the kernels with a vector that is broadcast over tokens."""
# Gate 4, sum 6.
GATE_BYTES, GATE_LAUNCHES = 10.0, 2
# RMS norm in fp32: cast 6, square 8, mean 4, scale 6, cast 6, weight 4.
RMS_BYTES, RMS_LAUNCHES = 34.0, 8
# Rotary embedding in fp32 by pairs: two casts 12, products 16, sum 12, negate 2, stack 4, cast 6.
ROPE_BYTES, ROPE_LAUNCHES = 52.0, 8
# The same as a complex product: cast 6, product 8, cast 6.
COMPLEX_ROPE_BYTES, COMPLEX_ROPE_LAUNCHES = 20.0, 3
# Sums, indices and offsets of the mask, three gathers, clear and scatter.
RAGGED_LAUNCHES = 12
GATED_FUSED_BYTES, GATED_BYTES = 6.0, 10.0
FULL_MODULATION = 6
"""Vectors of a two-stream block: shift, scale and gate, for attention and feed-forward."""
SINGLE_MODULATION = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """What differs between families in the small operators of a block.

    Attributes:
        rms_bytes, rms_launches: eager, of the norm of q and k, an element (0: none).
        rope_bytes, rope_launches: of the rotary embedding (0: none).
        text_rope: text is rotated too.
        fused_qkv: one product for q, k and v.
        own_modulation: every block projects its own vectors (else they are shared).
        single_copy_bytes: eager copies around the attention of a single-stream block, a hidden
            element (joining q and k again after the latent part was rotated).
        masked: text padding is masked in attention.
        mask_bytes: eager bytes a pair of tokens, for building that mask in every block.
        valid_text: text tokens of each output that a kernel of ragged lengths attends to; None:
            the kernel sees all slots.
    """

    rms_bytes: float = RMS_BYTES
    rms_launches: int = RMS_LAUNCHES
    rope_bytes: float = ROPE_BYTES
    rope_launches: int = ROPE_LAUNCHES
    text_rope: bool = True
    fused_qkv: bool = True
    own_modulation: bool = True
    single_copy_bytes: float = 0.0
    masked: bool = False
    mask_bytes: float = 0.0
    valid_text: int | None = None


def under(traits: Traits, style: Style, *, torch_norm: bool = False) -> Style:
    """`style` with the norm and rotary kernels of an engine.

    Args:
        traits: of the engine.
        style: of the published modules.
        torch_norm: their norm of q and k is torch's own.
    """
    norm = (style.rms_bytes, style.rms_launches if style.rms_bytes else 0)
    rms = rms_chain(traits, norm, torch_module=torch_norm)
    rope = rope_chain(traits, (style.rope_bytes, style.rope_launches))
    return replace(
        style,
        fused_qkv=traits.fused_qkv,
        rms_bytes=rms[0],
        rms_launches=rms[1],
        rope_bytes=rope[0],
        rope_launches=rope[1],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """One stream of `count` equal blocks: its name, its rows, whether its q and k are rotated."""

    name: str
    rows: tuple[Rows, Ints]
    count: int
    rotated: bool = True


def two_stream(
    spec: TransformerSpec,
    sizes: Sizes,
    style: Style,
    count: int,
    *,
    text_count: int | None = None,
    latent_start: tuple[Op, ...] = (),
) -> tuple[Op, ...]:
    """`count` two-stream blocks.

    Args:
        spec: dimensions.
        sizes: of the forward.
        style: small operators.
        count: blocks.
        text_count: blocks whose text stream goes on after attention (SD3: all but the last).
        latent_start: what comes before attention in the latent stream, where it differs.
    """
    image = Stream(name="latent", rows=sizes.latent_rows, count=count)
    text = Stream(name="text", rows=sizes.text_rows, count=count, rotated=style.text_rope)
    rest = count if text_count is None else text_count
    if rest == count:
        text_start = stream_start(spec, sizes, style, text)
    else:
        text_start = (
            *stream_start(spec, sizes, style, replace(text, count=rest)),
            *stream_start(spec, sizes, style, replace(text, count=1, name="last text"), vectors=2),
        )
    return (
        *(latent_start or stream_start(spec, sizes, style, image)),
        *text_start,
        *joint_attention(spec, sizes, style, "joint attention", count),
        *stream_end(spec, image),
        *stream_end(spec, replace(text, count=rest)),
    )


def modulation(
    spec: TransformerSpec, sizes: Sizes, name: str, vectors: int, count: int
) -> tuple[Op, ...]:
    """The projection of the timestep to `vectors` vectors of the width."""
    width = (vectors * spec.hidden, spec.hidden)
    project = linear(f"{name} modulation", sizes.vector_rows, width, count=count, quantizable=False)
    activation = traffic(
        f"{name} modulation activation",
        sizes.vector_rows,
        (READ_WRITE * spec.hidden,) * 2,
        count=count,
    )
    return (activation, project)


def stream_start(
    spec: TransformerSpec,
    sizes: Sizes,
    style: Style,
    stream: Stream,
    *,
    vectors: int = FULL_MODULATION,
) -> tuple[Op, ...]:
    """Modulation, norm, q, k and v of one stream."""
    own = modulation(spec, sizes, stream.name, vectors, stream.count)
    norm = traffic(
        f"{stream.name} norm and modulation",
        stream.rows,
        (READ_WRITE * spec.hidden, MODULATED_NORM_BYTES * spec.hidden),
        count=stream.count,
        eager_launches=MODULATED_NORM_LAUNCHES,
        scattered=MODULATION_SCATTERED * spec.hidden,
    )
    return (
        *(own if style.own_modulation else ()),
        norm,
        *projections(spec, style, stream),
        *norm_and_rope(spec, style, stream),
    )


def projections(spec: TransformerSpec, style: Style, stream: Stream) -> tuple[Op, ...]:
    """q, k and v of one stream, as one product or three."""
    width, hidden = spec.q_width, spec.hidden
    if style.fused_qkv:
        width = spec.q_width + 2 * spec.kv_width
    return (
        linear(
            f"{stream.name} q, k, v projection",
            stream.rows,
            (width, hidden),
            count=stream.count * (1 if style.fused_qkv else 3),
            split=Split.COLUMN,
        ),
    )


def norm_and_rope(spec: TransformerSpec, style: Style, stream: Stream) -> tuple[Op, ...]:
    """Norm of q and k per head, rotary embedding."""
    width = spec.q_width + spec.kv_width
    rotated = style.rope_bytes > 0 and stream.rotated
    each = style.rms_bytes + (style.rope_bytes if rotated else 0.0)
    if each == 0:
        return ()
    launches = (style.rms_launches if style.rms_bytes else 0) + (
        style.rope_launches if rotated else 0
    )
    return (
        traffic(
            f"{stream.name} q, k norm and rope",
            stream.rows,
            (READ_WRITE * width, each * width),
            count=stream.count,
            launches=2,
            eager_launches=2 * launches,
            split=Split.COLUMN,
            # A norm of one kernel gives a block to each head of a token.
            rowwise=(4.0 * width, 4.0 * spec.head_dim) if style.rms_launches == 1 else (0.0, 0.0),
        ),
    )


def joint_attention(
    spec: TransformerSpec,
    sizes: Sizes,
    style: Style,
    name: str,
    count: int,
    *,
    divided: bool = True,
) -> tuple[Op, ...]:
    """Text and latent tokens attend to each other; q, k and v are joined before.

    Args:
        spec: dimensions.
        sizes: of the forward.
        style: small operators.
        name: of the attention.
        count: blocks.
        divided: tensor parallelism divides the heads.
    """
    seen = sizes if style.valid_text is None else replace(sizes, text=style.valid_text)
    joined = seen.tokens + seen.text
    attention = Attention(
        name=name,
        count=count,
        batch=sizes.batch,
        seq_q=joined,
        seq_kv=joined,
        prefix_q=seen.kept,
        prefix_kv=seen.kept,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        role=Role.SELF,
        masked=style.masked,
        tensor_split=divided,
    )
    split = Split.COLUMN if divided else Split.NONE
    width = spec.q_width
    layout = joined_traffic(
        f"{name} layout", sizes, (0.0, READ_WRITE * width), count, launches=(0, 1), split=split
    )
    ragged = () if style.valid_text is None else _ragged_copies(sizes, width, name, count, split)
    return (*_mask(sizes, style, name, count), attention, *ragged, *layout)


def _ragged_copies(sizes: Sizes, width: int, name: str, count: int, split: Split) -> tuple[Op, ...]:
    """Real tokens of q, k and v gathered; the output cleared and scattered back."""
    moved = (3 * READ_WRITE + BF16_BYTES + READ_WRITE) * width
    return joined_traffic(
        f"{name} gather of real tokens",
        sizes,
        (moved, moved),
        count,
        launches=(RAGGED_LAUNCHES, RAGGED_LAUNCHES),
        split=split,
        is_copy=True,
    )


def join_copies(spec: TransformerSpec, sizes: Sizes, count: int) -> tuple[Op, ...]:
    """q, k and v of both streams written behind each other (v as a copy of its own when fused)."""
    width = spec.q_width
    return joined_traffic(
        "join q, k, v",
        sizes,
        (READ_WRITE * width, 3 * READ_WRITE * width),
        count,
        launches=(1, 3),
        split=Split.COLUMN,
        is_copy=True,
    )


def _mask(sizes: Sizes, style: Style, name: str, count: int) -> tuple[Op, ...]:
    if style.mask_bytes == 0:
        return ()
    side = sizes.tokens + sizes.text
    moved = elements(sizes.batch, side, side) * style.mask_bytes
    return (Pointwise(name=f"{name} mask", count=count, launches=3, bytes_moved=moved),)


def stream_end(spec: TransformerSpec, stream: Stream) -> tuple[Op, ...]:
    """Output projection, gated residual, norm, feed-forward network, gated residual."""
    hidden, rows, count = spec.hidden, stream.rows, stream.count
    middle = (GATE_BYTES + MODULATED_NORM_BYTES) * hidden
    return (
        linear(
            f"{stream.name} attention output",
            rows,
            (hidden, spec.q_width),
            count=count,
            split=Split.ROW,
        ),
        traffic(
            f"{stream.name} gate, residual, norm and modulation",
            rows,
            (2 * READ_WRITE * hidden, middle),
            count=count,
            eager_launches=GATE_LAUNCHES + MODULATED_NORM_LAUNCHES,
            scattered=(GATE_SCATTERED + MODULATION_SCATTERED) * hidden,
        ),
        *feed_forward(spec, stream),
        gated_residual(stream.name, rows, hidden, count),
    )


def feed_forward(spec: TransformerSpec, stream: Stream) -> tuple[Op, ...]:
    """Two products with GELU, or a gate and a value in one product with SwiGLU."""
    rows, count, gated = stream.rows, stream.count, spec.activation == "swiglu"
    wide = spec.ffn * (2 if gated else 1)
    return (
        linear(
            f"{stream.name} feed-forward in",
            rows,
            (wide, spec.hidden),
            count=count,
            split=Split.COLUMN,
        ),
        replace(activation(stream.name, spec, rows, count), split=Split.COLUMN),
        linear(
            f"{stream.name} feed-forward out",
            rows,
            (spec.hidden, spec.ffn),
            count=count,
            split=Split.ROW,
        ),
    )


def activation(name: str, spec: TransformerSpec, rows: tuple[Rows, Ints], count: int) -> Pointwise:
    """GELU, or SiLU of the gate times the value."""
    gated = spec.activation == "swiglu"
    each = (GATED_FUSED_BYTES, GATED_BYTES) if gated else (READ_WRITE, READ_WRITE)
    return traffic(
        f"{name} activation",
        rows,
        (each[0] * spec.ffn, each[1] * spec.ffn),
        count=count,
        eager_launches=2 if gated else 1,
    )


def gated_residual(name: str, rows: tuple[Rows, Ints], hidden: int, count: int) -> Pointwise:
    """Gate times the branch, plus the residual."""
    return traffic(
        f"{name} gate and residual",
        rows,
        (3 * BF16_BYTES * hidden, GATE_BYTES * hidden),
        count=count,
        eager_launches=GATE_LAUNCHES,
        scattered=GATE_SCATTERED * hidden,
    )
