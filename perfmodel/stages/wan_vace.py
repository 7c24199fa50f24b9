"""Wan VACE: the Wan transformer with control blocks in the same module.

Control blocks have the form of the others, a product before the first and one after each; their
outputs are added to every fifth (1.3B: second) block.  The clip to edit is encoded twice, what
stays and what is made anew; its mask only changes form.
Sources: diffusers 0.42.1 ``transformer_wan_vace.py``, ``pipelines/wan/pipeline_wan_vace.py``
(https://pypi.org/project/diffusers/0.42.1/), vLLM-Omni 0.30.0 ``diffusion/models/wan2_2``
(https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops import Ints, Op, Rows
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.stages import text_encoder, vae, wan, wan_blocks
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.layers import linear, traffic
from perfmodel.stages.wan import shape as shape
from perfmodel.stages.wan import shape_columns as shape_columns
from perfmodel.stages.wan import sound_decode as sound_decode
from perfmodel.stages.wan import text_encode as text_encode
from perfmodel.stages.wan import vae_decode as vae_decode

CLIPS = 2
SCALED_SUM_BYTES = 10.0
ADD_BYTES = 6.0


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Text encoder, transformer with its control blocks, and VAE."""
    encoders = tuple(text_encoder.component(name) for name in model.text_encoders)
    return (*encoders, _transformer(model), vae.component(model))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """Transformer and control blocks a forward, scheduler and guidance a step."""
    control = model.transformer.control_layers
    work = wan.denoise(model, shape, traits)
    blocks = work.blocks + control
    reduces = tuple(
        (name, count // work.blocks * blocks, elements, tokens)
        for name, count, elements, tokens in work.row_reduces
    )
    forward = (*work.per_forward, *_control(model, shape, traits))
    return replace(work, per_forward=forward, blocks=blocks, row_reduces=reduces)


def vae_encode(
    model: ModelSpec, frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Both halves of the clip."""
    ops = vae.encode(model, frames, height, width, traits)
    return tuple(replace(op, count=CLIPS * op.count) for op in ops)


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    whole = wan_blocks.component(model, "transformer")
    square, count = hidden * hidden + hidden, spec.control_layers
    blocks = count * (wan_blocks.block_params(model) + square) + square
    volume = spec.patch[0] * spec.patch[1] * spec.patch[2]
    patches = spec.control_channels * volume * hidden + hidden
    products = whole.tp_params // spec.layers * count
    return replace(
        whole,
        params=whole.params + blocks + patches,
        block_params=whole.block_params + blocks,
        blocks=whole.blocks + count,
        tp_params=whole.tp_params + products,
        quantizable_params=whole.quantizable_params + products,
    )


def _control(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    spec, hidden = model.transformer, model.transformer.hidden
    count, rows = spec.control_layers, (Rows.TOKENS, shape.batch * shape.tokens)
    few = model.model_copy(update={"transformer": spec.model_copy(update={"layers": count})})
    blocks = wan_blocks.blocks(few, shape, traits)
    return (
        *wan_blocks.patches("control patch embedding", model, shape, spec.control_channels),
        linear("control entry", rows, (hidden, hidden), quantizable=False),
        traffic("control entry sum", rows, (ADD_BYTES * hidden,) * 2),
        *(replace(op, name=f"control {op.name}") for op in blocks),
        linear("control exit", rows, (hidden, hidden), count=count, quantizable=False),
        traffic(
            "control sum",
            rows,
            (ADD_BYTES * hidden, SCALED_SUM_BYTES * hidden),
            count=count,
            eager_launches=2,
        ),
    )
