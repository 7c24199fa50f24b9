"""Turning frames into a file on the host CPU: a start-up time and pixels per second."""

from __future__ import annotations

import numpy as np

from perfmodel.cost.fits import Parameter, values_of
from perfmodel.cost.machine import Machine
from perfmodel.cost.result import HOST, Costed, as_float
from perfmodel.ops import Media

PARAMETERS = (
    Parameter("start_s", 0.02, 0.0, 2.0, "opening the container and the encoder"),
    Parameter("pixels_per_s", 1e8, 1e6, 5e9, "encoding rate of the host", log=True),
)


RATES = {
    "h264": "media_pixels_per_s",
    "png": "png_pixels_per_s",
    "guardrail": "guardrail_pixels_per_s",
    "clip": "clip_pixels_per_s",
}
"""Term that holds the rate of each codec; ``guardrail``: the clip to bytes, checked, and back;
``clip``: an image repeated over all frames in host memory, converted and copied to the device."""


def cost_media(op: Media, machine: Machine) -> Costed:
    """Cost of one file; the engine's term of the codec (`RATES`) wins over a bench of this host."""
    law, term = machine.laws.get(f"media/{op.codec}"), RATES[op.codec]
    if law is not None and term not in machine.terms:
        values, provenance = values_of(PARAMETERS, law), law.provenance
        rate, start_s = values["pixels_per_s"], values["start_s"]
    else:
        rate = machine.term(term)
        start_s = machine.term("media_start_s") if op.codec == "h264" else 0.0
        provenance = machine.term_provenance(term)
    pixels = as_float(op.pixels)
    runs = (np.asarray(op.count) > 0) & (pixels > 0)
    time = (start_s + pixels / rate) * runs
    zero = np.zeros(())
    return Costed(
        time, zero, np.asarray(HOST, np.int8), zero, zero, provenance, np.zeros((), bool), "media"
    )
