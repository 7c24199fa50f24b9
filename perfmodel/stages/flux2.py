"""FLUX.2: blocks without biases, one modulation for all of them, condition images as tokens.

FLUX.2-dev takes the guidance scale as an input of the network; klein is distilled to four steps,
its base checkpoints run a second branch.  Text is padded to 512 tokens: three layers of the
language model side by side.  A condition image adds its own tokens, scaled down to one megapixel.
Sources: diffusers 0.42.1 ``transformer_flux2.py`` (https://pypi.org/project/diffusers/0.42.1/),
vLLM-Omni 0.30.0 ``diffusion/models/flux2*`` (https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from perfmodel.ops import Ints, Op
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import joint_model, joint_single
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.joint import (
    FULL_MODULATION,
    SINGLE_MODULATION,
    Style,
    join_copies,
    modulation,
    two_stream,
    under,
)
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of

# The norm of this class also casts its weighted result: 6 more bytes.
RMS_BYTES = 40.0


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, sizes in whole tokens of 16 pixels, tokens of condition images."""
    base = joint_model.base_shape(model, workload, traits)
    return shape_columns(model, base, base.width, base.height, base.frames)


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes; condition images have the form of the output."""
    return joint_model.reference_grid(model, base, width, height, frames, enlarge=False)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Language model, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """The language model once a guidance branch."""
    lengths = dict.fromkeys(model.text_encoders, shape.text_tokens)
    return joint_model.text_encode(model, shape.branches, lengths)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = _forward(model, sizes_of(shape, traits), traits)
    gathers = joint_single.gathers(model.transformer, traits, merged=True)
    return joint_model.denoise_work(
        model, shape, forward, _transformer(model), width_gathers=gathers
    )


def _transformer(model: ModelSpec) -> Component:
    spec = model.transformer
    norms = spec.head_dim * (4 * spec.layers + 2 * spec.single_layers)
    ops = _forward(model, ONE, Traits())
    return joint_model.weights(model, ops, bias=lambda op: False, in_blocks=norms)


def _forward(model: ModelSpec, sizes: Sizes, traits: Traits) -> tuple[Op, ...]:
    spec = model.transformer
    published = Style(rms_bytes=RMS_BYTES, own_modulation=False)
    style = under(traits, published, torch_norm=True)
    gather = traits.single_stream_tensor == "gather"
    return (
        *joint_model.condition(model, sizes),
        *modulation(spec, sizes, "latent", FULL_MODULATION, 1),
        *modulation(spec, sizes, "text", FULL_MODULATION, 1),
        *modulation(spec, sizes, "single", SINGLE_MODULATION, 1),
        *joint_model.token_embedding(model, sizes),
        joint_model.embedding(
            "text embedding", sizes.text_rows, (spec.hidden, spec.text_width or spec.hidden)
        ),
        *two_stream(spec, sizes, style, spec.layers),
        *join_copies(spec, sizes, spec.layers),
        *joint_single.join_streams(spec, sizes, 1),
        *joint_single.blocks(spec, sizes, style, merged=True, gather=gather),
        *joint_model.final_layer(model, sizes),
    )
