"""Rules of engines that are described by facts: what the engine has, then how degrees multiply."""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches

import numpy as np

from perfmodel.engines.base import Context
from perfmodel.engines.legality import BoolColumn, Rule, mask
from perfmodel.engines.nearest import (
    divisors,
    model_refusal,
    option_refusal,
    parallel_text,
    refusal,
    words,
)
from perfmodel.engines.vllm_omni.rules_mesh import MESH_RULES
from perfmodel.engines.vllm_omni.rules_options import OPTION_RULES
from perfmodel.engines.vllm_omni.rules_sequence import SEQUENCE_RULES
from perfmodel.errors import Problem
from perfmodel.spec.parallel import Layouts, ParallelConfig

_SHARED_MESH = (
    "world-size",
    "cfg-branches",
    "tp-divides",
    "hsdp-with",
    "hsdp-mesh",
    "idle-gpus",
)
_SHARED_SEQUENCE = ("ulysses-heads", "sp-tokens", "tokens-padded")


def _taken(rules: tuple[Rule, ...], names: tuple[str, ...]) -> tuple[Rule, ...]:
    """Rules that every engine of this kind shares; they are arithmetic, not one engine's code."""
    by_id = {rule.id: replace(rule, source="") for rule in rules}
    return tuple(by_id[name] for name in names)


def named(ctx: Context) -> str:
    """``xdit 0.7.0``."""
    return f"{ctx.behaviour.engine} {ctx.behaviour.version}"


def _model(ctx: Context, layouts: Layouts) -> BoolColumn:
    return np.full(len(layouts), not ctx.behaviour.pipeline)


def _model_problem(ctx: Context, config: ParallelConfig) -> Problem:
    return model_refusal(ctx, f"has no pipeline in {named(ctx)}")


def _device(ctx: Context, layouts: Layouts) -> BoolColumn:
    return np.full(len(layouts), not ctx.behaviour.platform)


def _device_problem(ctx: Context, config: ParallelConfig) -> Problem:
    return Problem(
        "device-not-in-engine",
        f"{named(ctx)} does not run on {ctx.device or ctx.device_family}; try --engine vllm-omni",
        field="--gpus",
        value=ctx.device,
        suggestions=("--engine vllm-omni",),
    )


def _dtype(ctx: Context, layouts: Layouts) -> BoolColumn:
    dtype, have = ctx.behaviour.options.dtype, ctx.behaviour.dtypes
    return np.full(len(layouts), have is not None and dtype not in ("bf16", *have))


def _dtype_problem(ctx: Context, config: ParallelConfig) -> Problem:
    given, have = ctx.behaviour.options.dtype, ("bf16", *(ctx.behaviour.dtypes or ()))
    clash = f"has no flag in {named(ctx)} for {ctx.model}"
    return option_refusal("dtype-not-in-engine", "--dtype", given, clash, have, have[0])


def _compile(ctx: Context, layouts: Layouts) -> BoolColumn:
    behaviour = ctx.behaviour
    told = behaviour.compiled and "compile" not in behaviour.assumed
    return np.full(len(layouts), told and not behaviour.compile_flag)


def _compile_problem(ctx: Context, config: ParallelConfig) -> Problem:
    return Problem(
        "compile-flag",
        f"compile=on: {named(ctx)} has no flag that compiles {ctx.model}; try --eager",
        field="--option",
        value="compile=on",
        legal_values=("compile=off",),
        suggestions=("--eager",),
    )


def _offload(ctx: Context, layouts: Layouts) -> BoolColumn:
    return np.full(len(layouts), ctx.behaviour.options.offload not in ctx.behaviour.offload_modes)


def _offload_problem(ctx: Context, config: ParallelConfig) -> Problem:
    given, modes = ctx.behaviour.options.offload, ctx.behaviour.offload_modes
    clash = f"does not exist for {ctx.model} in {named(ctx)}"
    return option_refusal("offload-mode", "--offload", given, clash, modes, modes[-1])


def _attention(ctx: Context, layouts: Layouts) -> BoolColumn:
    behaviour = ctx.behaviour
    known = behaviour.attention_backend in {*behaviour.attention_available, *SPARSE}
    return np.full(len(layouts), behaviour.attention_explicit and not known)


def _attention_problem(ctx: Context, config: ParallelConfig) -> Problem:
    given, have = ctx.behaviour.attention_backend, ctx.behaviour.attention_available
    near = get_close_matches(given, have, n=1, cutoff=0.3) or list(have[:1])
    clash = f"is no backend of {named(ctx)} on {ctx.device or ctx.device_family}"
    return option_refusal("attention-backend", "--attention", given, clash, have, near[0], "here")


def _shared(ctx: Context, layouts: Layouts) -> BoolColumn:
    behaviour = ctx.behaviour
    whole = behaviour.attention_shared is not None and (
        behaviour.attention_backend not in behaviour.attention_shared
    )
    chunks = behaviour.attention_ring is not None and (
        behaviour.ring_attention_backend not in behaviour.attention_ring
    )
    return mask(((layouts.ring > 1) & chunks) | ((layouts.sequence_parallel > 1) & whole))


