"""The sound tokenizer's decoder: transposed 1-D convolutions from 25 to 48,000 samples a second.

Five levels up-sample by 8, 6, 5, 4 and 2 and halve the channels (the last keeps them); each level
adds three residual units (a dilated kernel of 7, then of 1) with snake activations.
Source: diffusers 0.42.1 ``Cosmos3AVAEAudioTokenizer`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

from perfmodel.ops import Ints, Op, Pointwise
from perfmodel.stages.base import Component
from perfmodel.stages.layers import READ_WRITE, elements, line_conv

PARAMS = 496_287_362
LATENT_CHANNELS = 64
WIDTHS = (5120, 2560, 1280, 640, 320, 320)
FACTORS = (8, 6, 5, 4, 2)
UNITS = 3
KERNEL = 7
STEREO = 2
# Snake x + sin(ax)^2 / b in bf16: product 4, sine 4, square 4, product 4, sum 6 bytes; four more
# launches prepare a and b.
SNAKE_EAGER_BYTES = 22.0
SNAKE_LAUNCHES = 9


def component() -> Component:
    """Encoder and decoder weights, resident from start-up where the model makes sound."""
    return Component(name="sound_tokenizer", kind="vae", params=PARAMS, when=("vae_decode",))


def _snake(name: str, count: int, channels: int, length: Ints) -> Pointwise:
    size = elements(channels, length)
    return Pointwise(
        name=name,
        count=count,
        launches=SNAKE_LAUNCHES,
        bytes_moved=size * SNAKE_EAGER_BYTES,
    )


def decode(tokens: Ints) -> tuple[Op, ...]:
    """Operators that decode `tokens` sound latent frames to 48 kHz stereo.

    A transposed convolution of kernel ``2f`` and stride ``f`` multiplies every input position by
    the whole kernel, hence ``2*L_in*C_in*C_out*2f`` FLOP: `out_w` counts its input positions.
    """
    found: list[Op] = [
        line_conv("sound in", (LATENT_CHANNELS, WIDTHS[0]), KERNEL, tokens),
    ]
    length = tokens
    for level, factor in enumerate(FACTORS):
        wide, narrow = WIDTHS[level], WIDTHS[level + 1]
        found.append(_snake(f"sound level {level} snake", 1, wide, length))
        found.append(line_conv(f"sound level {level} up", (wide, narrow), 2 * factor, length))
        length = length * factor
        found += [
            line_conv(f"sound level {level} wide", (narrow, narrow), KERNEL, length, count=UNITS),
            line_conv(f"sound level {level} point", (narrow, narrow), 1, length, count=UNITS),
            _snake(f"sound level {level} units", 2 * UNITS, narrow, length),
            Pointwise(
                name=f"sound level {level} residual",
                count=UNITS,
                bytes_moved=elements(narrow, length) * READ_WRITE * 1.5,
            ),
        ]
    found.append(_snake("sound out snake", 1, WIDTHS[-1], length))
    found.append(line_conv("sound out", (WIDTHS[-1], STEREO), KERNEL, length))
    return tuple(found)
