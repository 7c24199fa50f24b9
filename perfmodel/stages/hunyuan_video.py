"""HunyuanVideo: two-stream then single-stream blocks over video, guidance as an input.

Text is the last states of a Llama-3-8B (256 tokens kept of 351), refined by two blocks at every
step, and a pooled CLIP vector.  Only video tokens are rotated.
Source: diffusers 0.42.1 ``transformer_hunyuan_video.py``
(https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from perfmodel.ops import Op
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import hunyuan_text, joint_model, joint_single
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.joint import Style, join_copies, two_stream, under
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.requests import grid

shape_columns = grid

TEXT_TOKENS = 256
REJOIN_BYTES = 16.0
"""Eager copies a hidden element: q and k of video and text joined again after the rotation."""


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, frames to 4k + 1, sizes in whole tokens of 16 pixels."""
    return joint_model.base_shape(model, workload, traits, padded_text=TEXT_TOKENS)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Llama, CLIP, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """Llama and CLIP once a guidance branch."""
    return joint_model.text_encode(model, shape.branches, {})


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = joint_model.patch_convolution(model, shape) + _forward(
        model, sizes_of(shape, traits), traits
    )
    gathers = joint_single.gathers(model.transformer, traits, merged=False)
    return joint_model.denoise_work(
        model, shape, forward, _transformer(model), width_gathers=gathers
    )


def _transformer(model: ModelSpec) -> Component:
    spec = model.transformer
    norms = spec.head_dim * (4 * spec.layers + 2 * spec.single_layers)
    return joint_model.weights(
        model,
        _forward(model, ONE, Traits()),
        bias=lambda op: True,
        in_blocks=norms + hunyuan_text.norms(spec),
        elsewhere=spec.patch_width_in * spec.hidden + spec.hidden,
    )


def _forward(model: ModelSpec, sizes: Sizes, traits: Traits) -> tuple[Op, ...]:
    spec = model.transformer
    published = Style(
        text_rope=False,
        single_copy_bytes=REJOIN_BYTES,
        masked=not traits.valid_text_only,
    )
    style = under(traits, published)
    gather = traits.single_stream_tensor == "gather"
    return (
        *joint_model.condition(model, sizes),
        *hunyuan_text.refiner(spec, sizes.batch, sizes.text),
        *two_stream(spec, sizes, style, spec.layers),
        *join_copies(spec, sizes, spec.layers),
        *joint_single.join_streams(spec, sizes, spec.single_layers),
        *joint_single.blocks(spec, sizes, style, merged=False, gather=gather),
        *joint_model.final_layer(model, sizes),
    )
