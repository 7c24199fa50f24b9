"""The operators that a set of configurations of one request really runs, for ``bench --for``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.cases import Case
from perfmodel.calibrate.presets import media_case
from perfmodel.calibrate.shapes import for_ops
from perfmodel.ops import Media, Op
from perfmodel.pipeline.evaluate import Job
from perfmodel.placement import vae
from perfmodel.placement.denoise import place_denoise
from perfmodel.placement.tiles import Tiling
from perfmodel.spec.parallel import Layouts
from perfmodel.stages import host

Column = NDArray[np.int64]

_PIXEL_BYTES = host.CHANNELS * vae.VAE_BYTES


def model_cases(job: Job, layouts: Layouts) -> list[Case]:
    """Distinct microbenchmark cases of `job` under every configuration in `layouts`.

    All kernels, messages, transfers and the encode of one request; a layout that is not legal
    should be left out by the caller.
    """
    shape = job.shape
    cases = for_ops(op for op in operators(job, layouts) if not isinstance(op, Media))
    if int(shape.frames) > 1:
        clip = (int(shape.width), int(shape.height), int(shape.batch) * int(shape.frames))
        cases.append(media_case(*clip))
    return cases


def operators(job: Job, layouts: Layouts) -> list[Op]:
    """Per-rank operators of all stages; dimensions are columns over `layouts` or over tiles."""
    behaviour, shape = job.behaviour, job.shape
    work = job.family.denoise(job.model, shape, behaviour.traits)
    placed = place_denoise(work, shape, layouts, behaviour, behaviour.options)
    ops = [*job.family.text_encode(job.model, shape, behaviour.traits), *placed.ops]
    ops += _decode(job, layouts)
    if np.any(np.asarray(shape.condition_frames) > 0):
        ops += _encode(job, layouts)
    return [*ops, *host.transfer(shape), *host.encode_output(shape)]


def _decode(job: Job, layouts: Layouts) -> list[Op]:
    """The decoder on every distinct tile, and the gathers of its pixels."""
    spec, shape, behaviour = job.model.vae, job.shape, job.behaviour
    ratio = spec.spatial_ratio
    tiling = Tiling(behaviour.vae_tile_px // ratio, behaviour.vae_tile_stride_px // ratio)
    sizes = (int(shape.latent_frames), int(shape.latent_height), int(shape.latent_width))
    cases = _map_cases(job, layouts, sizes, tiling)
    frames, heights, widths = _tiles(cases)
    ops = list(job.family.vae_decode(job.model, frames, heights, widths, behaviour.traits))
    pixel_frames = 1 + (sizes[0] - 1) * spec.temporal_ratio
    for case in cases:
        dealing = case.dealing()
        area = int(dealing.heights.max()) * int(dealing.widths.max()) * ratio * ratio
        ops += vae.gather(case, dealing, float(pixel_frames * area) * _PIXEL_BYTES)
    return ops


def _encode(job: Job, layouts: Layouts) -> list[Op]:
    """The encoder on every distinct tile of the condition frames."""
    shape, behaviour = job.shape, job.behaviour
    tiling = Tiling(behaviour.vae_tile_px, behaviour.vae_tile_stride_px)
    sizes = (int(shape.condition_frames), int(shape.height), int(shape.width))
    frames, heights, widths = _tiles(_map_cases(job, layouts, sizes, tiling))
    return list(job.family.vae_encode(job.model, frames, heights, widths, behaviour.traits))


def _map_cases(
    job: Job, layouts: Layouts, sizes: tuple[int, int, int], tiling: Tiling
) -> list[vae.MapCase]:
    """Distinct divisions of one map."""
    tiled = (layouts.vae_patch > 1) | (layouts.vae_tiling > 0) | job.behaviour.vae_tiling_default
    columns = (layouts.vae_patch, tiled, layouts.world_size // layouts.dp, layouts.dp)
    rows = np.unique(np.stack([np.asarray(c, np.int64) for c in columns], axis=1), axis=0)
    frames, height, width = sizes
    return [
        vae.MapCase(
            frames=frames,
            height=height,
            width=width,
            ranks=patch,
            world=world,
            replicas=replicas,
            tiling=tiling if is_tiled else None,
        )
        for patch, is_tiled, world, replicas in rows.tolist()
    ]


def _tiles(cases: list[vae.MapCase]) -> tuple[Column, Column, Column]:
    """Frames, heights and widths of all distinct tiles of `cases`."""
    kinds = {
        (case.frames, int(height), int(width))
        for case in cases
        for dealing in (case.dealing(),)
        for height, width in zip(dealing.heights, dealing.widths, strict=True)
    }
    table = np.array(sorted(kinds), np.int64)
    return table[:, 0], table[:, 1], table[:, 2]
