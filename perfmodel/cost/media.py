"""Encoding of frames to a container on the host CPU: a start-up time and pixels per second."""

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


def cost_media(op: Media, machine: Machine) -> Costed:
    """Cost of one file; the engine term ``media_pixels_per_s`` wins over a bench of this host."""
    law = machine.laws.get(f"media/{op.codec}")
    if law is not None and "media_pixels_per_s" not in machine.terms:
        values, provenance = values_of(PARAMETERS, law), law.provenance
        rate, start_s = values["pixels_per_s"], values["start_s"]
    else:
        rate = machine.term("media_pixels_per_s", 1e8)
        start_s = machine.term("media_start_s", 0.02)
        provenance = machine.term_provenance("media_pixels_per_s")
    pixels = as_float(op.pixels)
    runs = (np.asarray(op.count) > 0) & (pixels > 0)
    time = (start_s + pixels / rate) * runs
    zero = np.zeros(())
    return Costed(
        time, zero, np.asarray(HOST, np.int8), zero, zero, provenance, np.zeros((), bool), "media"
    )
