"""Z-Image with a control network: fifteen blocks beside every second one of the thirty.

The encoded control image enters two refining blocks and, joined with the text, fifteen blocks; the
control network embeds and refines latent and text itself, as the transformer does again after it.
cache-dit divides the transformer's tokens and gathers them after every block, where the control
network's output is added; by default it leaves the control network whole on every rank.
Sources: diffusers 0.42.1 ``controlnet_z_image.py``, ``pipelines/z_image``
(https://pypi.org/project/diffusers/0.42.1/); cache-dit 1.5.3 ``distributed/transformers/zimage.py``
(https://pypi.org/project/cache-dit/1.5.3/).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops import Ints, Op, Role, Rows, Split
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.stages import joint_model, z_image
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.layers import READ_WRITE, linear, traffic
from perfmodel.stages.z_image import BlockRows
from perfmodel.stages.z_image import shape as shape
from perfmodel.stages.z_image import shape_columns as shape_columns
from perfmodel.stages.z_image import text_encode as text_encode

ADD_BYTES = 6.0


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Language model, transformer, control network and VAE."""
    encoder, transformer, vae = joint_model.components(model, z_image.transformer(model))
    return (encoder, transformer, _control_network(model), vae)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """Control network and transformer a forward, scheduler and guidance a step."""
    spec, lengths = model.transformer, (shape.video_tokens, shape.extra_tokens)
    forward = (
        *_shared(model, shape.batch, lengths, traits),
        *_own(model, shape.batch, lengths, traits),
        *z_image.forward_ops(model, shape.batch, lengths, traits),
        *_sums(model, shape.batch, lengths),
    )
    main, control = z_image.transformer(model), _control_network(model)
    work = joint_model.denoise_work(model, shape, forward, main)
    blocks = main.blocks + control.blocks
    return replace(
        work,
        blocks=blocks,
        block_params=(main.block_params + control.block_params) // blocks,
        sequence_gathers=(("block output gather", spec.layers, spec.hidden),),
    )


def _control_network(model: ModelSpec) -> Component:
    """What the control network does not share with the transformer."""
    spec = model.transformer
    count = spec.control_layers + spec.refiner_layers
    whole = joint_model.weights(
        model,
        _own(model, 1, (1, 1), Traits()),
        bias=lambda op: op.split is Split.NONE,
        in_blocks=count * (z_image.BLOCK_NORMS * spec.hidden + 2 * spec.head_dim),
    )
    return replace(whole, name="controlnet", blocks=count)


def _shared(
    model: ModelSpec, batch: Ints, lengths: tuple[Ints, Ints], traits: Traits
) -> tuple[Op, ...]:
    """Embeddings and refiners of the transformer, run by the control network for itself."""
    spec = model.transformer
    image, text = (
        replace(rows, name=f"control's {rows.name}")
        for rows in z_image.refiner_rows(batch, lengths)
    )
    return (
        *z_image.entry(spec, image, text),
        *z_image.blocks(spec, traits, image, spec.refiner_layers),
        *z_image.blocks(spec, traits, text, spec.refiner_layers),
    )


def _own(
    model: ModelSpec, batch: Ints, lengths: tuple[Ints, Ints], traits: Traits
) -> tuple[Op, ...]:
    spec = model.transformer
    patch = spec.control_channels * spec.patch_width_in // spec.in_channels
    image = BlockRows("control refiner", Rows.FULL, batch, lengths[0], Role.TEXT)
    joined = BlockRows("control", Rows.FULL, batch, sum(lengths), Role.TEXT)
    return (
        joint_model.embedding("control embedding", image.rows, (spec.hidden, patch)),
        *_blocks(model, traits, image, spec.refiner_layers),
        *_blocks(model, traits, joined, spec.control_layers),
    )


def _blocks(model: ModelSpec, traits: Traits, at: BlockRows, count: int) -> tuple[Op, ...]:
    """`count` control blocks: a product before the first, one after each; outputs are stacked."""
    spec, hidden = model.transformer, model.transformer.hidden
    square = (hidden, hidden)
    # The outputs so far are copied behind each other after every block.
    copied = sum(range(2, count + 2))
    return (
        linear(f"{at.name} first", at.rows, square),
        traffic(f"{at.name} first sum", at.rows, (ADD_BYTES * hidden,) * 2),
        *z_image.blocks(spec, traits, at, count),
        linear(f"{at.name} output", at.rows, square, count=count),
        traffic(
            f"{at.name} stack",
            at.rows,
            (READ_WRITE * hidden * copied,) * 2,
            launches=count,
            eager_launches=count,
            is_copy=True,
        ),
        traffic(f"{at.name} scale", at.rows, (READ_WRITE * hidden,) * 2, count=count),
    )


def _sums(model: ModelSpec, batch: Ints, lengths: tuple[Ints, Ints]) -> tuple[Op, ...]:
    """The outputs of the control network, added in the transformer."""
    spec = model.transformer
    each = (ADD_BYTES * spec.hidden,) * 2
    image, joined = (Rows.FULL, batch * lengths[0]), (Rows.TOKENS, batch * sum(lengths))
    return (
        traffic("refiner control sum", image, each, count=spec.refiner_layers),
        traffic("control sum", joined, each, count=spec.control_layers),
    )
