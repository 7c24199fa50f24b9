"""Connectors of LTX-2: the states of all layers of Gemma, made ready for video and for sound.

All 49 states are joined and projected, then two small transformers (one a stream) run over them.
Source: diffusers 0.42.1 ``pipelines/ltx2/connectors.py``
(https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from perfmodel.ops import Attention, Ints, Op, Role, Rows
from perfmodel.spec.model import ModelSpec
from perfmodel.stages import dit
from perfmodel.stages.base import Component
from perfmodel.stages.layers import READ_WRITE, linear, traffic
from perfmodel.stages.ltx import RMS, ROPE, WIDE_RMS
from perfmodel.stages.text_encoder import ENCODERS

CONNECTORS, LAYERS = 2, 2
HEAD_DIM = 128
WIDER = 4
REGISTERS = 128
NORMALISE_BYTES = 60.0
"""Mean, range and scaling of every state, an element, eager."""


def _width(model: ModelSpec) -> tuple[int, int]:
    """Columns of a state, and of all states joined."""
    encoder = ENCODERS[model.text_encoders[0]]
    return encoder.hidden, (encoder.layers + 1) * encoder.hidden


def component(model: ModelSpec) -> Component:
    """Weights of the projection and of both connectors."""
    hidden, joined = _width(model)
    square = hidden * hidden + hidden
    block = 4 * square + 2 * hidden + 2 * WIDER * hidden * hidden + (WIDER + 1) * hidden
    connectors = CONNECTORS * (LAYERS * block + REGISTERS * hidden)
    return Component(
        name="connectors",
        kind="text_encoder",
        params=hidden * joined + connectors,
        when=("text_encode",),
    )


def connect(model: ModelSpec, tokens: Ints, runs: Ints) -> tuple[Op, ...]:
    """Operators of `runs` prompts of `tokens` tokens."""
    hidden, joined = _width(model)
    count = CONNECTORS * LAYERS * runs
    rows = (Rows.NONE, tokens)
    heads = hidden // HEAD_DIM
    attention = Attention(
        name="connector attention",
        count=count,
        seq_q=tokens,
        seq_kv=tokens,
        heads=heads,
        kv_heads=heads,
        head_dim=HEAD_DIM,
        role=Role.MAP,
    )
    wide = WIDER * hidden
    return (
        *dit.chain("connector input", rows, joined, (NORMALISE_BYTES, 12), runs),
        linear("connector projection", rows, (hidden, joined), count=runs),
        linear("connector q, k, v, output", rows, (hidden, hidden), count=4 * count),
        *dit.chain("connector norms", rows, hidden, (2 * RMS + 12.0, 20), count, passes=3.0),
        *dit.chain("connector q, k", rows, 2 * hidden, (WIDE_RMS + ROPE, 22), count),
        attention,
        linear("connector feed-forward in", rows, (wide, hidden), count=count),
        traffic("connector activation", rows, (READ_WRITE * wide,) * 2, count=count),
        linear("connector feed-forward out", rows, (hidden, wide), count=count),
    )
