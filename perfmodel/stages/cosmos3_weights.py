"""Parameters of Cosmos3 by component, from the dimensions alone.

Checked against the published modules (diffusers 0.42.1 ``Cosmos3OmniTransformer``): e.g. Nano has
15,173,669,120 parameters with ``lm_head``, of which vLLM-Omni loads 14,551,339,264.
"""

from __future__ import annotations

from perfmodel.spec.model import ModelSpec
from perfmodel.stages import sound_decoder, vae
from perfmodel.stages.base import Component


def linear_params(model: ModelSpec) -> int:
    """Weights of the linears of one block (all of which tensor parallelism divides)."""
    spec = model.transformer
    attention = 2 * spec.hidden * spec.q_width + 2 * spec.hidden * spec.kv_width
    projections = 3 if spec.activation == "swiglu" else 2
    return attention + projections * spec.hidden * spec.ffn


def layer_params(model: ModelSpec, *, text: bool) -> int:
    """All parameters of one block of the text or of the video tower."""
    spec = model.transformer
    # Edge's text tower norms only the keys it hands over; the others norm q and k.
    head_norms = 1 if text and not spec.text_qk_norm else 2
    return linear_params(model) + 2 * spec.hidden + head_norms * spec.head_dim


def _affine(inputs: int, outputs: int) -> int:
    return inputs * outputs + outputs


def _outside_blocks(model: ModelSpec) -> int:
    """Input and output projections, final norm, sound and per-domain action projections."""
    spec = model.transformer
    patch = _affine(spec.patch_width_in, spec.hidden) + _affine(spec.hidden, spec.patch_width_out)
    sound = action = 0
    if spec.sound_channels:
        sound = _both_ways(spec.sound_channels, spec.hidden) + spec.hidden
    if spec.action_domains:
        action = spec.action_domains * _both_ways(spec.action_channels, spec.hidden) + spec.hidden
    return patch + spec.hidden + sound + action


def _both_ways(narrow: int, wide: int) -> int:
    return _affine(narrow, wide) + _affine(wide, narrow)


def _tower(model: ModelSpec, name: str, kind: str, *, text: bool, extra: int) -> Component:
    layers = model.transformer.layers
    block_params = layers * layer_params(model, text=text)
    linears = layers * linear_params(model)
    return Component(
        name=name,
        kind=kind,
        params=block_params + extra,
        block_params=block_params,
        blocks=layers,
        tp_params=linears,
        quantizable_params=linears,
        when=("denoise",),
    )


def components(model: ModelSpec) -> tuple[Component, ...]:
    """Text tower, token embedding, video tower, time MLP (fp32), VAE, sound tokenizer."""
    spec = model.transformer
    time = _affine(spec.time_width, spec.hidden) + _affine(spec.hidden, spec.hidden)
    found = [
        _tower(model, "understanding", "text_encoder", text=True, extra=spec.hidden),
        Component(
            name="embeddings",
            kind="other",
            params=spec.vocabulary * spec.hidden,
            when=("denoise",),
        ),
        _tower(model, "transformer", "transformer", text=False, extra=_outside_blocks(model)),
        Component(
            name="time_embedder", kind="transformer", params=time, bits=32, when=("denoise",)
        ),
        vae.component(model),
    ]
    if model.sound_decoder:
        found.append(sound_decoder.component())
    return tuple(found)
