"""From a job to the maps that its VAE decodes and encodes, and how ranks share them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops import Floats, Ints, Op
from perfmodel.pipeline.host import plain_stage
from perfmodel.pipeline.job import Job
from perfmodel.pipeline.lines import Stage, distinct
from perfmodel.pipeline.vae import VaeKind, vae_stage
from perfmodel.placement.precision import autocast, widened
from perfmodel.placement.tiles import Tiling
from perfmodel.placement.vae import VAE_BYTES, Ints64, Maps
from perfmodel.spec.parallel import Layouts
from perfmodel.stages import host

PATCHED_KINDS = ("kl2d", "flux2")
"""VAEs that vLLM-Omni divides into patches with a halo when one tile covers the map."""


def decode_stage(job: Job, layouts: Layouts) -> Stage:
    """The decode of all outputs; sound is apart."""
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


def encode_stage(job: Job, layouts: Layouts) -> Stage:
    """The encode of the condition images or clip, where there is one."""
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
