"""Vocoders of LTX-2, 2.3 and MiniMax-H3: a waveform by convolutions over time.

Those of LTX start from a mel spectrogram, that of MiniMax-H3 from the latent.

That of 2.3 writes 16 kHz, takes a spectrogram of it and lets a second vocoder add what is missing
at 48 kHz; around each of its convolutions the map is twice as long for the activation, by filters
of each channel alone.
Sources: diffusers 0.42.1 ``pipelines/ltx2/vocoder.py``, ``autoencoder_kl_minimax_h3_audio.py``
(https://pypi.org/project/diffusers/0.42.1/); parameters and FLOP equal those of the classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from perfmodel.ops import Floats, Gemm, Ints, Op, Pointwise
from perfmodel.stages.layers import BF16_BYTES, READ_WRITE, elements, line_conv

MEL_CHANNELS, WAVE_CHANNELS = 128, 2
KERNELS = (3, 7, 11)
BLOCK_CONVS = 6
ENDS_KERNEL = 7
# Leaky ReLU before each convolution of the vocoder, and half a residual.
LEAKY_BYTES, LEAKY_LAUNCHES = 7.0, 2
# Padding 4, filter to twice the length and its cut 8 and 8, sine, square and sum on it 24, padding
# and filter back 10, half a residual 3.
SNAKE_BYTES, SNAKE_LAUNCHES = 57.0, 11
FILTER = 12
FILTER_EDGES = 10
"""Positions that the filter to twice the length adds to the map."""
HOP, WINDOW, FREQUENCIES, MEL_BINS = 80, 512, 257, 64
RESAMPLING, RESAMPLING_FILTER, RESAMPLING_EDGES = 3, 43, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocoder:
    """One generator.

    Attributes:
        name: start of operator names.
        width: channels of the first convolution; every step halves them.
        steps: kernel and factor of each step that makes the waveform longer.
        snake: activations run on twice the length, with two parameters a channel.
        inputs, outputs: channels at the ends.
    """

    name: str
    width: int
    inputs: int = MEL_CHANNELS
    outputs: int = WAVE_CHANNELS
    steps: tuple[tuple[int, int], ...]
    snake: bool = True

    @property
    def factor(self) -> int:
        """Samples for each spectrogram frame."""
        return prod(factor for _, factor in self.steps)


PLAIN = Vocoder(
    name="vocoder", width=1024, steps=((16, 6), (15, 5), (8, 2), (4, 2), (4, 2)), snake=False
)
FIRST = Vocoder(name="vocoder", width=1536, steps=((11, 5), (4, 2), (4, 2), (4, 2), (4, 2), (4, 2)))
SECOND = Vocoder(name="second vocoder", width=512, steps=((12, 6), (11, 5), (4, 2), (4, 2), (4, 2)))


def params(*, widened: bool) -> int:
    """Parameters of the vocoder, or of both with what `widened` adds."""
    return sum(_params(part) for part in ((FIRST, SECOND) if widened else (PLAIN,)))


def waveform(length: Ints, batch: Ints, *, widened: bool) -> tuple[Op, ...]:
    """Operators that turn `length` spectrogram frames into a waveform."""
    if not widened:
        return generate(PLAIN, length, batch)
    samples = length * FIRST.factor
    frames, padded = samples // HOP, samples + RESAMPLING_EDGES
    return (
        *generate(FIRST, length, batch),
        *_spectrum(frames, batch),
        *generate(SECOND, frames, batch),
        line_conv("resampling", (1, WAVE_CHANNELS), RESAMPLING_FILTER, padded, batch),
        _around("resampling sum", samples * RESAMPLING * WAVE_CHANNELS * batch, 12.0, 3, 1),
    )


def _spectrum(frames: Ints, batch: Ints) -> tuple[Op, ...]:
    """Magnitudes of each channel of the waveform, and their sums over mel bins."""
    each = batch * WAVE_CHANNELS
    mel = Gemm(
        name="spectrum mel bins",
        batch=each,
        m=MEL_BINS,
        n=frames,
        k=FREQUENCIES,
        quantizable=False,
    )
    size = elements(each, frames, FREQUENCIES)
    return (
        line_conv("spectrum", (1, 2 * FREQUENCIES), WINDOW, frames, each),
        mel,
        _around("spectrum magnitude and phase", size, 36.0, 10, 1),
    )


def generate(part: Vocoder, length: Ints, batch: Ints) -> tuple[Op, ...]:
    """Operators of one generator over `length` positions of its input."""
    name, width = part.name, part.width
    found: list[Op] = [line_conv(f"{name} entry", (part.inputs, width), ENDS_KERNEL, length, batch)]
    for place, (kernel, factor) in enumerate(part.steps, 1):
        # A transposed convolution works on each input position with the whole kernel.
        step = (width, width // 2)
        found.append(line_conv(f"{name} step {place}", step, kernel, length, batch))
        width, length = width // 2, length * factor
        for size in KERNELS:
            level = f"{name} level {place} kernel {size}"
            found.append(line_conv(level, (width, width), size, length, batch, BLOCK_CONVS))
        level, count = f"{name} level {place}", len(KERNELS) * BLOCK_CONVS
        found += _activation(part, level, width, (length, batch), count)
    if part.snake:
        found += _activation(part, f"{name} last", width, (length, batch), 1)
    found.append(line_conv(f"{name} exit", (width, part.outputs), ENDS_KERNEL, length, batch))
    return tuple(found)


def _activation(
    part: Vocoder, name: str, width: int, rows: tuple[Ints, Ints], count: int
) -> tuple[Op, ...]:
    length, batch = rows
    around = elements(batch, length, width)
    if not part.snake:
        return (_around(f"{name} activation", around, LEAKY_BYTES, LEAKY_LAUNCHES, count),)
    return (
        line_conv(f"{name} longer", (1, width), FILTER, length + FILTER_EDGES, batch, count),
        line_conv(f"{name} shorter", (1, width), FILTER, length, batch, count),
        _around(f"{name} activation", around, SNAKE_BYTES, SNAKE_LAUNCHES, count),
    )


def _params(part: Vocoder) -> int:
    width = part.width
    total = part.inputs * width * ENDS_KERNEL + width
    for kernel, _ in part.steps:
        total += width * (width // 2) * kernel + width // 2
        width //= 2
        total += sum(BLOCK_CONVS * (width * width * size + width) for size in KERNELS)
        total += len(KERNELS) * BLOCK_CONVS * 2 * width if part.snake else 0
    # The last convolution of a snake has no bias, but its activation has parameters.
    return (
        total + width * WAVE_CHANNELS * ENDS_KERNEL + (2 * width if part.snake else WAVE_CHANNELS)
    )


def _around(name: str, size: Floats | Ints, eager: float, launches: int, count: int) -> Pointwise:
    whole = elements(size)
    return Pointwise(
        name=name,
        count=count,
        bytes_moved=whole * READ_WRITE,
        eager_bytes=whole * max(eager, BF16_BYTES),
        eager_launches=launches,
    )
