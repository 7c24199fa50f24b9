"""PixArt-alpha and PixArt-Sigma: an image transformer with cross-attention to T5 states.

Source: diffusers 0.42.1 ``pixart_transformer_2d.py`` and ``attention.py`` BasicTransformerBlock
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
from perfmodel.stages.joint import GATE_SCATTERED, MODULATION_SCATTERED
from perfmodel.stages.joint_model import embedding
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.requests import grid

shape_columns = grid

# LayerNorm 4, product 4, sum 4; a copy and a division behind each attention; residual 6.
CHAINS = Chains(
    start=(12.0, 5),
    layout=(8.0, 2),
    middle=(10.0, 2),
    cross_end=(18.0, 5),
    end=(10.0, 2),
    scattered=(MODULATION_SCATTERED, GATE_SCATTERED, MODULATION_SCATTERED, GATE_SCATTERED),
)
SIZE_INPUTS = (("resolution", 2), ("aspect ratio", 1))
"""Numbers that are embedded beside the timestep, each in a third of the width."""


shape = joint_model.padded_shape
"""Defaults, sizes in whole tokens of 16 pixels, forwards; prompts are padded."""


def components(model: ModelSpec) -> tuple[Component, ...]:
    """T5, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = joint_model.patch_convolution(model, shape) + _after_patches(
        model, sizes_of(shape), fused_qkv=traits.fused_qkv
    )
    return joint_model.denoise_work(model, shape, forward, _transformer(model))


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    patches = spec.patch_width_in * hidden + hidden
    return joint_model.weights(
        model,
        _after_patches(model, ONE, fused_qkv=False),
        bias=lambda op: True,
        in_blocks=spec.layers * dit.SINGLE_MODULATION * hidden,
        elsewhere=patches + 2 * hidden,
    )


def _after_patches(model: ModelSpec, sizes: Sizes, *, fused_qkv: bool) -> tuple[Op, ...]:
    spec = model.transformer
    return (
        *dit.time_embedding(spec, sizes.vector_rows),
        *(_size_embedding(model, sizes) if spec.size_conditions else ()),
        *dit.caption_embedding(spec, sizes.text_rows),
        *dit.cross_block(spec, dit.streams(sizes), CHAINS, fused_qkv=fused_qkv, count=spec.layers),
        *dit.output(spec, sizes),
    )


def _size_embedding(model: ModelSpec, sizes: Sizes) -> tuple[Op, ...]:
    spec = model.transformer
    third = spec.hidden // 3
    rows, batch = sizes.vector_rows
    return tuple(
        embedding(f"{name} projection {place}", (rows, batch * numbers), (third, width))
        for name, numbers in SIZE_INPUTS
        for place, width in ((1, spec.time_width), (2, third))
    )
