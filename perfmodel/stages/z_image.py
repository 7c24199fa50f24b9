"""Z-Image: one stream of image and text tokens, each padded to a multiple of 32.

Two blocks refine the image tokens and two the text tokens before they are joined; sequence
parallelism divides the joined sequence, so the text counts among its tokens.  Without an even
division vLLM-Omni refuses.  Guidance runs both branches as one batch of two; here it counts as two
forwards.  Turbo is distilled: one branch, eight or nine steps.
Sources: diffusers 0.42.1 ``transformer_z_image.py``
(https://pypi.org/project/diffusers/0.42.1/), vLLM-Omni 0.30.0 ``diffusion/models/z_image``
(https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.ops import Attention, Ints, Op, Role, Rows, Split
from perfmodel.shapes import Shape, round_up
from perfmodel.spec.model import ModelSpec, TransformerSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import joint_model
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.joint import (
    COMPLEX_ROPE_BYTES,
    COMPLEX_ROPE_LAUNCHES,
    GATED_BYTES,
    GATED_FUSED_BYTES,
    RMS_BYTES,
    RMS_LAUNCHES,
)
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.layers import READ_WRITE, Eager, linear, rms_chain, rope_chain, traffic
from perfmodel.stages.requests import grid

PADDING = 32
ENCODER_TOKENS = 512
ADAPTER_WIDTH, ADAPTER_INNER = 256, 1024
"""Width of the modulation input, and of the timestep's inner layer."""
BLOCK_MODULATION = 4
BLOCK_NORMS = 4
SCALE_BYTES = 4.0
FINAL_NORM_BYTES = 8.0
RMS: Eager = (RMS_BYTES, RMS_LAUNCHES)
RESIDUAL_BYTES = 6.0


@dataclass(frozen=True, slots=True)
class BlockRows:
    """Where a set of blocks runs: name, rows, sequence length, attention role, modulation."""

    name: str
    kind: Rows
    batch: Ints
    length: Ints
    role: Role
    modulated: bool = True

    @property
    def rows(self) -> tuple[Rows, Ints]:
        """What the rows are, and how many."""
        return self.kind, self.batch * self.length


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, sizes in whole tokens of 16 pixels, both lengths padded to 32.

    The scale multiplies the difference of two branches, so that two run at every scale above 0.
    """
    base = joint_model.base_shape(model, workload, traits, guided_above=0.0)
    return shape_columns(model, base, base.width, base.height, base.frames)


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes; the padded text is part of the sequence."""
    shape = grid(model, base, width, height, frames)
    return replace(
        shape,
        video_tokens=round_up(shape.video_tokens, PADDING),
        extra_tokens=round_up(shape.text_tokens, PADDING),
    )


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Language model, transformer and VAE."""
    return joint_model.components(model, transformer(model))


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """The language model over the padded prompt, once a guidance branch."""
    lengths: dict[str, Ints] = dict.fromkeys(model.text_encoders, ENCODER_TOKENS)
    return joint_model.text_encode(model, shape.branches, lengths)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    lengths = (shape.video_tokens, shape.extra_tokens)
    forward = forward_ops(model, shape.batch, lengths, traits)
    guided = shape.guidance > 0 and not model.distilled
    return joint_model.denoise_work(model, shape, forward, transformer(model), guided=guided)


def transformer(model: ModelSpec) -> Component:
    """The transformer's weights."""
    spec = model.transformer
    count = spec.layers + 2 * spec.refiner_layers
    pad_tokens = 2 * spec.hidden
    whole = joint_model.weights(
        model,
        forward_ops(model, 1, (1, 1), Traits()),
        bias=lambda op: op.split is Split.NONE,
        in_blocks=count * (BLOCK_NORMS * spec.hidden + 2 * spec.head_dim),
        elsewhere=pad_tokens + (spec.text_width or 0),
    )
    return replace(whole, blocks=count)


def forward_ops(
    model: ModelSpec, batch: Ints, lengths: tuple[Ints, Ints], traits: Traits
) -> tuple[Op, ...]:
    """Embeddings, refiners and joined blocks; `lengths` are image and text tokens."""
    spec = model.transformer
    refined, context = refiner_rows(batch, lengths)
    joined = BlockRows("joined", Rows.TOKENS, batch, sum(lengths), Role.SELF)
    return (
        *entry(spec, refined, context),
        *blocks(spec, traits, refined, spec.refiner_layers),
        *blocks(spec, traits, context, spec.refiner_layers),
        *blocks(spec, traits, joined, spec.layers),
        *_exit(spec, joined),
    )


def refiner_rows(batch: Ints, lengths: tuple[Ints, Ints]) -> tuple[BlockRows, BlockRows]:
    """Where image and text tokens are refined: on every rank of the sequence group."""
    image, text = lengths
    return (
        BlockRows("image refiner", Rows.FULL, batch, image, Role.TEXT),
        BlockRows("text refiner", Rows.TEXT, batch, text, Role.TEXT, modulated=False),
    )


