"""All parallel configurations of up to N devices, as columns, legal or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from perfmodel.spec.parallel import KEYS, Layouts

EXHAUSTIVE_WORLD = 16
"""Up to this many devices every world size is tried; beyond it, powers of two and divisors."""

COMPUTE_AXES = ("cfg", "ulysses", "ring", "tp", "pp")


def world_sizes(num_gpus: int, *, all_gpus: bool) -> tuple[int, ...]:
    """World sizes worth trying on `num_gpus` devices."""
    if all_gpus:
        return (num_gpus,)
    if num_gpus <= EXHAUSTIVE_WORLD:
        return tuple(range(1, num_gpus + 1))
    powers = {2**i for i in range(num_gpus.bit_length()) if 2**i <= num_gpus}
    divisors = {n for n in range(1, num_gpus + 1) if num_gpus % n == 0}
    return tuple(sorted(powers | divisors))


def factorizations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ordered ways to write `number` as a product of `parts` positive factors.

    No part at all makes 1 and nothing else (an engine without an axis to search).
    """
    if parts <= 1:
        if parts == 1 or number == 1:
            yield (number,) * parts
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in factorizations(number // first, parts - 1):
                yield (first, *rest)


def weight_meshes(world: int) -> tuple[tuple[int, int], ...]:
    """(shard, replicate) pairs over `world` ranks, first without sharding."""
    shards = [n for n in range(2, world + 1) if world % n == 0]
    return ((1, 1), *((shard, world // shard) for shard in shards))


def vae_choices(world: int) -> tuple[tuple[int, int], ...]:
    """(vae_patch, tiling) pairs: untiled, tiled on one rank, patches over 2, 4 .. world."""
    degrees = {world} | {2**i for i in range(1, world.bit_length()) if 2**i <= world}
    return ((1, 0), (1, 1), *((degree, 0) for degree in sorted(degrees) if degree > 1))


def candidates(
    num_gpus: int,
    *,
    axes: Sequence[str] = COMPUTE_AXES,
    all_gpus: bool = False,
    tilings: Sequence[int] = (0, 1),
    weight_sharding: bool = True,
) -> Layouts:
    """Every combination of the searched axes.

    Args:
        num_gpus: devices of the system.
        axes: compute axes to vary; the others stay 1.
        all_gpus: only configurations that use all devices.
        tilings: VAE tilings of a single rank to try (0 untiled, 1 tiled).
        weight_sharding: also vary HSDP.

    Returns:
        Columns; rows in a fixed order, the single device first.
    """
    rows: list[tuple[int, ...]] = []
    for world in world_sizes(num_gpus, all_gpus=all_gpus):
        meshes = weight_meshes(world) if weight_sharding else ((1, 1),)
        choices = [c for c in vae_choices(world) if c[0] > 1 or c[1] in tilings]
        for degrees in factorizations(world, len(axes)):
            rows += [(*degrees, *mesh, *choice) for mesh, choice in product(meshes, choices)]
        # Weight sharding over ranks that all repeat the whole computation.
        if world > 1:
            ones = (1,) * len(axes)
            rows += [(*ones, *m, *c) for m, c in product(meshes[1:], choices)]
    return _columns(rows, axes)


def _columns(rows: list[tuple[int, ...]], axes: Sequence[str]) -> Layouts:
    table = np.array(rows, np.int64)
    names = (*axes, "hsdp", "hsdp_replicate", "vae_patch", "vae_tiling")
    ones = np.ones(len(rows), np.int64)
    columns = {key: ones for key in KEYS}
    columns.update({name: table[:, i] for i, name in enumerate(names)})
    return Layouts(**columns)
