"""Mochi 1: two streams of different width whose attention is joined; text is cut to its tokens.

Source: diffusers 0.42.1 ``transformer_mochi.py``, ``attention_processor.py`` MochiAttention,
``pipelines/mochi`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from perfmodel.ops import Op, Rows, Split
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec, TransformerSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import dit, joint_model
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import RowCount
from perfmodel.stages.dit import text_encode as text_encode
from perfmodel.stages.joint import Style, joint_attention
from perfmodel.stages.joint_model import embedding
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.layers import READ_WRITE, linear, traffic
from perfmodel.stages.requests import grid

shape_columns = grid

# RMS norm in fp32: cast 6, square 8, mean 4, product 8; scale 8, cast 6.
NORM_BYTES, NORM_LAUNCHES = 40.0, 9
# Head norm 26 and casts 12; rotary embedding in fp32 with a table for every head 52.
HEAD_BYTES, HEAD_LAUNCHES = 90.0, 14
# Joining q, k and v with text, reading them out of padding, splitting the result.
JOIN_BYTES, JOIN_LAUNCHES = 20.0, 6
RESIDUAL_BYTES = 6.0
AXES = 3
VECTORS = 4
"""Scale and gate, for attention and feed-forward."""


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, frames down to 6k+1, sizes in multiples of 16."""
    return joint_model.base_shape(model, workload, traits)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """T5, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = joint_model.patch_convolution(model, shape) + _after_patches(
        model, sizes_of(shape, traits), fused_qkv=traits.fused_qkv
    )
    return joint_model.denoise_work(model, shape, forward, _transformer(model))


def _text_ffn(spec: TransformerSpec) -> int:
    """The same ratio as the video stream: two thirds of four widths."""
    return spec.ffn * spec.text_stream_width // spec.hidden


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    patches = spec.patch_width_in * hidden + hidden
    plain = ("rotary angles", "q, k, v projection", "output", "feed-forward")
    return joint_model.weights(
        model,
        _after_patches(model, ONE, fused_qkv=False),
        bias=lambda op: not op.name.endswith(plain) or op.name.endswith("attention output"),
        in_blocks=spec.layers * 4 * spec.head_dim,
        elsewhere=patches,
    )


def _after_patches(model: ModelSpec, sizes: Sizes, *, fused_qkv: bool) -> tuple[Op, ...]:
    spec, hidden = model.transformer, model.transformer.hidden
    return (
        *_conditions(spec, sizes),
        # Learned frequencies of every head, times the position in time, height and width.
        embedding("rotary angles", sizes.latent_rows, (spec.q_width // 2, AXES)),
        *_blocks(spec, sizes, fused_qkv=fused_qkv),
        embedding("final modulation", sizes.vector_rows, (2 * hidden, hidden)),
        *dit.output(spec, sizes, (12.0, 5)),
    )


def _conditions(spec: TransformerSpec, sizes: Sizes) -> tuple[Op, ...]:
    """Timestep, and text: pooled by one query over it and its mean, and projected."""
    hidden, wide, vector = spec.hidden, spec.text_width or 0, sizes.vector_rows
    pooled = (Rows.TEXT, sizes.batch * (sizes.text + 1))
    return (
        embedding("time projection 1", vector, (hidden, spec.time_width)),
        embedding("time projection 2", vector, (hidden, hidden)),
        embedding("text pooling k, v", pooled, (2 * wide, wide)),
        embedding("text pooling q", vector, (wide, wide)),
        joint_model.pooling_attention(sizes.batch, sizes.text + 1, wide),
        embedding("text pooling result", vector, (hidden, wide)),
        embedding("text embedding", sizes.text_rows, (spec.text_stream_width, wide)),
    )


def _blocks(spec: TransformerSpec, sizes: Sizes, *, fused_qkv: bool) -> tuple[Op, ...]:
    """All blocks; the last leaves the text stream after its keys and values."""
    hidden, narrow, count = spec.hidden, spec.text_stream_width, spec.layers
    video, text = sizes.latent_rows, sizes.text_rows
    last = linear("last text modulation", sizes.vector_rows, (narrow, hidden), quantizable=False)
    joined = dit.chain(
        "join text and video",
        video,
        spec.q_width,
        (JOIN_BYTES, JOIN_LAUNCHES),
        count,
        passes=3.0,
        split=Split.COLUMN,
    )
    return (
        *_modulation("video", sizes, (hidden, hidden), count),
        *_modulation("text", sizes, (narrow, hidden), count - 1),
        last,
        *_start("video", spec, video, hidden, count, fused_qkv=fused_qkv),
        *_start("text", spec, text, narrow, count, fused_qkv=fused_qkv),
        *joined,
        *joint_attention(spec, sizes, Style(), "joint attention", count),
        *_end("video", spec, video, (hidden, spec.ffn), count),
        *_end("text", spec, text, (narrow, _text_ffn(spec)), count - 1),
    )


def _modulation(name: str, sizes: Sizes, width: tuple[int, int], count: int) -> tuple[Op, ...]:
    vectors = (VECTORS * width[0], width[1])
    return (
        linear(f"{name} modulation", sizes.vector_rows, vectors, count=count, quantizable=False),
    )


def _start(
    name: str, spec: TransformerSpec, rows: RowCount, width: int, count: int, *, fused_qkv: bool
) -> tuple[Op, ...]:
    columns, times = (3 * spec.q_width, 1) if fused_qkv else (spec.q_width, 3)
    return (
        *dit.chain(f"{name} norm", rows, width, (NORM_BYTES, NORM_LAUNCHES), count),
        linear(
            f"{name} q, k, v projection",
            rows,
            (columns, width),
            count=times * count,
            split=Split.COLUMN,
        ),
        *dit.chain(
            f"{name} q, k norm and rope",
            rows,
            2 * spec.q_width,
            (HEAD_BYTES, 2 * HEAD_LAUNCHES),
            count,
            launches=2,
            split=Split.COLUMN,
        ),
    )


def _end(
    name: str, spec: TransformerSpec, rows: RowCount, width: tuple[int, int], count: int
) -> tuple[Op, ...]:
    """Output, gated norm and residual, norm, SwiGLU, gated norm and residual."""
    hidden, ffn = width
    branch = NORM_BYTES + RESIDUAL_BYTES
    row = Split.ROW
    return (
        linear(f"{name} attention output", rows, (hidden, spec.q_width), count=count, split=row),
        *dit.chain(
            f"{name} norm, gate, residual and norm",
            rows,
            hidden,
            (branch + NORM_BYTES, 2 * NORM_LAUNCHES + 3),
            count,
            passes=2.0,
        ),
        linear(f"{name} in feed-forward", rows, (2 * ffn, hidden), count=count, split=Split.COLUMN),
        traffic(
            f"{name} activation",
            rows,
            (1.5 * READ_WRITE * ffn, 10.0 * ffn),
            count=count,
            eager_launches=2,
            split=Split.COLUMN,
        ),
        linear(f"{name} out feed-forward", rows, (hidden, ffn), count=count, split=row),
        *dit.chain(
            f"{name} norm, gate and residual",
            rows,
            hidden,
            (branch, NORM_LAUNCHES + 2),
            count,
            passes=1.5,
        ),
    )
