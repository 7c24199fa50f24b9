"""What one machine differs by from those behind the fits: ratios of time, and seconds a request.

A site that measured whole requests knows three rates and one duration of its own
(``sites`` of an engine's terms file, by device; found by `calibrate.runs.site`):

    time = device x (kernels + links) + host x host work + device x vae x VAE + request_s

``device`` is what clocks, power limits, cooling and libraries do to everything on the device,
``vae`` what they do to the VAE beyond that, ``host`` what its processors do to launches, copies to
the host and files, ``request_s`` what its server adds to each request.  A site without runs has
ratios of 1 and adds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from perfmodel.pipeline.lines import Line, Stage, plain_line

DEVICE, VAE, HOST = "site_device_time_frac", "site_vae_time_frac", "site_host_time_frac"
REQUEST = "site_request_s"
SITE_TERMS = (DEVICE, VAE, HOST, REQUEST)

VAE_STAGES = ("vae_encode", "vae_decode")
LAST = "transfer"
"""The stage that holds the handling of a request."""


def of_site(stage: Stage, terms: Mapping[str, float]) -> Stage:
    """`stage` as a site runs it: times multiplied by the site's ratios, its seconds added.

    Kernels, launches that show between them and transfers scale each by its own ratio; that a
    slower kernel hides more of the launches after it is left out.
    """
    ratios = {name: terms.get(name, 1.0) for name in (DEVICE, VAE, HOST)}
    lines = stage.lines
    if any(ratio != 1.0 for ratio in ratios.values()):
        lines = tuple(_scaled(line, _ratio(line, stage.name, ratios)) for line in lines)
    extra_s = terms.get(REQUEST, 0.0) if stage.name == LAST else 0.0
    if extra_s:
        lines = (*lines, _request(stage, extra_s))
    return stage if lines is stage.lines else replace(stage, lines=lines)


def _ratio(line: Line, stage: str, ratios: Mapping[str, float]) -> float:
    if stage in VAE_STAGES:
        return ratios[DEVICE] * ratios[VAE]
    return ratios[HOST] if line.kind == "host" else ratios[DEVICE]


def _scaled(line: Line, ratio: float) -> Line:
    return line if ratio == 1.0 else replace(line, total_s=line.total_s * ratio)


def _request(stage: Stage, extra_s: float) -> Line:
    seconds = np.full(stage.cases, extra_s)
    return plain_line(
        stage.name,
        "request on this site",
        "host",
        seconds,
        count=1,
        bound="host",
        provenance="fitted",
    )
