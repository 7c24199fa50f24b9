"""A VAE class that was traced: both networks as polynomials of the latent map."""

from __future__ import annotations

from perfmodel.ops import Conv, Floats, Ints, Op, Pointwise
from perfmodel.shapes import ceil_div
from perfmodel.spec.forms import Values, amount, parse
from perfmodel.spec.traced import Ops, TracedConv, TracedVae
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages.base import Traits
from perfmodel.stages.layers import READ_WRITE, elements
from perfmodel.stages.traced_ops import operators


def decode(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, traits: Traits
) -> tuple[Op, ...]:
    """Operators that decode one map of `height` x `width` latent positions."""
    return _network(_traced(vae).decode, _values(latent_frames, height, width))


def encode(vae: VaeSpec, frames: Ints, height: Ints, width: Ints, traits: Traits) -> tuple[Op, ...]:
    """Operators that encode one map of pixels."""
    return _network(_traced(vae).encode, _latent(vae, frames, height, width))


def params(vae: VaeSpec) -> tuple[int, int]:
    """Parameters of the encoder and of the decoder."""
    traced = _traced(vae)
    return traced.encoder_params, traced.decoder_params


def decode_peak_bytes(
    vae: VaeSpec, latent_frames: Ints, height: Ints, width: Ints, fast_path: str = "off"
) -> Floats:
    """Most bytes alive in a decode, weights and the output left out (no fast path)."""
    values = _values(latent_frames, height, width)
    return amount(parse(_traced(vae).decode_peak), values)


def encode_peak_bytes(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Floats:
    """Most bytes alive in an encode, weights and the input left out."""
    values = _latent(vae, frames, height, width)
    return amount(parse(_traced(vae).encode_peak), values)


def _network(ops: Ops, values: Values) -> tuple[Op, ...]:
    """The operators, with what a convolution of a channels-first map moves besides.

    Input, filter and output are converted, and ATen adds a bias in a pass of its own, as
    `record.Recorder.convolve` counts for the known kinds.
    """
    found: list[Op] = []
    for traced, op in zip(ops, operators(ops, values), strict=True):
        found.append(op)
        if not isinstance(traced, TracedConv) or not isinstance(op, Conv):
            continue
        places = elements(op.batch, op.out_t, op.out_h, op.out_w)
        steps = op.stride[0] * op.stride[1] * op.stride[2]
        weights = op.in_channels * op.out_channels * op.kernel[0] * op.kernel[1] * op.kernel[2]
        moved = places * (op.out_channels + op.in_channels * steps) + weights
        found.append(
            Pointwise(
                name=f"{op.name} layout conversion",
                count=op.count,
                bytes_moved=moved * READ_WRITE,
                launches=3,
                is_copy=True,
                in_convolution=True,
            )
        )
        if traced.bias:
            found.append(
                Pointwise(
                    name=f"{op.name} bias",
                    count=op.count,
                    bytes_moved=places * op.out_channels * READ_WRITE,
                )
            )
    return tuple(found)


def _traced(vae: VaeSpec) -> TracedVae:
    assert vae.traced is not None
    return vae.traced


def _values(frames: Ints, height: Ints, width: Ints) -> Values:
    return {"b": 1, "f": frames, "h": height, "w": width, "t": 0}


def _latent(vae: VaeSpec, frames: Ints, height: Ints, width: Ints) -> Values:
    side = vae.spatial_ratio
    return _values(
        (frames - 1) // vae.temporal_ratio + 1, ceil_div(height, side), ceil_div(width, side)
    )
