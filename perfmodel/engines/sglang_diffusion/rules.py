"""Rules of SGLang Diffusion alone."""

from __future__ import annotations

from perfmodel.engines.base import Context
from perfmodel.engines.legality import BoolColumn, Rule, mask
from perfmodel.engines.nearest import refusal
from perfmodel.errors import Problem
from perfmodel.spec.parallel import Layouts, ParallelConfig


def _product(ctx: Context, layouts: Layouts) -> BoolColumn:
    mesh = layouts.cfg * layouts.sequence_parallel * layouts.tp * layouts.dp
    return mask((layouts.hsdp > 1) & (layouts.world_size > mesh))


def _product_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = (
        f"hsdp={config.hsdp} shards over ranks that cfg, ulysses, ring, tp and dp make, and there "
        "are fewer"
    )
    return refusal("sglang-hsdp", ctx, config, "hsdp", clash, (1,))


def _mixed(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((layouts.allgather > 1) & (layouts.ulysses * layouts.ring > 1))


def _mixed_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = (
        f"allgather={config.allgather} excludes ulysses and ring, but they were given as "
        f"{config.ulysses} and {config.ring}"
    )
    return refusal("sglang-gather", ctx, config, "allgather", clash, (1,))


RULES: tuple[Rule, ...] = (
    Rule(
        id="sglang-gather",
        title="--kv-gather-degree excludes Ulysses and ring degrees.",
        violated=_mixed,
        problem=_mixed_problem,
        source="https://pypi.org/project/sglang/0.5.23/ "
        "sglang/multimodal_gen/runtime/server_args/server_args.py _adjust_parallelism",
    ),
    Rule(
        id="sglang-hsdp",
        title="Weight sharding reuses the ranks of the other degrees; it adds none.",
        violated=_product,
        problem=_product_problem,
        source="https://pypi.org/project/sglang/0.5.23/ "
        "sglang/multimodal_gen/runtime/server_args/server_args.py _validate_parallelism",
    ),
)
