"""Every configuration of one request on one machine: all stages, as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfmodel.pipeline.denoise import denoise_stage
from perfmodel.pipeline.host import plain_stage
from perfmodel.pipeline.job import Job
from perfmodel.pipeline.lines import Column, Stage, with_lines
from perfmodel.pipeline.offload import with_offload
from perfmodel.pipeline.site import of_site
from perfmodel.pipeline.streaming import beside_decode
from perfmodel.pipeline.vae_maps import decode_stage, encode_stage
from perfmodel.placement.guidance import together
from perfmodel.placement.precision import widened
from perfmodel.spec.parallel import Layouts
from perfmodel.stages import guardrails, host

STAGES = ("text_encode", "vae_encode", "denoise", "vae_decode", "transfer", "video_encode")
FORWARD_STAGES = STAGES[:4]
COPYING = ("model", "text-encoder", "layerwise", "layerwise-gather")
"""Offload modes: weights are copied from the host for a request."""


@dataclass(frozen=True)
class Evaluation:
    """Predicted times of N configurations.

    Attributes:
        job: what was evaluated.
        layouts: the N configurations.
        stages: a `Stage` for each name in `STAGES`.
    """

    job: Job
    layouts: Layouts
    stages: Mapping[str, Stage]

    @cached_property
    def latency_s(self) -> Column:
        """Request time of a warm server, the sum of the six stages, ``[N]``."""
        return sum((self.stages[name].total_s for name in STAGES), np.zeros(len(self.layouts)))

    @cached_property
    def in_turn_s(self) -> Column:
        """What requests that end together wait for one after another, ``[N]``.

        A server's data-parallel replicas share the process that encodes files, and the one whose
        guardrails check the frames: the slower of both lets one request through at a time.
        """
        if not self.job.behaviour.encodes_in_turn:
            return np.zeros(len(self.layouts))
        checks = _checks(self.job, self.layouts).total_s
        return np.maximum(self.stages["video_encode"].total_s, checks)

    @cached_property
    def forward_s(self) -> Column:
        """Pipeline forward: the first four stages, ``[N]``."""
        return sum(
            (self.stages[name].total_s for name in FORWARD_STAGES), np.zeros(len(self.layouts))
        )


def evaluate(job: Job, layouts: Layouts) -> Evaluation:
    """Cost all stages of all configurations, each stage once per distinct case."""
    return composed(job, layouts, {name: build(job, layouts) for name, build in BUILDERS.items()})


def composed(job: Job, layouts: Layouts, alone: Mapping[str, Stage]) -> Evaluation:
    """A request of stages that were costed alone: what runs beside or between them is added."""
    behaviour, shape = job.behaviour, job.shape
    stages = {name: of_site(stage, job.machine.terms) for name, stage in alone.items()}
    if _streams(job):
        held = job.machine.term("encoder_held_frames")
        stages["video_encode"] = beside_decode(
            stages["video_encode"], stages["vae_decode"], shape.frames, held
        )
    if behaviour.options.offload in COPYING:
        stages = with_offload(
            stages,
            job.family.components(job.model),
            shape,
            layouts,
            behaviour.options.offload,
            behaviour.options.dtype,
            job.machine,
        )
    return Evaluation(job, layouts, stages)


def _streams(job: Job) -> bool:
    """Whether the file is encoded while the video is decoded."""
    video = bool(np.all(np.asarray(job.shape.frames) > 1))
    return job.behaviour.encodes_while_decoding and video


def evaluate_again(before: Evaluation, job: Job, rows: NDArray[np.intp]) -> Evaluation:
    """Some rows of `before` under a job that changes nothing but the dtype of the linears.

    That changes the denoise stage alone, except where weights are copied from the host: then their
    bytes change with it, and all stages are costed.
    """
    layouts = before.layouts.take(rows)
    if job.behaviour.options.offload in COPYING:
        return evaluate(job, layouts)
    kept = {name: replace(stage, index=stage.index[rows]) for name, stage in before.stages.items()}
    denoise = of_site(_denoise(job, layouts), job.machine.terms)
    return Evaluation(job, layouts, {**kept, "denoise": denoise})


def _denoise(job: Job, layouts: Layouts) -> Stage:
    behaviour = job.behaviour
    return denoise_stage(
        lambda case: job.family.denoise(job.model, case, behaviour.traits),
        together(job.shape, layouts) if job.branches_together else job.shape,
        layouts,
        behaviour,
        behaviour.options,
        job.machine,
        compiled=behaviour.compiled or behaviour.fused_blocks,
    )


def _text(job: Job, layouts: Layouts) -> Stage:
    traits = job.behaviour.traits
    ops = widened(job.family.text_encode(job.model, job.shape, traits), traits.text_bits)
    return plain_stage("text_encode", ops, layouts, job.machine)


def _transfer(job: Job, layouts: Layouts) -> Stage:
    crosses = job.behaviour.result_crosses_processes and not _streams(job)
    ops = host.transfer(job.shape, between_processes=crosses)
    traits = job.behaviour.traits
    if traits.condition_whole_clip and traits.clip_on_host:
        ops = (*host.condition_clip(job.shape), *ops)
    plain = plain_stage("transfer", ops, layouts, job.machine)
    return with_lines(plain, _checks(job, layouts))


def _checks(job: Job, layouts: Layouts) -> Stage:
    """What guardrails do with the decoded frames, before they leave the engine's process."""
    if not job.behaviour.checks_frames:
        return plain_stage("transfer", (), layouts, job.machine)
    # The detector's launches are hidden by its own kernels, not by the passes on the host.
    device, passes = guardrails.video_check(job.shape)
    return with_lines(
        plain_stage("transfer", device, layouts, job.machine),
        plain_stage("transfer", passes, layouts, job.machine),
    )


def _file(job: Job, layouts: Layouts) -> Stage:
    return plain_stage("video_encode", host.encode_output(job.shape), layouts, job.machine)


def _decoded(job: Job, layouts: Layouts) -> Stage:
    """Video and sound."""
    sound = plain_stage(
        "vae_decode", job.family.sound_decode(job.model, job.shape), layouts, job.machine
    )
    return with_lines(decode_stage(job, layouts), sound)


BUILDERS: Mapping[str, Callable[[Job, Layouts], Stage]] = {
    "denoise": _denoise,
    "vae_decode": _decoded,
    "text_encode": _text,
    "vae_encode": encode_stage,
    "transfer": _transfer,
    "video_encode": _file,
}
"""What costs each stage alone."""
