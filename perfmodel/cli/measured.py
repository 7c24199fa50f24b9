"""Reads what ``--measured`` names: response headers, a server log, or ``denoise=25900,...``."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from perfmodel.cli.inputs import stage_name
from perfmodel.cli.values import number
from perfmodel.errors import BadInput, Problem
from perfmodel.units import MS_PER_S

FURTHER = ("request", "pipeline_forward", "denoise_per_step")
# profiler suffixes of a pipeline class, as its server prints and sends them
PROFILED = {
    "diffuse": "denoise",
    "vae.encode": "vae_encode",
    "vae.decode": "vae_decode",
    "text_encoder.forward": "text_encode",
    "forward": "pipeline_forward",
}
_HEADER = re.compile(r"^<?\s*x-(inference-time-s|stage-durations)\s*:\s*(.+?)\s*$", re.I | re.M)
_MP4 = re.compile(r"Video response encoding \(MP4 bytes\):\s*([\d.]+)\s*ms")
_PROFILE = re.compile(
    r"\.(diffuse|vae\.encode|vae\.decode|text_encoder\.forward|forward)\b[^\d\n]{0,40}?"
    r"(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(ms|s)\b"
)


def read_measured(text: str) -> dict[str, float]:
    """Measured times in ms by stage; ``request`` is the server's whole time.

    Raises:
        BadInput: no file of that name and no ``stage=ms`` pairs, or nothing found in the file.
    """
    path = Path(text)
    if path.is_file():
        found = dict(read_log(path.read_text(encoding="utf-8", errors="replace")))
    elif "=" in text:
        found = _pairs(text)
    else:
        raise _nothing(text, "is neither a file nor STAGE=MS")
    if not found:
        raise _nothing(text, "holds no x-inference-time-s, x-stage-durations or stage times")
    return found


def read_log(text: str) -> Iterator[tuple[str, float]]:
    """Stage times of headers and logs, in ms; the last line about a stage counts."""
    for name, value in _HEADER.findall(text):
        if name.lower() == "stage-durations":
            yield from _durations(value)
        elif (seconds := number(value)) is not None:
            yield "request", seconds * MS_PER_S
    for stage, value, unit in _PROFILE.findall(text):
        yield PROFILED[stage], float(value) * (MS_PER_S if unit == "s" else 1.0)
    for value in _MP4.findall(text):
        yield "video_encode", float(value)


def _durations(text: str) -> Iterator[tuple[str, float]]:
    try:
        durations = json.loads(text)
    except ValueError:
        return
    for name, seconds in durations.items() if isinstance(durations, dict) else ():
        for suffix, stage in PROFILED.items():
            value = number(str(seconds))
            if str(name).endswith(f".{suffix}") and value is not None:
                yield stage, value * MS_PER_S
                break


def _pairs(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, raw = part.partition("=")
        value = number(raw)
        if value is None or value < 0:
            raise _nothing(part, "is not STAGE=MS")
        found[stage_name("measured", name, FURTHER)] = value
    return found


def _nothing(text: str, what: str) -> BadInput:
    return BadInput(
        Problem(
            "measured",
            f"--measured {text} {what}; try --measured denoise=25900,vae_decode="
            "4020 (ms), or a file with the response headers",
            field="--measured",
            value=text,
        )
    )
