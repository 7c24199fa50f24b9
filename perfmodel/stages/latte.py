"""Latte: an image transformer's blocks on every frame, each followed by one over time.

A block over space attends within a frame and to the text, which is projected again for every
frame; a block over time attends to the same position of all frames and has no text.  Sequence
parallelism divides the positions of a frame, so attention over time stays on a rank.
Sources: diffusers 0.42.1 ``latte_transformer_3d.py``, ``attention.py`` BasicTransformerBlock,
``pipelines/latte`` (https://pypi.org/project/diffusers/0.42.1/); xDiT 0.7.0
``pipelines/pipeline_latte.py`` (https://pypi.org/project/xfuser/0.7.0/).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops import Attention, Ints, Op, Role, Rows
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.stages import dit, joint_model
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import Streams
from perfmodel.stages.dit import text_encode as text_encode
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.layers import READ_WRITE, traffic
from perfmodel.stages.pixart import CHAINS
from perfmodel.stages.requests import grid

shape_columns = grid

KINDS = 2
"""Blocks of a layer: over space, over time."""


shape = joint_model.padded_shape
"""Defaults, sizes in whole tokens of 16 pixels, forwards; prompts are padded."""


def components(model: ModelSpec) -> tuple[Component, ...]:
    """T5, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = joint_model.patch_convolution(model, shape) + _after_patches(
        model, sizes_of(shape), shape.latent_frames, fused_qkv=traits.fused_qkv
    )
    return joint_model.denoise_work(model, shape, forward, _transformer(model))


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    whole = joint_model.weights(
        model,
        _after_patches(model, ONE, 1, fused_qkv=False),
        bias=lambda op: True,
        in_blocks=KINDS * spec.layers * dit.SINGLE_MODULATION * hidden,
        elsewhere=spec.patch_width_in * hidden + hidden + 2 * hidden,
    )
    return replace(whole, blocks=KINDS * spec.layers)


def _after_patches(
    model: ModelSpec, sizes: Sizes, frames: Ints, *, fused_qkv: bool
) -> tuple[Op, ...]:
    spec, hidden = model.transformer, model.transformer.hidden
    pictures = sizes.batch * frames
    positions = sizes.tokens // frames
    space = Streams(
        own=sizes.latent_rows,
        asking=sizes.latent_rows,
        text=(Rows.TEXT, pictures * sizes.text),
        batch=pictures,
        length=positions,
        asking_length=positions,
        text_length=sizes.text,
    )
    over_time = replace(space, batch=sizes.batch * positions, length=frames)
    swap = traffic(
        "swap space and time",
        sizes.latent_rows,
        (READ_WRITE * hidden,) * 2,
        count=KINDS * spec.layers,
        is_copy=True,
    )
    return (
        *dit.time_embedding(spec, sizes.vector_rows),
        *dit.caption_embedding(spec, sizes.text_rows),
        *dit.cross_block(spec, space, CHAINS, fused_qkv=fused_qkv, count=spec.layers),
        *_time_blocks(model, over_time, fused_qkv=fused_qkv),
        swap,
        *dit.output(spec, sizes),
    )


def _time_blocks(model: ModelSpec, rows: Streams, *, fused_qkv: bool) -> tuple[Op, ...]:
    """Blocks without attention to text, over the frames of each position."""
    spec, count = model.transformer, model.transformer.layers
    attention = dit.self_attention(spec, rows, CHAINS, fused_qkv=fused_qkv, count=count)
    ops = (
        *dit.chain("norm and modulation", rows.own, spec.hidden, CHAINS.start, count),
        *(_local(op) for op in attention),
        *dit.feed_forward(spec, rows, CHAINS, count),
    )
    return tuple(replace(op, name=f"time {op.name}") for op in ops)


def _local(op: Op) -> Op:
    return replace(op, role=Role.LOCAL) if isinstance(op, Attention) else op
