"""Cosmos3: two transformer towers of one shape, the text tower feeding keys to the video tower.

The understanding (UND) tower runs causally over the text once a guidance branch and request and
keeps K and V of every layer; the generation (GEN) tower runs every step over the latent tokens and
attends to ``[K_und | K_gen]`` without a mask.  There is no modulation inside a block: the timestep
is added once to the embedded tokens.  Several images of one request run one after the other.
Sources: vLLM-Omni 0.30.0 ``diffusion/models/cosmos3`` (https://pypi.org/project/vllm-omni/0.30.0/),
diffusers 0.42.1 ``transformer_cosmos3.py`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.errors import BadInput, Problem
from perfmodel.ops import Ints, Op
from perfmodel.shapes import Shape, ceil_div
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import cosmos3_weights, sound_decoder, vae
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.cosmos3_towers import gen_tower, und_tower
from perfmodel.stages.layers import elements, rounding, scheduler_step
from perfmodel.stages.requests import (
    Request,
    base_shape,
    grid,
    resolve,
    round_frames,
    round_size,
)

vae_encode, vae_decode = vae.encode, vae.decode


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, rounding up to ``4k + 1`` frames, patch padding, tokens and forwards."""
    request = resolve(model, workload)
    width, height, size_notes = round_size(request, model, model.size_multiple)
    frames, frame_notes = _frames(request, model, traits)
    branches = 1 if request.guidance <= 1 else 2
    base = base_shape(
        request,
        workload,
        (width, height, frames),
        branches,
        condition_frames=_condition_frames(request, frames, traits),
        extra_tokens=_sound_tokens(model, workload, request, frames),
        notes=(*size_notes, *frame_notes),
    )
    shape = shape_columns(model, base, width, height, frames)
    return replace(shape, notes=(*base.notes, *_padding_notes(model, shape)))


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes; the last row and column of patches may be padded."""
    shape = grid(model, base, width, height, frames)
    _, rows, columns = model.transformer.patch
    padded = ceil_div(shape.latent_height, rows) * ceil_div(shape.latent_width, columns)
    sound = base.extra_tokens
    if np.any(np.asarray(sound) > 0):
        sound = _sound_frames(model, shape.frames, base.fps)
    return replace(
        shape,
        video_tokens=shape.latent_frames * padded,
        extra_tokens=sound,
        condition_frames=_condition_columns(model, base, shape.frames),
    )


def _condition_columns(model: ModelSpec, base: Shape, frames: Ints) -> Ints:
    whole_clip = np.any(np.asarray(base.condition_frames) > 1)
    condition = model.tasks[base.task].condition
    if condition == "image" and whole_clip:
        return frames
    if condition == "video":
        return np.minimum(frames, model.tasks[base.task].condition_frames)
    return base.condition_frames


def _frames(request: Request, model: ModelSpec, traits: Traits) -> tuple[int, tuple[Problem, ...]]:
    if request.task == "t2i":
        notes = () if request.frames == 1 else (_one_frame_note(request),)
        return 1, notes
    rule = traits.frame_rounding or model.frame_rounding
    return round_frames(request, rule, model.vae.temporal_ratio)


def sound_decode(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    """Operators that decode the sound tokens; none without sound."""
    if np.all(np.asarray(shape.extra_tokens) == 0):
        return ()
    return sound_decoder.decode(shape.extra_tokens)


def _one_frame_note(request: Request) -> Problem:
    return rounding("image-frames", f"t2i makes one frame, not {request.frames}", "--frames")


def _condition_frames(request: Request, frames: int, traits: Traits) -> int:
    condition = request.defaults.condition
    if condition == "image":
        return frames if traits.condition_whole_clip else 1
    if condition == "video":
        return min(frames, request.defaults.condition_frames)
    return 0


def _sound_frames(model: ModelSpec, frames: Ints, fps: float) -> Ints:
    seconds = np.asarray(frames) / fps
    tokens = np.ceil(np.round(seconds * model.transformer.sound_tokens_per_s, 9)).astype(np.int64)
    return int(tokens) if np.ndim(frames) == 0 else tokens


def _sound_tokens(model: ModelSpec, workload: Workload, request: Request, frames: int) -> int:
    if not workload.sound:
        return 0
    if model.transformer.sound_channels == 0 or model.distilled or request.task == "t2i":
        raise BadInput(
            Problem(
                "sound",
                f"{model.slug} {request.task} makes no sound; drop --sound or use "
                "--model cosmos3-nano --task t2v",
                field="--sound",
                suggestions=("--model cosmos3-nano --task t2v",),
            )
        )
    return int(_sound_frames(model, frames, request.fps))


def _padding_notes(model: ModelSpec, grid: Shape) -> tuple[Problem, ...]:
    rows, columns = model.transformer.patch[1:]
    if grid.latent_height % rows == 0 and grid.latent_width % columns == 0:
        return ()
    message = (
        f"latent {grid.latent_width}x{grid.latent_height} is padded to "
        f"{ceil_div(grid.latent_width, columns) * columns}x"
        f"{ceil_div(grid.latent_height, rows) * rows} for the {columns}x{rows} patch"
    )
    return (rounding("patch-padding", message, "--size"),)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """All weights that a server loads (the vision encoder and ``lm_head`` are not)."""
    return cosmos3_weights.components(model)


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """Nothing: the text tower runs inside the denoise stage."""
    return ()


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """UND tower a branch and request, GEN tower a forward, scheduler a step."""
    spec = model.transformer
    und, gen = und_tower(model, shape), gen_tower(model, shape, traits)
    each_forward = traits.understanding_each_forward
    latent = elements(
        spec.out_channels, shape.latent_frames, shape.latent_height, shape.latent_width
    )
    steps = scheduler_step(latent, guided=shape.branches > 1)
    return DenoiseWork(
        per_request=() if each_forward else und,
        per_forward=(*und, *gen) if each_forward else gen,
        per_step=tuple(replace(op, count=shape.batch) for op in steps),
        blocks=spec.layers,
        block_params=cosmos3_weights.layer_params(model, text=False),
        hidden=spec.hidden,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        exit_width=spec.hidden,
        velocity_elements=latent,
        sequence_parallel_masked=True,
    )
