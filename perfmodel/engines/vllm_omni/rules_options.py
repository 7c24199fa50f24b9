"""Rules on the model, the device, the fixed options and the VAE."""

from __future__ import annotations

from difflib import get_close_matches

import numpy as np

from perfmodel.engines.base import Context
from perfmodel.engines.legality import BoolColumn, Rule, mask
from perfmodel.engines.nearest import divisors, model_refusal, option_refusal, refusal, words
from perfmodel.engines.vllm_omni.attention import BACKENDS, SPARSE_BACKENDS
from perfmodel.engines.vllm_omni.rules_mesh import server_ranks
from perfmodel.engines.vllm_omni.versions import label_of, lacks, of_label
from perfmodel.errors import Problem
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import WEIGHT_ONLY

_WHEEL = "https://pypi.org/project/vllm-omni/0.30.0/ vllm_omni/"
# Limits of the request fields, vllm_omni/entrypoints/openai/protocol/{videos,images}.py.
MOST_STEPS = 200
MOST_GUIDANCE = 20.0
_PLAIN_DTYPE = {"fp8_block": "fp8", "fp16": "bf16", **dict.fromkeys(WEIGHT_ONLY, "bf16")}


def _all(layouts: Layouts, broken: bool) -> BoolColumn:
    return np.full(len(layouts), broken)


def _model(ctx: Context, layouts: Layouts) -> BoolColumn:
    return _all(layouts, not ctx.behaviour.pipeline)


def _model_problem(ctx: Context, config: ParallelConfig) -> Problem:
    return model_refusal(
        ctx,
        f"has no pipeline of its own in vllm-omni {ctx.behaviour.version}: 0 of its parallel axes "
        "exist there (--diffusion-load-format diffusers serves it on one GPU, which is not "
        "modelled)",
    )


def _device(ctx: Context, layouts: Layouts) -> BoolColumn:
    return _all(layouts, not ctx.behaviour.platform)


def _device_problem(ctx: Context, config: ParallelConfig) -> Problem:
    return Problem(
        "device-not-in-engine",
        f"vllm-omni {ctx.behaviour.version} has no platform for {ctx.device or ctx.device_family}; "
        "legal: NVIDIA (CUDA), AMD Instinct (ROCm), Ascend (NPU); try --gpus B300",
        field="--gpus",
        value=ctx.device,
        legal_values=("cuda", "rocm", "npu"),
        suggestions=("--gpus B300",),
    )


def _peak(ctx: Context, layouts: Layouts) -> BoolColumn:
    dtype = ctx.behaviour.options.dtype
    known = dtype in ctx.peak_dtypes or _PLAIN_DTYPE.get(dtype, dtype) in ctx.peak_dtypes
    return _all(layouts, not known)


def _peak_problem(ctx: Context, config: ParallelConfig) -> Problem:
    dtype = ctx.behaviour.options.dtype
    have = tuple(sorted(ctx.peak_dtypes))
    return Problem(
        "missing-peak",
        f"{ctx.device or 'the device'} has no {dtype} matrix rate; legal: {words(have)}; try "
        f"--dtype bf16",
        field="--dtype",
        value=dtype,
        legal_values=have,
        suggestions=("--dtype bf16",),
    )


def _weight_only(ctx: Context, layouts: Layouts) -> BoolColumn:
    dtype = ctx.behaviour.options.dtype
    return _all(layouts, dtype in WEIGHT_ONLY and dtype not in ctx.behaviour.weight_only)


def _weight_only_problem(ctx: Context, config: ParallelConfig) -> Problem:
    behaviour = ctx.behaviour
    dtype, have = behaviour.options.dtype, ("bf16", *behaviour.weight_only)
    clash = f"stores weights as {behaviour.engine} {behaviour.version} does not"
    return option_refusal("weight-only", "--dtype", dtype, clash, have, have[-1])


def _fast_path(ctx: Context, layouts: Layouts) -> BoolColumn:
    asked = ctx.behaviour.options.vae_fast_path
    return _all(layouts, asked is not None and asked not in ctx.behaviour.vae_fast_paths)


def _fast_path_problem(ctx: Context, config: ParallelConfig) -> Problem:
    behaviour = ctx.behaviour
    given, have = f"{behaviour.options.vae_fast_path}", behaviour.vae_fast_paths
    typed = f"--option vae_fast_path={have[0]}"
    return Problem(
        "vae-fast-path",
        f"vae_fast_path={given}: {behaviour.engine} {behaviour.version} has no flag for it; legal: "
        f"{words(have)}; try {typed}",
        field="--option",
        value=f"vae_fast_path={given}",
        legal_values=have,
        suggestions=(typed,),
    )


def _attention(ctx: Context, layouts: Layouts) -> BoolColumn:
    behaviour = ctx.behaviour
    missing = behaviour.attention_backend not in behaviour.attention_available
    return _all(layouts, behaviour.attention_explicit and missing)


