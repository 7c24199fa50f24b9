"""``xdit`` commands, written and read.

A VAE that shares the ranks of the denoiser (``--use_parallel_vae``) is what the runner models have.
The older examples also know ``--vae_parallel_size N``: N more processes that only run the VAE, so
that the job has denoiser ranks + N processes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import ceil
from pathlib import Path
from typing import Any

from perfmodel.engines import guidance
from perfmodel.engines.base import Commands, Context, Launch
from perfmodel.engines.described.commands import (
    FIRST_HOST,
    NODE_RANK,
    PROMPT,
    hosts_of,
    is_image,
    not_set,
    without_server,
)
from perfmodel.engines.described.launch import Grammar, read
from perfmodel.spec.parallel import ParallelConfig

TIMINGS = "timings.json"
EXAMPLE = "_example.py"
"""How the programs of ``examples/`` end: ``hunyuan_video_usp_example.py``."""
ITERATIONS = 4
RUNNER_DAY = "2026-08-31"
"""Release of 0.5.0, the first wheel with ``xfuser/cli.py``."""
_DEGREES = {
    "--ulysses_degree": "ulysses",
    "--ring_degree": "ring",
    "--tensor_parallel_degree": "tp",
    "--pipefusion_parallel_degree": "pp",
    "--data_parallel_degree": "dp",
    "--fully_shard_degree": "hsdp",
    "--text_encoder_tp_degree": "text_encoder_tp",
}
BACKENDS = {
    "FLASH_ATTN": "FLASH_3",
    "FLASH_ATTN_2": "FLASH",
    "CUDNN_ATTN": "CUDNN",
    "TORCH_SDPA": "SDPA",
    "SDPA_EFFICIENT": "SDPA_EFFICIENT",
    "SAGE_ATTN": "SAGE",
}
"""Attention backends by the package's words: ``core/distributed/attention_backend.py``."""
_FLASH = {"hopper": "FLASH_3", "blackwell": "FLASH_4"}
_OFFLOADS = {"model": "--enable_model_cpu_offload", "layerwise": "--enable_group_cpu_offload"}
_CACHES = {"tea_cache": "teacache", "fb_cache": "fbcache", "cache_dit": "dbcache"}
_QUANTISED = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4"}


_REGISTERED = re.compile(
    r"cosmos3-(nano|super)|flux\.1-(dev|kontext-dev)|flux\.2-(dev|klein-[49]b)"
    r"|hunyuanvideo-1\.5(-i2v)?|ltx-2|qwen-image(-edit(-2509)?)?|sd3\.5-large|z-image(-turbo)?"
    r"|wan2\.1-(i2v|t2v)-14b|wan2\.1-vace-(1\.3|14)b|wan2\.2-([it]2v-a14b|ti2v-5b)"
)
"""Models whose checkpoint id the runner of 0.7.0 registers: ``@register_model`` in
``model_executor/models/runner_models/*.py``; it stops at any other name (``runner.py``)."""
_OTHER_NAMES = {
    "hunyuanvideo": "tencent/HunyuanVideo",
    "ltx-2.3": "dg845/LTX-2.3-Diffusers",
}
"""Names under which it registers what the catalogue has from elsewhere."""


def _registered(ctx: Context) -> list[str]:
    """A line where the runner does not know the checkpoint by its id."""
    if _REGISTERED.fullmatch(ctx.model_id):
        return []
    if ctx.model_id in _OTHER_NAMES:
        return [f"xdit 0.7.0 registers this model as --model {_OTHER_NAMES[ctx.model_id]}"]
    return [
        "xdit 0.7.0 has not registered this checkpoint and stops: take a program of the "
        "repository's examples/, or register its class"
    ]


@cache
def known_flags() -> dict[str, dict[str, Any]]:
    """Flags of xDiT 0.7.0, by spelling, and those that its program passes to torchrun."""
    loaded = json.loads((Path(__file__).parent / "flags.json").read_text(encoding="utf-8"))
    torchrun = ("nnodes", "node_rank", "master_addr", "master_port", "nproc_per_node")
    return {**loaded["flags"], **{f"--{name}": {} for name in torchrun}}


def words(ctx: Context, config: ParallelConfig, iterations: int = 1) -> list[str]:
    """``xdit`` and its flags."""
    found = ["xdit", *_hosts(ctx, config), "--model", ctx.hf_id or ctx.model_id]
    for flag, key in _DEGREES.items():
        if getattr(config, key) > 1:
            found += [flag, str(getattr(config, key))]
    if config.cfg > 1:
        found.append("--use_cfg_parallel")
    if config.vae_patch > 1:
        found.append("--use_parallel_vae")
    if config.vae_tiling or ctx.behaviour.options.vae_tiling == "on":
        found.append("--enable_tiling")
    if ctx.behaviour.compiled:
        found.append("--use_torch_compile")
    if ctx.behaviour.attention_explicit:
        found += ["--attention_backend", _attention(ctx)]
    return found + _options(ctx) + _request(ctx) + ["--num_iterations", str(iterations)]


