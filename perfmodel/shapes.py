"""The shape of a request after the engine's rounding: latent grid, tokens, forwards."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import Problem
from perfmodel.ops import Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One request (or many: every number may be an int64 array) in the model's own units.

    Attributes:
        task: t2v, i2v, t2i, v2v, ti2v, ...
        batch: outputs a request.
        width, height, frames: as they run, after the engine's rounding.
        fps: frames per second of the output.
        request_steps: denoise steps as the request states them.
        steps: denoise steps that run: those of all chunks, and a closing step.
        guidance: guidance scale.
        branches: guidance branches that run (1 = no classifier-free guidance).
        forwards: transformer forwards of the whole request over all branches.
        latent_frames, latent_height, latent_width: the latent grid (before padding to the patch).
        video_tokens: tokens of the generated video or image after patchify.
        extra_tokens: further latent tokens in the sequence (sound, condition images).
        text_tokens: text tokens of a branch as the transformer sees them.
        condition_frames: pixel frames that the VAE encodes (0 = no image or video condition).
        assumed: names of fields that the user did not give.
        notes: what was rounded or padded (severity ``warning``).
    """

    task: str
    batch: Ints
    width: Ints
    height: Ints
    frames: Ints
    fps: float
    request_steps: int
    steps: Ints
    guidance: float
    branches: int
    forwards: Ints
    latent_frames: Ints
    latent_height: Ints
    latent_width: Ints
    video_tokens: Ints
    extra_tokens: Ints = 0
    text_tokens: Ints
    condition_frames: Ints = 0
    assumed: tuple[str, ...] = ()
    notes: tuple[Problem, ...] = ()

    @property
    def tokens(self) -> Ints:
        """All latent tokens of the sequence: video plus sound plus condition images."""
        return self.video_tokens + self.extra_tokens


def ceil_div(value: Ints, divisor: Ints) -> Ints:
    """``ceil(value / divisor)`` for positive integers (arrays broadcast)."""
    return -(-value // divisor)


def round_up(value: Ints, multiple: Ints) -> Ints:
    """The next multiple of `multiple` that is at least `value`."""
    return ceil_div(value, multiple) * multiple


def causal_latent_frames(frames: Ints, temporal_stride: int) -> Ints:
    """``(F - 1) // stride + 1``: the first frame has a latent frame of its own."""
    return (frames - 1) // temporal_stride + 1
