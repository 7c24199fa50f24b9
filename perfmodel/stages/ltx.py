"""LTX-Video: a video transformer over strongly compressed latents, with cross-attention to T5.

Source: diffusers 0.42.1 ``transformer_ltx.py`` and ``pipelines/ltx``
(https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from perfmodel.ops import Op
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.stages import dit, joint_model
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import Chains
from perfmodel.stages.dit import text_encode as text_encode
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.requests import grid

shape_columns = grid

# RMS norm in fp32 without weight 30, modulation 8; over the full width with weight one fused kernel
# of torch 4; rotary embedding with tables as wide as q 60.
RMS, MODULATE, WIDE_RMS, ROPE = 30.0, 8.0, 4.0, 60.0
CHAINS = Chains(
    start=(RMS + MODULATE, 14),
    qk=(WIDE_RMS + ROPE, 20),
    middle=(10.0, 2),
    cross_q=(WIDE_RMS, 1),
    text_k=(WIDE_RMS, 1),
    cross_end=(6.0 + RMS + MODULATE, 14),
    end=(10.0, 2),
)


shape = joint_model.padded_shape
"""Defaults, frames down to 8k+1, sizes in multiples of 32; prompts are padded."""


def components(model: ModelSpec) -> tuple[Component, ...]:
    """T5, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    spec = model.transformer
    forward = _forward(model, sizes_of(shape), fused_qkv=traits.fused_qkv)
    reduces = [
        ("q, k norm sums over tp", 3 * spec.layers, 1, True),
        ("text k norm sums over tp", spec.layers, 1, False),
    ]
    return joint_model.denoise_work(model, shape, forward, _transformer(model), row_reduces=reduces)


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    return joint_model.weights(
        model,
        _forward(model, ONE, fused_qkv=False),
        bias=lambda op: True,
        in_blocks=spec.layers * (dit.SINGLE_MODULATION + 4) * hidden,
        elsewhere=2 * hidden,
    )


def _forward(model: ModelSpec, sizes: Sizes, *, fused_qkv: bool) -> tuple[Op, ...]:
    spec = model.transformer
    return (
        *dit.token_linear(spec, sizes),
        *dit.time_embedding(spec, sizes.vector_rows),
        *dit.caption_embedding(spec, sizes.text_rows),
        *dit.cross_block(spec, dit.streams(sizes), CHAINS, fused_qkv=fused_qkv, count=spec.layers),
        *dit.output(spec, sizes),
    )
