"""MiniMax-H3: text, sound and video rows in one sequence that attends to itself.

All rows share the weights of a block; each takes its shift, scale and gate from a table of
timesteps and kinds of rows, projected in every block.  The text runs through two blocks of its own
before.  Clips have ``17 n + 5`` frames and ``5 n + 2`` latent ones; sound has 40 latents a second
for each of two channels.  The released checkpoint is distilled to one branch.  Sequence parallelism
divides all rows.
Sources: diffusers 0.42.1 ``transformer_minimax_h3.py``, ``autoencoder_kl_minimax_h3_audio.py``
(https://pypi.org/project/diffusers/0.42.1/); vLLM-Omni 0.30.0 ``diffusion/models/minimax_h3``
(https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.ops import Attention, Conv, Ints, Op, Role, Rows, Split
from perfmodel.shapes import Shape, ceil_div
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import dit, joint_model, vocoder
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import Chains, Streams
from perfmodel.stages.dit import text_encode as text_encode
from perfmodel.stages.joint_model import embedding
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.layers import READ_WRITE, linear, rounding, traffic
from perfmodel.stages.requests import grid

PERIOD, REST = 17, 5
LATENT_PERIOD, LATENT_REST = 5, 2
CHANNELS = 2
TIMES, KINDS, VECTORS = 2, 3, 6
"""Timesteps in a sequence (clean text and noisy rest), kinds of rows, vectors of each."""
# Norm 4, two vectors gathered for each row 4, one plus 4, product 6, sum 6; gate gathered 2,
# product 6, sum 6.  Three quarters of q and k rotated: half negated 1.5, joined 3, products 6,
# sum 4.5, joined to the rest 4.
NORM, GATE, ROPE = 24.0, 14.0, 19.0
CHAINS = Chains(
    start=(NORM, 6),
    qk=(4.0 + ROPE, 16),
    middle=(GATE, 3),
    cross_end=(GATE + NORM, 9),
    end=(GATE, 3),
)
PLAIN = Chains(start=(4.0, 1), qk=(4.0, 2), middle=(6.0, 1), cross_end=(10.0, 2), end=(6.0, 1))
SOUND_LATENT, SOUND_WIDTH = 32, 2048
SOUND_PARAMS = 151_321_489
"""Encoder and decoder, weights kept as length and direction."""
SOUND = vocoder.Vocoder(
    name="sound decoder",
    width=1024,
    inputs=SOUND_WIDTH,
    outputs=1,
    steps=((9, 5), (9, 5), (4, 2), (4, 2), (4, 2), (4, 2), (4, 2)),
)


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, frames up to 17 n + 5, sizes in multiples of 32; sound is always made."""
    silent = workload.model_copy(update={"sound": False})
    base = joint_model.base_shape(model, silent, replace(traits, frame_rounding="down"))
    asked = workload.frames or _seconds(workload, base.fps) or model.tasks[base.task].frames
    found = shape_columns(model, base, base.width, base.height, asked)
    notes = tuple(note for note in base.notes if note.rule_id != "frame-rounding")
    if found.frames != asked:
        message = f"{asked} frames run as {found.frames} ({PERIOD} n + {REST})"
        notes = (*notes, rounding("frame-rounding", message, "--frames"))
    return replace(found, notes=notes)


