"""FLUX.1: two-stream then single-stream blocks over packed latents; one forward a step.

The guidance scale of FLUX.1-dev is an input of the network; schnell has none and runs four steps.
Text is T5 padded to 512 tokens, and a pooled CLIP vector that joins the timestep.  Kontext appends
the tokens of a condition image; Fill takes it as channels beside the latent.
Sources: diffusers 0.42.1 ``transformer_flux.py`` (https://pypi.org/project/diffusers/0.42.1/),
vLLM-Omni 0.30.0 ``diffusion/models/flux`` (https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from perfmodel.ops import Ints, Op
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import joint_model, joint_single
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.joint import Style, join_copies, two_stream, under
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.requests import grid

# The norm of this class also casts its weighted result: 6 more bytes.
RMS_BYTES = 40.0


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, sizes in whole tokens of 16 pixels, tokens of condition images."""
    base = joint_model.base_shape(model, workload, traits)
    return shape_columns(model, base, base.width, base.height, base.frames)


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes; condition images that are no channels have the form of the output."""
    spec = model.transformer
    if spec.in_channels != spec.out_channels:
        return grid(model, base, width, height, frames)
    return joint_model.reference_grid(model, base, width, height, frames, enlarge=True)


def _transformer(model: ModelSpec) -> Component:
    spec = model.transformer
    norms = spec.head_dim * (4 * spec.layers + 2 * spec.single_layers)
    ops = _forward(model, ONE, Traits())
    return joint_model.weights(model, ops, bias=lambda op: True, in_blocks=norms)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Text encoders, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """All encoders once a guidance branch; the last reads the whole prompt."""
    lengths = {model.text_encoders[-1]: shape.text_tokens}
    return joint_model.text_encode(model, shape.branches, lengths)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = _forward(model, sizes_of(shape, traits), traits)
    gathers = joint_single.gathers(model.transformer, traits, merged=False)
    return joint_model.denoise_work(
        model, shape, forward, _transformer(model), width_gathers=gathers
    )


def _forward(model: ModelSpec, sizes: Sizes, traits: Traits) -> tuple[Op, ...]:
    spec = model.transformer
    style = under(traits, Style(rms_bytes=RMS_BYTES), torch_norm=True)
    gather = traits.single_stream_tensor == "gather"
    return (
        *joint_model.condition(model, sizes),
        *joint_model.token_embedding(model, sizes),
        joint_model.embedding(
            "text embedding", sizes.text_rows, (spec.hidden, spec.text_width or spec.hidden)
        ),
        *two_stream(spec, sizes, style, spec.layers),
        *join_copies(spec, sizes, spec.layers),
        *joint_single.join_streams(spec, sizes, spec.single_layers),
        *joint_single.blocks(spec, sizes, style, merged=False, gather=gather),
        *joint_model.final_layer(model, sizes),
    )
