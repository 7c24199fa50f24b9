"""Connectors of LTX-2: the states of all layers of Gemma, made ready for video and for sound.

All 49 states are joined and projected, then two small transformers (one a stream) run over them;
in LTX-2.3 each stream has a projection of its own and a transformer of its own width.
Source: diffusers 0.42.1 ``pipelines/ltx2/connectors.py``
(https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from perfmodel.ops import Attention, Ints, Op, Role, Rows
from perfmodel.spec.model import ModelSpec, TransformerSpec
from perfmodel.stages import dit
from perfmodel.stages.base import Component
from perfmodel.stages.layers import READ_WRITE, linear, traffic
from perfmodel.stages.ltx import RMS, ROPE, WIDE_RMS
from perfmodel.stages.text_encoder import ENCODERS

HEAD_DIM = 128
WIDER = 4
REGISTERS = 128
NORMALISE_BYTES = 60.0
"""Mean, range and scaling of every state, an element, eager."""


def _streams(model: ModelSpec) -> tuple[TransformerSpec, TransformerSpec]:
    """The connector of each stream: as wide as the stream where no product follows it."""
    spec = model.transformer
    if spec.text_width is None:
        narrow = {"hidden": spec.audio_hidden, "head_dim": spec.audio_head_dim}
        return spec, spec.model_copy(update=narrow)
    plain = {"hidden": spec.text_width, "heads": spec.text_width // HEAD_DIM, "head_dim": HEAD_DIM}
    return (spec.model_copy(update=plain),) * 2


def _joined(model: ModelSpec) -> int:
    """Columns of the states of all layers, joined."""
    encoder = ENCODERS[model.text_encoders[0]]
    return (encoder.layers + 1) * encoder.hidden


def _projections(model: ModelSpec) -> tuple[int, ...]:
    """Widths that the joined states are projected to: one for both streams, or one for each."""
    widths = tuple(stream.hidden for stream in _streams(model))
    return widths if model.transformer.text_width is None else widths[:1]


def component(model: ModelSpec) -> Component:
    """Weights of the projections and of both connectors."""
    apart = model.transformer.text_width is None
    params = sum(width * (_joined(model) + apart) for width in _projections(model))
    for stream in _streams(model):
        hidden = stream.hidden
        square = hidden * hidden + hidden
        block = 4 * square + 2 * hidden + 2 * WIDER * hidden * hidden + (WIDER + 1) * hidden
        gates = (hidden + 1) * stream.heads if stream.gated_attention else 0
        params += stream.refiner_layers * (block + gates) + REGISTERS * hidden
    return Component(name="connectors", kind="text_encoder", params=params, when=("text_encode",))


def connect(model: ModelSpec, tokens: Ints, runs: Ints) -> tuple[Op, ...]:
    """Operators of `runs` prompts of `tokens` tokens."""
    rows, joined = (Rows.NONE, tokens), _joined(model)
    return (
        *dit.chain("connector input", rows, joined, (NORMALISE_BYTES, 12), runs),
        *(
            linear("connector projection", rows, (width, joined), count=runs)
            for width in _projections(model)
        ),
        *(op for stream in _streams(model) for op in _blocks(stream, tokens, runs)),
    )


def _blocks(stream: TransformerSpec, tokens: Ints, runs: Ints) -> tuple[Op, ...]:
    rows, hidden, count = (Rows.NONE, tokens), stream.hidden, stream.refiner_layers * runs
    wide = WIDER * hidden
    attention = Attention(
        name="connector attention",
        count=count,
        seq_q=tokens,
        seq_kv=tokens,
        heads=stream.heads,
        kv_heads=stream.heads,
        head_dim=stream.head_dim,
        role=Role.MAP,
    )
    gates = (
        linear("connector gates", rows, (stream.heads, hidden), count=count),
        *dit.chain("connector gating", rows, hidden, (READ_WRITE, 3), count),
    )
    return (
        linear("connector q, k, v, output", rows, (hidden, hidden), count=4 * count),
        *dit.chain("connector norms", rows, hidden, (2 * RMS + 12.0, 20), count, passes=3.0),
        *dit.chain("connector q, k", rows, 2 * hidden, (WIDE_RMS + ROPE, 22), count),
        attention,
        *(gates if stream.gated_attention else ()),
        linear("connector feed-forward in", rows, (wide, hidden), count=count),
        traffic("connector activation", rows, (READ_WRITE * wide,) * 2, count=count),
        linear("connector feed-forward out", rows, (hidden, wide), count=count),
    )
