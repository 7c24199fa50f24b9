"""The nearest legal thing to type: a configuration, a degree, a size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from math import log2

import numpy as np

from perfmodel.engines.base import Context
from perfmodel.engines.legality import Rule, legal
from perfmodel.errors import Problem
from perfmodel.spec.parallel import KEYS, Layouts, ParallelConfig

_AXES = ("ulysses", "cfg", "ring", "tp", "pp", "dp")
# Between equally near configurations the cheaper communication comes first.
_PREFERENCE = {axis: 0.01 * rank for rank, axis in enumerate(_AXES)}
_SIDE_PX = 32  # every model of the catalogue runs sides that are multiples of it as they are


def parallel_text(config: ParallelConfig) -> str:
    """What to type after ``--parallel``: ``cfg=2,ulysses=2``, or ``single``."""
    pairs = [f"{key}={getattr(config, key)}" for key in KEYS if getattr(config, key) > 1]
    return ",".join(pairs) or "single"


def divisors(number: int) -> tuple[int, ...]:
    """All positive divisors, ascending."""
    return tuple(value for value in range(1, number + 1) if number % value == 0)


def words(values: Sequence[object], joint: str = ", ") -> str:
    """Values as people read them."""
    return joint.join(str(value) for value in values)


def refusal(
    rule_id: str,
    ctx: Context,
    config: ParallelConfig,
    axis: str,
    clash: str,
    legal_values: Sequence[object] = (),
) -> Problem:
    """The line of a refused degree: what was given, the clash, what is legal, what to type."""
    nearest = nearest_legal(ctx, config)
    text = parallel_text(nearest) if nearest is not None else ""
    parts = [clash]
    if legal_values:
        parts.append(f"legal: {words(legal_values)}")
    if text:
        parts.append(f"try --parallel {text}")
    return Problem(
        rule_id,
        "; ".join(parts),
        field="--parallel",
        value=f"{axis}={getattr(config, axis)}",
        legal_values=tuple(str(value) for value in legal_values),
        suggestions=(text,) if text else (),
    )


def option_refusal(
    rule_id: str,
    flag: str,
    given: str,
    clash: str,
    legal_values: tuple[str, ...],
    instead: str,
    where: str = "",
) -> Problem:
    """The line of a refused choice: what was given, the clash, what is legal, what to type.

    `where`: ``here``, if the legal choices are those of this device or version.
    """
    typed = f"{flag} {instead}"
    legal_words = f"legal {where}".rstrip()
    return Problem(
        rule_id,
        f"{flag} {given} {clash}; {legal_words}: {words(legal_values)}; try {typed}",
        field=flag,
        value=given,
        legal_values=legal_values,
        suggestions=(typed,),
    )


def model_refusal(ctx: Context, clash: str) -> Problem:
    """The line of a model that the engine does not have, and the engines that do."""
    from perfmodel.engines import engines_with

    others = engines_with(ctx.model_id)
    have = f"; engines that have it: {', '.join(others)}" if others else ""
    move = f"--engine {others[0]}" if others else "perfmodel models list"
    return Problem(
        "model-not-in-engine",
        f"{ctx.model} {clash}{have}; try {move}",
        field="--model",
        value=ctx.model_id,
        legal_values=others,
        suggestions=(move,),
    )


@lru_cache(maxsize=256)
def nearest_legal(ctx: Context, config: ParallelConfig) -> ParallelConfig | None:
    """The legal configuration closest to `config`, on as many devices where that divides them.

    Distance is the sum of |log2| changes of the degrees; keeping the number of ranks that share the
    tokens counts once more.  None when no configuration of the system is legal.
    """
    from perfmodel.engines import engine

    rules = [rule for rule in engine(ctx.behaviour.engine).rules() if rule.per_layout]
    world = config.world_size
    wanted = world if 0 < world <= ctx.num_gpus and ctx.num_gpus % world == 0 else ctx.num_gpus
    for target in dict.fromkeys((wanted, ctx.num_gpus, 1)):
        found = _nearest_of(rules, ctx, config, target)
        if found is not None:
            return found
    return None


def _nearest_of(
    rules: Sequence[Rule], ctx: Context, config: ParallelConfig, world: int
) -> ParallelConfig | None:
    rows = list(_candidates(config, world))
    allowed = np.flatnonzero(legal(rules, ctx, Layouts.of(rows)))
    return min((rows[i] for i in allowed), key=lambda row: _distance(row, config), default=None)


def _candidates(config: ParallelConfig, world: int) -> Iterator[ParallelConfig]:
    patches = sorted({1, min(config.vae_patch, world), world} if config.vae_patch > 1 else {1})
    for degrees in _factorisations(world, len(_AXES)):
        ulysses, cfg, ring, tp, pp, dp = degrees
        plain = ParallelConfig(
            cfg, ulysses, ring, tp=tp, pp=pp, dp=dp, vae_tiling=config.vae_tiling
        )
        for patch in patches:
            row = replace(plain, vae_patch=patch)
            yield row
            if config.hsdp > 1 and world > 1:
                yield replace(row, hsdp=world)
    if config.hsdp > 1 and world > 1:
        for patch in patches:
            yield ParallelConfig(hsdp=world, vae_patch=patch, vae_tiling=config.vae_tiling)


def _factorisations(number: int, places: int) -> Iterator[tuple[int, ...]]:
    if places == 1:
        yield (number,)
        return
    for first in divisors(number):
        for rest in _factorisations(number // first, places - 1):
            yield (first, *rest)


def _distance(row: ParallelConfig, given: ParallelConfig) -> tuple[float, int, str]:
    def change(key: str) -> float:
        return abs(log2(getattr(row, key) / getattr(given, key)))

    total = sum(change(f.name) for f in fields(row) if f.name not in ("vae_tiling", "dp"))
    total += 3 * change("dp")
    tokens_shared = given.ulysses * given.ring * given.allgather
    if tokens_shared > 1:
        total += abs(log2(row.ulysses * row.ring * row.allgather / tokens_shared))
    total += sum(_PREFERENCE[axis] for axis in _AXES if getattr(row, axis) > 1)
    return round(total, 6), -row.vae_patch, parallel_text(row)


def nearest_shapes(ctx: Context, degree: int) -> tuple[str, ...]:
    """The closest size and the closest frame count whose tokens divide by `degree`.

    Returns:
        Texts to type, such as ``--size 832x512`` and ``--frames 85``; empty when nothing near fits
        or the context cannot count tokens.
    """
    if ctx.tokens_at is None:
        return ()
    count = ctx.tokens_at
    extra = ctx.tokens - count(ctx.width, ctx.height, ctx.frames)

    def fits(width: int, height: int, frames: int) -> bool:
        if min(width, height) < 64 or frames < 1:
            return False
        return (count(width, height, frames) + extra) % degree == 0

    sizes = [(width, height) for width in _sides(ctx.width) for height in _sides(ctx.height)]
    sizes.sort(key=lambda size: (abs(size[0] - ctx.width) + abs(size[1] - ctx.height), -sum(size)))
    size = next((size for size in sizes if fits(*size, ctx.frames)), None)
    counts = [ctx.frames + sign * 4 * step for step in range(1, 13) for sign in (1, -1)]
    frames = next((value for value in counts if fits(ctx.width, ctx.height, value)), None)
    found = [] if size is None else [f"--size {size[0]}x{size[1]}"]
    if frames is not None and ctx.frames > 1:
        found.append(f"--frames {frames}")
    return tuple(found)


def _sides(side: int) -> tuple[int, ...]:
    """The side itself and its neighbours on the grid of `_SIDE_PX`."""
    base = side // _SIDE_PX * _SIDE_PX
    return (side, *(base + step * _SIDE_PX for step in range(-4, 6) if base + step * _SIDE_PX > 0))
