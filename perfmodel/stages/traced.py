"""A denoiser class that was traced: the operators that it ran, as polynomials of the request.

What no trace shows (tensor or pipeline parallelism, weight sharding, fused projections) is not
offered.  Source: `stages.imports.trace`, which runs the class on meta tensors.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.errors import BadInput, Problem
from perfmodel.ops import Ints, Op
from perfmodel.shapes import Shape, ceil_div
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.traced import TracedEncoder, TracedSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import joint_model, requests, text_encoder, vae
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.joint_model import sound_decode, vae_decode, vae_encode
from perfmodel.stages.layers import scheduler_step
from perfmodel.stages.traced_ops import operators

__all__ = [
    "components",
    "denoise",
    "shape",
    "shape_columns",
    "sound_decode",
    "text_encode",
    "vae_decode",
    "vae_encode",
]


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, sizes in whole tokens, forwards.

    Raises:
        BadInput: frames or a size that the class does not take.
    """
    spec = traced_of(model)
    base = joint_model.base_shape(model, workload, traits, padded_text=spec.text_tokens)
    found = shape_columns(model, base, base.width, base.height, base.frames)
    _check_fixed(model, spec, found)
    return replace(found, notes=(*found.notes, _note(spec)))


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes."""
    found = requests.grid(model, base, width, height, frames)
    rows, columns = _plane(model, found)
    return replace(found, video_tokens=_frames(model, found) * rows * columns)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Encoders, transformer and VAE."""
    spec = traced_of(model)
    own = len(model.text_encoders)
    traced = tuple(_encoder(part, own + i) for i, part in enumerate(spec.encoders, 1))
    transformer = Component(
        name="transformer",
        kind="transformer",
        params=spec.params,
        block_params=spec.block_params * spec.blocks,
        blocks=spec.blocks,
        quantizable_params=spec.weight_params,
        when=("denoise",),
    )
    catalogued = (text_encoder.component(n, i) for i, n in enumerate(model.text_encoders, 1))
    return (*catalogued, *traced, transformer, vae.component(model))


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """All encoders once a guidance branch, at the length of the prompt."""
    runs = min(shape.branches, 2)
    found: list[Op] = []
    for name in model.text_encoders:
        length = shape.text_tokens if len(model.text_encoders) == 1 else None
        found += text_encoder.encode(name, runs, length)
    for part in traced_of(model).encoders:
        values: dict[str, Ints] = {"b": 1, "f": 1, "h": 1, "w": 1, "t": shape.text_tokens}
        found += [replace(op, count=op.count * runs) for op in operators(part.ops, values)]
    return tuple(found)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One call of the class a forward; scheduler and guidance a step."""
    spec, dims = traced_of(model), model.transformer
    rows, columns = _plane(model, shape)
    values = {
        "b": shape.batch,
        "f": _frames(model, shape),
        "h": rows,
        "w": columns,
        "t": shape.text_tokens,
    }
    latent = joint_model.latent_elements(model, shape)
    # Not by branches: those that run as one batch count once.
    guided = shape.guidance > 1 and not dims.guidance_embedded
    return DenoiseWork(
        per_forward=operators(spec.ops, values, split=True),
        per_step=scheduler_step(shape.batch * latent, guided=guided),
        blocks=spec.blocks,
        block_params=spec.block_params,
        hidden=dims.hidden,
        heads=dims.heads,
        kv_heads=dims.kv_heads,
        head_dim=dims.head_dim,
        inner_width=spec.inner_width,
        exit_width=dims.patch_width_out,
        velocity_elements=latent,
    )


def traced_of(model: ModelSpec) -> TracedSpec:
    """The operators of a model of this family (`ModelSpec` makes sure that they are there)."""
    assert model.traced is not None
    return model.traced


def _frames(model: ModelSpec, shape: Shape) -> Ints:
    return ceil_div(shape.latent_frames, model.transformer.patch[0])


def _plane(model: ModelSpec, shape: Shape) -> tuple[Ints, Ints]:
    _, rows, columns = model.transformer.patch
    return ceil_div(shape.latent_height, rows), ceil_div(shape.latent_width, columns)


def _encoder(part: TracedEncoder, position: int) -> Component:
    return Component(
        name="text_encoder" if position == 1 else f"text_encoder_{position}",
        kind="text_encoder",
        params=part.params,
        when=("text_encode",),
        layer_params=part.layer_params * part.layers,
        layers=part.layers,
        width=part.width,
    )


def _note(spec: TracedSpec) -> Problem:
    axes = "guidance parallelism, Ulysses and ring" if spec.sequence_parallel else "guidance"
    only = axes if spec.sequence_parallel else f"{axes} parallelism"
    message = (
        f"traced: the operators are those that {spec.class_name} of {spec.library} ran on meta "
        f"tensors; beside one GPU only {only} are offered"
    )
    return Problem("traced-model", message, field="--model", severity="warning")


def _check_fixed(model: ModelSpec, spec: TracedSpec, shape: Shape) -> None:
    problems = []
    if spec.frames and shape.latent_frames != spec.frames:
        needed = (spec.frames - 1) * model.vae.temporal_ratio + 1
        problems.append(
            Problem(
                "length",
                f"{model.slug} takes {spec.frames} latent frames, not {shape.latent_frames}; "
                f"try --frames {needed}",
                field="--frames",
                value=str(shape.frames),
                legal_values=(str(needed),),
                suggestions=(f"--frames {needed}",),
            )
        )
    if spec.grid and _plane(model, shape) != spec.grid:
        sides = [
            count * patch * model.vae.spatial_ratio
            for count, patch in zip(spec.grid, model.transformer.patch[1:], strict=True)
        ]
        size = f"{sides[1]}x{sides[0]}"
        problems.append(
            Problem(
                "size",
                f"{model.slug} takes {size}, not {shape.width}x{shape.height}; try --size {size}",
                field="--size",
                value=f"{shape.width}x{shape.height}",
                legal_values=(size,),
                suggestions=(f"--size {size}",),
            )
        )
    if problems:
        raise BadInput(*problems)
