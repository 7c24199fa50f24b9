"""Wan2.1 and Wan2.2: a video transformer with cross-attention to text (and, once, to an image).

Text keys and values are projected anew in every forward.  Wan2.2 A14B has two full transformers of
one shape that are both resident; the step's noise level selects one.  TI2V gives every token its
own timestep when an image is given.  Outputs of one request run as one batch.
Sources: vLLM-Omni 0.30.0 ``diffusion/models/wan2_2`` (https://pypi.org/project/vllm-omni/0.30.0/),
diffusers 0.42.1 ``transformer_wan.py`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.errors import BadInput, Problem
from perfmodel.ops import Ints, Op
from perfmodel.shapes import Shape, causal_latent_frames
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import text_encoder, vae, wan_blocks
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.layers import elements, rounding, scheduler_step
from perfmodel.stages.requests import Request, resolve, round_frames, round_size, rounded_frames
from perfmodel.stages.schedule import expert_steps, forwards


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, the floor to ``F // 4 * 4 + 1`` frames and whole patches, tokens, forwards."""
    request = resolve(model, workload)
    if workload.sound:
        raise BadInput(_no_sound(model))
    rule = traits.frame_rounding or model.frame_rounding
    frames, frame_notes = round_frames(request, rule, model.vae.temporal_ratio)
    width, height, size_notes = round_size(request, model, model.size_multiple)
    branches = 1 if request.guidance <= 1 else 2
    tokens = _text_tokens(model)
    base = Shape(
        task=request.task,
        batch=workload.batch,
        width=width,
        height=height,
        frames=frames,
        fps=request.fps,
        steps=request.steps,
        guidance=request.guidance,
        branches=branches,
        forwards=forwards(
            request.steps, branches, request.defaults.flow_shift, request.defaults.guidance_interval
        ),
        latent_frames=0,
        latent_height=0,
        latent_width=0,
        video_tokens=0,
        text_tokens=tokens,
        condition_frames=_condition_frames(request, frames),
        assumed=tuple(name for name in request.assumed if name != "text_tokens"),
        notes=(*request.notes, *size_notes, *frame_notes, *_text_notes(workload, tokens)),
    )
    return shape_columns(model, base, width, height, frames)


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes; frames and sizes are rounded as in `shape`."""
    vae, multiple = model.vae, model.size_multiple
    frames = rounded_frames(frames, model.frame_rounding, vae.temporal_ratio)
    width, height = width // multiple * multiple, height // multiple * multiple
    latent_frames = causal_latent_frames(frames, vae.temporal_ratio)
    latent_height, latent_width = height // vae.spatial_ratio, width // vae.spatial_ratio
    _, rows, columns = model.transformer.patch
    clip = model.tasks[base.task].condition == "clip"
    return replace(
        base,
        width=width,
        height=height,
        frames=frames,
        latent_frames=latent_frames,
        latent_height=latent_height,
        latent_width=latent_width,
        video_tokens=latent_frames * (latent_height // rows) * (latent_width // columns),
        condition_frames=frames if clip else base.condition_frames,
    )


def experts(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[int, int]:
    """Steps that the high-noise and the low-noise transformer run.

    The engine's boundary wins over the checkpoint's, as vLLM-Omni does not read the latter.
    """
    boundary = traits.boundary_ratio or model.expert_boundary
    steps = int(shape.steps)
    if model.experts == 1 or boundary is None:
        return steps, 0
    return expert_steps(steps, model.tasks[shape.task].flow_shift, boundary)


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
    latent = elements(
        spec.out_channels, shape.latent_frames, shape.latent_height, shape.latent_width
    )
    reduces = [
        ("q, k norm sums over tp", 3 * spec.layers, 1, True),
        ("text k norm sums over tp", spec.layers, 1, False),
    ]
    if spec.image_width:
        reduces.append(("image k norm sums over tp", spec.layers, 1, False))
    return DenoiseWork(
        per_forward=wan_blocks.forward(model, shape, traits),
        per_step=scheduler_step(elements(shape.batch, latent), guided=shape.branches > 1),
        blocks=spec.layers,
        block_params=wan_blocks.block_params(model),
        row_reduces=tuple(reduces),
        hidden=spec.hidden,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        exit_width=spec.patch_width_out,
        velocity_elements=latent,
    )


def vae_encode(
    model: ModelSpec, frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Operators that encode one map of pixels."""
    return vae.encode(model, frames, height, width, traits)


def vae_decode(
    model: ModelSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Operators that decode one latent map."""
    return vae.decode(model, latent_frames, height, width, traits)


def sound_decode(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    """Nothing: Wan makes no sound."""
    return ()


def _condition_frames(request: Request, frames: int) -> int:
    # "clip": the image and zero frames to the full length; "image": that frame alone (TI2V).
    return {"none": 0, "image": 1, "clip": frames, "video": frames}[request.defaults.condition]


def _text_tokens(model: ModelSpec) -> int:
    lengths = [text_encoder.ENCODERS[name] for name in model.text_encoders]
    return next(encoder.tokens for encoder in lengths if encoder.is_text)


def _text_notes(workload: Workload, tokens: int) -> tuple[Problem, ...]:
    if workload.text_tokens in (None, tokens):
        return ()
    message = f"prompts are padded (or cut) to {tokens} tokens, not {workload.text_tokens}"
    return (rounding("text-padding", message, "--text-tokens"),)


def _no_sound(model: ModelSpec) -> Problem:
    return Problem(
        "sound",
        f"{model.slug} makes no sound; drop --sound or use --model cosmos3-nano",
        field="--sound",
        suggestions=("--model cosmos3-nano",),
    )
