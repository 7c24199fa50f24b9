"""All parallel configurations of up to N devices, as columns, legal or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import comb

import numpy as np

from perfmodel.spec.parallel import KEYS, Layouts

EXHAUSTIVE_WORLD = 16
"""Up to this many devices every world size is tried; beyond it, powers of two and divisors."""

MOST_WORLD = 1024
"""Devices that one request is tried on at most; more run further requests."""

MOST_ROWS = 1_000_000
"""Combinations of one search, about two seconds; a size that would make more is not tried."""

COMPUTE_AXES = ("cfg", "ulysses", "ring", "tp", "pp")


def world_sizes(num_gpus: int, parts: int = len(COMPUTE_AXES)) -> tuple[int, ...]:
    """World sizes worth trying on `num_gpus` devices.

    Powers of two come first, then all devices, then their divisors, small ones first, while no
    more than `MOST_ROWS` combinations of `parts` axes come together.
    """
    if num_gpus <= EXHAUSTIVE_WORLD:
        return tuple(range(1, num_gpus + 1))
    largest = min(num_gpus, MOST_WORLD)
    powers = [2**i for i in range(largest.bit_length()) if 2**i <= largest]
    divisors = [n for n in range(1, largest + 1) if num_gpus % n == 0]
    chosen: list[int] = []
    rows = 0
    for world in dict.fromkeys([*powers, *(n for n in divisors if n == num_gpus), *divisors]):
        more = combinations(world, parts)
        if rows + more <= MOST_ROWS:
            chosen.append(world)
            rows += more
    return tuple(sorted(chosen))


def left_out(num_gpus: int, parts: int = len(COMPUTE_AXES)) -> tuple[int, ...]:
    """Divisors of the number of devices that are not tried, largest last."""
    tried = world_sizes(num_gpus, parts)
    return tuple(n for n in range(1, num_gpus + 1) if num_gpus % n == 0 and n not in tried)


def combinations(world: int, parts: int) -> int:
    """Rows of one world size: ordered factorizations, times meshes, times VAE choices.

    Formula: a prime power ``p^e`` spreads over ``k = parts`` axes in ``C(e + k - 1, k - 1)`` ways.
    """
    axes = max(parts, 1)
    ways, rest, prime = 1, world, 2
    while rest > 1:
        power = 0
        while rest % prime == 0:
            rest, power = rest // prime, power + 1
        ways *= comb(power + axes - 1, axes - 1)
        prime += 1
    return ways * len(weight_meshes(world)) * len(vae_choices(world))


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
    tilings: Sequence[int] = (0, 1),
    weight_sharding: bool = True,
) -> Layouts:
    """Every combination of the searched axes.

    Args:
        num_gpus: devices of the system.
        axes: compute axes to vary; the others stay 1.
        tilings: VAE tilings of a single rank to try (0 untiled, 1 tiled).
        weight_sharding: also vary HSDP.

    Returns:
        Columns; rows in a fixed order, the single device first.
    """
    rows: list[tuple[int, ...]] = []
    for world in world_sizes(num_gpus, len(axes)):
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
    columns = dict.fromkeys(KEYS, ones)
    columns.update({name: table[:, i] for i, name in enumerate(names)})
    return Layouts(**columns)
