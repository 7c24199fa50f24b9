"""CogVideoX: text and video tokens run as one stream; only norms and gates tell them apart.

1.5 folds two latent frames into a token, so an odd latent length gets one more frame, which is
dropped after decoding.  Source: diffusers 0.42.1 ``cogvideox_transformer_3d.py``,
``pipelines/cogvideo`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops import Ints, Op, Pointwise, Rows, Split
from perfmodel.shapes import Shape, ceil_div
from perfmodel.spec.model import ModelSpec, TransformerSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import dit, joint_model
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.dit import text_encode as text_encode
from perfmodel.stages.joint import (
    GATE_SCATTERED,
    MODULATION_SCATTERED,
    Style,
    joint_attention,
)
from perfmodel.stages.joint_model import embedding
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, joined_linear, joined_traffic, sizes_of
from perfmodel.stages.layers import READ_WRITE, linear
from perfmodel.stages.requests import grid

# LayerNorm with weights 4, product 4, sum 4, and the copy that joins text and video 4.
NORM_BYTES, NORM_LAUNCHES = 16.0, 11
# LayerNorm of each head with weights 4, and the copy of the transposed heads that it makes 4.
HEAD_NORM_BYTES, HEAD_NORM_LAUNCHES, HEAD_NORM_ROWWISE = 8.0, 2, 4.0
# Rotary embedding in fp32 on video rows, written back into q and k: 52 + copy 4.
ROPE_BYTES, ROPE_LAUNCHES = 56.0, 10
GATE_BYTES, GATE_LAUNCHES = 10.0, 4
VECTORS = 6
"""Shift, scale and gate of video and of text, from one projection."""


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, frames down to 4k+1, whole temporal patches; prompts are padded."""
    base = joint_model.padded_shape(model, workload, traits)
    return _whole_patches(model, base)


def shape_columns(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes."""
    return _whole_patches(model, grid(model, base, width, height, frames))


def _whole_patches(model: ModelSpec, shape: Shape) -> Shape:
    depth, rows, columns = model.transformer.patch
    frames = ceil_div(shape.latent_frames, depth) * depth
    tokens = frames // depth * (shape.latent_height // rows) * (shape.latent_width // columns)
    return replace(shape, latent_frames=frames, video_tokens=tokens)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """T5, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = _entry(model, shape) + _after_patches(
        model, sizes_of(shape, traits), fused_qkv=traits.fused_qkv
    )
    return joint_model.denoise_work(model, shape, forward, _transformer(model))


def _entry(model: ModelSpec, shape: Shape) -> tuple[Op, ...]:
    """A convolution where a token is one latent frame deep, else a product without bias."""
    if model.transformer.patch[0] == 1:
        return joint_model.patch_convolution(model, shape)
    return dit.token_linear(model.transformer, sizes_of(shape))


def _transformer(model: ModelSpec) -> Component:
    spec, hidden = model.transformer, model.transformer.hidden
    # Two norms of the width and two head norms a block, with biases; a final norm and its twin.
    norms = spec.layers * (4 * hidden + 4 * spec.head_dim)
    patches = spec.patch_width_in * hidden + hidden
    return joint_model.weights(
        model,
        _after_patches(model, ONE, fused_qkv=False),
        bias=lambda op: True,
        in_blocks=norms,
        elsewhere=patches + 4 * hidden,
    )


def _after_patches(model: ModelSpec, sizes: Sizes, *, fused_qkv: bool) -> tuple[Op, ...]:
    spec, vector = model.transformer, sizes.vector_rows
    narrow = spec.modulation_width
    return (
        embedding("time projection 1", vector, (narrow, spec.hidden)),
        embedding("time projection 2", vector, (narrow, narrow)),
        embedding("text projection", sizes.text_rows, (spec.hidden, spec.text_width or 0)),
        *_blocks(spec, sizes, fused_qkv=fused_qkv),
        *_chain("final norms", spec, sizes, (4.0, 1), 1),
        embedding("final modulation", vector, (2 * spec.hidden, narrow)),
        *dit.output(spec, sizes, (16.0, 6)),
    )


def _blocks(spec: TransformerSpec, sizes: Sizes, *, fused_qkv: bool) -> tuple[Op, ...]:
    hidden, count, column = spec.hidden, spec.layers, Split.COLUMN
    width, times = (3 * hidden, 1) if fused_qkv else (hidden, 3)
    modulation = linear(
        "modulation",
        sizes.vector_rows,
        (VECTORS * hidden, spec.modulation_width),
        count=2 * count,
        quantizable=False,
    )
    return (
        modulation,
        *_chain(
            "norm and modulation",
            spec,
            sizes,
            (NORM_BYTES, NORM_LAUNCHES),
            count,
            scattered=MODULATION_SCATTERED,
        ),
        joined_linear("q, k, v projection", sizes, (width, hidden), times * count, column),
        *_head_norms(spec, sizes, count),
        *joint_attention(spec, sizes, Style(), "joint attention", count),
        joined_linear("attention output", sizes, (hidden, spec.q_width), count, Split.ROW),
        *_chain(
            "gate, residual, norm and modulation",
            spec,
            sizes,
            (GATE_BYTES + NORM_BYTES, GATE_LAUNCHES + NORM_LAUNCHES),
            count,
            passes=2.0,
            scattered=MODULATION_SCATTERED + GATE_SCATTERED,
        ),
        joined_linear("feed-forward in", sizes, (spec.ffn, hidden), count, column),
        *joined_traffic("activation", sizes, (READ_WRITE * spec.ffn,) * 2, count, split=column),
        joined_linear("feed-forward out", sizes, (hidden, spec.ffn), count, Split.ROW),
        *_chain(
            "gate and residual",
            spec,
            sizes,
            (GATE_BYTES, GATE_LAUNCHES),
            count,
            passes=1.5,
            scattered=GATE_SCATTERED,
        ),
    )


def _chain(
    name: str,
    spec: TransformerSpec,
    sizes: Sizes,
    eager: tuple[float, int],
    count: int,
    *,
    passes: float = 1.0,
    scattered: float = 0.0,
) -> tuple[Pointwise, ...]:
    per_row = (passes * READ_WRITE * spec.hidden, eager[0] * spec.hidden)
    return joined_traffic(
        name, sizes, per_row, count, launches=(1, eager[1]), scattered=scattered * spec.hidden
    )


def _head_norms(spec: TransformerSpec, sizes: Sizes, count: int) -> tuple[Pointwise, ...]:
    """LayerNorm of q and k on all rows; the rotary embedding (5B) on the video rows alone."""
    width = 2 * spec.q_width
    norms = joined_traffic(
        "q, k norm and rope",
        sizes,
        (READ_WRITE * width, HEAD_NORM_BYTES * width),
        count,
        launches=(2, 2 * HEAD_NORM_LAUNCHES),
        split=Split.COLUMN,
        rowwise=(HEAD_NORM_ROWWISE * width, HEAD_NORM_ROWWISE * spec.head_dim),
    )
    if not spec.rotary:
        return norms
    rows = (Rows.TOKENS, sizes.batch * sizes.tokens)
    rope = dit.chain(
        "rotary embedding",
        rows,
        width,
        (ROPE_BYTES, 2 * ROPE_LAUNCHES),
        count,
        passes=0.0,
        launches=0,
        split=Split.COLUMN,
    )
    return (*norms, *rope)
