"""H.264 encoding on the host CPU with PyAV, as engines write their MP4."""

from __future__ import annotations

import importlib
import io
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.cases import MediaCase
from perfmodel.calibrate.measure.device import Unsupported
from perfmodel.calibrate.measure.timing import Timing, repeat
from perfmodel.errors import needs

Frames = Sequence[NDArray[np.uint8]]

_DISTINCT_FRAMES = 48
_NOISE_LEVELS = 3.0


def measure(case: MediaCase, budget_s: float) -> Timing:
    """Wall time from RGB frames in memory to a finished MP4 in memory [s].

    Includes the conversion to YUV 4:2:0; the encoder takes as many threads as it likes.

    Raises:
        Unsupported: PyAV or the encoder is missing.
    """
    try:
        av = importlib.import_module("av")
    except ImportError:
        raise Unsupported(needs("an MP4 encode", "PyAV", "bench")) from None
    if case.kernel not in av.codecs_available:
        raise Unsupported(f"this build of PyAV has no encoder {case.kernel}")
    frames = moving_texture(case.width, case.height, case.frames)
    once_s = _encode_s(av, case, frames)
    return repeat(lambda: _encode_s(av, case, frames), budget_s, once_s)


def _encode_s(av: Any, case: MediaCase, frames: Frames) -> float:
    start_s = time.perf_counter()
    encode(av, case, frames)
    return time.perf_counter() - start_s


def encode(av: Any, case: MediaCase, frames: Frames) -> bytes:
    """The frames as an MP4 file."""
    sink = io.BytesIO()
    with av.open(sink, mode="w", format="mp4") as container:
        stream = container.add_stream(case.kernel, rate=case.fps)
        stream.width, stream.height, stream.pix_fmt = case.width, case.height, "yuv420p"
        stream.options = {"preset": case.preset}
        for pixels in frames:
            for packet in stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)
    return sink.getvalue()


def moving_texture(width: int, height: int, frames: int) -> Frames:
    """RGB frames with smooth structure that moves, and a little sensor-like noise.

    Neither constant (free to encode) nor white noise (several times as dear as video).  At most 48
    distinct frames are made and played forth and back.
    """
    generator = np.random.default_rng(0)
    distinct = min(frames, _DISTINCT_FRAMES)
    rows = np.arange(height, dtype=np.float32)[:, None, None]
    cols = np.arange(width, dtype=np.float32)[None, :, None]
    phase = np.array([0.0, 2.1, 4.2], dtype=np.float32)
    made: list[NDArray[np.uint8]] = []
    for index in range(distinct):
        waves = np.sin(cols / 37 + 0.13 * index + phase) + np.sin(rows / 23 - 0.07 * index + phase)
        waves += np.sin((rows + cols) / 5 + 0.31 * index + phase) / 2
        noise = generator.normal(0.0, _NOISE_LEVELS, size=(height, width, 1)).astype(np.float32)
        made.append(np.clip(128 + 40 * waves + noise, 0, 255).astype(np.uint8))
    order = [*range(distinct), *range(distinct - 2, 0, -1)] or [0]
    return [made[order[index % len(order)]] for index in range(frames)]
