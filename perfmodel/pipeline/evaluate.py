"""Every configuration of one request on one machine: all stages, as columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.machine import Machine
from perfmodel.engines.base import Behaviour
from perfmodel.ops import Floats, Ints, Op
from perfmodel.pipeline.denoise import denoise_stage
from perfmodel.pipeline.host import plain_stage
from perfmodel.pipeline.lines import Column, Stage, distinct, with_lines
from perfmodel.pipeline.offload import with_offload
from perfmodel.pipeline.streaming import beside_decode
from perfmodel.pipeline.vae import VaeKind, vae_stage
from perfmodel.placement.guidance import together
from perfmodel.placement.precision import autocast, widened
from perfmodel.placement.tiles import Tiling
from perfmodel.placement.vae import VAE_BYTES, Ints64, Maps
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.parallel import Layouts
from perfmodel.stages import guardrails, host
from perfmodel.stages.base import Family

STAGES = ("text_encode", "vae_encode", "denoise", "vae_decode", "transfer", "video_encode")
FORWARD_STAGES = STAGES[:4]
COPYING = ("model", "text-encoder", "layerwise", "layerwise-gather")
"""Offload modes: weights are copied from the host for a request."""
PATCHED_KINDS = ("kl2d", "flux2")
"""VAEs that vLLM-Omni divides into patches with a halo when one tile covers the map."""


@dataclass(frozen=True)
class Job:
    """What is evaluated: one model and request under one engine's behaviour on one machine.

    Attributes:
        model, family: what runs.
        shape: the request; numbers are scalars or columns as long as the layouts.
        behaviour: engine behaviour with resolved options.
        machine: device, links, laws, terms.
        spread: relative 80 % half-widths by kind of time and provenance.
    """

    model: ModelSpec
    family: Family
    shape: Shape
    behaviour: Behaviour
    machine: Machine
    spread: Mapping[str, float] = field(default_factory=dict)

    @property
    def branches_together(self) -> bool:
        """Whether a rank runs its guidance branches of a step as one batch."""
        return self.model.branches_together and not self.behaviour.traits.branches_apart


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
    behaviour, shape, stages = job.behaviour, job.shape, dict(alone)
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
    return Evaluation(job, layouts, {**kept, "denoise": _denoise(job, layouts)})


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
    return with_lines(_decode(job, layouts), sound)


def _decode(job: Job, layouts: Layouts) -> Stage:
    spec, shape, behaviour = job.model.vae, job.shape, job.behaviour
    ratio = spec.spatial_ratio
    tile, stride = behaviour.vae_tile_px // ratio, behaviour.vae_tile_stride_px // ratio
    halo = (tile - stride) // 2 if spec.kind in PATCHED_KINDS else None
    tiling = Tiling(tile, stride, halo)

    def piece_bytes(frames: Ints64, height: Ints64, width: Ints64) -> Floats:
        pixels = (1 + (frames - 1) * spec.temporal_ratio) * height * width * float(ratio * ratio)
        return pixels * host.CHANNELS * VAE_BYTES

    columns = (shape.latent_frames, shape.latent_height, shape.latent_width)
    maps, index, outputs = _maps(job, layouts, columns, tiling)
    kind = VaeKind(
        stage="vae_decode",
        ops=partial(_map_ops, job.family.vae_decode, job, behaviour.traits.vae_bits),
        piece_bytes=piece_bytes,
        # Tiles are blended before their folded pixels are spread out again.
        overlap=(behaviour.vae_tile_px - behaviour.vae_tile_stride_px) // spec.pixel_patch,
        everywhere=not behaviour.vae_result_on_rank0,
        fused=behaviour.traits.vae_fast_path != "off",
        outputs=outputs,
    )
    return vae_stage(kind, maps, index, job.machine)


def _encode(job: Job, layouts: Layouts) -> Stage:
    spec, shape, behaviour = job.model.vae, job.shape, job.behaviour
    if np.all(np.asarray(shape.condition_frames) == 0):
        return plain_stage("vae_encode", (), layouts, job.machine)
    tiling = Tiling(behaviour.vae_tile_px, behaviour.vae_tile_stride_px)

    def piece_bytes(frames: Ints64, height: Ints64, width: Ints64) -> Floats:
        latent_frames = (frames - 1) // spec.temporal_ratio + 1
        area = height * width / float(spec.spatial_ratio**2)
        return latent_frames * area * spec.z_channels * VAE_BYTES

    columns = (shape.condition_frames, shape.height, shape.width)
    maps, index, outputs = _maps(job, layouts, columns, tiling, encode=behaviour.vae_encode_mode)
    kind = VaeKind(
        stage="vae_encode",
        ops=partial(_map_ops, job.family.vae_encode, job, behaviour.traits.vae_encode_bits),
        piece_bytes=piece_bytes,
        overlap=(behaviour.vae_tile_px - behaviour.vae_tile_stride_px) // spec.spatial_ratio,
        everywhere=True,
        fused=False,
        outputs=outputs,
    )
    return vae_stage(kind, maps, index, job.machine)


def _map_ops(
    build: Callable[..., tuple[Op, ...]],
    job: Job,
    bits: int,
    frames: Ints64,
    height: Ints64,
    width: Ints64,
) -> tuple[Op, ...]:
    ops = build(job.model, frames, height, width, job.behaviour.traits)
    return widened(autocast(ops) if job.behaviour.traits.vae_autocast else ops, bits)


def _maps(
    job: Job,
    layouts: Layouts,
    columns: tuple[Ints, Ints, Ints],
    tiling: Tiling,
    *,
    encode: str = "",
) -> tuple[Maps, NDArray[np.intp], Ints]:
    """Distinct (map, division) cases of one VAE direction, their index, and outputs a request.

    `encode` is how ranks share an encode, "" for a decode.
    """
    mode = job.behaviour.options.vae_mode
    bands = mode != "tile" and encode in ("", "band")
    axis = mode.removeprefix("spatial_shard_") if bands else ""
    ranks, world = layouts.vae_patch, layouts.world_size // layouts.dp
    if encode == "whole":
        ranks = np.ones_like(ranks)
    if job.behaviour.vae_over_sequence:
        ranks = np.minimum(ranks, layouts.sequence_parallel)
        world = ranks
    # An undivided map sends nothing, so the size of the world does not tell its cases apart.
    divided = ranks > 1
    world = np.where(divided, world, 1)
    replicas = np.where(divided, layouts.dp, 1)
    tiled = divided | (layouts.vae_tiling > 0) | job.behaviour.vae_tiling_default
    batch = job.shape.batch
    first, index = distinct(ranks, tiled, world, replicas, batch, *columns, size=len(layouts))
    frames, height, width, outputs = (
        np.broadcast_to(np.asarray(c, np.int64), (len(layouts),))[first] for c in (*columns, batch)
    )
    maps = Maps(
        frames=frames,
        height=height,
        width=width,
        ranks=ranks[first],
        world=world[first],
        replicas=replicas[first],
        tiled=tiled[first],
        tiling=tiling,
        band_axis=axis,
    )
    return maps, index, outputs


BUILDERS: Mapping[str, Callable[[Job, Layouts], Stage]] = {
    "denoise": _denoise,
    "vae_decode": _decoded,
    "text_encode": _text,
    "vae_encode": _encode,
    "transfer": _transfer,
    "video_encode": _file,
}
"""What costs each stage alone."""
