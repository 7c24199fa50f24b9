"""How far a whole request may be off: what runs that no fit saw showed, by what makes it uncertain.

Terms that were fitted to whole requests leave the sum of the stages better known than each kind of
time, and what no kind explains (the release of the engine and its libraries, clocks, settings that
a source does not state) scales a whole run.  So the width of a request is not summed from kinds:

    log half-width = run x lent^x1 x prior^x2 x rare^x3 x short^x4 x site

``run`` belongs to an engine, the four factors to all of them; both are fitted by
`calibrate.runs.widths` and stored as ``run`` and ``run.NAME`` in the ``spread`` of the terms file.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from perfmodel.pipeline.evaluate import STAGES, Evaluation
from perfmodel.pipeline.job import Job
from perfmodel.pipeline.lines import Column
from perfmodel.placement.precision import QUANTISED
from perfmodel.spec.workload import LAYERWISE, WEIGHT_ONLY

RUN, LOWEST_RUN, HIGHEST_RUN = 0.1, 0.01, 0.6
"""Log half-width of a plain request (kernel laws fitted, no priors, a second or more a step) of an
engine without runs, and the bounds of a fitted one."""

FACTORS = {"lent": 1.4, "prior": 1.2, "rare": 1.2, "short": 1.5}
"""Priors of the factors, and their values for engines without runs."""

SITE = "run.site"
"""What a site's own runs multiply the width by (``sites`` of a terms file)."""

HIGHEST_FACTOR = 4.0
"""Bound of a factor; nothing uncertain makes a range narrower, so the other bound is 1."""

LAW = "gemm/bf16"
"""The law whose provenance says whether the kernels of a device were measured."""

KNOWN = ("measured", "fitted")
STEP_S, DECADES = 1.0, 2.0
"""Denoise time of a step from which on `short` counts nothing, and the most that it counts."""


def uncertain(evaluation: Evaluation) -> dict[str, Column]:
    """What makes a request uncertain, by the name of its factor, ``[N]`` each.

    lent: 1 where the kernel laws were not fitted on this device.
    prior: share of the time that rests on priors.
    rare: 1 for what few runs have and engines do in their own ways: quantised or sparse products,
        step caches, blocks streamed from the host, pipeline stages.
    short: decades that a denoise step is shorter than 1 s; fixed costs of a step and of a request
        (launches, schedulers, servers) are a larger share of a short one, and none of a long one.
    """
    job, size = evaluation.job, len(evaluation.layouts)
    step_s = evaluation.stages["denoise"].total_s / np.maximum(job.shape.steps, 1)
    decades = np.log10(STEP_S / np.maximum(step_s, np.finfo(float).tiny))
    return {
        "lent": np.full(size, 0.0 if laws_fitted(job) else 1.0),
        "prior": prior_share(evaluation),
        "rare": np.where(_rare(job), 1.0, evaluation.layouts.pp > 1).astype(np.float64),
        "short": np.clip(decades, 0.0, DECADES),
    }


def laws_fitted(job: Job) -> bool:
    """Whether the kernel laws were fitted on the device itself."""
    law = job.machine.laws.get(LAW)
    return law is not None and law.provenance in KNOWN


def _rare(job: Job) -> bool:
    options = job.behaviour.options
    return (
        options.dtype in (*QUANTISED, *WEIGHT_ONLY)
        or options.attention_density < 1.0
        or options.cache_method != "none"
        or options.cache_skip > 0.0
        or options.offload in LAYERWISE
    )


def prior_share(evaluation: Evaluation) -> Column:
    """Share of a request's time at provenances other than measured and fitted, ``[N]``."""
    guessed = np.zeros(len(evaluation.layouts))
    for name in STAGES:
        stage = evaluation.stages[name]
        seconds = np.zeros(stage.cases)
        for line in stage.lines:
            if line.provenance not in KNOWN:
                seconds = seconds + line.total_s
        guessed = guessed + stage.by_case(seconds)
    return np.asarray(np.clip(guessed / evaluation.latency_s, 0.0, 1.0))


def request_frac(features: Mapping[str, Column], table: Mapping[str, float]) -> Column:
    """Relative 80 % half-width of whole requests, ``[N]``; `table` is the spread of an engine."""
    log = np.log(table.get("run", RUN)) + np.log(table.get(SITE, 1.0))
    for name, prior in FACTORS.items():
        log = log + np.log(table.get(f"run.{name}", prior)) * features[name]
    return np.asarray(np.expm1(np.exp(log)))
