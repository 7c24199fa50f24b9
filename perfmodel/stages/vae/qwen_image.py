"""The Qwen-Image VAE: the network of the Wan2.1 VAE, always run as published.

The fast path of vLLM-Omni covers the Wan VAEs only.
Source: diffusers 0.42.1 ``AutoencoderKLQwenImage`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.ops import Floats, Ints, Op
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.base import Traits
from perfmodel.stages.vae import wan

encode = wan.encode
encode_peak_bytes = wan.encode_peak_bytes
params = wan.params


def decode(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Operators that decode one map of `height` x `width` latent positions."""
    published = replace(traits, vae_fast_path="off")
    return wan.decode(vae, latent_frames, height, width, published)


def decode_peak_bytes(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, fast_path: str = "off"
) -> Floats:
    """Most bytes alive in a decode; `fast_path` changes nothing."""
    return wan.decode_peak_bytes(vae, latent_frames, height, width)
