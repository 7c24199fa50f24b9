"""Encoding the video while the VAE decodes it: what the decode does not hide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.ops import Ints
from perfmodel.pipeline.lines import Stage, distinct


def beside_decode(encode: Stage, decode: Stage, frames: Ints, held_frames: float) -> Stage:
    """`encode` of frames that it receives while `decode` makes them.

    The encoder works beside the decode, but it takes in `held_frames` frames before it writes the
    first (it looks ahead, and each of its threads holds one), so that so many remain to be encoded
    when the last arrives:

        visible = max(encode - decode, encode * min(1, held_frames / frames))

    Args:
        encode: the stage as it runs alone.
        decode: what runs beside it.
        frames: of an output.
        held_frames: frames that the encoder holds back.
    """
    size = len(encode.index)
    first, index = distinct(encode.index, decode.index, frames, size=size)
    alone_s, beside_s = encode.total_s[first], decode.total_s[first]
    clip = np.broadcast_to(np.asarray(frames, np.float64), (size,))[first]
    tail_s = alone_s * np.minimum(1.0, held_frames / np.maximum(clip, 1.0))
    visible_s = np.maximum(alone_s - beside_s, tail_s)
    share = visible_s / np.maximum(alone_s, np.finfo(float).tiny)
    case = encode.index[first]
    lines = (line.at(case) for line in encode.lines)
    shown = tuple(replace(line, total_s=line.total_s * share) for line in lines)
    return Stage(encode.name, shown, index, len(first))