def _hosts(ctx: Context, config: ParallelConfig) -> list[str]:
    """What the program hands to torchrun; on one host it counts the processes itself."""
    hosts = hosts_of(ctx, config.world_size)
    if hosts == 1:
        return []
    each = ceil(config.world_size / hosts)
    nodes = [f"--nnodes={hosts}", f"--node_rank={NODE_RANK}", f"--master_addr={FIRST_HOST}"]
    return [*nodes, f"--nproc_per_node={each}"]


def _attention(ctx: Context) -> str:
    """The backend that was asked for; of FlashAttention the generation that the device has."""
    named = ctx.behaviour.attention_backend
    if named == "FLASH_ATTN":
        others = {"rocm": "AITER", "npu": "NPU"}
        if ctx.device_family == "rdna4":
            return "AITER_FLYDSL"
        return others.get(ctx.behaviour.platform) or _FLASH.get(ctx.device_family, "FLASH")
    return BACKENDS.get(named, "SDPA")


def _options(ctx: Context) -> list[str]:
    options, found = ctx.behaviour.options, []
    if options.offload in _OFFLOADS:
        found.append(_OFFLOADS[options.offload])
    if options.cache_method in _CACHES:
        found += ["--cache_method", _CACHES[options.cache_method]]
    if options.dtype in _QUANTISED:
        found += ["--gemm_quantization", _QUANTISED[options.dtype]]
    return found


def _request(ctx: Context) -> list[str]:
    found = ["--height", str(ctx.height), "--width", str(ctx.width)]
    if ctx.family == "hunyuan_video15" or "ti2v" in ctx.model_id:
        # Models of several tasks do not start without one: base_model.py valid_tasks.
        found += ["--task", ctx.task]
    if not is_image(ctx):
        found += ["--num_frames", str(ctx.frames)]
    found += ["--num_inference_steps", str(ctx.steps)]
    found += ["--guidance_scale", f"{guidance.scale(ctx):g}"]
    negative = guidance.negative_prompt(ctx)
    if negative is not None:
        found += ["--negative_prompt", negative]
    if ctx.flow_shift is not None:
        found += ["--flow_shift", f"{ctx.flow_shift:g}"]
    if ctx.has_input_image:
        found += ["--input_images", "input.png"]
    return [*found, "--seed", str(ctx.seed), "--prompt", PROMPT]


def render(ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
    """Commands: one run, and one of several iterations that writes its timings.

    A replica is a run of its own: groups of ``--data_parallel_degree`` divide a list of prompts.
    """
    del predicted_s
    alone = replace(config, dp=1)
    notes = not_set(ctx, _CACHES)
    if ctx.behaviour.date < RUNNER_DAY:
        notes.append("the program xdit came with 0.5.0: before, examples/ of the repository run")
    else:
        notes += _registered(ctx)
    one = without_server(ctx, config, words(ctx, alone), notes=notes)
    many = without_server(ctx, config, words(ctx, alone, ITERATIONS), timings=TIMINGS)
    return Commands(serve=one.serve, request=one.request, benchmark=many.benchmark)


_READ = {
    **{word: name for name, word in BACKENDS.items()},
    **dict.fromkeys(("FLASH_4", "AITER", "AITER_FLYDSL", "NPU"), "FLASH_ATTN"),
}


def read_launch(argv: Sequence[str]) -> Launch:
    """Read ``xdit ...``, ``torchrun ... runner.py ...`` or an example of the repository as typed.

    Raises:
        BadInput: unknown flags or values, each with the nearest known one.
    """
    grammar = Grammar(
        engine="xdit",
        programs=("xdit", "runner.py", EXAMPLE),
        flags=known_flags(),
        degrees={
            **_DEGREES,
            "--nproc_per_node": "num_gpus",
            "--nnodes": "hosts",
        },
        texts={
            "--cache_method": ("cache_method", {v: k for k, v in _CACHES.items()}),
            "--attention_backend": ("attention_backend", _READ),
            "--gemm_quantization": ("dtype", {v: k for k, v in _QUANTISED.items()}),
        },
        request={
            "--height": "height",
            "--width": "width",
            "--num_frames": "frames",
            "--num_inference_steps": "steps",
            "--guidance_scale": "guidance",
        },
        hints={
            "--attention_backend": "--attention BACKEND",
            "--gemm_quantization": "--dtype DTYPE",
            "--enable_sequential_cpu_offload": "--offload MODE",
            "--use_cache": "--cache METHOD",
            "--batch_size": "--batch N",
            "--use_fp8_t5_encoder": "",
            "--vae_parallel_size": "",
            "--task": "--task TASK",
        },
        switches={
            "--use_cfg_parallel": ("cfg", 2),
            "--use_parallel_vae": ("vae_patch", -1),
            "--use_teacache": ("option:cache_method", "tea_cache"),
            "--use_fbcache": ("option:cache_method", "fb_cache"),
            "--enable_tiling": ("option:vae_tiling", "on"),
            "--use_torch_compile": ("option:compile", True),
            "--enable_model_cpu_offload": ("option:offload", "model"),
            "--enable_group_cpu_offload": ("option:offload", "layerwise"),
        },
    )
    return read(grammar, argv)