def entry(spec: TransformerSpec, image: BlockRows, text: BlockRows) -> tuple[Op, ...]:
    """Embeddings of timestep, latent and text."""
    vector = (Rows.NONE, image.batch)
    text_width = spec.text_width or spec.hidden
    return (
        joint_model.embedding("time projection 1", vector, (ADAPTER_INNER, spec.time_width)),
        joint_model.embedding("time projection 2", vector, (ADAPTER_WIDTH, ADAPTER_INNER)),
        joint_model.embedding("latent embedding", image.rows, (spec.hidden, spec.patch_width_in)),
        traffic(
            "text norm",
            text.rows,
            (READ_WRITE * text_width, RMS_BYTES * text_width),
            eager_launches=RMS_LAUNCHES,
        ),
        joint_model.embedding("text embedding", text.rows, (spec.hidden, text_width)),
    )


def blocks(spec: TransformerSpec, traits: Traits, at: BlockRows, count: int) -> tuple[Op, ...]:
    """`count` blocks: attention and SwiGLU, each between two norms."""
    return (*_attention(spec, traits, at, count), *_feed_forward(spec, traits, at, count))


def _attention(spec: TransformerSpec, traits: Traits, at: BlockRows, count: int) -> tuple[Op, ...]:
    hidden, width = spec.hidden, spec.q_width + spec.kv_width
    parts = 1 if traits.fused_qkv else 3
    rms = rms_chain(traits, RMS)
    rope = rope_chain(traits, (COMPLEX_ROPE_BYTES, COMPLEX_ROPE_LAUNCHES))
    modulation = linear(
        f"{at.name} modulation",
        (Rows.NONE, at.batch),
        (BLOCK_MODULATION * hidden, ADAPTER_WIDTH),
        count=count,
        quantizable=False,
    )
    attention = Attention(
        name=f"{at.name} attention",
        count=count,
        batch=at.batch,
        seq_q=at.length,
        seq_kv=at.length,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        role=at.role,
    )
    return (
        *((modulation,) if at.modulated else ()),
        _norm(f"{at.name} attention norm", traits, at, hidden, count, scaled=at.modulated),
        linear(
            f"{at.name} q, k, v projection",
            at.rows,
            ((spec.q_width + 2 * spec.kv_width) // parts, hidden),
            count=count * parts,
            split=Split.COLUMN,
        ),
        traffic(
            f"{at.name} q, k norm and rope",
            at.rows,
            (READ_WRITE * width, (rms[0] + rope[0]) * width),
            count=count,
            launches=2,
            eager_launches=2 * (rms[1] + rope[1]),
            split=Split.COLUMN,
        ),
        attention,
        traffic(
            f"{at.name} attention layout",
            at.rows,
            (0.0, READ_WRITE * spec.q_width),
            count=count,
            launches=0,
            split=Split.COLUMN,
        ),
        linear(
            f"{at.name} attention output",
            at.rows,
            (hidden, spec.q_width),
            count=count,
            split=Split.ROW,
        ),
        _norm_and_residual(f"{at.name} attention", traits, at, hidden, count),
    )


def _feed_forward(
    spec: TransformerSpec, traits: Traits, at: BlockRows, count: int
) -> tuple[Op, ...]:
    hidden, parts = spec.hidden, 1 if traits.fused_qkv else 2
    return (
        _norm(f"{at.name} feed-forward norm", traits, at, hidden, count, scaled=at.modulated),
        linear(
            f"{at.name} feed-forward in",
            at.rows,
            (2 * spec.ffn // parts, hidden),
            count=count * parts,
            split=Split.COLUMN,
        ),
        traffic(
            f"{at.name} activation",
            at.rows,
            (GATED_FUSED_BYTES * spec.ffn, GATED_BYTES * spec.ffn),
            count=count,
            eager_launches=2,
            split=Split.COLUMN,
        ),
        linear(
            f"{at.name} feed-forward out",
            at.rows,
            (hidden, spec.ffn),
            count=count,
            split=Split.ROW,
        ),
        _norm_and_residual(f"{at.name} feed-forward", traits, at, hidden, count),
    )


def _norm(name: str, traits: Traits, at: BlockRows, hidden: int, count: int, *, scaled: bool) -> Op:
    rms = rms_chain(traits, RMS)
    eager = rms[0] + (SCALE_BYTES if scaled else 0.0)
    return traffic(
        name,
        at.rows,
        (READ_WRITE * hidden, eager * hidden),
        count=count,
        eager_launches=rms[1] + scaled,
    )


def _norm_and_residual(name: str, traits: Traits, at: BlockRows, hidden: int, count: int) -> Op:
    rms = rms_chain(traits, RMS)
    eager = rms[0] + RESIDUAL_BYTES + (SCALE_BYTES if at.modulated else 0.0)
    return traffic(
        f"{name} output norm, gate and residual",
        at.rows,
        (RESIDUAL_BYTES * hidden, eager * hidden),
        count=count,
        eager_launches=rms[1] + 1 + at.modulated,
    )


def _exit(spec: TransformerSpec, at: BlockRows) -> tuple[Op, ...]:
    vector = (Rows.NONE, at.batch)
    return (
        joint_model.embedding("final modulation", vector, (spec.hidden, ADAPTER_WIDTH)),
        traffic(
            "final norm",
            at.rows,
            (READ_WRITE * spec.hidden, FINAL_NORM_BYTES * spec.hidden),
            eager_launches=2,
        ),
        joint_model.embedding("output projection", at.rows, (spec.patch_width_out, spec.hidden)),
    )
