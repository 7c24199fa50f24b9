"""Rules on how degrees multiply: world size, guidance, tensor, pipeline, weight sharding."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import gcd

import numpy as np

from perfmodel.engines.base import Context
from perfmodel.engines.legality import BoolColumn, Rule, mask
from perfmodel.engines.nearest import divisors, parallel_text, refusal, words
from perfmodel.errors import Problem
from perfmodel.spec.parallel import IntColumn, Layouts, ParallelConfig

_WHEEL = "https://pypi.org/project/vllm-omni/0.30.0/ vllm_omni/"


def _mesh(layouts: Layouts) -> IntColumn:
    return layouts.cfg * layouts.sequence_parallel * layouts.tp * layouts.pp * layouts.dp


def _mesh_of(config: ParallelConfig) -> int:
    return int(_mesh(Layouts.of([config]))[0])


def _world_size(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask(layouts.world_size > ctx.num_gpus)


def _world_size_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = f"{parallel_text(config)} needs {config.world_size} GPUs, the system has {ctx.num_gpus}"
    return refusal("world-size", ctx, config, "cfg", clash)


def server_ranks(ctx: Context, layouts: Layouts) -> IntColumn:
    """Ranks of one server: each replica has its own, unless weights are gathered between them."""
    gathers = ctx.behaviour.options.offload == "layerwise-gather"
    return np.asarray(layouts.world_size // (1 if gathers else layouts.dp))


def _one_host(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((ctx.nodes > 1) & (server_ranks(ctx, layouts) > ctx.gpus_per_node))


def _one_host_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = (
        f"{config.config_id} spans hosts of {ctx.gpus_per_node} GPUs, and the workers of a server "
        "are processes of one host"
    )
    return refusal("one-host", ctx, config, "ulysses", clash)


def _cfg_branches(ctx: Context, layouts: Layouts) -> BoolColumn:
    if not ctx.behaviour.has_cfg:
        return layouts.cfg > 1
    branches = 1 if ctx.distilled else ctx.branches
    return mask((layouts.cfg > 1) & (branches % layouts.cfg != 0))


def _cfg_branches_problem(ctx: Context, config: ParallelConfig) -> Problem:
    branches = 1 if ctx.distilled or not ctx.behaviour.has_cfg else ctx.branches
    if ctx.distilled:
        refused = (
            "the engine refuses it"
            if ctx.behaviour.cfg_on_distilled_refused
            else ("the other ranks repeat the same work")
        )
        why = f"{ctx.model} is distilled and runs without classifier-free guidance ({refused})"
    elif branches == 1:
        why = f"guidance {ctx.guidance:g} runs one forward a step"
    else:
        why = f"this request runs {branches}"
    clash = f"cfg={config.cfg} needs {config.cfg} guidance branches, but {why}"
    return refusal("cfg-branches", ctx, config, "cfg", clash, divisors(branches))


def _tensor(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((layouts.tp > 1) & (_shared_width(ctx) % layouts.tp != 0))


def _widths(ctx: Context) -> dict[str, int]:
    return {
        "heads": ctx.heads,
        "key/value heads": ctx.kv_heads,
        "hidden width": ctx.hidden,
        "feed-forward width": ctx.ffn_width,
    }


def _shared_width(ctx: Context) -> int:
    return reduce(gcd, _widths(ctx).values())


def _tensor_problem(ctx: Context, config: ParallelConfig) -> Problem:
    bad = [f"{value:,} {name}" for name, value in _widths(ctx).items() if value % config.tp]
    clash = f"tp={config.tp} does not divide the {words(bad, ' and the ')} of {ctx.model}"
    return refusal("tp-divides", ctx, config, "tp", clash, divisors(_shared_width(ctx)))


def _pipeline(ctx: Context, layouts: Layouts) -> BoolColumn:
    most = ctx.layers if ctx.behaviour.has_pp else 1
    return mask(layouts.pp > most)


def _pipeline_problem(ctx: Context, config: ParallelConfig) -> Problem:
    if ctx.behaviour.has_pp:
        clash = f"pp={config.pp} is more than the {ctx.layers} blocks of {ctx.model}"
        return refusal("pp-model", ctx, config, "pp", clash, (f"1 to {ctx.layers}",))
    clash = (
        f"pp={config.pp} needs a pipeline with stages, but {ctx.behaviour.pipeline or ctx.model} "
        f"in vllm-omni {ctx.behaviour.version} has 1 (only the Wan text- and image-to-video "
        "pipelines of 0.22 and later split their blocks)"
    )
    return refusal("pp-model", ctx, config, "pp", clash, (1,))


def _hsdp_model(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((layouts.hsdp > 1) & (not ctx.behaviour.has_hsdp))


def _hsdp_model_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = (
        f"hsdp={config.hsdp} needs shard conditions, but {ctx.behaviour.pipeline or ctx.model} in "
        f"vllm-omni {ctx.behaviour.version} has 0"
    )
    return refusal("hsdp-model", ctx, config, "hsdp", clash, (1,))


def _hsdp_with(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((layouts.hsdp > 1) & ((layouts.tp > 1) | (layouts.pp > 1) | (layouts.dp > 1)))


def _hsdp_with_problem(ctx: Context, config: ParallelConfig) -> Problem:
    other = [f"{key}={getattr(config, key)}" for key in ("tp", "pp", "dp")]
    clash = (
        f"hsdp={config.hsdp} cannot be combined with "
        f"{words([text for text in other if not text.endswith('=1')], ' and ')}: "
        "weights are sharded once"
    )
    return refusal("hsdp-with", ctx, config, "hsdp", clash, (1,))


def _offload_gather(ctx: Context, layouts: Layouts) -> BoolColumn:
    options = ctx.behaviour.options
    skips = (layouts.dp > 1) & (options.cache_skip > 0)
    return mask((options.offload == "layerwise-gather") & ((layouts.hsdp > 1) | skips))


def _offload_gather_problem(ctx: Context, config: ParallelConfig) -> Problem:
    if config.hsdp > 1:
        clash = (
            f"hsdp={config.hsdp} shards the weights that --offload layerwise-gather shards again"
        )
        return refusal("offload-gather", ctx, config, "hsdp", clash, (1,))
    clash = (
        f"dp={config.dp} gathers weights between replicas under --offload layerwise-gather, and a "
        "step cache would skip different gathers on each"
    )
    return refusal("offload-gather", ctx, config, "dp", clash, (1,))


def _hsdp_mesh(ctx: Context, layouts: Layouts) -> BoolColumn:
    mesh, shards = _mesh(layouts), layouts.hsdp * layouts.hsdp_replicate
    combined = (layouts.hsdp > 1) & (mesh > 1) & (mesh != shards)
    return mask(combined | ((layouts.hsdp == 1) & (layouts.hsdp_replicate > 1)))


def _hsdp_mesh_problem(ctx: Context, config: ParallelConfig) -> Problem:
    mesh, shards = _mesh_of(config), config.hsdp * config.hsdp_replicate
    if config.hsdp == 1:
        clash = f"hsdp_replicate={config.hsdp_replicate} replicates shards, but hsdp is 1"
        return refusal("hsdp-mesh", ctx, config, "hsdp_replicate", clash, (1,))
    clash = (
        f"hsdp={config.hsdp} x hsdp_replicate={config.hsdp_replicate} covers {shards} ranks, but "
        f"the other axes make {mesh}"
    )
    ranks = min(mesh, ctx.num_gpus)
    meshes = tuple(f"{d}x{ranks // d}" for d in divisors(ranks) if d > 1)
    return refusal("hsdp-mesh", ctx, config, "hsdp", clash, meshes)


def _text_encoder_tp(ctx: Context, layouts: Layouts) -> BoolColumn:
    most = layouts.world_size if ctx.behaviour.has_text_encoder_tp else np.int64(1)
    return mask(layouts.text_encoder_tp > most)


def _text_encoder_tp_problem(ctx: Context, config: ParallelConfig) -> Problem:
    if ctx.behaviour.has_text_encoder_tp:
        clash = (
            f"text_encoder_tp={config.text_encoder_tp} uses the first ranks, but there are "
            f"{config.world_size}"
        )
        ranks = divisors(config.world_size)
        return refusal("text-encoder-tp", ctx, config, "text_encoder_tp", clash, ranks)
    clash = (
        f"text_encoder_tp={config.text_encoder_tp} shards the encoder of MiniMax-H3 alone; "
        f"{ctx.model} keeps its own on 1 rank"
    )
    return refusal("text-encoder-tp", ctx, config, "text_encoder_tp", clash, (1,))


def _idle(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask(layouts.world_size < ctx.num_gpus)


def _idle_problem(ctx: Context, config: ParallelConfig) -> Problem:
    world = config.world_size
    replicas = ctx.num_gpus // world
    text = f"{parallel_text(config)} runs on {world} of {ctx.num_gpus} GPUs, "
    text += f"{ctx.num_gpus - world} stay idle"
    hints: tuple[str, ...] = ()
    if replicas > 1 and config.hsdp == 1:
        hints = (parallel_text(replace(config, dp=replicas * config.dp)),)
        text += f"; try --parallel {hints[0]} to serve {replicas} requests at once"
    return Problem(
        "idle-gpus",
        text,
        field="--parallel",
        value=parallel_text(config),
        suggestions=hints,
        severity="warning",
    )


def _limits(ctx: Context, layouts: Layouts) -> BoolColumn:
    broken = np.zeros(len(layouts), bool)
    for axis, legal in ctx.behaviour.legal_degrees:
        broken |= ~np.isin(getattr(layouts, axis), legal)
    return mask(broken)


def _limits_problem(ctx: Context, config: ParallelConfig) -> Problem:
    axis, legal = next(
        (axis, legal)
        for axis, legal in ctx.behaviour.legal_degrees
        if getattr(config, axis) not in legal
    )
    clash = f"{axis}={getattr(config, axis)} is refused by {ctx.behaviour.pipeline}"
    return refusal("pipeline-degrees", ctx, config, axis, clash, legal)


MESH_RULES: tuple[Rule, ...] = (
    Rule(
        id="world-size",
        title="The product of cfg, ulysses, ring, tp, pp and dp is at most the number of GPUs.",
        violated=_world_size,
        problem=_world_size_problem,
        source=f"{_WHEEL}diffusion/data.py DiffusionParallelConfig",
    ),
    Rule(
        id="one-host",
        title="The ranks of a server are on one host; replicas may be on others.",
        violated=_one_host,
        problem=_one_host_problem,
        # The same line is in the wheels of 0.14, 0.22 and 0.28.
        source=f"{_WHEEL}diffusion/worker/diffusion_worker.py (MASTER_ADDR = localhost), "
        "diffusion/executor/abstract.py (no ray)",
    ),
    Rule(
        id="cfg-branches",
        title="cfg divides the guidance branches of the request (one at guidance 1 or distilled).",
        violated=_cfg_branches,
        problem=_cfg_branches_problem,
        source=f"{_WHEEL}diffusion/distributed/cfg_parallel.py; "
        "https://github.com/vllm-project/vllm-omni/pull/7427",
    ),
    Rule(
        id="tp-divides",
        title="tp divides heads, key/value heads, hidden and feed-forward width.",
        violated=_tensor,
        problem=_tensor_problem,
        source=f"{_WHEEL}diffusion/models/*/ (ColumnParallelLinear, heads // tp_size)",
    ),
    Rule(
        id="pp-model",
        title="pp needs a pipeline with PipelineParallelMixin and no more stages than blocks.",
        violated=_pipeline,
        problem=_pipeline_problem,
        source=f"{_WHEEL}diffusion/distributed/pipeline_parallel.py",
    ),
    Rule(
        id="hsdp-model",
        title="hsdp needs a transformer that declares _hsdp_shard_conditions.",
        violated=_hsdp_model,
        problem=_hsdp_model_problem,
        source=f"{_WHEEL}diffusion/distributed/hsdp.py",
    ),
    Rule(
        id="pipeline-degrees",
        title="Some pipelines accept only the degrees that they name (SANA-Video).",
        violated=_limits,
        problem=_limits_problem,
        source=f"{_WHEEL}diffusion/models/sana_video/transformer_sana_video.py",
    ),
    Rule(
        id="offload-gather",
        title="Gathered layerwise offload excludes hsdp, and a step cache between replicas.",
        violated=_offload_gather,
        problem=_offload_gather_problem,
        source=f"{_WHEEL}diffusion/offloader/base.py from_od_config, config.py resolve_offload",
    ),
    Rule(
        id="hsdp-with",
        title="hsdp excludes tp, pp and dp.",
        violated=_hsdp_with,
        problem=_hsdp_with_problem,
        source=f"{_WHEEL}diffusion/data.py __post_init__",
    ),
    Rule(
        id="hsdp-mesh",
        title="hsdp x hsdp_replicate equals the ranks that the other axes make, or stands alone.",
        violated=_hsdp_mesh,
        problem=_hsdp_mesh_problem,
        source=f"{_WHEEL}diffusion/data.py __post_init__",
    ),
    Rule(
        id="text-encoder-tp",
        title="text_encoder_tp exists for MiniMax-H3 only and is at most the world size.",
        violated=_text_encoder_tp,
        problem=_text_encoder_tp_problem,
        source=f"{_WHEEL}diffusion/models/minimax_h3/encoder.py",
    ),
    Rule(
        id="idle-gpus",
        title="A configuration that uses fewer GPUs than the system has leaves the rest idle.",
        violated=_idle,
        problem=_idle_problem,
        severity="warning",
        source=f"{_WHEEL}diffusion/data.py num_gpus",
    ),
)
