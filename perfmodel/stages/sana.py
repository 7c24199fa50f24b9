"""SANA and SANA-Video: linear self-attention, and feed-forward networks of convolutions.

Linear attention sums ``v k^T`` over all tokens (a state of a few numbers a head) and multiplies
every query with it, so its work grows with the tokens and it needs no exchange of heads.  Both
products are written with the tokens as rows: one multiplies and adds as much as the other; the
modules widen q, k and v to fp32 for them.
The feed-forward network widens every position, mixes 3x3 neighbours within each channel, gates,
narrows, and in SANA-Video mixes three frames.
Sources: diffusers 0.42.1 ``sana_transformer.py``, ``transformer_sana_video.py``
(https://pypi.org/project/diffusers/0.42.1/); vLLM-Omni 0.30.0 ``diffusion/models/sana_video``
(https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.ops import Conv, Gemm, Op, Rows, Split
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec, TransformerSpec
from perfmodel.stages import dit, joint_model
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import Chains
from perfmodel.stages.dit import text_encode as text_encode
from perfmodel.stages.joint import GATE_SCATTERED, MODULATION_SCATTERED
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.layers import BF16_BYTES, READ_WRITE, Eager, linear, traffic
from perfmodel.stages.requests import grid

shape_columns = grid

# LayerNorm 4, product 4, sum 4; gate 10 and residual 6 come around the attention to text.
CHAINS = Chains(
    start=(12.0, 6),
    layout=(8.0, 2),
    middle=(10.0, 2),
    cross_end=(18.0, 6),
    end=(10.0, 3),
    scattered=(MODULATION_SCATTERED, GATE_SCATTERED, MODULATION_SCATTERED, GATE_SCATTERED),
)
# ReLU of q and k 8, casts 24, a row of ones joined to v 8, division by it 8.
PLAIN_MAPS: Eager = (48.0, 9)
# ReLU, rotary embedding of halves, casts, the sum of k and its reciprocal.
ROTATED_MAPS: Eager = (78.0, 26)
WIDE_RMS: Eager = (36.0, 8)
ONES = 1
"""A row of ones beside v gives the sum of k with the same product."""
SILU_AND_GATE = 3 * READ_WRITE + 3 * BF16_BYTES
NEIGHBOURS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """What SANA 1.5 adds: normed q and k; and video besides: a rotation, convolutions over time."""

    video: bool
    normed: bool

    @property
    def chains(self) -> Chains:
        if not self.normed:
            return CHAINS
        return replace(CHAINS, cross_q=WIDE_RMS, text_k=WIDE_RMS)


def _kind(spec: TransformerSpec) -> _Kind:
    return _Kind(video=spec.rotary, normed=spec.qk_norm)


shape = joint_model.padded_shape
"""Defaults, rounding, tokens; prompts are padded."""


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Gemma, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    spec = model.transformer
    forward = joint_model.patch_convolution(model, shape) + _after_patches(
        model, sizes_of(shape), fused_qkv=traits.fused_qkv
    )
    work = joint_model.denoise_work(model, shape, forward, _transformer(model))
    if not _kind(spec).video:
        return work
    state = spec.heads * spec.head_dim * (spec.head_dim + ONES)
    return replace(
        work,
        sequence_reduces=(("linear attention state sums", spec.layers, state),),
        row_reduces=(
            ("q, k norm sums over tp", 3 * spec.layers, 1, True),
            ("text k norm sums over tp", spec.layers, 1, False),
        ),
    )


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    kind = _kind(spec)
    norms = 4 * hidden if kind.normed else 0
    unbiased = ("q, k, v projection", "feed-forward out")
    mixers = spec.layers * _mixer_params(spec, video=kind.video)
    return joint_model.weights(
        model,
        [op for op in _after_patches(model, ONE, fused_qkv=False) if not _is_mixer(op)],
        bias=lambda op: op.name not in unbiased,
        in_blocks=spec.layers * (dit.SINGLE_MODULATION * hidden + norms) + mixers,
        elsewhere=spec.patch_width_in * hidden + hidden + hidden + 2 * hidden,
    )


def _is_mixer(op: Op) -> bool:
    """Without a matrix of weights (the attention), or counted by `_mixer_params`."""
    return isinstance(op, Conv) or op.name.startswith("linear attention")


def _mixer_params(spec: TransformerSpec, *, video: bool) -> int:
    depthwise = 2 * spec.ffn * (NEIGHBOURS * NEIGHBOURS + 1)
    return depthwise + (NEIGHBOURS * spec.hidden * spec.hidden if video else 0)


def _after_patches(model: ModelSpec, sizes: Sizes, *, fused_qkv: bool) -> tuple[Op, ...]:
    spec = model.transformer
    kind, streams, count = _kind(spec), dit.streams(sizes), spec.layers
    rows, hidden = sizes.latent_rows, spec.hidden
    return (
        *dit.time_embedding(spec, sizes.vector_rows),
        *dit.caption_embedding(spec, sizes.text_rows),
        *dit.chain("text norm", sizes.text_rows, hidden, (34.0, 8), 1),
        *dit.chain("norm and modulation", rows, hidden, kind.chains.start, count),
        *dit.qkv(spec, rows, count, fused=fused_qkv),
        *_linear_attention(spec, sizes, kind, count),
        linear("attention output", rows, (hidden, spec.q_width), count=count, split=Split.ROW),
        *dit.chain("gate and residual", rows, hidden, kind.chains.middle, count, passes=1.5),
        *dit.cross_attention(spec, streams, kind.chains, count),
        *dit.chain(
            "residual, norm and modulation", rows, hidden, kind.chains.cross_end, count, passes=2.0
        ),
        *_mix_feed_forward(spec, sizes, kind, count),
        *dit.chain("gate and residual", rows, hidden, kind.chains.end, count, passes=1.5),
        *dit.output(spec, sizes),
    )


def _linear_attention(
    spec: TransformerSpec, sizes: Sizes, kind: _Kind, count: int
) -> tuple[Op, ...]:
    head = spec.head_dim
    rows, column = sizes.latent_rows, Split.COLUMN
    product = Gemm(
        name="linear attention",
        count=2 * count,
        batch=sizes.batch * spec.heads,
        m=sizes.tokens,
        n=head if kind.video else head + ONES,
        k=head,
        dtype="fp32",
        rows=Rows.TOKENS,
        split=column,
        quantizable=False,
    )
    norms = dit.chain(
        "q, k norm", rows, 2 * spec.q_width, (WIDE_RMS[0], 16), count, launches=2, split=column
    )
    if not kind.video:
        return (
            *(norms if kind.normed else ()),
            *dit.chain("linear attention maps", rows, spec.q_width, PLAIN_MAPS, count, passes=4),
            product,
        )
    sums = replace(product, name="linear attention sums", count=count, n=ONES, split=Split.NONE)
    return (
        *norms,
        *dit.chain("linear attention maps", rows, spec.q_width, ROTATED_MAPS, count, passes=4),
        product,
        sums,
    )


def _mix_feed_forward(
    spec: TransformerSpec, sizes: Sizes, kind: _Kind, count: int
) -> tuple[Op, ...]:
    rows, hidden, wide = sizes.latent_rows, spec.hidden, 2 * spec.ffn
    positions = sizes.batch * sizes.tokens
    neighbours = Conv(
        name="feed-forward neighbours",
        count=count,
        in_channels=1,
        out_channels=wide,
        kernel=(1, NEIGHBOURS, NEIGHBOURS),
        out_t=1,
        out_h=1,
        out_w=positions,
        rows=Rows.TOKENS,
        split=Split.COLUMN,
    )
    over_time = Conv(
        name="feed-forward over time",
        count=count,
        in_channels=hidden,
        out_channels=hidden,
        kernel=(NEIGHBOURS, 1, 1),
        out_t=1,
        out_h=1,
        out_w=positions,
        rows=Rows.TOKENS,
    )
    return (
        linear("feed-forward in", rows, (wide, hidden), count=count, split=Split.COLUMN),
        neighbours,
        # The record of the convolution names one channel, so its input is counted here.
        traffic(
            "feed-forward neighbours' input",
            rows,
            (BF16_BYTES * wide, 0.0),
            count=count,
            launches=0,
            eager_launches=0,
            split=Split.COLUMN,
        ),
        traffic(
            "feed-forward SiLU and gate",
            rows,
            ((READ_WRITE + 1.5 * BF16_BYTES) * wide, SILU_AND_GATE * spec.ffn),
            count=count,
            launches=2,
            eager_launches=3,
            split=Split.COLUMN,
        ),
        linear("feed-forward out", rows, (hidden, spec.ffn), count=count, split=Split.ROW),
        *((over_time,) if kind.video else ()),
        *(dit.chain("time residual", rows, hidden, (14.0, 3), count) if kind.video else ()),
    )
