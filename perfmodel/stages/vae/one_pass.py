"""What VAEs share that run a map through their network at once: work, memory and weights.

Such a kind gives the two networks; those that cut a clip into chunks (Wan, CogVideoX) or temporal
tiles (HunyuanVideo) add up passes of their own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from perfmodel.ops import Floats, Ints, Op
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.base import Traits
from perfmodel.stages.vae.blocks import Net

Build = Callable[[VaeSpec, Ints, Ints, Ints], Net]
"""A network over a map of frames x height x width."""


@dataclass(frozen=True, slots=True)
class OnePass:
    """The functions of `vae.VaeKind` from the two networks of a VAE.

    Attributes:
        encoder: network over a map of pixels.
        decoder: network over a map of latent positions.
    """

    encoder: Build
    decoder: Build

    def decode(
        self, vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
    ) -> tuple[Op, ...]:
        """Operators that decode one map of `height` x `width` latent positions."""
        return self.decoder(vae, latent_frames, height, width).operators(1)

    def encode(
        self, vae: VaeSpec, frames: Ints, height: Ints, width: Ints, traits: Traits
    ) -> tuple[Op, ...]:
        """Operators that encode one map of pixels."""
        return self.encoder(vae, frames, height, width).operators(1)

    def decode_peak_bytes(
        self, vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, fast_path: str = "off"
    ) -> Floats:
        """Most bytes alive in a decode, weights and the output left out (no fast path)."""
        return self.decoder(vae, latent_frames, height, width).peak_bytes

    def encode_peak_bytes(self, vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Floats:
        """Most bytes alive in an encode, weights and the input left out."""
        return self.encoder(vae, frames, height, width).peak_bytes

    def params(self, vae: VaeSpec) -> tuple[int, int]:
        """Parameters of the encoder and of the decoder, 1x1 convolutions included."""
        return _params(self, vae)


@lru_cache(maxsize=16)
def _params(whole: OnePass, vae: VaeSpec) -> tuple[int, int]:
    frames, side = vae.temporal_ratio + 1, vae.spatial_ratio
    return whole.encoder(vae, frames, side, side).params, whole.decoder(vae, 1, 1, 1).params