def _attention_clash(ctx: Context, given: str) -> str:
    version = of_label(ctx.behaviour.version)
    since = BACKENDS.get(given)
    if since is None:
        return "is no backend of vllm-omni"
    if lacks(since, version):
        return f"came with vllm-omni {label_of(since)} and is not in {ctx.behaviour.version}"
    where = ctx.device or ctx.device_family
    return f"has no kernel for {where} in vllm-omni {ctx.behaviour.version} with {ctx.model}"


def _attention_problem(ctx: Context, config: ParallelConfig) -> Problem:
    given, have = ctx.behaviour.attention_backend, ctx.behaviour.attention_available
    near = get_close_matches(given, have, n=1, cutoff=0.3) or list(have[:1])
    clash = _attention_clash(ctx, given)
    return option_refusal("attention-backend", "--attention", given, clash, have, near[0], "here")


def _sparse(ctx: Context, layouts: Layouts) -> BoolColumn:
    behaviour = ctx.behaviour
    named = behaviour.attention_explicit and behaviour.attention_backend in SPARSE_BACKENDS
    unstated = behaviour.options.attention_density == 1
    return mask(named & (unstated | (layouts.sequence_parallel > 1)))


def _sparse_problem(ctx: Context, config: ParallelConfig) -> Problem:
    given = ctx.behaviour.attention_backend
    if ctx.behaviour.options.attention_density == 1:
        clash, typed = (
            "computes a share of the products that it does not state",
            ("--option attention_density=0.2"),
        )
    else:
        clash, typed = (
            "runs torch's dense attention where ranks share the tokens",
            "--attention TORCH_SDPA",
        )
    return Problem(
        "attention-sparse",
        f"--attention {given} {clash}; try {typed}",
        field="--attention",
        value=given,
        suggestions=(typed,),
    )


def _offload(ctx: Context, layouts: Layouts) -> BoolColumn:
    return _all(layouts, ctx.behaviour.options.offload not in ctx.behaviour.offload_modes)


def _offload_problem(ctx: Context, config: ParallelConfig) -> Problem:
    given, modes = ctx.behaviour.options.offload, ctx.behaviour.offload_modes
    clash = f"names a component, but {ctx.model} has its text tower inside the transformer"
    instead = "model"
    if given == "layerwise-gather":
        clash = f"began with 0.26, this is vllm-omni {ctx.behaviour.version}"
        instead = "layerwise"
    return option_refusal("offload-mode", "--offload", given, clash, modes, instead)


def _limits(ctx: Context, layouts: Layouts) -> BoolColumn:
    return _all(layouts, ctx.steps > MOST_STEPS or ctx.guidance > MOST_GUIDANCE)


def _limits_problem(ctx: Context, config: ParallelConfig) -> Problem:
    return Problem(
        "request-limits",
        f"{ctx.steps} steps at guidance {ctx.guidance:g}: the server takes at most {MOST_STEPS} "
        f"steps and guidance {MOST_GUIDANCE:g} in a request",
        field="--steps",
        value=str(ctx.steps),
        legal_values=(f"1 to {MOST_STEPS}",),
        severity="warning",
    )


