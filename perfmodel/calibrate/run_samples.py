"""Measured runs as columns of seconds by kind of work, so that engine terms can be fitted fast.

Each sample is one run: its stages at the present terms, split by what a term scales.  Composing
them again under other terms takes microseconds, so a study needs no new predictions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.api.session import Session, open_session
from perfmodel.errors import PerfmodelError
from perfmodel.pipeline.evaluate import Evaluation, evaluate
from perfmodel.pipeline.lines import DEVICE_KINDS, Stage
from perfmodel.placement.guidance import forwards_of_a_rank
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.record import END_TO_END_KEYS, RunRecord
from perfmodel.units import MS_PER_S
from perfmodel.validate.questions import Skip, question

Column = NDArray[np.float64]

PARTS = (
    "attention",
    "gemm",
    "pointwise",
    "copy",
    "collective",
    "hook",
    "wait",
    "launches",
    "forwards",
    "fixed",
)
VAE_PARTS = ("conv", "pointwise", "copy", "attention", "collective", "launches", "fixed")
RECOMPOSED = ("host gaps", "HSDP hooks")
"""Lines that are composed again from launches and hooks."""

STAGE_TARGETS = ("denoise", "denoise_per_step", "vae_decode", "vae_encode")


@dataclass(frozen=True)
class Sample:
    """One run.

    Attributes:
        record: what was measured.
        device, family: accelerator and its architecture.
        compiled, fused: denoise and VAE in fused kernels.
        denoise, encode, decode: seconds (or counts) by part at the present terms.
        rest_s: text encoding and whatever no fitted term changes.
        transfer_s, media_s: output copy and MP4 at the present terms.
        steps, forwards_of_a_rank: of the request.
        targets: measured seconds by key.
    """

    record: RunRecord
    device: str
    family: str
    compiled: bool
    fused: bool
    denoise: Mapping[str, float]
    encode: Mapping[str, float]
    decode: Mapping[str, float]
    rest_s: float
    transfer_s: float
    media_s: float
    steps: int
    targets: Mapping[str, float]


def samples(records: Iterable[RunRecord]) -> list[Sample]:
    """Samples of the records that can be predicted and are not doubtful."""
    found = []
    for record in records:
        if record.doubtful:
            continue
        try:
            found.append(_sample(record))
        except (Skip, PerfmodelError):
            continue
    return [sample for sample in found if sample.targets]


def _sample(record: RunRecord) -> Sample:
    asked = question(record)
    session = open_session(asked.workload, asked.system, engine=asked.engine, options=asked.options)
    evaluation = evaluate(session.job, Layouts.of([asked.parallel]))
    return Sample(
        record=record,
        device=session.system.device.id,
        family=session.system.device.family,
        compiled=session.behaviour.compiled,
        fused=session.behaviour.traits.vae_fast_path != "off",
        denoise=_denoise_parts(evaluation, session),
        encode=_parts(evaluation.stages["vae_encode"], VAE_PARTS),
        decode=_parts(evaluation.stages["vae_decode"], VAE_PARTS),
        rest_s=float(evaluation.stages["text_encode"].total_s[0]),
        transfer_s=float(evaluation.stages["transfer"].total_s[0]),
        media_s=float(evaluation.stages["video_encode"].total_s[0]),
        steps=int(session.job.shape.steps),
        targets=_targets(record),
    )


def _targets(record: RunRecord) -> dict[str, float]:
    """Seconds by key: the stages, and the first end-to-end key."""
    keys = [key for key in STAGE_TARGETS if key in record.measured_ms]
    whole = next((key for key in END_TO_END_KEYS if key in record.measured_ms), None)
    if record.steps is None:
        keys = [key for key in keys if key != "denoise"]
        whole = None
    chosen = [*keys, *([whole] if whole else [])]
    return {
        key: record.measured_ms[key] / MS_PER_S for key in chosen if record.measured_ms[key] > 0
    }


def _parts(stage: Stage, names: Sequence[str]) -> dict[str, float]:
    case = int(stage.index[0])
    sums = dict.fromkeys(names, 0.0)
    for line in stage.lines:
        if line.kind in sums:
            sums[line.kind] += float(line.total_s[case])
        elif line.kind != "wait" and line.name not in RECOMPOSED:
            sums["fixed"] += float(line.total_s[case])
        if line.kind in DEVICE_KINDS:
            sums["launches"] += float(line.launches[case])
    return sums


def _denoise_parts(evaluation: Evaluation, session: Session) -> dict[str, float]:
    stage = evaluation.stages["denoise"]
    sums = _parts(stage, PARTS)
    case = int(stage.index[0])
    machine = session.job.machine
    for line in stage.lines:
        if line.name == "HSDP hooks":
            sums["hook"] += float(line.total_s[case])
        if line.kind == "collective":
            sums["launches"] += float(line.launches[case])
    sums["wait"] = float(stage.part_s(("wait",))[0]) / max(machine.term("rank_skew_frac"), 1e-9)
    sums["forwards"] = float(forwards_of_a_rank(session.job.shape, evaluation.layouts)[0])
    return sums
