"""Cosmos-Transfer2.5: Cosmos-Predict2.5 with a control network beside it and states of an image.

Four control blocks of the same form read the encoded control clip (edges, depth, segmentation or
blur: each has a network of its own, one runs) and add to every seventh block.  All blocks attend to
256 states of an image besides the text; the pipeline fills them with zeros.  Clips are made in
chunks of 93 frames, each with the last frame of the one before; for every chunk the control clip
and the condition clip are encoded.
Sources: diffusers 0.42.1 ``controlnet_cosmos.py``, ``transformer_cosmos.py``,
``pipelines/cosmos/pipeline_cosmos2_5_transfer.py`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.ops import Attention, Ints, Op, Role, Rows, Split
from perfmodel.shapes import Shape, causal_latent_frames, ceil_div
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import cosmos_predict as predict
from perfmodel.stages import dit, joint_model, vae
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import RowCount
from perfmodel.stages.dit import text_encode as text_encode
from perfmodel.stages.joint_model import embedding
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.layers import READ_WRITE, linear, rounding, traffic
from perfmodel.stages.requests import grid
from perfmodel.stages.schedule import forwards

CHUNK_FRAMES, SHARED_FRAMES = 93, 1
"""Frames of a chunk, and how many of them it takes over from the chunk before."""
CLIPS = 2
"""Clips encoded for a chunk: the control and the frames taken over."""
RESIDUAL_BYTES = 6.0


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults; steps and forwards are those of all chunks."""
    base = joint_model.padded_shape(model, workload, replace(traits, frame_rounding="down"))
    asked = workload.frames or base.frames
    count = int(_count(asked))
    message = (
        f"{asked} frames run as {count} chunks of {CHUNK_FRAMES}, {base.request_steps} steps each"
    )
    notes = tuple(note for note in base.notes if note.rule_id != "frame-rounding")
    chunked = _chunks(model, base, base.width, base.height, asked)
    return replace(chunked, notes=(*notes, rounding("chunks", message, "--frames")))


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes and numbers of chunks."""
    return _chunks(model, base, width, height, frames)


def _count(frames: Ints) -> Ints:
    """Chunks of a clip; each but the first adds one frame less than it runs."""
    found = ceil_div(np.maximum(frames - SHARED_FRAMES, 1), CHUNK_FRAMES - SHARED_FRAMES)
    return int(found) if np.ndim(found) == 0 else np.asarray(found, np.int64)


def _chunks(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` over all chunks of `frames`, each of which runs the steps of the request."""
    count = _count(frames)
    one = grid(model, base, width, height, CHUNK_FRAMES + 0 * frames)
    steps = base.request_steps * count
    return replace(
        one,
        frames=frames,
        latent_frames=count * one.latent_frames,
        steps=steps,
        forwards=forwards(steps, base.branches, 1.0, None),
        condition_frames=count * CHUNK_FRAMES,
    )


def _one_chunk(model: ModelSpec, shape: Shape) -> Shape:
    """The part of `shape` that one forward sees."""
    latent = causal_latent_frames(CHUNK_FRAMES, model.vae.temporal_ratio)
    return replace(shape, latent_frames=latent + 0 * shape.latent_frames)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Text encoder, transformer, control network and VAE."""
    encoder, transformer, last = joint_model.components(model, _transformer(model))
    return (encoder, transformer, _control_network(model), last)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """Control network and transformer a forward, over one chunk."""
    one, spec = _one_chunk(model, shape), model.transformer
    low = predict.modulation_rows(model, one, traits)
    times = low if low[0] is Rows.NONE else (Rows.NONE, one.batch * one.latent_frames)
    sizes = sizes_of(one)
    forward = (
        *_control(model, sizes, (times, low), traits),
        *_main(model, sizes, (times, low), traits),
        *dit.chain(
            "control residual",
            sizes.latent_rows,
            spec.hidden,
            (RESIDUAL_BYTES, 1),
            spec.control_layers,
            passes=1.5,
        ),
    )
    main, control = _transformer(model), _control_network(model)
    work = joint_model.denoise_work(model, one, forward, main)
    blocks = main.blocks + control.blocks
    params = main.block_params + control.block_params
    return replace(work, blocks=blocks, block_params=params // blocks)


def vae_encode(
    model: ModelSpec, frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Both clips of every chunk on their own."""
    chunks = ceil_div(frames, CHUNK_FRAMES)
    ops = vae.encode(model, np.minimum(frames, CHUNK_FRAMES), height, width, traits)
    return tuple(replace(op, count=CLIPS * op.count * chunks) for op in ops)


