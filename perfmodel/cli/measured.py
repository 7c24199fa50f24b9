"""Reads what ``--measured`` names: response headers, a server log, or ``denoise=25900,...``."""

from __future__ import annotations

from pathlib import Path

from perfmodel.cli.inputs import MOST_MS, stage_name
from perfmodel.cli.values import number
from perfmodel.errors import BadInput, Problem
from perfmodel.files import Unreadable, is_file, read_text
from perfmodel.verify.readings import impossible, read

FURTHER = ("request", "pipeline_forward", "denoise_per_step")
REQUEST_KEYS = ("server", "e2e", "client")
"""Record keys that mean the whole request, the best first."""


def read_measured(text: str) -> dict[str, float]:
    """Measured times in ms by stage; ``request`` is the server's whole time.

    Raises:
        BadInput: no file of that name and no ``stage=ms`` pairs, or nothing found in the file.
    """
    path = Path(text)
    if is_file(path):
        found = _named(read(_text(path)).measured_ms)
        if bad := impossible(found):
            raise _nothing(text, f"says {', '.join(bad)}, which is no time of a request")
    elif "=" in text:
        found = _pairs(text)
    else:
        raise _nothing(text, "is neither a file nor STAGE=MS")
    if not found:
        raise _nothing(text, "holds no x-inference-time-s, x-stage-durations or stage times")
    return found


def _text(path: Path) -> str:
    try:
        return read_text(path, "replace")
    except Unreadable as error:
        raise _nothing(str(path), f"cannot be read ({error})") from None


def _named(measured_ms: dict[str, float]) -> dict[str, float]:
    """Record keys by the names of the stage table; what it has no row for is left out."""
    stages = ("text_encode", "vae_encode", "denoise", "vae_decode", "transfer", "video_encode")
    kept = {key: measured_ms[key] for key in (*stages, *FURTHER) if key in measured_ms}
    whole = next((measured_ms[key] for key in REQUEST_KEYS if key in measured_ms), None)
    return kept if whole is None else {"request": whole, **kept}


def _pairs(text: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, raw = part.partition("=")
        value = number(raw)
        if value is None or not 0 <= value <= MOST_MS:
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
