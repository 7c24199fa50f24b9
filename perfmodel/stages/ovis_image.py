"""Ovis-Image: FLUX.1's blocks with SwiGLU, text of a small language model, guidance as a branch.

The prompt follows an instruction of 28 tokens; both are padded to 284 and run by the language
model, which then drops the instruction, so 256 tokens reach the transformer.
Sources: diffusers 0.42.1 ``transformer_ovis_image.py``, ``pipelines/ovis_image``
(https://pypi.org/project/diffusers/0.42.1/), vLLM-Omni 0.30.0 ``diffusion/models/ovis_image``
(https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from perfmodel.ops import Op
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.stages import joint_model, joint_single
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.flux import RMS_BYTES
from perfmodel.stages.joint import RMS_LAUNCHES, Style, join_copies, two_stream, under
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.layers import READ_WRITE, traffic
from perfmodel.stages.requests import grid

shape_columns = grid

INSTRUCTION_TOKENS = 28


shape = joint_model.padded_shape
"""Defaults, sizes in whole tokens of 16 pixels, forwards; prompts are padded."""


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Language model, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """The language model once a guidance branch, instruction included."""
    lengths = dict.fromkeys(model.text_encoders, shape.text_tokens + INSTRUCTION_TOKENS)
    return joint_model.text_encode(model, shape.branches, lengths)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = _forward(model, sizes_of(shape, traits), traits)
    return joint_model.denoise_work(model, shape, forward, _transformer(model))


def _transformer(model: ModelSpec) -> Component:
    spec = model.transformer
    return joint_model.weights(
        model,
        _forward(model, ONE, Traits()),
        bias=lambda op: True,
        in_blocks=spec.head_dim * (4 * spec.layers + 2 * spec.single_layers),
        elsewhere=spec.text_width or 0,
    )


def _forward(model: ModelSpec, sizes: Sizes, traits: Traits) -> tuple[Op, ...]:
    spec = model.transformer
    text_width = spec.text_width or spec.hidden
    style = under(traits, Style(rms_bytes=RMS_BYTES), torch_norm=True)
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
        *joint_single.join_streams(spec, sizes, spec.single_layers),
        *joint_single.blocks(spec, sizes, style, merged=False, gather=False),
        *joint_model.final_layer(model, sizes),
    )
