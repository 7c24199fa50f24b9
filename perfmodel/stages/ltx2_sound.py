"""Sound of LTX-2: latents to a mel spectrogram to a waveform, by convolutions alone.

Source: diffusers 0.42.1 ``autoencoder_kl_ltx2_audio.py``
(https://pypi.org/project/diffusers/0.42.1/); parameters and FLOP equal those of the class.
"""

from __future__ import annotations

from perfmodel.ops import Conv, Ints, Op, Pointwise
from perfmodel.stages import vocoder
from perfmodel.stages.base import Component
from perfmodel.stages.layers import BF16_BYTES, READ_WRITE, elements

PARAMS = 53_248_146
LATENT_CHANNELS, LATENT_BINS = 8, 16
"""Channels and mel bins of a latent frame of sound."""
TOP, MIDDLE, LOW = 512, 256, 128
# Traffic of norm, SiLU and padding around a convolution of the decoder, bytes an element.
NORM_BYTES, NORM_LAUNCHES = 26.0, 7


def components(*, widened: bool) -> tuple[Component, Component]:
    """Sound VAE and vocoder; `widened`: a second one follows the first."""
    waves = vocoder.params(widened=widened)
    return (
        Component(name="audio_vae", kind="other", params=PARAMS, when=("vae_decode",)),
        Component(name="vocoder", kind="other", params=waves, when=("vae_decode",)),
    )


def mel_frames(frames: Ints) -> Ints:
    """Spectrogram frames of `frames` latent frames: the first has one, later ones four each."""
    return 4 * frames - 3


def decode(frames: Ints, batch: Ints, *, widened: bool) -> tuple[Op, ...]:
    """Operators that turn `frames` latent frames of sound into a waveform."""
    wave = vocoder.waveform(mel_frames(frames), batch, widened=widened)
    return (*_spectrogram(frames, batch), *wave)


def _spectrogram(frames: Ints, batch: Ints) -> tuple[Op, ...]:
    middle, long = 2 * frames - 1, mel_frames(frames)
    maps = (
        ("entry", (LATENT_CHANNELS, TOP, 3), (frames, LATENT_BINS), 1),
        ("top level", (TOP, TOP, 3), (frames, LATENT_BINS), 10),
        ("first upsampling", (TOP, TOP, 3), (2 * frames, 2 * LATENT_BINS), 1),
        ("middle entry", (TOP, MIDDLE, 3), (middle, 2 * LATENT_BINS), 1),
        ("middle shortcut", (TOP, MIDDLE, 1), (middle, 2 * LATENT_BINS), 1),
        ("middle level", (MIDDLE, MIDDLE, 3), (middle, 2 * LATENT_BINS), 5),
        ("second upsampling", (MIDDLE, MIDDLE, 3), (2 * middle, 4 * LATENT_BINS), 1),
        ("low entry", (MIDDLE, LOW, 3), (long, 4 * LATENT_BINS), 1),
        ("low shortcut", (MIDDLE, LOW, 1), (long, 4 * LATENT_BINS), 1),
        ("low level", (LOW, LOW, 3), (long, 4 * LATENT_BINS), 5),
        ("exit", (LOW, vocoder.WAVE_CHANNELS, 3), (long, 4 * LATENT_BINS), 1),
    )
    found: list[Op] = []
    for name, (inside, outside, kernel), (rows, columns), count in maps:
        found.append(
            Conv(
                name=f"sound {name}",
                count=count,
                batch=batch,
                in_channels=inside,
                out_channels=outside,
                kernel=(1, kernel, kernel),
                out_t=1,
                out_h=rows,
                out_w=columns,
            )
        )
        size = elements(batch, rows, columns, inside)
        found.append(_around(f"sound {name} norm", size, NORM_BYTES, NORM_LAUNCHES, count))
    return tuple(found)


def _around(name: str, size: object, eager: float, launches: int, count: int) -> Pointwise:
    whole = elements(size)  # type: ignore[arg-type]
    return Pointwise(
        name=name,
        count=count,
        bytes_moved=whole * READ_WRITE,
        eager_bytes=whole * max(eager, BF16_BYTES),
        eager_launches=launches,
    )
