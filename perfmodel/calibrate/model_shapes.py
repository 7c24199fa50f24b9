"""The operators that a set of configurations of one request really runs, for ``bench --for``."""

from __future__ import annotations

import numpy as np

from perfmodel.calibrate.cases import Case
from perfmodel.calibrate.presets import media_case
from perfmodel.calibrate.shapes import for_ops
from perfmodel.ops import Ints, Media, Op
from perfmodel.pipeline.job import Job
from perfmodel.placement import vae
from perfmodel.placement.denoise import place_denoise
from perfmodel.placement.precision import widened
from perfmodel.placement.tiles import Tiling
from perfmodel.spec.parallel import Layouts
from perfmodel.stages import host

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
    traits = behaviour.traits
    work = job.family.denoise(job.model, shape, traits)
    placed = place_denoise(work, shape, layouts, behaviour, behaviour.options)
    ops = [*widened(job.family.text_encode(job.model, shape, traits), traits.text_bits)]
    ops += [*placed.ops, *_decode(job, layouts)]
    if np.any(np.asarray(shape.condition_frames) > 0):
        ops += _encode(job, layouts)
    return [*ops, *host.transfer(shape), *host.encode_output(shape)]


def _decode(job: Job, layouts: Layouts) -> list[Op]:
    """The decoder on every distinct tile, and the gathers of its pixels."""
    spec, shape, behaviour = job.model.vae, job.shape, job.behaviour
    ratio = spec.spatial_ratio
    tiling = Tiling(behaviour.vae_tile_px // ratio, behaviour.vae_tile_stride_px // ratio)
    columns = (shape.latent_frames, shape.latent_height, shape.latent_width)
    maps = _maps(job, layouts, columns, tiling)
    dealt = vae.deal_maps(maps)
    ops = job.family.vae_decode(job.model, *_pieces(dealt), behaviour.traits)
    pixel_frames = 1 + (maps.frames - 1) * spec.temporal_ratio
    area = dealt.largest[:, 0] * dealt.largest[:, 1] * ratio**2
    messages = vae.gather(maps, dealt, pixel_frames * area * _PIXEL_BYTES)
    return [*widened(ops, behaviour.traits.vae_bits), *messages]


def _encode(job: Job, layouts: Layouts) -> list[Op]:
    """The encoder on every distinct tile of the condition frames."""
    shape, behaviour = job.shape, job.behaviour
    tiling = Tiling(behaviour.vae_tile_px, behaviour.vae_tile_stride_px)
    columns = (shape.condition_frames, shape.height, shape.width)
    dealt = vae.deal_maps(_maps(job, layouts, columns, tiling))
    ops = job.family.vae_encode(job.model, *_pieces(dealt), behaviour.traits)
    return list(widened(ops, behaviour.traits.vae_encode_bits))


def _pieces(dealt: vae.Dealt) -> tuple[vae.Ints64, vae.Ints64, vae.Ints64]:
    """Frames, heights and widths of the distinct pieces."""
    return dealt.shapes[:, 0], dealt.shapes[:, 1], dealt.shapes[:, 2]


def _maps(job: Job, layouts: Layouts, columns: tuple[Ints, Ints, Ints], tiling: Tiling) -> vae.Maps:
    """Distinct divisions of one map."""
    divided = layouts.vae_patch > 1
    tiled = divided | (layouts.vae_tiling > 0) | job.behaviour.vae_tiling_default
    world = np.where(divided, layouts.world_size // layouts.dp, 1)
    replicas = np.where(divided, layouts.dp, 1)
    wide = (*columns, layouts.vae_patch, tiled, world, replicas)
    table = np.stack(
        [np.broadcast_to(np.asarray(c, np.int64), (len(layouts),)) for c in wide], axis=1
    )
    frames, height, width, ranks, is_tiled, size, copies = np.unique(table, axis=0).T
    return vae.Maps(
        frames=frames,
        height=height,
        width=width,
        ranks=ranks,
        world=size,
        replicas=copies,
        tiled=is_tiled > 0,
        tiling=tiling,
    )
