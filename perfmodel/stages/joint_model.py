"""What the families with joint attention share besides blocks: shapes, weights, encoders, ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.errors import BadInput, Problem
from perfmodel.ops import Attention, Conv, Gemm, Ints, Op, Role, Rows, Split
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import requests, text_encoder, vae
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.joint import MODULATED_NORM_BYTES, MODULATED_NORM_LAUNCHES
from perfmodel.stages.joint_rows import Sizes
from perfmodel.stages.layers import READ_WRITE, elements, linear, scheduler_step, traffic
from perfmodel.stages.requests import Request, grid, resolve, round_frames, round_size

FINAL_MODULATION = 2
POOL_HEADS = 8
PIXELS_PER_TOKEN = 16
REFERENCE_MULTIPLE = 32
REFERENCE_AREA_PX = 1 << 20

vae_encode, vae_decode = vae.encode, vae.decode


def base_shape(
    model: ModelSpec,
    workload: Workload,
    traits: Traits,
    *,
    padded_text: int | None = None,
    guided_above: float = 1.0,
) -> Shape:
    """Defaults, rounding, latent grid and tokens of a request.

    Args:
        model: what runs.
        workload: as asked.
        traits: the engine's rule of rounding frames.
        padded_text: text tokens that every prompt is padded to; None: as many as it has.
        guided_above: guidance scale up to which one branch runs.

    Raises:
        BadInput: sound, or several frames of a model that makes images.
    """
    request = resolve(model, workload)
    _refuse(model, workload, request)
    rule = traits.frame_rounding or model.frame_rounding
    frames, frame_notes = round_frames(request, rule, model.vae.temporal_ratio)
    width, height, size_notes = round_size(request, model, model.size_multiple)
    embedded = model.transformer.guidance_embedded or model.distilled
    one_branch = embedded or request.guidance <= guided_above
    base = requests.base_shape(
        request,
        workload,
        (width, height, frames),
        1 if one_branch else 2,
        padded_text=padded_text,
        condition_frames=_conditions(request, workload),
        notes=(*size_notes, *frame_notes),
    )
    return grid(model, base, width, height, frames)


def padded_shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """`base_shape` where every prompt is padded to the text length of the default task."""
    padded = model.tasks[model.default_task].text_tokens
    return base_shape(model, workload, traits, padded_text=padded)


def reference_grid(
    model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints, *, enlarge: bool
) -> Shape:
    """`grid` with the tokens of condition images of about one megapixel, formed as the output."""
    shape = grid(model, base, width, height, frames)
    one = reference_tokens(shape.width, shape.height, REFERENCE_AREA_PX, enlarge=enlarge)
    return replace(shape, extra_tokens=one * base.condition_frames)


def reference_tokens(width: Ints, height: Ints, area_px: int, *, enlarge: bool) -> Ints:
    """Tokens of one condition image of the output's form, scaled to about `area_px` pixels.

    Args:
        width: of the output.
        height: of the output.
        area_px: pixels that the engine scales a condition image to.
        enlarge: smaller images are scaled up too.
    """
    scale = np.sqrt(area_px / (np.asarray(width, float) * height))
    if not enlarge:
        scale = np.minimum(scale, 1.0)
    multiple = REFERENCE_MULTIPLE if enlarge else PIXELS_PER_TOKEN
    sides = [np.rint(np.asarray(side) * scale / multiple) * multiple for side in (width, height)]
    tokens = np.prod([side // PIXELS_PER_TOKEN for side in sides], axis=0).astype(np.int64)
    return int(tokens) if np.ndim(tokens) == 0 else np.asarray(tokens, np.int64)


def text_encode(model: ModelSpec, runs: Ints, lengths: dict[str, Ints]) -> tuple[Op, ...]:
    """All text encoders of a model, `runs` times each.

    Args:
        model: what runs.
        runs: prompts (guidance branches).
        lengths: sequence lengths that differ from the encoder's own padded length.
    """
    found: list[Op] = []
    for name in model.text_encoders:
        found += text_encoder.encode(name, runs, lengths.get(name))
    return tuple(found)


def components(model: ModelSpec, transformer: Component) -> tuple[Component, ...]:
    """Encoders, transformer and VAE."""
    encoders = (text_encoder.component(n, i) for i, n in enumerate(model.text_encoders, 1))
    return (*encoders, transformer, vae.component(model))


def weights(
    model: ModelSpec,
    ops: Iterable[Op],
    *,
    bias: Callable[[Gemm], bool],
    in_blocks: int,
    elsewhere: int = 0,
) -> Component:
    """The transformer's parameters, read off the operators of one forward.

    A product has ``n x k`` weights (and `n` biases) for each of its executions, a convolution
    likewise; operators that run more than once belong to the repeated blocks.

    Args:
        model: what runs.
        ops: a forward.
        bias: whether a product has biases.
        in_blocks: parameters of norms and tables inside blocks.
        elsewhere: other parameters that no product shows.
    """
    total = block = split = quantizable = 0
    for op in ops:
        if isinstance(op, Conv):
            total += op.out_channels * (op.in_channels * int(np.prod(op.kernel)) + 1)
        if not isinstance(op, Gemm):
            continue
        matrix = int(np.max(op.n)) * int(np.max(op.k)) * int(np.max(op.count))
        added = matrix + (int(np.max(op.n)) * int(np.max(op.count)) if bias(op) else 0)
        total += added
        block += added if np.max(op.count) > 1 or op.name.startswith("last ") else 0
        split += matrix if op.split is not Split.NONE else 0
        quantizable += matrix if op.quantizable else 0
    return Component(
        name="transformer",
        kind="transformer",
        params=total + in_blocks + elsewhere,
        block_params=block + in_blocks,
        blocks=model.transformer.layers + model.transformer.single_layers,
        tp_params=split,
        quantizable_params=quantizable,
        when=("denoise",),
    )


def embedding(name: str, rows: tuple[Rows, Ints], width: tuple[Ints, Ints]) -> Gemm:
    """A product outside the blocks, kept in 16 bits by quantised checkpoints."""
    return linear(name, rows, width, quantizable=False)


def condition(model: ModelSpec, sizes: Sizes) -> tuple[Op, ...]:
    """Two products each for the timestep, the embedded guidance scale and the pooled text."""
    spec, rows = model.transformer, sizes.vector_rows
    square = (spec.hidden, spec.hidden)
    inputs = [("time", spec.time_width)]
    if spec.guidance_embedded:
        inputs.append(("guidance", spec.time_width))
    if spec.pooled_width:
        inputs.append(("pooled text", spec.pooled_width))
    return tuple(
        product
        for name, width in inputs
        for product in (
            embedding(f"{name} projection 1", rows, (spec.hidden, width)),
            embedding(f"{name} projection 2", rows, square),
        )
    )


def pooling_attention(batch: Ints, keys: Ints, width: int) -> Attention:
    """One query (the mean of the text) over the text and itself, `keys` in all.

    Source: diffusers 0.42.1 ``HunyuanDiTAttentionPool``, ``MochiAttentionPool``.
    """
    return Attention(
        name="text pooling attention",
        batch=batch,
        seq_q=1,
        seq_kv=keys,
        heads=POOL_HEADS,
        kv_heads=POOL_HEADS,
        head_dim=width // POOL_HEADS,
        role=Role.TEXT,
    )


def token_embedding(model: ModelSpec, sizes: Sizes) -> tuple[Op, ...]:
    """Latent patches to tokens, as a product that every sequence rank runs in full."""
    spec = model.transformer
    full = (Rows.FULL, sizes.latent_rows[1])
    return (embedding("latent embedding", full, (spec.hidden, spec.patch_width_in)),)


def patch_convolution(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    """Latent patches to tokens, as a convolution that every sequence rank runs in full."""
    spec = model.transformer
    full = (Rows.FULL, shape.batch * shape.tokens)
    return (
        Conv(
            name="patch embedding",
            batch=shape.batch,
            in_channels=spec.in_channels,
            out_channels=spec.hidden,
            kernel=spec.patch,
            stride=spec.patch,
            out_t=shape.latent_frames,
            out_h=shape.latent_height // spec.patch[1],
            out_w=shape.latent_width // spec.patch[2],
        ),
        traffic("token layout", full, (READ_WRITE * spec.hidden,) * 2, is_copy=True),
    )


def final_layer(model: ModelSpec, sizes: Sizes) -> tuple[Op, ...]:
    """Modulated norm and projection of the rank's own tokens, gathered afterwards."""
    spec, rows = model.transformer, sizes.latent_rows
    hidden = spec.hidden
    norm = traffic(
        "final norm and modulation",
        rows,
        (READ_WRITE * hidden, MODULATED_NORM_BYTES * hidden),
        eager_launches=MODULATED_NORM_LAUNCHES,
    )
    return (
        embedding("final modulation", sizes.vector_rows, (FINAL_MODULATION * hidden, hidden)),
        norm,
        embedding("output projection", rows, (spec.patch_width_out, hidden)),
    )


