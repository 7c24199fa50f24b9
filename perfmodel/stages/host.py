"""Work outside the models: moving the result to the server process, and encoding it."""

from __future__ import annotations

import numpy as np

from perfmodel.ops import HostWork, Media, Op, Transfer
from perfmodel.shapes import Shape

CHANNELS = 3
"""Bytes of one output pixel as uint8 RGB."""


def output_pixels(shape: Shape) -> np.ndarray:
    """Pixels of all outputs of a request: ``batch * frames * height * width``."""
    return np.asarray(shape.batch, float) * shape.frames * shape.height * shape.width


def transfer(shape: Shape, *, between_processes: bool = True) -> tuple[Op, ...]:
    """Handling of the request, the uint8 result to host memory and on to the server's process."""
    result_bytes = output_pixels(shape) * CHANNELS
    down = Transfer(name="output copy to host", bytes_moved=result_bytes, direction="d2h")
    across = Transfer(
        name="output copy between processes", bytes_moved=result_bytes, direction="ipc"
    )
    handling = HostWork(name="request handling", term="request_host_s")
    return (handling, down, across) if between_processes else (handling, down)


def condition_clip(shape: Shape) -> tuple[Op, ...]:
    """The image of a request repeated over the frames that the VAE encodes, on the host."""
    pixels = np.asarray(shape.condition_frames, float) * shape.height * shape.width
    return (Media(name="condition clip in host memory", pixels=pixels, codec="clip"),)


def encode_output(shape: Shape) -> tuple[Op, ...]:
    """MP4 of a clip, or PNG of an image, on the host CPU."""
    codec = np.where(np.asarray(shape.frames) > 1, 1, 0)
    pixels = output_pixels(shape)
    return (
        Media(name="MP4 encode", count=codec, pixels=pixels, codec="h264"),
        Media(name="PNG encode", count=1 - codec, pixels=pixels, codec="png"),
    )
