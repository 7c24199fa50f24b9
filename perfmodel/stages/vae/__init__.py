"""The VAE of a model: operators, weights and live memory, dispatched by ``model.vae.kind``.

A kind is one module of this folder with the five functions of `VaeKind` and one line in `KINDS`.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol, cast

from perfmodel.ops import Floats, Ints, Op
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.base import Component, Traits

KINDS = {
    "wan": "perfmodel.stages.vae.wan",
    "qwen_image": "perfmodel.stages.vae.qwen_image",
    "kl2d": "perfmodel.stages.vae.kl",
    "flux2": "perfmodel.stages.vae.kl",
    "hunyuanvideo": "perfmodel.stages.vae.hunyuan",
    "hunyuanvideo15": "perfmodel.stages.vae.hunyuan",
    "cogvideox": "perfmodel.stages.vae.cogvideox",
    "ltx": "perfmodel.stages.vae.ltx",
    "ltx2": "perfmodel.stages.vae.ltx",
    "minimax_h3": "perfmodel.stages.vae.minimax_h3",
    "mochi": "perfmodel.stages.vae.mochi",
    "dcae": "perfmodel.stages.vae.dcae",
    "traced": "perfmodel.stages.vae.traced",
}


class VaeKind(Protocol):
    """What the module of a kind provides."""

    def decode(
        self, vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
    ) -> tuple[Op, ...]:
        """Operators that decode one map of `height` x `width` latent positions."""

    def encode(
        self, vae: VaeSpec, frames: Ints, height: Ints, width: Ints, traits: Traits
    ) -> tuple[Op, ...]:
        """Operators that encode one map of `frames` x `height` x `width` pixels."""

    def params(self, vae: VaeSpec) -> tuple[int, int]:
        """Parameters of the encoder and of the decoder."""

    def decode_peak_bytes(
        self, vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, fast_path: str = "off"
    ) -> Floats:
        """Most bytes alive in a bf16 decode of one map, weights and the output clip left out."""

    def encode_peak_bytes(self, vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Floats:
        """Most bytes alive in a bf16 encode of one map, weights and the input clip left out."""


def kind(vae: VaeSpec) -> VaeKind:
    """The module of a kind, imported when first asked for."""
    return cast("VaeKind", import_module(KINDS[vae.kind]))


def decode(
    model: ModelSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Operators that decode one map of latent positions (a tile or the whole).

    Args:
        model: whose VAE.
        latent_frames: frames of the latent.
        height: latent rows.
        width: latent columns.
        traits: ``vae_fast_path`` selects the data movement where the kind has a fast path.
    """
    return kind(model.vae).decode(model.vae, latent_frames, height, width, traits)


def encode(
    model: ModelSpec, frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Operators that encode one map of pixels (a tile or the whole)."""
    return kind(model.vae).encode(model.vae, frames, height, width, traits)


def params(model: ModelSpec) -> tuple[int, int]:
    """Parameters of the encoder and of the decoder, 1x1 (post-)quantisation included."""
    return kind(model.vae).params(model.vae)


def component(model: ModelSpec) -> Component:
    """Encoder and decoder: both stay resident."""
    return Component(
        name="vae",
        kind="vae",
        params=sum(params(model)),
        bits=model.vae.bits,
        when=("vae_encode", "vae_decode"),
    )


def decode_peak_bytes(
    model: ModelSpec, latent_frames: Ints, height: Ints, width: Ints, fast_path: str = "off"
) -> Floats:
    """Most bytes that a decode in bf16 keeps alive at once, weights and the output clip left out.

    Args:
        model: whose VAE.
        latent_frames: frames of the latent; 1 is an image.
        height: latent rows of the map (a tile or the whole).
        width: latent columns.
        fast_path: off, lossless or channels_last.
    """
    module = kind(model.vae)
    return module.decode_peak_bytes(model.vae, latent_frames, height, width, fast_path)


def encode_peak_bytes(model: ModelSpec, frames: Ints, height: Ints, width: Ints) -> Floats:
    """As `decode_peak_bytes`, for a map of `frames` x `height` x `width` pixels."""
    return kind(model.vae).encode_peak_bytes(model.vae, frames, height, width)
