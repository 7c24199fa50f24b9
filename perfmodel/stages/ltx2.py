"""LTX-2: a video stream and a narrower sound stream that attend to text and to each other.

A guided step has four passes (with and without text, without self-attention in one block, without
the other stream), run as one batch.  Under sequence parallelism video tokens are divided and sound
is computed on every rank; how it reads the video's keys differs by engine (`Traits.sound_reads`).
LTX-2.3 gates every head by its query's token, shifts and scales both sides of the attention to text
in each block, and takes the text as wide as its streams.
Sources: diffusers 0.42.1 ``transformer_ltx2.py``, ``pipelines/ltx2``
(https://pypi.org/project/diffusers/0.42.1/); vLLM-Omni 0.30.0 ``diffusion/models/ltx2``
(https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.errors import BadInput, Problem
from perfmodel.ops import Attention, Ints, Op, Role, Rows, Split
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec, TransformerSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import dit, joint_model, ltx2_sound, ltx2_text
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import RowCount
from perfmodel.stages.joint import activation
from perfmodel.stages.joint_model import embedding
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import Sizes, sizes_of
from perfmodel.stages.layers import READ_WRITE, Eager, linear
from perfmodel.stages.ltx import MODULATE, RMS, ROPE, WIDE_RMS
from perfmodel.stages.requests import grid
from perfmodel.stages.schedule import forwards

shape_columns = grid

GATE = 10.0
LAYOUT = 4.0
CROSS_VECTORS = 4
"""Shift and scale of a stream in both of the attentions between streams."""
TEXT_VECTORS, TEXT_QUERY_VECTORS = 2, 3
"""Shift and scale of the text; shift, scale and gate of what asks it."""


def _own_vectors(spec: TransformerSpec) -> int:
    return dit.SINGLE_MODULATION + (TEXT_QUERY_VECTORS if spec.text_modulation else 0)


def _tables(spec: TransformerSpec) -> int:
    """Vectors of a stream in a block: its own, four and a gate between streams, of the text."""
    return _own_vectors(spec) + CROSS_VECTORS + 1 + (TEXT_VECTORS if spec.text_modulation else 0)


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, frames down to 8k+1, sizes in multiples of 32; sound is always made.

    Raises:
        BadInput: a model file without the rate of the sound.
    """
    _refuse_silent(model)
    silent = workload.model_copy(update={"sound": False})
    base = joint_model.padded_shape(model, silent, traits)
    passes = traits.guidance_passes or model.guidance_branches
    branches = passes if base.branches > 1 else 1
    return replace(base, branches=branches, forwards=forwards(base.steps, branches, 1.0, None))


def _refuse_silent(model: ModelSpec) -> None:
    label = f"{model.slug}: transformer.sound_tokens_per_s"
    rate = model.transformer.sound_tokens_per_s
    if rate <= 0:
        message = f"{label}: {rate:g}: this family always makes sound; write a rate, like 25"
        raise BadInput(Problem("models-file", message, field=label, value=f"{rate:g}"))