def _vae_model(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((layouts.vae_patch > 1) & (not ctx.behaviour.has_vae_patch))


def _vae_model_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = (
        f"vae_patch={config.vae_patch} does nothing for {ctx.model}: its VAE is not distributed in "
        f"vllm-omni {ctx.behaviour.version} and decodes on 1 rank"
    )
    return refusal("vae-patch-model", ctx, config, "vae_patch", clash, (1,))


def _vae_world(ctx: Context, layouts: Layouts) -> BoolColumn:
    world = server_ranks(ctx, layouts)
    between = (layouts.vae_patch > 1) & (layouts.vae_patch != world)
    too_many = layouts.vae_patch > world
    return mask(too_many if ctx.behaviour.vae_patch_below_world_legal else too_many | between)


def _vae_world_problem(ctx: Context, config: ParallelConfig) -> Problem:
    world = int(server_ranks(ctx, Layouts.of([config]))[0])
    clash = f"vae_patch={config.vae_patch} reuses the ranks of the denoiser, and there are {world}"
    if ctx.behaviour.vae_patch_below_world_legal:
        return refusal("vae-patch-world", ctx, config, "vae_patch", clash, divisors(world))
    clash += f"; vllm-omni {ctx.behaviour.version} crashes between 1 and the world size (PR 3928)"
    return refusal("vae-patch-world", ctx, config, "vae_patch", clash, sorted({1, world}))


def _vae_tiling(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((layouts.vae_patch > 1) & (ctx.behaviour.options.vae_tiling == "off"))


def _vae_tiling_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = (
        f"vae_patch={config.vae_patch} decodes tiles, but --vae-tiling off was asked for (the "
        "engine would turn tiling on)"
    )
    return refusal("vae-tiling", ctx, config, "vae_patch", clash, (1,))


def _spatial(ctx: Context, layouts: Layouts) -> BoolColumn:
    if ctx.behaviour.options.vae_mode == "tile":
        return _all(layouts, False)
    if not ctx.behaviour.has_spatial_shard:
        return _all(layouts, True)
    return mask((layouts.vae_patch != layouts.world_size) | (layouts.world_size == 1))


def _spatial_problem(ctx: Context, config: ParallelConfig) -> Problem:
    mode = ctx.behaviour.options.vae_mode
    world = config.world_size
    if not ctx.behaviour.has_spatial_shard:
        clash = f"--vae-mode {mode} shards Wan VAEs in vllm-omni 0.24 and later, not {ctx.model} in"
        clash += f" {ctx.behaviour.version}; legal: tile; try --vae-mode tile"
        legal: tuple[str, ...] = ("tile",)
        typed = "--vae-mode tile"
    elif world == 1:
        clash = f"--vae-mode {mode} needs at least 2 ranks, this configuration has 1; legal: tile; "
        clash += "try --vae-mode tile"
        legal, typed = ("tile",), "--vae-mode tile"
    else:
        clash = f"--vae-mode {mode} needs vae_patch = {world} (the world size), not "
        clash += f"{config.vae_patch}; legal: {world}; try vae_patch={world} or --vae-mode tile"
        legal, typed = (str(world),), f"vae_patch={world}"
    return Problem(
        "spatial-shard",
        clash,
        field="--vae-mode",
        value=mode,
        legal_values=legal,
        suggestions=(typed,),
    )


OPTION_RULES: tuple[Rule, ...] = (
    Rule(
        id="model-not-in-engine",
        per_layout=False,
        gate=True,
        title="The engine must have a pipeline for the model.",
        violated=_model,
        problem=_model_problem,
        source=f"{_WHEEL}diffusion/registry.py",
    ),
    Rule(
        id="device-not-in-engine",
        per_layout=False,
        gate=True,
        title="The engine must have a platform for the device.",
        violated=_device,
        problem=_device_problem,
        source=f"{_WHEEL}platforms/",
    ),
    Rule(
        id="missing-peak",
        per_layout=False,
        title="A dtype needs a matrix peak rate of the device; none is ever guessed.",
        violated=_peak,
        problem=_peak_problem,
    ),
    Rule(
        id="weight-only",
        per_layout=False,
        title="Weights that are widened before each product need an engine that does so.",
        violated=_weight_only,
        problem=_weight_only_problem,
    ),
    Rule(
        id="vae-fast-path",
        per_layout=False,
        title="Another data movement of the VAE than the engine's own needs a flag for it.",
        violated=_fast_path,
        problem=_fast_path_problem,
        source="https://github.com/vllm-project/vllm-omni/pull/7056",
    ),
    Rule(
        id="attention-backend",
        per_layout=False,
        title="An attention backend chosen by hand must be in the version and have a kernel.",
        violated=_attention,
        problem=_attention_problem,
        source=f"{_WHEEL}platforms/cuda/platform.py get_diffusion_attn_backend_cls",
    ),
    Rule(
        id="attention-sparse",
        title="A sparse attention needs the share that it computes, and whole sequences.",
        violated=_sparse,
        problem=_sparse_problem,
        source=f"{_WHEEL}diffusion/attention/backends/fastvideo_vsa.py disable_when_sp_active",
    ),
    Rule(
        id="offload-mode",
        per_layout=False,
        title="The version must have the offload mode; Cosmos3 has no separate text encoder.",
        violated=_offload,
        problem=_offload_problem,
        source=f"{_WHEEL}diffusion/models/cosmos3/pipeline_cosmos3.py __init__",
    ),
    Rule(
        id="request-limits",
        per_layout=False,
        title="The server takes at most 200 steps and guidance 20 in a request.",
        violated=_limits,
        problem=_limits_problem,
        severity="warning",
        source=f"{_WHEEL}entrypoints/openai/protocol/videos.py",
    ),
)

VAE_RULES: tuple[Rule, ...] = (
    Rule(
        id="vae-patch-model",
        title="vae_patch needs a distributed VAE.",
        violated=_vae_model,
        problem=_vae_model_problem,
        source=f"{_WHEEL}diffusion/registry.py initialize_model",
    ),
    Rule(
        id="vae-patch-world",
        title="vae_patch is at most the world size; before 0.22 it was 1 or exactly that.",
        violated=_vae_world,
        problem=_vae_world_problem,
        source="https://github.com/vllm-project/vllm-omni/pull/3928",
    ),
    Rule(
        id="vae-tiling",
        title="vae_patch > 1 turns tiling on, so it excludes tiling off.",
        violated=_vae_tiling,
        problem=_vae_tiling_problem,
        source=f"{_WHEEL}diffusion/registry.py initialize_model",
    ),
    Rule(
        id="spatial-shard",
        title="The spatial shard modes need a Wan VAE and vae_patch equal to the world size.",
        violated=_spatial,
        problem=_spatial_problem,
        source=f"{_WHEEL}diffusion/distributed/autoencoders/autoencoder_kl_wan.py",
    ),
)
