"""Numbers and names as people read them: the only place where digits are chosen."""

from __future__ import annotations

import math

from perfmodel.units import GIGA, KILO, MEGA, PERCENT

STAGE_TITLES = {
    "text_encode": "text encode",
    "vae_encode": "VAE encode",
    "denoise": "denoise",
    "vae_decode": "VAE decode",
    "transfer": "output copy",
    "video_encode": "MP4 encode",
    "request": "request",
    "load": "load",
}
STAGES = ("text_encode", "vae_encode", "denoise", "vae_decode", "transfer", "video_encode")
PHASES = ("load", "text_encode", "vae_encode", "denoise", "vae_decode")

TASK_TITLES = {
    "t2v": "text to video",
    "i2v": "image to video",
    "t2i": "text to image",
    "v2v": "video to video",
    "i2i": "image to image",
    "ti2v": "text and image to video",
}

BACKEND_TITLES = {
    "CUDNN_ATTN": "cuDNN",
    "FLASH_ATTN": "FlashAttention",
    "TRTLLM_ATTN": "TRT-LLM",
    "TORCH_SDPA": "torch SDPA",
    "SAGE_ATTN": "SageAttention",
    "ASCEND": "Ascend",
}

BOUND_TITLES = {
    "matrix": "matrix units",
    "exp": "exponentials",
    "memory": "device memory",
    "link": "links between GPUs",
    "latency": "launch latency",
    "host": "host",
    "cpu": "host CPU",
}

UNKNOWN = "-"


def stage_title(stage: str, image: bool = False) -> str:
    """``vae_decode`` -> ``VAE decode``; unknown names with spaces for underscores.

    The file of an `image` is a PNG, that of a video an MP4.
    """
    if image and stage == "video_encode":
        return "PNG encode"
    return STAGE_TITLES.get(stage, stage.replace("_", " "))


def bound_title(bound: str | None) -> str:
    """What limits, in words; several are joined by commas."""
    if not bound:
        return UNKNOWN
    return ", ".join(BOUND_TITLES.get(part.strip(), part.strip()) for part in bound.split(","))


def rounding_step(value: float, low: float | None, high: float | None, digits: int) -> float:
    """Power of ten that shows `digits` digits of the range (of the value, where none is known)."""
    spread = abs(high - low) if low is not None and high is not None else abs(value) / 10
    if not spread > 0:
        return 1.0
    return min(max(10.0 ** (math.floor(math.log10(spread)) + 1 - digits), 1 / KILO), GIGA)


def number(value: float | None, step: float = 1.0) -> str:
    """`value` rounded to `step`, thousands separated by commas; ``-`` for unknown."""
    if value is None:
        return UNKNOWN
    rounded = round(value / step) * step
    decimals = max(0, -math.floor(math.log10(step)))
    return f"{rounded + 0.0:,.{decimals}f}"


def milliseconds(value: float | None, low: float | None = None, high: float | None = None) -> str:
    """A time in ms with no more digits than its range supports, in steps of 1, 10, 100, ..."""
    if value is None:
        return UNKNOWN
    if 0 < abs(value) < 10 and low is None:
        return significant(value, 3)
    coarse = 10.0 if low is not None and high is not None and high - low >= 100 else 1.0
    return number(value, max(coarse, rounding_step(value, low, high, 3)))


def span(low: float | None, high: float | None) -> str:
    """``31,600-35,900``: two digits of the width are kept."""
    if low is None or not high:
        return UNKNOWN
    step = max(1.0, rounding_step(high, low, high, 2))
    return f"{number(low, step)}-{number(high, step)}"


def significant(value: float | None, digits: int) -> str:
    """`digits` significant digits without an exponent, e.g. 0.0123, 9.580."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{decimals}f}"


def gib(value: float | None) -> str:
    """One decimal of a GiB."""
    return UNKNOWN if value is None else f"{value:,.1f}"


def percent(fraction: float | None) -> str:
    """``0.742`` -> ``74 %``."""
    return UNKNOWN if fraction is None else f"{fraction * PERCENT:.0f} %"


def signed_percent(value: float | None, decimals: int = 1) -> str:
    """A difference that is in percent already: ``+3.9 %``."""
    if value is None:
        return UNKNOWN
    decimals = 0 if abs(value) >= PERCENT else decimals
    shown = round(value, decimals)
    return f"{shown:+,.{decimals}f} %" if shown else "0 %"


def megabytes(value: float | None) -> str:
    """Bytes as kB, MB or GB (decimal)."""
    if value is None:
        return UNKNOWN
    for unit, size in (("GB", GIGA), ("MB", MEGA), ("kB", KILO)):
        if value >= size:
            return f"{significant(value / size, 3 if value < 100 * size else 1)} {unit}"
    return f"{value:.0f} B"


def plain(value: float | None) -> str:
    """A number a user typed: ``24``, ``6``, ``23.976``."""
    return UNKNOWN if value is None else f"{value:g}"


def join_words(items: list[str], last: str = "and") -> str:
    """``a, b and c``."""
    return f" {last} ".join(filter(None, (", ".join(items[:-1]), *items[-1:])))
