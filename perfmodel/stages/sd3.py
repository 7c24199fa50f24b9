"""Stable Diffusion 3 and 3.5: two-stream blocks without rotary embedding, guidance as a branch.

The text of the last block is only read.  The first blocks of SD3.5-medium have a second attention
among latent tokens.  Text is 77 CLIP tokens (two towers side by side) and 256 T5 tokens.
Sources: diffusers 0.42.1 ``transformer_sd3.py``, ``attention.py``
(https://pypi.org/project/diffusers/0.42.1/), vLLM-Omni 0.30.0 ``diffusion/models/sd3``
(https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

from perfmodel.ops import Attention, Op, Role, Rows, Split
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec, TransformerSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import joint_model
from perfmodel.stages.base import Component, DenoiseWork, Traits
from perfmodel.stages.joint import (
    FULL_MODULATION,
    MODULATED_NORM_BYTES,
    MODULATED_NORM_LAUNCHES,
    RMS_BYTES,
    SINGLE_MODULATION,
    Stream,
    Style,
    gated_residual,
    join_copies,
    norm_and_rope,
    projections,
    stream_start,
    two_stream,
    under,
)
from perfmodel.stages.joint_model import sound_decode as sound_decode
from perfmodel.stages.joint_model import vae_decode as vae_decode
from perfmodel.stages.joint_model import vae_encode as vae_encode
from perfmodel.stages.joint_rows import ONE, Sizes, sizes_of
from perfmodel.stages.layers import READ_WRITE, linear, traffic
from perfmodel.stages.requests import grid

shape_columns = grid

CLIP_TOKENS = 77
POSITION_BYTES = 6.0


def shape(model: ModelSpec, workload: Workload, traits: Traits) -> Shape:
    """Defaults, sizes in whole tokens of 16 pixels, forwards."""
    return joint_model.base_shape(model, workload, traits)


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Two CLIP towers, T5, transformer and VAE."""
    return joint_model.components(model, _transformer(model))


def text_encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    """All three encoders once a guidance branch."""
    lengths = {"t5-xxl": shape.text_tokens - CLIP_TOKENS}
    return joint_model.text_encode(model, shape.branches, lengths)


def denoise(model: ModelSpec, shape: Shape, traits: Traits) -> DenoiseWork:
    """One transformer a forward, scheduler and guidance a step."""
    forward = joint_model.patch_convolution(model, shape) + _forward(
        model, sizes_of(shape, traits), traits
    )
    return joint_model.denoise_work(model, shape, forward, _transformer(model))


def _transformer(model: ModelSpec) -> Component:
    spec = model.transformer
    norms = 4 * spec.layers + 2 * spec.dual_attention_layers if spec.qk_norm else 0
    patch = spec.patch_width_in * spec.hidden + spec.hidden
    return joint_model.weights(
        model,
        _forward(model, ONE, Traits()),
        bias=lambda op: True,
        in_blocks=norms * spec.head_dim,
        elsewhere=patch,
    )


def _forward(model: ModelSpec, sizes: Sizes, traits: Traits) -> tuple[Op, ...]:
    spec = model.transformer
    rms = RMS_BYTES if spec.qk_norm else 0.0
    style = under(traits, Style(rms_bytes=rms, rope_bytes=0.0, rope_launches=0))
    positions = traffic(
        "add positions",
        (Rows.FULL, sizes.latent_rows[1]),
        (POSITION_BYTES * spec.hidden,) * 2,
    )
    return (
        positions,
        *joint_model.condition(model, sizes),
        joint_model.embedding(
            "text embedding", sizes.text_rows, (spec.hidden, spec.text_width or spec.hidden)
        ),
        *two_stream(
            spec,
            sizes,
            style,
            spec.layers,
            text_count=spec.layers - 1,
            latent_start=_latent_start(spec, sizes, style),
        ),
        *join_copies(spec, sizes, spec.layers),
        *_second_attention(spec, sizes, style),
        *joint_model.final_layer(model, sizes),
    )


def _latent_start(spec: TransformerSpec, sizes: Sizes, style: Style) -> tuple[Op, ...]:
    """Blocks with a second attention project three more vectors."""
    dual = spec.dual_attention_layers
    plain = Stream(name="latent", rows=sizes.latent_rows, count=spec.layers - dual)
    started = stream_start(spec, sizes, style, plain)
    if dual == 0:
        return started
    double = Stream(name="dual latent", rows=sizes.latent_rows, count=dual)
    vectors = FULL_MODULATION + SINGLE_MODULATION
    return (*started, *stream_start(spec, sizes, style, double, vectors=vectors))


def _second_attention(spec: TransformerSpec, sizes: Sizes, style: Style) -> tuple[Op, ...]:
    """Latent tokens among themselves, from the same norm under another modulation."""
    count, rows, hidden = spec.dual_attention_layers, sizes.latent_rows, spec.hidden
    if count == 0:
        return ()
    stream = Stream(name="second attention", rows=rows, count=count)
    attention = Attention(
        name="second attention",
        count=count,
        batch=sizes.batch,
        seq_q=sizes.tokens,
        seq_kv=sizes.tokens,
        heads=spec.heads,
        kv_heads=spec.kv_heads,
        head_dim=spec.head_dim,
        role=Role.SELF,
    )
    return (
        traffic(
            "second attention modulation of the norm",
            rows,
            (READ_WRITE * hidden, (MODULATED_NORM_BYTES - READ_WRITE) * hidden),
            count=count,
            eager_launches=MODULATED_NORM_LAUNCHES - 1,
        ),
        *projections(spec, style, stream),
        *norm_and_rope(spec, style, stream),
        attention,
        linear(
            "second attention output",
            rows,
            (hidden, spec.q_width),
            count=count,
            split=Split.ROW,
        ),
        gated_residual("second attention", rows, hidden, count),
    )