def _seconds(workload: Workload, fps: float) -> int:
    return max(1, round(workload.seconds * fps)) if workload.seconds else 0


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes; text and sound are rows of the sequence."""
    whole = ceil_div(np.maximum(frames, REST) - REST, PERIOD)
    count: Ints = int(whole) if np.ndim(whole) == 0 else np.asarray(whole, np.int64)
    one = grid(model, base, width, height, 1 + 0 * frames)
    latent = LATENT_PERIOD * count + LATENT_REST
    shape = replace(
        one,
        frames=PERIOD * count + REST,
        latent_frames=latent,
        video_tokens=one.video_tokens * latent,
    )
    return replace(shape, extra_tokens=sound_rows(model, shape) + shape.text_tokens)


def sound_rows(model: ModelSpec, shape: Shape) -> Ints:
    """Sound latents of both channels, as long as the clip."""
    rate = model.transformer.sound_tokens_per_s
    count = CHANNELS * np.rint(np.asarray(shape.frames, float) / shape.fps * rate).astype(np.int64)
    return int(count) if np.ndim(count) == 0 else np.asarray(count, np.int64)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Language model, transformer, VAE and sound VAE."""
    sound = Component(
        name="audio_vae", kind="other", params=SOUND_PARAMS, bits=32, when=("vae_decode",)
    )
    return (*joint_model.components(model, _transformer(model)), sound)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler a step."""
    rows = (shape.video_tokens, sound_rows(model, shape), shape.text_tokens)
    forward = _forward(model, shape.batch, rows, fused_qkv=traits.fused_qkv)
    work = joint_model.denoise_work(model, shape, forward, _transformer(model))
    return replace(work, exit_width=work.exit_width + model.transformer.sound_channels)


def sound_decode(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    """Waveforms of both channels, in fp32."""
    batch, length = CHANNELS * shape.batch, sound_rows(model, shape) // CHANNELS
    entry = Conv(
        name="sound decoder input",
        batch=batch,
        in_channels=SOUND_LATENT,
        out_channels=SOUND_WIDTH,
        kernel=(1, 1, 1),
        out_t=1,
        out_h=1,
        out_w=length,
    )
    ops = (entry, *vocoder.generate(SOUND, length, batch))
    return tuple(replace(op, dtype="fp32") if isinstance(op, Conv) else op for op in ops)


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    norms = 2 * hidden + 2 * spec.head_dim
    return joint_model.weights(
        model,
        _forward(model, 1, (1, 1, 1), fused_qkv=False),
        bias=lambda op: op.split is Split.NONE,
        in_blocks=(spec.layers + spec.refiner_layers) * norms,
        elsewhere=2 * hidden,
    )


def _forward(
    model: ModelSpec, batch: Ints, lengths: tuple[Ints, Ints, Ints], *, fused_qkv: bool
) -> tuple[Op, ...]:
    """`lengths` are rows of video, sound and text."""
    spec, hidden = model.transformer, model.transformer.hidden
    video, sound, text = lengths
    whole = video + sound + text
    times = (Rows.NONE, TIMES)
    full, words = (Rows.FULL, batch * video), (Rows.TEXT, batch * text)
    rows, refined = _rows(Rows.TOKENS, batch, whole), _rows(Rows.TEXT, batch, text)
    kinds = VECTORS * KINDS * hidden
    return (
        embedding("latent embedding", full, (hidden, spec.patch_width_in)),
        embedding("sound embedding", (Rows.FULL, batch * sound), (hidden, spec.sound_channels)),
        embedding("text embedding", words, (hidden, spec.text_width or hidden)),
        *_refiner(model, refined, fused_qkv=fused_qkv),
        traffic("pack rows", (Rows.FULL, batch * whole), (READ_WRITE * hidden,) * 2, is_copy=True),
        embedding("time projection 1", times, (hidden, spec.time_width)),
        embedding("time projection 2", times, (spec.modulation_width, hidden)),
        linear(
            "modulation",
            times,
            (kinds, spec.modulation_width),
            count=spec.layers,
            quantizable=False,
        ),
        *dit.chain("norm and modulation", rows.own, hidden, CHAINS.start, spec.layers),
        *dit.self_attention(spec, rows, CHAINS, fused_qkv=fused_qkv, count=spec.layers),
        *dit.feed_forward(spec, rows, CHAINS, spec.layers),
        embedding("final modulation", times, (2 * hidden, spec.modulation_width)),
        *dit.chain("final norm", rows.own, hidden, (NORM, 6), 1),
        embedding("output projection", rows.own, (spec.patch_width_out, hidden)),
        embedding("sound output projection", rows.own, (spec.sound_channels, hidden)),
    )


def _refiner(model: ModelSpec, rows: Streams, *, fused_qkv: bool) -> tuple[Op, ...]:
    """Blocks of the text alone, without modulation and rotation."""
    spec, count = model.transformer, model.transformer.refiner_layers
    attention = dit.self_attention(spec, rows, PLAIN, fused_qkv=fused_qkv, count=count)
    ops = (
        *dit.chain("norm", rows.own, spec.hidden, PLAIN.start, count),
        *(replace(op, role=Role.TEXT) if isinstance(op, Attention) else op for op in attention),
        *dit.feed_forward(spec, rows, PLAIN, count),
    )
    return tuple(replace(op, name=f"refiner {op.name}") for op in ops)


def _rows(kind: Rows, batch: Ints, length: Ints) -> Streams:
    own = (kind, batch * length)
    return Streams(
        own=own,
        asking=own,
        text=own,
        batch=batch,
        length=length,
        asking_length=length,
        text_length=length,
    )