def sound_tokens(model: ModelSpec, shape: Shape) -> Ints:
    """Latent frames of sound, at the rate of the model, as long as the clip."""
    rate = model.transformer.sound_tokens_per_s
    count = np.rint(np.asarray(shape.frames, float) / shape.fps * rate).astype(np.int64)
    return int(count) if np.ndim(count) == 0 else np.asarray(count, np.int64)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Gemma, its connectors, transformer, VAE, sound VAE and vocoder."""
    encoder, *rest = joint_model.components(model, _transformer(model))
    sound = ltx2_sound.components(widened=model.sound_widened)
    return (encoder, ltx2_text.component(model), *rest, *sound)


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """Gemma and connectors for the prompt and, with guidance, for the negative prompt."""
    prompts = min(shape.branches, 2)
    encoder = dit.text_encode(model, shape, traits, prompts)
    return (*encoder, *ltx2_text.connect(model, shape.text_tokens, prompts))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    spec = model.transformer
    sound = (Rows.TEXT, shape.batch * sound_tokens(model, shape))
    forward = _forward(model, sizes_of(shape), sound, traits)
    reduces = [
        ("video norm sums over tp", 5 * spec.layers, 1, True),
        ("text and sound norm sums over tp", 7 * spec.layers, 1, False),
    ]
    work = joint_model.denoise_work(model, shape, forward, _transformer(model), row_reduces=reduces)
    if traits.sound_reads == "exchange":
        return work
    # Keys and values, or the states that both are made of: as wide, with heads half as wide.
    gathers = (("video states for sound", spec.layers, 2 * spec.audio_hidden),)
    return replace(work, sequence_gathers=gathers)


def sound_decode(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    """Spectrogram and waveform."""
    tokens = sound_tokens(model, shape)
    return ltx2_sound.decode(tokens, shape.batch, widened=model.sound_widened)


def _transformer(model: ModelSpec) -> Component:
    spec = model.transformer
    both = spec.hidden + spec.audio_hidden
    narrow = spec.audio_hidden
    # q and k norms: self-attention and text of each stream, and two narrow ones between streams.
    block = _tables(spec) * both + 4 * both + 4 * narrow
    one = Sizes(batch=1, tokens=1, text=1)
    return joint_model.weights(
        model,
        _forward(model, one, (Rows.TEXT, 1), Traits(fused_qkv=False)),
        bias=lambda op: True,
        in_blocks=spec.layers * block,
        elsewhere=2 * both,
    )


def _sound_spec(spec: TransformerSpec) -> TransformerSpec:
    """The sound stream as a transformer of its own."""
    narrow, head_dim = spec.audio_hidden, spec.audio_head_dim
    ffn = spec.ffn * narrow // spec.hidden
    return spec.model_copy(update={"hidden": narrow, "head_dim": head_dim, "ffn": ffn})


def _forward(model: ModelSpec, sizes: Sizes, sound: RowCount, traits: Traits) -> tuple[Op, ...]:
    spec = model.transformer
    narrow = _sound_spec(spec)
    video, text, count = sizes.latent_rows, sizes.text_rows, spec.layers
    length = sound[1] // sizes.batch
    return (
        *dit.token_linear(spec, sizes),
        embedding("sound embedding", sound, (narrow.hidden, spec.sound_channels)),
        *_modulation("video", spec, sizes),
        *_modulation("sound", narrow, sizes),
        *(_captions(spec, narrow, text) if spec.text_width else ()),
        *_attend("video", spec, video, (sizes.tokens, sizes), count, fused_qkv=traits.fused_qkv),
        *_attend("sound", narrow, sound, (length, sizes), count, fused_qkv=False),
        *_read_text("video", spec, (video, sizes.tokens), sizes, count),
        *_read_text("sound", narrow, (sound, length), sizes, count),
        *_between(spec, sizes, sound, count, traits),
        *_feed_forward("video", spec, video, count),
        *_feed_forward("sound", narrow, sound, count),
        *dit.output(spec, sizes),
        *dit.chain("final sound norm", sound, narrow.hidden, (12.0, 4), 1),
        embedding("sound output projection", sound, (spec.sound_channels, narrow.hidden)),
    )


def _modulation(name: str, spec: TransformerSpec, sizes: Sizes) -> tuple[Op, ...]:
    """Timestep to the vectors of a stream, between streams and of text: small networks."""
    rows, hidden = sizes.vector_rows, spec.hidden
    found: list[Op] = []
    kinds = [("own", _own_vectors(spec)), ("cross", CROSS_VECTORS), ("gate", 1)]
    if spec.text_modulation:
        kinds.append(("text", TEXT_VECTORS))
    for kind, vectors in kinds:
        found += [
            embedding(f"{name} {kind} time 1", rows, (hidden, spec.time_width)),
            embedding(f"{name} {kind} time 2", rows, (hidden, hidden)),
            embedding(f"{name} {kind} vectors", rows, (vectors * hidden, hidden)),
        ]
    return tuple(found)


def _captions(spec: TransformerSpec, narrow: TransformerSpec, text: RowCount) -> tuple[Op, ...]:
    sound = dit.caption_embedding(narrow, text)
    named = (replace(op, name=f"sound {op.name}") for op in sound)
    return (*dit.caption_embedding(spec, text), *named)


def _attend(
    name: str,
    spec: TransformerSpec,
    rows: RowCount,
    size: tuple[Ints, Sizes],
    count: int,
    *,
    fused_qkv: bool,
) -> tuple[Op, ...]:
    """Self-attention of a stream; that of sound runs on every rank."""
    tokens, sizes = size
    width, times = (3 * spec.hidden, 1) if fused_qkv else (spec.hidden, 3)
    column = Split.COLUMN
    attention = Attention(
        name=f"{name} self-attention",
        count=count,
        batch=sizes.batch,
        seq_q=tokens,
        seq_kv=tokens,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        role=Role.SELF if name == "video" else Role.TEXT,
    )
    return (
        *dit.chain(f"{name} norm and modulation", rows, spec.hidden, (RMS + MODULATE, 10), count),
        linear(
            f"{name} q, k, v projection",
            rows,
            (width, spec.hidden),
            count=times * count,
            split=column,
        ),
        *dit.chain(
            f"{name} q, k norm and rope",
            rows,
            2 * spec.q_width,
            (WIDE_RMS + ROPE, 20),
            count,
            launches=2,
            split=column,
        ),
        attention,
        *_output(name, spec, rows, (spec.hidden, spec.q_width), count),
        *dit.chain(
            f"{name} gate, residual and norm", rows, spec.hidden, (GATE + RMS, 9), count, passes=2
        ),
    )


def _output(
    name: str, spec: TransformerSpec, rows: RowCount, width: tuple[int, int], count: int
) -> tuple[Op, ...]:
    gates = (
        linear(f"{name} gates", rows, (spec.heads, width[0]), count=count, split=Split.COLUMN),
        *dit.chain(f"{name} gating", rows, width[1], (READ_WRITE, 3), count, split=Split.COLUMN),
    )
    return (
        *(gates if spec.gated_attention else ()),
        *dit.chain(
            f"{name} attention layout", rows, width[1], (LAYOUT, 1), count, passes=0, launches=0
        ),
        linear(f"{name} attention output", rows, width, count=count, split=Split.ROW),
    )


def _cross(
    name: str,
    spec: TransformerSpec,
    sides: tuple[RowCount, RowCount],
    widths: tuple[int, int, int],
    eager: tuple[Eager, Eager],
    count: int,
) -> tuple[Op, ...]:
    """Products and norms of an attention between `sides`, asking and answering.

    Args:
        name: start of operator names.
        spec: heads of the attention.
        sides: rows of queries, rows of keys.
        widths: of the asking stream, of the answering stream, of the attention.
        eager: chains of the norm (and rotary embedding) of queries and of keys.
        count: blocks.
    """
    column = Split.COLUMN
    asking, answering, inner = widths
    return (
        linear(f"{name} q projection", sides[0], (inner, asking), count=count, split=column),
        *dit.chain(f"{name} q norm", sides[0], inner, eager[0], count, split=column),
        linear(
            f"{name} k, v projection", sides[1], (inner, answering), count=2 * count, split=column
        ),
        *dit.chain(f"{name} k norm", sides[1], inner, eager[1], count, split=column),
        *_output(name, spec, sides[0], (asking, inner), count),
    )


def _read_text(
    name: str, spec: TransformerSpec, asking: tuple[RowCount, Ints], sizes: Sizes, count: int
) -> tuple[Op, ...]:
    rows, tokens = asking
    attention = Attention(
        name=f"{name} text attention",
        count=count,
        batch=sizes.batch,
        seq_q=tokens,
        seq_kv=sizes.text,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        role=Role.CROSS if name == "video" else Role.TEXT,
        masked=True,
    )
    sides, widths = (rows, sizes.text_rows), (spec.hidden, spec.hidden, spec.q_width)
    residual = (6.0 + RMS, 8)
    modulated = (
        *dit.chain(f"{name} text query modulation", rows, spec.hidden, (MODULATE, 3), count),
        *dit.chain(f"{name} text modulation", sizes.text_rows, spec.hidden, (MODULATE, 4), count),
        *dit.chain(f"{name} text gate", rows, spec.hidden, (READ_WRITE, 1), count),
    )
    return (
        *(modulated if spec.text_modulation else ()),
        *_cross(f"{name} text", spec, sides, widths, ((WIDE_RMS, 1),) * 2, count),
        attention,
        *dit.chain(f"{name} text residual and norm", rows, spec.hidden, residual, count, passes=2),
    )


def _between(
    spec: TransformerSpec, sizes: Sizes, sound: RowCount, count: int, traits: Traits
) -> tuple[Op, ...]:
    """Video asks sound, then sound asks video, both with the narrow heads of sound."""
    video, wide, narrow = sizes.latent_rows, spec.hidden, spec.audio_hidden
    gathered = traits.sound_reads == "states"
    keys = dit.full_rows(sizes) if gathered else video
    attention = Attention(
        name="video asks sound",
        count=count,
        batch=sizes.batch,
        seq_q=sizes.tokens,
        seq_kv=sound[1] // sizes.batch,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.audio_head_dim,
        role=Role.CROSS,
    )
    rotated = ((WIDE_RMS + ROPE, 10),) * 2
    vectors, gate = (2 * MODULATE, 6), (GATE, 4)
    return (
        *dit.chain("video modulation between streams", video, wide, vectors, count),
        *dit.chain("sound modulation between streams", sound, narrow, vectors, count),
        *_cross("video to sound", spec, (video, sound), (wide, narrow, narrow), rotated, count),
        attention,
        *dit.chain("video gate between streams", video, wide, gate, count, passes=1.5),
        *_cross("sound to video", spec, (sound, keys), (narrow, wide, narrow), rotated, count),
        replace(
            attention,
            name="sound asks video",
            seq_q=sound[1] // sizes.batch,
            seq_kv=sizes.tokens,
            role=Role.HEADS if traits.sound_reads == "exchange" else Role.TEXT,
        ),
        *dit.chain("sound gate between streams", sound, narrow, gate, count, passes=1.5),
    )


def _feed_forward(name: str, spec: TransformerSpec, rows: RowCount, count: int) -> tuple[Op, ...]:
    hidden = spec.hidden
    norm, gate = (RMS + MODULATE, 10), (GATE, 3)
    return (
        *dit.chain(f"{name} last norm and modulation", rows, hidden, norm, count),
        linear(
            f"{name} feed-forward in", rows, (spec.ffn, hidden), count=count, split=Split.COLUMN
        ),
        replace(activation(name, spec, rows, count), split=Split.COLUMN),
        linear(f"{name} feed-forward out", rows, (hidden, spec.ffn), count=count, split=Split.ROW),
        *dit.chain(f"{name} last gate and residual", rows, hidden, gate, count, passes=1.5),
    )
