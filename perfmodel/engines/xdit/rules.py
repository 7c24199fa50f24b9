"""Rules of xDiT alone."""

from __future__ import annotations

from perfmodel.engines.base import Context
from perfmodel.engines.legality import BoolColumn, Rule, mask
from perfmodel.engines.nearest import refusal
from perfmodel.errors import Problem
from perfmodel.spec.parallel import Layouts, ParallelConfig

_WHEEL = "https://pypi.org/project/xfuser/0.7.0/ xfuser/"


def _guidance(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask(layouts.cfg > 2)


def _guidance_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = f"cfg={config.cfg}: --use_cfg_parallel makes 2 groups"
    return refusal("xdit-cfg", ctx, config, "cfg", clash, (1, 2))


def _task_guidance(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((layouts.cfg > 1) & ("ti2v" in ctx.model_id and ctx.task != "i2v"))


def _task_guidance_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = f"cfg={config.cfg}: {ctx.model} divides its guidance branches only for --task i2v"
    return refusal("xdit-cfg-task", ctx, config, "cfg", clash, (1,))


def _alone(ctx: Context, layouts: Layouts) -> BoolColumn:
    mesh = layouts.cfg * layouts.sequence_parallel * layouts.tp * layouts.pp * layouts.dp
    return mask((layouts.hsdp > 1) & (layouts.hsdp > mesh))


def _alone_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = (
        f"hsdp={config.hsdp} shards over the ranks of the other degrees (their product is the "
        "number of processes), and there are fewer"
    )
    return refusal("xdit-hsdp", ctx, config, "hsdp", clash, (1,))


RULES: tuple[Rule, ...] = (
    Rule(
        id="xdit-cfg",
        title="Guidance parallelism makes two groups (--use_cfg_parallel).",
        violated=_guidance,
        problem=_guidance_problem,
        source=f"{_WHEEL}config/config.py DataParallelConfig",
    ),
    Rule(
        id="xdit-cfg-task",
        title="Wan2.2-TI2V has guidance parallelism for image to video only.",
        violated=_task_guidance,
        problem=_task_guidance_problem,
        source=f"{_WHEEL}model_executor/models/runner_models/wan.py xFuserWan22TI2VModel",
    ),
    Rule(
        id="xdit-hsdp",
        title="--fully_shard_degree is at most the product of the other degrees.",
        violated=_alone,
        problem=_alone_problem,
        source=f"{_WHEEL}config/config.py FullyShardConfig, ParallelConfig",
    ),
)
