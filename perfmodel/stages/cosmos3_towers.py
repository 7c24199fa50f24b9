"""The two towers of Cosmos3 as operators: blocks, entry and exit.

Sources: vLLM-Omni 0.30.0 ``transformer_cosmos3.py`` (https://pypi.org/project/vllm-omni/0.30.0/);
eager traffic from the module code of diffusers 0.42.1 (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

import numpy as np

from perfmodel.ops import Attention, Ints, Op, Pointwise, Role, Rows, Split
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.stages.base import Traits
from perfmodel.stages.layers import BF16_BYTES, READ_WRITE, elements, linear, traffic

# Eager bytes per element: an fp32 RMS norm of a bf16 map (cast 6, square 8, mean 4, scale 6,
# cast 6, weight 4), a rotate-half embedding (negate 2, concatenate 4, two products 8, sum 6).
NORM_EAGER_BYTES = 34.0
NORM_LAUNCHES = 8
ROPE_EAGER_BYTES = 20.0
ROPE_LAUNCHES = 5
# Edge's norm multiplies by an fp32 weight: 6 bytes and a cast of the weight more.
EDGE_NORM_EXTRA_BYTES = 6.0


def _norm_bytes(model: ModelSpec) -> float:
    extra = EDGE_NORM_EXTRA_BYTES if model.transformer.activation == "relu2" else 0.0
    return NORM_EAGER_BYTES + extra


def _norm_launches(model: ModelSpec) -> int:
    return NORM_LAUNCHES + (1 if model.transformer.activation == "relu2" else 0)


def und_tower(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    """One branch's text pass; text K and V of every layer stay resident."""
    spec = model.transformer
    rows = (Rows.TEXT, shape.text_tokens)
    attention = Attention(
        name="text self-attention",
        count=spec.layers,
        seq_q=shape.text_tokens,
        seq_kv=shape.text_tokens,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        causal=True,
        role=Role.TEXT,
    )
    embedding = traffic("text embedding", rows, (READ_WRITE * spec.hidden,) * 2)
    block = _block(model, "text ", rows, attention, spec.layers, qk_norm=spec.text_qk_norm)
    if spec.text_qk_norm:
        return (embedding, *block)
    # Edge norms the keys that it hands to the GEN tower instead.
    key_norm = traffic(
        "text k norm for the video tower",
        rows,
        (READ_WRITE * spec.kv_width, _norm_bytes(model) * spec.kv_width),
        count=spec.layers,
        eager_launches=_norm_launches(model),
        split=Split.COLUMN,
    )
    return (embedding, *block, key_norm)


