"""HunyuanVideo-1.5: 54 two-stream blocks over video tokens of 16 x 16 pixels, guidance a branch.

The transformer's text has 1000 slots of a Qwen2.5-VL prompt, 256 of glyphs (only filled when the
prompt quotes text) and 729 of a SigLIP image (only filled for image-to-video).  diffusers runs all
1985 through every block, masked; vLLM-Omni cuts to the valid ones before the blocks since 0.22, and
ran all slots through the blocks and the real ones through a ragged attention before.
Sources: diffusers 0.42.1 ``transformer_hunyuan_video15.py``
(https://pypi.org/project/diffusers/0.42.1/), vLLM-Omni 0.30.0 ``diffusion/models/hunyuan_video``
(https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from perfmodel.ops import Op, Rows
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import encoders, hunyuan_text, joint_model, text_encoder
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.joint import Style, join_copies, two_stream, under
from perfmodel.stages.joint_model import embedding
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.layers import READ_WRITE, traffic
from perfmodel.stages.requests import grid

shape_columns = grid

PROMPT_SLOTS = 1000
GLYPH_ENCODER = "byt5-small"
GLYPH_INNER = 2048
CONDITION_KINDS = 3
MASK_PAIR_BYTES = 4.0
"""Eager bytes a pair of tokens: the mask repeated and combined in every block of diffusers."""


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, frames to 4k + 1, text slots as the engine runs them."""
    if traits.valid_text_only:
        image = _has_image(model, workload)
        prompt = workload.text_tokens or model.tasks[model.default_task].text_tokens
        text = prompt + (model.transformer.image_tokens if image else 0)
        plain = workload.model_copy(update={"text_tokens": None})
        return joint_model.base_shape(model, plain, traits, padded_text=text)
    slots = PROMPT_SLOTS + _glyph_slots() + model.transformer.image_tokens
    return joint_model.base_shape(model, workload, traits, padded_text=slots)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Qwen2.5-VL, ByT5, SigLIP (image-to-video), transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """The language model once a guidance branch, the image encoder once; glyphs are not drawn."""
    found: list[Op] = []
    for name in model.text_encoders:
        if name != GLYPH_ENCODER:
            is_text = encoders.ENCODERS[name].is_text
            found += text_encoder.encode(name, shape.branches if is_text else 1)
    return tuple(found)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = joint_model.patch_convolution(model, shape) + _forward(
        model, sizes_of(shape, traits), traits
    )
    return joint_model.denoise_work(model, shape, forward, _transformer(model))


def _has_image(model: ModelSpec, workload: Workload) -> bool:
    task = workload.task or model.default_task
    return task in model.tasks and model.tasks[task].condition == "image"


def _glyph_slots() -> int:
    return encoders.ENCODERS[GLYPH_ENCODER].tokens


def _transformer(model: ModelSpec) -> Component:
    spec = model.transformer
    norms = 4 * spec.head_dim * spec.layers + hunyuan_text.norms(spec)
    ends = 2 * spec.glyph_width + 2 * (spec.image_width or 0) + 2 * spec.hidden
    patch = spec.patch_width_in * spec.hidden + spec.hidden
    return joint_model.weights(
        model,
        _forward(model, ONE, Traits()),
        bias=lambda op: True,
        in_blocks=norms,
        elsewhere=patch + ends + CONDITION_KINDS * spec.hidden,
    )


def _forward(model: ModelSpec, sizes: Sizes, traits: Traits) -> tuple[Op, ...]:
    spec, padded = model.transformer, not traits.valid_text_only
    ragged = padded and traits.ragged_attention
    published = Style(
        text_rope=False,
        masked=padded,
        mask_bytes=MASK_PAIR_BYTES if padded and not ragged else 0.0,
        valid_text=model.tasks[model.default_task].text_tokens if ragged else None,
    )
    style = under(traits, published)
    return (
        *joint_model.condition(model, sizes),
        *hunyuan_text.refiner(spec, sizes.batch, PROMPT_SLOTS),
        *_conditions(model, sizes),
        *two_stream(spec, sizes, style, spec.layers),
        *join_copies(spec, sizes, spec.layers),
        *joint_model.final_layer(model, sizes),
    )


def _conditions(model: ModelSpec, sizes: Sizes) -> tuple[Op, ...]:
    """Glyph and image states projected to the width, at every step, all slots."""
    spec, hidden = model.transformer, model.transformer.hidden
    glyphs = (Rows.TEXT, sizes.batch * _glyph_slots())
    image = (Rows.TEXT, sizes.batch * spec.image_tokens)
    wide = spec.image_width or hidden
    moved = READ_WRITE * hidden
    return (
        embedding("glyph projection 1", glyphs, (GLYPH_INNER, spec.glyph_width)),
        embedding("glyph projection 2", glyphs, (GLYPH_INNER, GLYPH_INNER)),
        embedding("glyph projection 3", glyphs, (hidden, GLYPH_INNER)),
        traffic("glyph norm and activations", glyphs, (3 * moved,) * 2, launches=3),
        embedding("image projection 1", image, (wide, wide)),
        embedding("image projection 2", image, (hidden, wide)),
        traffic("image norms and activation", image, (3 * moved,) * 2, launches=3),
    )