def vae_decode(
    model: ModelSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Every chunk on its own."""
    one = causal_latent_frames(CHUNK_FRAMES, model.vae.temporal_ratio)
    chunks = ceil_div(latent_frames, one)
    ops = vae.decode(model, np.minimum(latent_frames, one), height, width, traits)
    return tuple(replace(op, count=op.count * chunks) for op in ops)


def _transformer(model: ModelSpec) -> Component:
    spec, one = model.transformer, (Rows.NONE, 1)
    return joint_model.weights(
        model,
        _main(model, ONE, (one, one), Traits()),
        bias=_has_bias,
        in_blocks=spec.layers * 6 * spec.head_dim,
        elsewhere=spec.hidden,
    )


def _control_network(model: ModelSpec) -> Component:
    spec, one = model.transformer, (Rows.NONE, 1)
    whole = joint_model.weights(
        model,
        _control(model, ONE, (one, one), Traits()),
        bias=_has_bias,
        in_blocks=spec.control_layers * 6 * spec.head_dim,
        elsewhere=spec.hidden,
    )
    return replace(whole, name="controlnet", blocks=spec.control_layers)


def _has_bias(op: Op) -> bool:
    return op.name in ("text reduction", "image reduction", "control entry", "control exit")


def _main(
    model: ModelSpec, sizes: Sizes, rows: tuple[RowCount, RowCount], traits: Traits
) -> tuple[Op, ...]:
    """The transformer; `rows` as of `cosmos_predict.forward_ops`."""
    return (
        *predict.forward_ops(model, sizes, rows, traits),
        *_image_states(model, sizes, (rows[1], model.transformer.layers), traits),
    )


def _control(
    model: ModelSpec, sizes: Sizes, rows: tuple[RowCount, RowCount], traits: Traits
) -> tuple[Op, ...]:
    """The control network: both latents embedded and joined, blocks, a product after each."""
    spec, (times, low) = model.transformer, rows
    hidden, count, latent = spec.hidden, spec.control_layers, sizes.latent_rows
    control = spec.model_copy(update={"in_channels": spec.control_channels})
    square = (hidden, hidden)
    return (
        *dit.token_linear(control, sizes),
        *dit.token_linear(spec, sizes, extra_channels=predict.PADDING_CHANNELS),
        *predict.conditions(model, sizes, times),
        embedding("control entry", latent, square),
        *dit.chain("control entry sum", latent, hidden, (RESIDUAL_BYTES, 1), 1),
        *predict.blocks(spec, sizes, low, count, traits),
        *_image_states(model, sizes, (low, count), traits),
        linear("control exit", latent, square, count=count),
        traffic("control scale", latent, (READ_WRITE * hidden,) * 2, count=count),
    )


def _image_states(
    model: ModelSpec, sizes: Sizes, blocks: tuple[RowCount, int], traits: Traits
) -> tuple[Op, ...]:
    """The states of an image, brought to the width of the blocks, and attention to them.

    `blocks`: rows of their low-rank products, and how many they are.
    """
    low, count = blocks
    spec, rows = model.transformer, sizes.latent_rows
    hidden, chains = spec.hidden, predict.chains_of(low, traits)
    states = (Rows.TEXT, sizes.batch * spec.image_tokens)
    column = Split.COLUMN
    attention = Attention(
        name="image cross-attention",
        count=count,
        batch=sizes.batch,
        seq_q=sizes.tokens,
        seq_kv=spec.image_tokens,
        heads=spec.heads,
        kv_heads=spec.heads,
        head_dim=spec.head_dim,
        role=Role.CROSS,
    )
    width = (spec.q_width, hidden)
    return (
        embedding("image reduction", states, (hidden, spec.image_width or hidden)),
        traffic("image activation", states, (READ_WRITE * hidden,) * 2),
        linear("image q projection", rows, width, count=count, split=column),
        *dit.chain("image q norm", rows, spec.q_width, chains.cross_q, count, split=column),
        linear("image k, v projection", states, width, count=2 * count, split=column),
        *dit.chain("image k norm", states, spec.q_width, chains.text_k, count, split=column),
        attention,
        *dit.chain(
            "image and text sum",
            rows,
            spec.q_width,
            (RESIDUAL_BYTES + READ_WRITE, 2),
            count,
            passes=1.5,
            split=column,
        ),
    )
