"""Qwen-Image: sixty two-stream blocks over packed latents; editing adds tokens of condition images.

Prompts keep their own length (a template of 34 tokens is run by the language model and dropped).
Editing scales each condition image to about one megapixel, encodes it with the VAE and appends its
tokens to the sequence; their predictions are dropped.  Guidance is a second branch.
Sources: diffusers 0.42.1 ``transformer_qwenimage.py``
(https://pypi.org/project/diffusers/0.42.1/), vLLM-Omni 0.30.0 ``diffusion/models/qwen_image``
(https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

import numpy as np

from perfmodel.ops import Ints, Op
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import joint_model, vision_tower
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.joint import (
    COMPLEX_ROPE_BYTES,
    COMPLEX_ROPE_LAUNCHES,
    RMS_BYTES,
    RMS_LAUNCHES,
    Style,
    join_copies,
    two_stream,
    under,
)
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.layers import READ_WRITE, traffic

TEMPLATE_TOKENS = 34


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, sizes in whole tokens of 16 pixels, tokens of condition images."""
    base = joint_model.base_shape(model, workload, traits)
    return shape_columns(model, base, base.width, base.height, base.frames)


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes; condition images have the form of the output."""
    return joint_model.reference_grid(model, base, width, height, frames, enlarge=True)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Language model, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """The language model once a guidance branch, template included; its vision tower before."""
    lengths = dict.fromkeys(model.text_encoders, shape.text_tokens + TEMPLATE_TOKENS)
    text = joint_model.text_encode(model, shape.branches, lengths)
    vision = model.tasks[shape.task].vision_tokens
    if vision == 0 or np.all(np.asarray(shape.condition_frames) == 0):
        return text
    return (*vision_tower.encode(vision, shape.branches * shape.condition_frames), *text)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = _forward(model, sizes_of(shape, traits), traits)
    return joint_model.denoise_work(model, shape, forward, _transformer(model))


def _transformer(model: ModelSpec) -> Component:
    spec = model.transformer
    ops = _forward(model, ONE, Traits())
    return joint_model.weights(
        model,
        ops,
        bias=lambda op: True,
        in_blocks=4 * spec.head_dim * spec.layers,
        elsewhere=spec.text_width or 0,
    )


def _forward(model: ModelSpec, sizes: Sizes, traits: Traits) -> tuple[Op, ...]:
    spec = model.transformer
    text_width = spec.text_width or spec.hidden
    style = under(traits, Style(rope_bytes=COMPLEX_ROPE_BYTES, rope_launches=COMPLEX_ROPE_LAUNCHES))
    text_norm = traffic(
        "text norm",
        sizes.text_rows,
        (READ_WRITE * text_width, RMS_BYTES * text_width),
        eager_launches=RMS_LAUNCHES,
    )
    return (
        *joint_model.condition(model, sizes),
        *joint_model.token_embedding(model, sizes),
        text_norm,
        joint_model.embedding("text embedding", sizes.text_rows, (spec.hidden, text_width)),
        *two_stream(spec, sizes, style, spec.layers),
        *join_copies(spec, sizes, spec.layers),
        *joint_model.final_layer(model, sizes),
    )
