"""Wan2.1 and Wan2.2: a video transformer with cross-attention to text (and, once, to an image).

Text keys and values are projected anew in every forward.  Wan2.2 A14B has two full transformers of
one shape that are both resident; the step's noise level selects one.  TI2V gives every token its
own timestep when an image is given.  Outputs of one request run as one batch.
Sources: vLLM-Omni 0.30.0 ``diffusion/models/wan2_2`` (https://pypi.org/project/vllm-omni/0.30.0/),
diffusers 0.42.1 ``transformer_wan.py`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops import Ints, Op
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import joint_model, text_encoder, vae, wan_blocks
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.requests import (
    Request,
    base_shape,
    grid,
    refuse_sound,
    resolve,
    round_frames,
    round_size,
)
from perfmodel.stages.schedule import expert_steps

vae_encode, vae_decode = vae.encode, vae.decode


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, the floor to ``F // 4 * 4 + 1`` frames and whole patches, tokens, forwards."""
    request = resolve(model, workload)
    refuse_sound(model, workload)
    rule = traits.frame_rounding or model.frame_rounding
    frames, frame_notes = round_frames(request, rule, model.vae.temporal_ratio)
    width, height, size_notes = round_size(request, model, model.size_multiple)
    branches = 1 if request.guidance <= 1 else 2
    base = base_shape(
        request,
        workload,
        (width, height, frames),
        branches,
        padded_text=_text_tokens(model),
        condition_frames=_condition_frames(request, frames),
        notes=(*size_notes, *frame_notes),
    )
    return shape_columns(model, base, width, height, frames)


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes; frames and sizes are rounded as in `shape`."""
    shape = grid(model, base, width, height, frames)
    clip = model.tasks[base.task].condition == "clip"
    return replace(shape, condition_frames=shape.frames) if clip else shape


def experts(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[int, int]:
    """Steps that the high-noise and the low-noise transformer run.

    The engine's boundary and shift win over the checkpoint's: vLLM-Omni does not read these.
    """
    shift = traits.flow_shift or model.tasks[shape.task].flow_shift
    boundary = traits.boundary_ratio or model.expert_boundary
    steps = int(shape.steps)
    if model.experts == 1 or boundary is None:
        return steps, 0
    return expert_steps(steps, shift, boundary)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Encoders, the transformers (all resident) and the VAE."""
    encoders = tuple(text_encoder.component(name) for name in model.text_encoders)
    names = ("transformer", "transformer_2")[: model.experts]
    transformers = tuple(wan_blocks.component(model, name) for name in names)
    return (*encoders, *transformers, vae.component(model))


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """The text encoder once a guidance branch, the image encoder once."""
    found: list[Op] = []
    for name in model.text_encoders:
        is_text = text_encoder.ENCODERS[name].is_text
        found += text_encoder.encode(name, shape.branches if is_text else 1)
    return tuple(found)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    spec = model.transformer
    reduces = [
        ("q, k norm sums over tp", 3 * spec.layers, 1, True),
        ("text k norm sums over tp", spec.layers, 1, False),
    ]
    if spec.image_width:
        reduces.append(("image k norm sums over tp", spec.layers, 1, False))
    return joint_model.denoise_work(
        model,
        shape,
        wan_blocks.forward(model, shape, traits),
        wan_blocks.component(model, "transformer"),
        row_reduces=reduces,
        guided=shape.branches > 1,
    )


def sound_decode(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    """Nothing: Wan makes no sound."""
    return ()


def _condition_frames(request: Request, frames: int) -> int:
    # "clip": the image and zero frames to the full length; "image": that frame alone (TI2V).
    return {"none": 0, "image": 1, "clip": frames, "video": frames}[request.defaults.condition]


def _text_tokens(model: ModelSpec) -> int:
    lengths = [text_encoder.ENCODERS[name] for name in model.text_encoders]
    return next(encoder.tokens for encoder in lengths if encoder.is_text)