def _shared_problem(ctx: Context, config: ParallelConfig) -> Problem:
    behaviour, ring = ctx.behaviour, config.ring > 1
    given = behaviour.ring_attention_backend if ring else behaviour.attention_backend
    have = (behaviour.attention_ring if ring else behaviour.attention_shared) or ()
    axis = "ring" if ring else "ulysses"
    clash = f"{axis}={getattr(config, axis)}: {given} of {named(ctx)} does not run"
    clash += " in ring attention" if ring else " where ranks share the tokens"
    if not have:
        return refusal("attention-shared", ctx, config, axis, clash, (1,))
    return Problem(
        "attention-shared",
        f"{clash} on {ctx.device or ctx.device_family}; legal here: {words(have)}; "
        f"try --attention {have[0]}",
        field="--attention",
        value=given,
        legal_values=have,
        suggestions=(f"--attention {have[0]}",),
    )


def _streamed(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((layouts.hsdp > 1) & (ctx.behaviour.options.offload == "layerwise"))


def _streamed_problem(ctx: Context, config: ParallelConfig) -> Problem:
    clash = (
        f"hsdp={config.hsdp} keeps its shards on the devices, and --offload layerwise streams "
        "whole blocks from the host"
    )
    return refusal("hsdp-layerwise", ctx, config, "hsdp", clash, (1,))


def missing_axes(ctx: Context) -> tuple[str, ...]:
    """Keys of `ParallelConfig` that the engine does not have for this model."""
    behaviour = ctx.behaviour
    has = {
        "cfg": behaviour.has_cfg,
        "ulysses": behaviour.has_sp,
        "ring": behaviour.has_sp and behaviour.has_ring,
        "allgather": behaviour.has_allgather,
        "tp": behaviour.has_tp,
        "pp": behaviour.has_pp,
        "hsdp": behaviour.has_hsdp,
        "vae_patch": behaviour.has_vae_patch,
        "text_encoder_tp": behaviour.has_text_encoder_tp,
    }
    return tuple(axis for axis, exists in has.items() if not exists)


def _density(ctx: Context, layouts: Layouts) -> BoolColumn:
    named_sparse = ctx.behaviour.attention_backend in SPARSE
    unstated = ctx.behaviour.options.attention_density == 1
    return np.full(len(layouts), named_sparse and unstated)


def _density_problem(ctx: Context, config: ParallelConfig) -> Problem:
    given = ctx.behaviour.attention_backend
    typed = "--option attention_density=0.2"
    return Problem(
        "attention-density",
        f"--attention {given} computes a share of the products that {named(ctx)} does not state "
        f"for {ctx.model}; try {typed}",
        field="--attention",
        value=given,
        suggestions=(typed,),
    )


def _axis(ctx: Context, layouts: Layouts) -> BoolColumn:
    broken = np.zeros(len(layouts), bool)
    for axis in missing_axes(ctx):
        broken |= getattr(layouts, axis) > 1
    return broken


def _axis_problem(ctx: Context, config: ParallelConfig) -> Problem:
    axis = next(key for key in missing_axes(ctx) if getattr(config, key) > 1)
    clash = f"{axis}={getattr(config, axis)} does not exist for {ctx.model} in {named(ctx)}"
    return refusal("engine-axis", ctx, config, axis, clash, (1,))


def _replica(layouts: Layouts) -> np.ndarray:
    return np.asarray(layouts.world_size // layouts.dp)


def _bands(ctx: Context, layouts: Layouts) -> BoolColumn:
    uneven = (layouts.vae_patch > 1) & (layouts.vae_patch != _replica(layouts))
    return mask(uneven & ctx.behaviour.has_spatial_shard)


def _bands_problem(ctx: Context, config: ParallelConfig) -> Problem:
    ranks = config.world_size // config.dp
    clash = (
        f"vae_patch={config.vae_patch} cuts the VAE over some of {ranks} ranks, but "
        f"{named(ctx)} cuts it over all of them or none"
    )
    return refusal("vae-all-ranks", ctx, config, "vae_patch", clash, sorted({1, ranks}))


def _patch(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((layouts.vae_patch > layouts.world_size) & ~_bands(ctx, layouts))


def _patch_problem(ctx: Context, config: ParallelConfig) -> Problem:
    world = config.world_size
    clash = f"vae_patch={config.vae_patch} needs as many ranks, and there are {world}"
    return refusal("vae-patch-world", ctx, config, "vae_patch", clash, divisors(world))


def _hosts(ctx: Context, layouts: Layouts) -> BoolColumn:
    ranks = layouts.world_size
    several = (ctx.nodes > 1) & (ranks > ctx.gpus_per_node)
    all_alike = (ranks == ctx.num_gpus) & (ctx.num_gpus % ctx.nodes == 0)
    return mask(several & (ranks % ctx.gpus_per_node != 0) & ~all_alike)


def _hosts_problem(ctx: Context, config: ParallelConfig) -> Problem:
    world, each = config.world_size, ctx.gpus_per_node
    clash = (
        f"{config.config_id} leaves GPUs of a host without a rank: {world} ranks on hosts of {each}"
    )
    legal = [each * hosts for hosts in range(1, ctx.nodes + 1)]
    other = next((n for n in range(2, ctx.nodes + 1) if world % n == 0), None)
    if other is not None:
        clash += f"; for {world // other} on each of {other}, ask --gpus {other}x{world // other}x"
        clash += ctx.device
    return refusal("whole-hosts", ctx, config, "ulysses", clash, legal)


def _tiling(ctx: Context, layouts: Layouts) -> BoolColumn:
    return mask((layouts.vae_tiling > 0) & (not ctx.behaviour.has_vae_tiling))


def _tiling_problem(ctx: Context, config: ParallelConfig) -> Problem:
    asked = ctx.behaviour.options.vae_tiling == "on"
    move = "--vae-tiling off" if asked else f"--parallel {parallel_text(config)}"
    return Problem(
        "vae-tiling-flag",
        f"{ctx.model} cannot decode tiles in {named(ctx)}: no flag asks for it; try {move}",
        field="--vae-tiling" if asked else "--parallel",
        value="on" if asked else "tiling",
        legal_values=("off",),
        suggestions=(move,),
    )


SPARSE = frozenset({"NATTEN"})
"""Attention backends that leave products out."""

RULES: tuple[Rule, ...] = (
    Rule(
        id="model-not-in-engine",
        per_layout=False,
        gate=True,
        title="The engine must have a pipeline for the model.",
        violated=_model,
        problem=_model_problem,
    ),
    Rule(
        id="device-not-in-engine",
        per_layout=False,
        gate=True,
        title="The engine must run on the device.",
        violated=_device,
        problem=_device_problem,
    ),
    *_taken(OPTION_RULES, ("missing-peak", "weight-only", "vae-fast-path")),
    Rule(
        id="dtype-not-in-engine",
        per_layout=False,
        title="A dtype needs a flag of the engine, or a checkpoint that it reads, for the model.",
        violated=_dtype,
        problem=_dtype_problem,
    ),
    Rule(
        id="compile-flag",
        per_layout=False,
        title="Compiled blocks need an engine that can be told to compile.",
        violated=_compile,
        problem=_compile_problem,
    ),
    Rule(
        id="offload-mode",
        per_layout=False,
        title="The engine must have the offload mode for the model.",
        violated=_offload,
        problem=_offload_problem,
    ),
    Rule(
        id="attention-backend",
        per_layout=False,
        title="An attention backend chosen by hand must be one that the engine has on the device.",
        violated=_attention,
        problem=_attention_problem,
    ),
    Rule(
        id="attention-shared",
        title="Not every attention backend runs where ranks share the tokens.",
        violated=_shared,
        problem=_shared_problem,
        source="https://pypi.org/project/diffusers/0.42.1/ diffusers/models/attention_dispatch.py; "
        "https://pypi.org/project/xfuser/0.7.0/ xfuser/core/distributed/runtime_state.py; "
        "https://pypi.org/project/sglang/0.5.23/ runtime/server_args/server_args.py",
    ),
    Rule(
        id="attention-density",
        per_layout=False,
        title="A sparse attention needs the share of the products that it computes.",
        violated=_density,
        problem=_density_problem,
    ),
    Rule(
        id="engine-axis",
        title="A degree above 1 needs an axis that the engine has for the model.",
        violated=_axis,
        problem=_axis_problem,
    ),
    *_taken(MESH_RULES, _SHARED_MESH),
    Rule(
        id="whole-hosts",
        title="A run over several hosts has as many ranks on each, on all of their GPUs.",
        violated=_hosts,
        problem=_hosts_problem,
    ),
    *_taken(SEQUENCE_RULES, _SHARED_SEQUENCE),
    Rule(
        id="hsdp-layerwise",
        title="Weights that are sharded over ranks are not streamed block by block as well.",
        violated=_streamed,
        problem=_streamed_problem,
        source="https://pypi.org/project/xfuser/0.7.0/ xfuser/model_executor/models/runner_models/"
        "loading/contracts.py; https://pypi.org/project/sglang/0.5.23/ sglang/multimodal_gen/"
        "runtime/server_args/server_args.py --dit-layerwise-offload",
    ),
    Rule(
        id="vae-all-ranks",
        title="A VAE that is cut into bands of rows is cut over all ranks of a replica, or none.",
        violated=_bands,
        problem=_bands_problem,
        source="https://pypi.org/project/xfuser/0.7.0/ xfuser/core/distributed/parallel_state.py; "
        "https://pypi.org/project/sglang/0.5.23/ runtime/distributed/parallel_state.py",
    ),
    Rule(
        id="vae-patch-world",
        title="vae_patch is at most the world size.",
        violated=_patch,
        problem=_patch_problem,
    ),
    Rule(
        id="vae-tiling-flag",
        title="A tiled decode needs a program that can be told to tile.",
        violated=_tiling,
        problem=_tiling_problem,
    ),
)