def latent_elements(model: ModelSpec, shape: Shape) -> float | np.ndarray:
    """Elements of the noise prediction of one output."""
    spec = model.transformer
    return elements(spec.out_channels, shape.latent_frames, shape.latent_height, shape.latent_width)


def denoise_work(
    model: ModelSpec,
    shape: Shape,
    forward: tuple[Op, ...],
    transformer: Component,
    *,
    row_reduces: Sequence[tuple[str, int, int, bool]] = (),
    width_gathers: Sequence[tuple[str, int, int]] = (),
    guided: bool | None = None,
) -> DenoiseWork:
    """The denoise stage of one transformer a forward, whose operators are `forward`.

    `guided`: the branches are combined a step; None: by the guidance scale, as branches that run
    as one batch count once.
    """
    spec = model.transformer
    latent = latent_elements(model, shape)
    if guided is None:
        guided = shape.guidance > 1 and not spec.guidance_embedded
    return DenoiseWork(
        per_forward=forward,
        per_step=scheduler_step(shape.batch * latent, guided=guided),
        blocks=transformer.blocks,
        block_params=transformer.block_params // max(transformer.blocks, 1),
        row_reduces=tuple(row_reduces),
        width_gathers=tuple(width_gathers),
        hidden=spec.hidden,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        exit_width=spec.patch_width_out,
        velocity_elements=latent,
    )


def sound_decode(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    """Nothing: these models make no sound."""
    return ()


def _conditions(request: Request, workload: Workload) -> int:
    if request.defaults.condition == "none":
        return 0
    return workload.input_images or 1


def _refuse(model: ModelSpec, workload: Workload, request: Request) -> None:
    requests.refuse_sound(model, workload)
    if request.defaults.frames > 1:
        return
    if workload.seconds is not None:
        seconds = f"{workload.seconds:g}"
        message = f"{model.slug} makes images, not a video of {seconds} s; drop --seconds"
        raise BadInput(Problem("length", message, "--seconds", seconds))
    if request.frames > 1:
        frames = str(request.frames)
        message = f"{model.slug} makes images, not {frames} frames; drop --frames"
        raise BadInput(Problem("length", message, "--frames", frames, suggestions=("--frames 1",)))
