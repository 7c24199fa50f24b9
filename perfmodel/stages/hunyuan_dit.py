"""HunyuanDiT: an image transformer with skip connections; text of BERT and mT5 side by side.

Source: diffusers 0.42.1 ``hunyuan_transformer_2d.py`` and ``embeddings.py``
HunyuanCombinedTimestepTextSizeStyleEmbedding (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from perfmodel.ops import Op, Rows
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.stages import dit, joint_model, text_encoder
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import Chains
from perfmodel.stages.dit import text_encode as text_encode
from perfmodel.stages.joint_model import embedding
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.layers import linear
from perfmodel.stages.requests import grid

shape_columns = grid

# fp32 LayerNorm 20 and shift 4; head norms 4 and rotary embedding 52; copy and division 8.
CHAINS = Chains(
    start=(24.0, 9),
    qk=(56.0, 18),
    layout=(8.0, 2),
    middle=(26.0, 6),
    cross_q=(56.0, 9),
    text_k=(4.0, 1),
    cross_end=(26.0, 6),
    end=(6.0, 1),
)
# Concatenation 8 and fp32 LayerNorm 40 a hidden element, over twice the width.
SKIP_NORM = (24.0, 6)
WIDER = 4
"""Inner width of the small text networks, in widths of what enters."""


shape = joint_model.padded_shape
"""Defaults, sizes in whole tokens of 16 pixels; both texts are padded and joined."""


def components(model: ModelSpec) -> tuple[Component, ...]:
    """BERT, mT5, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = joint_model.patch_convolution(model, shape) + _after_patches(
        model, sizes_of(shape), fused_qkv=traits.fused_qkv
    )
    return joint_model.denoise_work(model, shape, forward, _transformer(model))


def _t5(model: ModelSpec) -> text_encoder.Encoder:
    return text_encoder.ENCODERS[model.text_encoders[-1]]


def _skips(model: ModelSpec) -> int:
    """Blocks of the second half, which take the state of their mirror in the first."""
    return (model.transformer.layers - 1) // 2


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    states = spec.text_stream_width
    # Three norms and four head norms with bias a block; skip norms over twice the width.
    norms = spec.layers * (6 * hidden + 8 * spec.head_dim) + _skips(model) * 4 * hidden
    positions = (_t5(model).tokens + 1) * _t5(model).hidden
    padding = model.tasks[model.default_task].text_tokens * states
    return joint_model.weights(
        model,
        _after_patches(model, ONE, fused_qkv=False),
        bias=lambda op: True,
        in_blocks=norms,
        elsewhere=spec.patch_width_in * hidden + hidden + positions + padding,
    )


def _after_patches(model: ModelSpec, sizes: Sizes, *, fused_qkv: bool) -> tuple[Op, ...]:
    spec, hidden, skips = model.transformer, model.transformer.hidden, _skips(model)
    rows = sizes.latent_rows
    return (
        *_conditions(model, sizes),
        linear("shift projection", sizes.vector_rows, (hidden, hidden), count=spec.layers),
        *dit.chain("skip norm", rows, 2 * hidden, SKIP_NORM, skips),
        linear("skip projection", rows, (hidden, 2 * hidden), count=skips),
        *dit.cross_block(spec, dit.streams(sizes), CHAINS, fused_qkv=fused_qkv, count=spec.layers),
        embedding("final modulation", sizes.vector_rows, (2 * hidden, hidden)),
        *dit.output(spec, sizes, (28.0, 6)),
    )


def _conditions(model: ModelSpec, sizes: Sizes) -> tuple[Op, ...]:
    """Timestep, mT5 states to the width of BERT's, and mT5 pooled by an attention."""
    spec, hidden, wide = model.transformer, model.transformer.hidden, _t5(model).hidden
    vector, states = sizes.vector_rows, spec.text_stream_width
    tokens = _t5(model).tokens
    text = (Rows.TEXT, sizes.batch * tokens)
    pooled = (Rows.TEXT, sizes.batch * (tokens + 1))
    return (
        embedding("time projection 1", vector, (hidden, spec.time_width)),
        embedding("time projection 2", vector, (hidden, hidden)),
        embedding("text projection 1", text, (WIDER * wide, wide)),
        embedding("text projection 2", text, (states, WIDER * wide)),
        embedding("text pooling q", vector, (wide, wide)),
        linear("text pooling k", pooled, (wide, wide), quantizable=False),
        linear("text pooling v", pooled, (wide, wide), quantizable=False),
        joint_model.pooling_attention(sizes.batch, tokens + 1, wide),
        embedding("text pooling output", vector, (spec.pooled_width, wide)),
        embedding("condition projection 1", vector, (WIDER * hidden, spec.pooled_width)),
        embedding("condition projection 2", vector, (hidden, WIDER * hidden)),
    )
