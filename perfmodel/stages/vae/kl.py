"""The image VAE of latent diffusion (AutoencoderKL) and that of FLUX.2.

FLUX.1, Stable Diffusion 3, Z-Image, PixArt and HunyuanDiT use it.  Frames are a batch of images.
Source: diffusers 0.42.1 ``AutoencoderKL``, ``AutoencoderKLFlux2``
(https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from perfmodel.ops import Ints
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.vae.blocks import RGB, Net, clip_map, decoder, encoder
from perfmodel.stages.vae.one_pass import OnePass
from perfmodel.stages.vae.record import Map


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


_pass = OnePass(_encoder, _decoder)
decode, decode_peak_bytes = _pass.decode, _pass.decode_peak_bytes
encode, encode_peak_bytes = _pass.encode, _pass.encode_peak_bytes
params = _pass.params
