"""Rules of ``generate.py``."""

from __future__ import annotations

from perfmodel.engines.base import Context
from perfmodel.engines.legality import BoolColumn, Rule, mask
from perfmodel.engines.nearest import refusal
from perfmodel.errors import Problem
from perfmodel.spec.parallel import Layouts, ParallelConfig


def _whole(ctx: Context, layouts: Layouts) -> BoolColumn:
    sharing = layouts.ulysses * layouts.ring
    partial = (layouts.hsdp > 1) & (layouts.hsdp != layouts.world_size)
    return mask(partial | ((sharing > 1) & (sharing != layouts.world_size // layouts.dp)))


def _whole_problem(ctx: Context, config: ParallelConfig) -> Problem:
    ranks = config.world_size // config.dp
    if 1 < config.hsdp != config.world_size:
        clash = f"hsdp={config.hsdp}: --dit_fsdp shards over all {ranks} ranks or none"
        return refusal("wan-all-ranks", ctx, config, "hsdp", clash, (1, ranks))
    given = config.ulysses * config.ring
    clash = f"ulysses x ring = {given} must be all {ranks} ranks of torchrun"
    return refusal("wan-all-ranks", ctx, config, "ulysses", clash, (ranks,))


RULES: tuple[Rule, ...] = (
    Rule(
        id="wan-all-ranks",
        title="ulysses x ring, and FSDP, cover all ranks of the job.",
        violated=_whole,
        problem=_whole_problem,
        source="https://github.com/Wan-Video/Wan2.2 generate.py (ulysses_size == world_size)",
    ),
)
