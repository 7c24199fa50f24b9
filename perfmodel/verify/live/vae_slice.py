"""A slice of a causal video VAE: the residual block that takes most of a decode, as published.

Norm and SiLU in fp32, clone, join with the past frames and pad, a 3x3x3 convolution; twice; sum.
Source: diffusers 0.42.1 ``autoencoder_kl_wan.py`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from perfmodel.verify.live.parts import Weights
from perfmodel.verify.live.tape import Step, Tape

PAST = 2
_EPSILON = 1e-12


@dataclass(frozen=True)
class Slice:
    """Size and names of the block.

    Attributes:
        label: of its maps in the prediction, e.g. ``L3 256x4``.
        channels, frames, rows, columns: of its maps.
        phase: of the decode, in the names.
    """

    label: str
    channels: int
    frames: int
    rows: int
    columns: int
    phase: str = "decode later"

    def name(self, what: str, more: str = "") -> str:
        """The name of an operator in the prediction."""
        return f"{self.phase}: {what} {self.label}{more}"

    @property
    def conv(self) -> str:
        """Name of the convolution."""
        return self.name("conv", self._to)

    @property
    def with_conv(self) -> tuple[str, ...]:
        """What torch's convolution does besides: conversions of the layout and the bias."""
        bias = f"{self.phase}: bias {self.label}{self._to}"
        return (self.name("layout conversion", self._to), bias)

    @property
    def _to(self) -> str:
        return f" to {self.label} k333"


class SliceBlock:
    """The block with random weights and past frames."""

    def __init__(self, size: Slice, weights: Weights) -> None:
        """Weights of every rank alike."""
        self.size = size
        channels = size.channels
        shape = (channels, channels, 3, 3, 3)
        self.convs = [weights.full(f"vae.conv{n}", *shape) for n in range(2)]
        self.bias = weights.full("vae.bias", channels, 1).flatten()
        self.gamma = weights.vector("vae.gamma", channels).view(1, -1, 1, 1, 1)
        frame = (1, channels, PAST, size.rows, size.columns)
        self.past = [weights.full(f"vae.past{n}", *frame) for n in range(2)]
        self.entry = weights.full("vae.x", 1, channels, size.frames, size.rows, size.columns)

    def __call__(self, tape: Tape, x: torch.Tensor) -> torch.Tensor:
        """``[1, channels, frames, rows, columns]`` to the same."""
        size, hidden = self.size, x
        for conv, past in zip(self.convs, self.past, strict=True):
            hidden = tape(size.name("norm, SiLU"), _norm_silu, hidden, self.gamma)
            joined = tape(size.name("clone, join, pad", " padded"), _assembled, hidden, past)
            hidden = F.conv3d(joined, conv, self.bias)
            if tape.recording:
                inputs = (joined, conv, self.bias)
                tape.steps.append(Step(size.conv, F.conv3d, inputs, also=size.with_conv))
        return tape(size.name("residual"), torch.add, hidden, x)


def _norm_silu(x: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    wide = F.normalize(x.float(), dim=1, eps=_EPSILON).type_as(x)
    return F.silu(wide * x.shape[1] ** 0.5 * gamma)


def _assembled(x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
    kept = x[:, :, -PAST:].clone()
    if x.shape[2] < PAST:
        kept = torch.cat((past[:, :, -1:], kept), dim=2)
    joined = torch.cat((past, x), dim=2)
    # the clone is the past of the next chunk; adding nothing of it keeps it alive here
    del kept
    return F.pad(joined, (1, 1, 1, 1))
