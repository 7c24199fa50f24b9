"""Cosmos-Predict2 and 2.5: a video transformer whose modulation is a low-rank product a block.

Video models give every frame a timestep of its own (conditioned frames are clean).  The published
pipelines of diffusers spread the embedding to all tokens first and project it for each token; the
original code projects it once a frame (`Traits.modulation_per_frame`).  2.5 takes the states of
all layers of its text encoder and reduces them in every forward.
Sources: diffusers 0.42.1 ``transformer_cosmos.py``, ``pipelines/cosmos``
(https://pypi.org/project/diffusers/0.42.1/); https://github.com/nvidia-cosmos/cosmos-predict2.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops import Ints, Op, Rows
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec, TransformerSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import dit, joint_model
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import NOTHING, Chains, RowCount
from perfmodel.stages.dit import text_encode as text_encode
from perfmodel.stages.joint import GATE_SCATTERED, MODULATION_SCATTERED
from perfmodel.stages.joint_model import embedding
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.layers import READ_WRITE, Eager, linear, rms_chain, rope_chain, rounding
from perfmodel.stages.requests import grid
from perfmodel.stages.schedule import forwards

# LayerNorm 4, product 4, sum 4; with a modulation a token it is read too, and SiLU 4, the sum of
# low-rank and shared parts 18, and 1 + scale 4 come besides.
NORM, TOKEN_NORM = 12.0, 42.0
RMS: Eager = (34.0, 7)
ROPE: Eager = (52.0, 9)
GATE, TOKEN_GATE = 10.0, 12.0
_BOTH = MODULATION_SCATTERED + GATE_SCATTERED
SCATTERED = (MODULATION_SCATTERED, _BOTH, _BOTH, GATE_SCATTERED)
ADAPTERS = 3
"""Low-rank products of a block: for self-attention, attention to text and feed-forward."""
VECTORS = 3
PADDING_CHANNELS = 1
"""A map of padded pixels joins the latent channels."""


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, frames down to 4k+1, sizes in multiples of 16; prompts are padded."""
    base = joint_model.padded_shape(model, workload, traits)
    base = _condition(model, base)
    if traits.closing_steps == 0:
        return base
    steps = base.steps + traits.closing_steps
    note = rounding("closing-step", f"{base.steps} steps run as {steps}", "--steps")
    return replace(
        base,
        steps=steps,
        forwards=forwards(steps, base.branches, 1.0, None),
        notes=(*base.notes, note),
    )


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes."""
    return _condition(model, grid(model, base, width, height, frames))


def _condition(model: ModelSpec, shape: Shape) -> Shape:
    """The condition is repeated to the length of the clip and encoded whole."""
    whole = model.tasks[shape.task].condition in ("clip", "video")
    return replace(shape, condition_frames=shape.frames) if whole else shape


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Text encoder, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    rows = modulation_rows(model, shape, traits)
    frames = rows if rows[0] is Rows.NONE else (Rows.NONE, shape.batch * shape.latent_frames)
    forward = forward_ops(model, sizes_of(shape), (frames, rows), traits)
    return joint_model.denoise_work(model, shape, forward, _transformer(model))


def modulation_rows(model: ModelSpec, shape: Shape, traits: Traits) -> RowCount:
    """Rows that the low-rank products have: tokens, frames, or one an image."""
    if not model.tasks[shape.task].per_token_timestep:
        return Rows.NONE, shape.batch
    if traits.modulation_per_frame:
        return Rows.NONE, shape.batch * shape.latent_frames
    return Rows.TOKENS, shape.batch * shape.tokens


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    one = (Rows.NONE, 1)
    return joint_model.weights(
        model,
        forward_ops(model, ONE, (one, one), Traits()),
        bias=lambda op: op.name == "text reduction",
        in_blocks=spec.layers * 4 * spec.head_dim,
        elsewhere=hidden,
    )


def chains_of(rows: RowCount, traits: Traits) -> Chains:
    """Unfused chains of a block whose low-rank products have `rows`."""
    each = rows[0] is Rows.TOKENS
    norm, gate = (TOKEN_NORM, TOKEN_GATE) if each else (NORM, GATE)
    rms, rope = rms_chain(traits, RMS), rope_chain(traits, ROPE)
    return Chains(
        start=(norm, 6),
        qk=(rms[0] + rope[0], 2 * (rms[1] + rope[1])),
        # TransformerEngine's attention takes and leaves tokens before heads.
        layout=NOTHING if traits.fused_norm_rope else (READ_WRITE, 1),
        middle=(gate + norm, 8),
        cross_q=rms,
        text_k=rms,
        cross_end=(gate + norm, 8),
        end=(gate, 2),
        # Vectors of a frame are broadcast over its tokens; those of a token are read as they are.
        scattered=(0.0, 0.0, 0.0, 0.0) if each else SCATTERED,
    )


def forward_ops(
    model: ModelSpec, sizes: Sizes, rows: tuple[RowCount, RowCount], traits: Traits
) -> tuple[Op, ...]:
    """One forward; `rows` are those of the timestep's embedding, and of the low-rank products."""
    spec, (times, low) = model.transformer, rows
    hidden, rank = spec.hidden, spec.modulation_width
    return (
        *dit.token_linear(spec, sizes, extra_channels=PADDING_CHANNELS),
        *conditions(model, sizes, times),
        *blocks(spec, sizes, low, spec.layers, traits),
        embedding("final modulation down", low, (rank, hidden)),
        embedding("final modulation up", low, (2 * hidden, rank)),
        *dit.output(spec, sizes, (chains_of(low, traits).start[0], 6)),
    )


def conditions(model: ModelSpec, sizes: Sizes, times: RowCount) -> tuple[Op, ...]:
    """Two products for the timestep, and one that reduces the text states."""
    hidden = model.transformer.hidden
    return (
        embedding("time projection 1", times, (hidden, hidden)),
        embedding("time projection 2", times, (VECTORS * hidden, hidden)),
        *_text_reduction(model, sizes),
    )


def blocks(
    spec: TransformerSpec, sizes: Sizes, low: RowCount, count: int, traits: Traits
) -> tuple[Op, ...]:
    """`count` blocks with their low-rank products."""
    hidden, rank = spec.hidden, spec.modulation_width
    adapters = tuple(
        linear(name, low, width, count=ADAPTERS * count, quantizable=False)
        for name, width in (
            ("modulation down", (rank, hidden)),
            ("modulation up", (VECTORS * hidden, rank)),
        )
    )
    rows = dit.streams(sizes)
    return (
        *adapters,
        *dit.cross_block(spec, rows, chains_of(low, traits), fused_qkv=False, count=count),
    )


def _text_reduction(model: ModelSpec, sizes: Sizes) -> tuple[Op, ...]:
    spec = model.transformer
    if not spec.raw_text_width:
        return ()
    width = (spec.text_stream_width, spec.raw_text_width)
    return (embedding("text reduction", sizes.text_rows, width),)