def gen_tower(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """One forward over the latent tokens; ``count`` runs over layers and outputs."""
    spec = model.transformer
    runs = shape.batch
    count = spec.layers * runs
    rows = (Rows.TOKENS, shape.tokens)
    attention = Attention(
        name="self-attention",
        count=count,
        seq_q=shape.tokens,
        seq_kv=shape.tokens + shape.text_tokens,
        prefix_kv=shape.text_tokens,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        role=Role.SELF,
    )
    key_bytes = elements(shape.tokens + shape.text_tokens) * READ_WRITE * spec.kv_width
    concatenation = Pointwise(
        name="join text and video k, v",
        count=count,
        launches=2,
        bytes_moved=2 * key_bytes,
        eager_bytes=2 * key_bytes,
        rows=Rows.TOKENS,
        split=Split.COLUMN,
        is_copy=True,
    )
    return (
        *_entry(model, shape, traits, runs),
        *_block(model, "", rows, attention, count, extra=(concatenation,)),
        *_exit(model, shape, runs),
    )


def _block(
    model: ModelSpec,
    prefix: str,
    rows: tuple[Rows, Ints],
    attention: Attention,
    count: Ints,
    *,
    qk_norm: bool = True,
    extra: tuple[Op, ...] = (),
) -> tuple[Op, ...]:
    """One block of either tower, `count` times."""
    spec, norm = model.transformer, _norm_bytes(model)
    hidden = spec.hidden
    return (
        traffic(
            f"{prefix}input norm",
            rows,
            (READ_WRITE * hidden, norm * hidden),
            count=count,
            eager_launches=_norm_launches(model),
        ),
        *_queries_keys_values(model, prefix, rows, count, qk_norm=qk_norm),
        *extra,
        attention,
        linear(
            f"{prefix}attention output",
            rows,
            (hidden, spec.q_width),
            count=count,
            split=Split.ROW,
        ),
        traffic(
            f"{prefix}residual and norm",
            rows,
            (2 * READ_WRITE * hidden, (3 * BF16_BYTES + norm) * hidden),
            count=count,
            eager_launches=1 + _norm_launches(model),
        ),
        *_feed_forward(model, prefix, rows, count),
        traffic(f"{prefix}residual", rows, (3 * BF16_BYTES * hidden,) * 2, count=count),
    )


def _queries_keys_values(
    model: ModelSpec, prefix: str, rows: tuple[Rows, Ints], count: Ints, *, qk_norm: bool
) -> tuple[Op, ...]:
    """Three products; q and k are rotated, and normed before where the tower does."""
    spec = model.transformer
    width = spec.q_width + spec.kv_width
    eager = ROPE_EAGER_BYTES + (_norm_bytes(model) if qk_norm else 0.0)
    return (
        *(
            linear(
                f"{prefix}{name} projection",
                rows,
                (n, spec.hidden),
                count=count,
                split=Split.COLUMN,
            )
            for name, n in (("q", spec.q_width), ("k", spec.kv_width), ("v", spec.kv_width))
        ),
        traffic(
            f"{prefix}q, k norm and rope",
            rows,
            (READ_WRITE * width, eager * width),
            count=count,
            launches=2,
            eager_launches=2 * (ROPE_LAUNCHES + (_norm_launches(model) if qk_norm else 0)),
            split=Split.COLUMN,
        ),
    )


def _feed_forward(
    model: ModelSpec, prefix: str, rows: tuple[Rows, Ints], count: Ints
) -> tuple[Op, ...]:
    spec = model.transformer
    up_width = (spec.ffn, spec.hidden)
    gated = spec.activation == "swiglu"
    names = ("gate projection", "up projection") if gated else ("up projection",)
    # silu(gate) * up: two reads and a write; the eager pair is 4 + 6 bytes, relu then square 4 + 4.
    fused, eager = (3 * BF16_BYTES, 10.0) if gated else (READ_WRITE, 8.0)
    return (
        *(linear(prefix + name, rows, up_width, count=count, split=Split.COLUMN) for name in names),
        traffic(
            f"{prefix}activation",
            rows,
            (fused * spec.ffn, eager * spec.ffn),
            count=count,
            eager_launches=2,
            split=Split.COLUMN,
        ),
        linear(
            f"{prefix}down projection", rows, (spec.hidden, spec.ffn), count=count, split=Split.ROW
        ),
    )


def _entry(model: ModelSpec, shape: Shape, traits: Traits, runs: Ints) -> tuple[Op, ...]:
    """Patchify, embed, time MLP (one vector; every token where diffusers drives), add."""
    spec = model.transformer
    full = (Rows.FULL, shape.video_tokens)
    each_token = traits.understanding_each_forward
    time = (Rows.FULL, shape.tokens) if each_token else (Rows.NONE, 1)
    patch = READ_WRITE * spec.patch_width_in
    return (
        traffic("patchify", full, (patch, 2 * patch), count=runs, eager_launches=3, is_copy=True),
        linear(
            "input projection",
            full,
            (spec.hidden, spec.patch_width_in),
            count=runs,
            quantizable=False,
        ),
        *_sound_linears(model, shape, runs, entry=True),
        linear(
            "time projection 1", time, (spec.hidden, spec.time_width), count=runs, quantizable=False
        ),
        linear(
            "time projection 2", time, (spec.hidden, spec.hidden), count=runs, quantizable=False
        ),
        traffic(
            "add timestep",
            (Rows.FULL, shape.tokens),
            (READ_WRITE * spec.hidden,) * 2,
            count=runs,
            eager_launches=8,
        ),
    )


def _exit(model: ModelSpec, shape: Shape, runs: Ints) -> tuple[Op, ...]:
    """Final norm and projection, on the gathered hidden state of every rank."""
    spec = model.transformer
    patch = READ_WRITE * spec.patch_width_out
    return (
        traffic(
            "final norm",
            (Rows.FULL, shape.tokens),
            (READ_WRITE * spec.hidden, _norm_bytes(model) * spec.hidden),
            count=runs,
            eager_launches=_norm_launches(model),
        ),
        linear(
            "output projection",
            (Rows.FULL, shape.video_tokens),
            (spec.patch_width_out, spec.hidden),
            count=runs,
            quantizable=False,
        ),
        *_sound_linears(model, shape, runs, entry=False),
        traffic(
            "unpatchify", (Rows.FULL, shape.video_tokens), (patch, patch), count=runs, is_copy=True
        ),
    )


def _sound_linears(model: ModelSpec, shape: Shape, runs: Ints, *, entry: bool) -> tuple[Op, ...]:
    if np.all(np.asarray(shape.extra_tokens) == 0):
        return ()
    spec = model.transformer
    width = (spec.hidden, spec.sound_channels) if entry else (spec.sound_channels, spec.hidden)
    name = "sound input projection" if entry else "sound output projection"
    return (linear(name, (Rows.FULL, shape.extra_tokens), width, count=runs, quantizable=False),)
