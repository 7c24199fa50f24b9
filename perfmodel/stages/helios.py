"""Helios: long clips in chunks of 33 frames, each made with the frames before it as context.

Every chunk has nine latent frames; the 19 before them come back as history tokens, the nearest two
at full size, two more folded by two and sixteen by four in every direction.  History takes part in
self-attention and the feed-forward network, not in the attention to text.  A chunk is denoised and
decoded on its own, so all work is that of one chunk times their number.  Helios-Mid and -Distilled
denoise a chunk at a quarter, half and all of its height and width, with as many steps at each and
history at full size; one step stands for the forwards at all three sizes.
Sources: diffusers 0.42.1 ``transformer_helios.py``, ``pipelines/helios``
(https://pypi.org/project/diffusers/0.42.1/); vLLM-Omni 0.30.0 ``diffusion/models/helios``
(https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.ops import Conv, Ints, Op, Rows
from perfmodel.shapes import Shape, ceil_div
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import dit, joint_model, vae
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import Chains, Streams
from perfmodel.stages.dit import text_encode as text_encode
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.layers import elements, rounding, scheduler_step
from perfmodel.stages.requests import grid
from perfmodel.stages.schedule import forwards

CHUNK_FRAMES, CHUNK_LATENT = 33, 9
# History: latent frames, and how far each is folded in time, height and width.
NEAR_FRAMES, MIDDLE_FRAMES, FAR_FRAMES = 2, 2, 16
MIDDLE_FOLD, FAR_FOLD = 2, 4
# Modulation a token: fp32 LayerNorm 20, table and vector 24, product 12, sum 12, casts 12.
CHAINS = Chains(
    start=(88.0, 12),
    qk=(4.0 + 32.0, 14),
    middle=(24.0 + 20.0, 8),
    cross_q=(4.0, 1),
    text_k=(4.0, 1),
    cross_end=(22.0 + 64.0, 12),
    end=(44.0, 6),
)


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, frames up to whole chunks; steps and forwards are those of all chunks."""
    base = joint_model.padded_shape(model, workload, replace(traits, frame_rounding="down"))
    asked = workload.frames or base.frames
    chunked = _chunks(model, base, base.width, base.height, asked)
    count = int(ceil_div(asked, CHUNK_FRAMES))
    message = (
        f"{asked} frames run as {count} chunks of {CHUNK_FRAMES}, {base.request_steps} steps each"
    )
    notes = tuple(note for note in base.notes if note.rule_id != "frame-rounding")
    return replace(chunked, notes=(*notes, rounding("chunks", message, "--frames")))


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes and numbers of chunks."""
    return _chunks(model, base, width, height, frames)


def _chunks(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` over all chunks of `frames`, each of which runs the steps of the request."""
    count = ceil_div(frames, CHUNK_FRAMES)
    one = grid(model, base, width, height, CHUNK_FRAMES + 0 * frames)
    near, middle, far = _history(model, one)
    steps = base.request_steps * count
    return replace(
        one,
        frames=count * CHUNK_FRAMES,
        latent_frames=count * CHUNK_LATENT,
        steps=steps,
        forwards=forwards(steps, base.branches, 1.0, None),
        extra_tokens=near + middle + far,
    )


