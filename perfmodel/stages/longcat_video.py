"""LongCat-Video: a video transformer with SwiGLU whose modulation is projected once a frame.

Dimensions: https://github.com/hao-ai-lab/FastVideo ``configs/models/dits/longcat.py`` and
``models/dits/longcat.py`` at 2f3d4074; parameters match the published 13.6 billion.
"""

from __future__ import annotations

from perfmodel.ops import Op, Rows
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.stages import dit, joint_model
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import Chains, RowCount
from perfmodel.stages.dit import text_encode as text_encode
from perfmodel.stages.joint_model import embedding
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.layers import READ_WRITE, linear, traffic
from perfmodel.stages.requests import grid

shape_columns = grid

# fp32 LayerNorm with modulation 36; head norm in fp32 34 and rotary embedding 52; plain norm 20.
CHAINS = Chains(
    start=(36.0, 6),
    qk=(86.0, 32),
    middle=(30.0, 7),
    cross_q=(34.0, 8),
    text_k=(34.0, 8),
    cross_end=(42.0, 7),
    end=(10.0, 2),
)
VECTORS = 6


shape = joint_model.padded_shape
"""Defaults, frames down to 4k+1, sizes in multiples of 16; prompts are padded."""


def components(model: ModelSpec) -> tuple[Component, ...]:
    """UMT5, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    frames = (Rows.NONE, shape.batch * shape.latent_frames)
    forward = joint_model.patch_convolution(model, shape) + _after_patches(
        model, sizes_of(shape), frames
    )
    return joint_model.denoise_work(model, shape, forward, _transformer(model))


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    plain = ("feed-forward in", "feed-forward out")
    return joint_model.weights(
        model,
        _after_patches(model, ONE, (Rows.NONE, 1)),
        bias=lambda op: op.name not in plain,
        in_blocks=spec.layers * (2 * hidden + 4 * spec.head_dim),
        elsewhere=spec.patch_width_in * hidden + hidden,
    )


def _after_patches(model: ModelSpec, sizes: Sizes, frames: RowCount) -> tuple[Op, ...]:
    spec = model.transformer
    hidden, narrow = spec.hidden, spec.modulation_width
    text = sizes.text_rows
    modulation = linear(
        "modulation", frames, (VECTORS * hidden, narrow), count=spec.layers, quantizable=False
    )
    return (
        embedding("time projection 1", frames, (narrow, spec.time_width)),
        embedding("time projection 2", frames, (narrow, narrow)),
        embedding("text projection 1", text, (hidden, spec.text_width or hidden)),
        traffic("text activation", text, (READ_WRITE * hidden,) * 2),
        embedding("text projection 2", text, (hidden, hidden)),
        modulation,
        *dit.cross_block(spec, dit.streams(sizes), CHAINS, fused_qkv=True, count=spec.layers),
        embedding("final modulation", frames, (2 * hidden, narrow)),
        *dit.output(spec, sizes, (36.0, 6)),
    )
