"""The image VAE of latent diffusion (AutoencoderKL) and that of FLUX.2.

FLUX.1, Stable Diffusion 3, Z-Image, PixArt and HunyuanDiT use it.  Frames are a batch of images.
Source: diffusers 0.42.1 ``AutoencoderKL``, ``AutoencoderKLFlux2``
(https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from functools import lru_cache

from perfmodel.ops import Floats, Ints, Op
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.base import Traits
from perfmodel.stages.vae_blocks import BF16_BITS, RGB, Net, clip_map, decoder, encoder
from perfmodel.stages.vae_record import Map


def decode(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Operators that decode one map of `height` x `width` latent positions."""
    return _decoder(vae, latent_frames, height, width).operators(1)


def encode(vae: VaeSpec, frames: Ints, height: Ints, width: Ints, traits: Traits) -> tuple[Op, ...]:
    """Operators that encode one map of pixels."""
    return _encoder(vae, frames, height, width).operators(1)


def decode_peak_bytes(
    vae: VaeSpec,
    latent_frames: Ints,
    height: Ints,
    width: Ints,
    bits: int = 16,
    fast_path: str = "off",
) -> Floats:
    """Most bytes alive in a decode, weights and the image left out (there is no fast path)."""
    return _decoder(vae, latent_frames, height, width).peak_bytes * (bits / BF16_BITS)


def encode_peak_bytes(
    vae: VaeSpec, frames: Ints, height: Ints, width: Ints, bits: int = 16
) -> Floats:
    """Most bytes alive in an encode, weights and the image left out."""
    return _encoder(vae, frames, height, width).peak_bytes * (bits / BF16_BITS)


@lru_cache(maxsize=16)
def params(vae: VaeSpec) -> tuple[int, int]:
    """Parameters of the encoder and of the decoder, 1x1 convolutions included."""
    side = vae.spatial_ratio
    return _encoder(vae, 1, side, side).params, _decoder(vae, 1, 1, 1).params


def _has_quantisation(vae: VaeSpec) -> bool:
    return vae.quant_convs or vae.kind == "flux2"


def _decoder(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Net:
    net = Net("decode")
    latent = clip_map(vae.z_channels, frames, height, width)
    if _has_quantisation(vae):
        _quantisation(net, latent)
    decoder(net, vae, latent, _still(vae))
    return net


def _encoder(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Net:
    net = Net("encode")
    moments = encoder(net, vae, clip_map(RGB, frames, height, width), _still(vae))
    if _has_quantisation(vae):
        _quantisation(net, moments)
    return net


def _quantisation(net: Net, shape: Map) -> None:
    net.convolve(shape, shape, (1, 1, 1), read=shape.size)


def _still(vae: VaeSpec) -> tuple[bool, ...]:
    return (False,) * (len(vae.multipliers) - 1)