def _history(model: ModelSpec, shape: Shape) -> tuple[Ints, Ints, Ints]:
    """History tokens: near, middle, far; folded grids are padded up."""
    _, rows, columns = model.transformer.patch
    height, width = shape.latent_height, shape.latent_width
    near = NEAR_FRAMES * (height // rows) * (width // columns)
    folded = [
        ceil_div(frames, fold) * ceil_div(height, rows * fold) * ceil_div(width, columns * fold)
        for frames, fold in ((MIDDLE_FRAMES, MIDDLE_FOLD), (FAR_FRAMES, FAR_FOLD))
    ]
    return near, folded[0], folded[1]


def components(model: ModelSpec) -> tuple[Component, ...]:
    """UMT5, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward over one chunk and its history."""
    spec = model.transformer
    forward = tuple(
        op
        for level in range(model.pyramid)
        for op in _at_size(model, _reduced(model, shape, level), traits, level)
    )
    work = joint_model.denoise_work(model, shape, forward, _transformer(model))
    latent = elements(spec.out_channels, CHUNK_LATENT, shape.latent_height, shape.latent_width)
    return replace(
        work,
        velocity_elements=latent,
        per_step=tuple(
            op
            for level in range(model.pyramid)
            for op in scheduler_step(shape.batch * latent / 4**level, guided=shape.guidance > 1)
        ),
        blocks=work.blocks * model.pyramid,
        row_reduces=(
            ("q, k norm sums over tp", 3 * spec.layers * model.pyramid, 1, True),
            ("text k norm sums over tp", spec.layers * model.pyramid, 1, False),
        ),
    )


def _reduced(model: ModelSpec, shape: Shape, level: int) -> Shape:
    """`shape` with a chunk `level` times halved in height and width; its history stays."""
    _, rows, columns = model.transformer.patch
    height, width = shape.latent_height >> level, shape.latent_width >> level
    tokens = CHUNK_LATENT * (height // rows) * (width // columns)
    return shape if level == 0 else replace(shape, video_tokens=tokens)


def _at_size(model: ModelSpec, shape: Shape, traits: Traits, level: int) -> tuple[Op, ...]:
    """One forward; `level` names its operators."""
    ops = (
        *_patches(model, shape, level),
        *_after_patches(model, _streams(shape), fused_qkv=traits.fused_qkv),
    )
    if level == 0:
        return ops
    return tuple(replace(op, name=f"{op.name} at 1/{2**level}") for op in ops)


def vae_decode(
    model: ModelSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Every chunk of nine latent frames on its own."""
    chunks = ceil_div(latent_frames, CHUNK_LATENT)
    length = np.minimum(latent_frames, CHUNK_LATENT)
    frames: Ints = int(length) if np.ndim(length) == 0 else length
    ops = vae.decode(model, frames, height, width, traits)
    return tuple(replace(op, count=op.count * chunks) for op in ops)


def _streams(shape: Shape) -> Streams:
    return Streams(
        own=(Rows.TOKENS, shape.batch * shape.tokens),
        asking=(Rows.TOKENS, shape.batch * shape.video_tokens),
        text=(Rows.TEXT, shape.batch * shape.text_tokens),
        batch=shape.batch,
        length=shape.tokens,
        asking_length=shape.video_tokens,
        text_length=shape.text_tokens,
    )


def _patches(model: ModelSpec, shape: Shape, level: int) -> tuple[Conv, ...]:
    """Four convolutions: the chunk and near history at one size, the rest folded."""
    spec = model.transformer
    depth, rows, columns = spec.patch
    whole = (shape.latent_height, shape.latent_width)
    chunk = (whole[0] >> level, whole[1] >> level)
    return tuple(
        Conv(
            name=f"{name} patch embedding",
            batch=shape.batch,
            in_channels=spec.in_channels,
            out_channels=spec.hidden,
            kernel=(depth * fold, rows * fold, columns * fold),
            stride=(depth * fold, rows * fold, columns * fold),
            out_t=-(-frames // fold),
            out_h=ceil_div(sides[0], rows * fold),
            out_w=ceil_div(sides[1], columns * fold),
        )
        for name, frames, fold, sides in (
            ("chunk", CHUNK_LATENT, 1, chunk),
            ("near history", NEAR_FRAMES, 1, whole),
            ("middle history", MIDDLE_FRAMES, MIDDLE_FOLD, whole),
            ("far history", FAR_FRAMES, FAR_FOLD, whole),
        )
    )


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    one = (Rows.NONE, 1)
    lone = Streams(own=one, asking=one, text=one, batch=1, length=1, asking_length=1, text_length=1)
    volume = spec.patch_width_in
    patches = sum(volume * fold**3 * hidden + hidden for fold in (1, 1, MIDDLE_FOLD, FAR_FOLD))
    ops = _after_patches(model, lone, fused_qkv=False, embedded_times=1)
    return joint_model.weights(
        model,
        ops,
        bias=lambda op: True,
        # Modulation table 6, four norms of q and k, and the norm before text with its bias.
        in_blocks=spec.layers * (dit.SINGLE_MODULATION + 4 + 2) * hidden,
        elsewhere=patches + 2 * hidden,
    )


def _after_patches(
    model: ModelSpec, rows: Streams, *, fused_qkv: bool, embedded_times: int = 2
) -> tuple[Op, ...]:
    """The chunk's timestep and that of clean history are embedded one after the other."""
    spec, vector = model.transformer, (Rows.NONE, rows.batch)
    times = tuple(replace(op, count=embedded_times) for op in dit.time_embedding(spec, vector))
    return (
        *times,
        *dit.caption_embedding(spec, rows.text),
        *dit.cross_block(spec, rows, CHAINS, fused_qkv=fused_qkv, count=spec.layers),
        *_output(model, rows),
    )


def _output(model: ModelSpec, rows: Streams) -> tuple[Op, ...]:
    spec, wide = model.transformer, model.transformer.patch_width_out
    return (
        *dit.chain("final norm", rows.asking, spec.hidden, (60.0, 8), 1),
        joint_model.embedding("output projection", rows.asking, (wide, spec.hidden)),
    )
