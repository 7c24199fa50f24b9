"""A Python program that loads the pipeline, runs it and writes the file."""

from __future__ import annotations

import json
from collections.abc import Sequence

from perfmodel.engines import guidance
from perfmodel.engines.base import Commands, Context, Launch
from perfmodel.engines.described.commands import (
    PROMPT,
    hosts_of,
    is_image,
    launcher,
    not_here,
    not_set,
    output_name,
    without_server,
)
from perfmodel.engines.diffusers.calls import Call, arguments, call_of, loaded_arguments
from perfmodel.errors import BadInput, Problem
from perfmodel.spec.parallel import ParallelConfig

TIMINGS = "timings.json"
BACKENDS = {
    "TORCH_SDPA": "native",
    "CUDNN_ATTN": "_native_cudnn",
    "SDPA_EFFICIENT": "_native_efficient",
    "FLASH_ATTN": "flash",
    "FLASH_ATTN_2": "flash",
    "SAGE_ATTN": "sage",
    "XFORMERS": "xformers",
}
"""Attention backends by the library's words: ``models/attention_dispatch.py``."""
_DENOISERS = ("pipe.transformer", "pipe.transformer_2")
_TORCHAO = "from diffusers import TorchAoConfig; from torchao.quantization import "
_QUANTISED = {
    "fp8": (
        f"{_TORCHAO}Float8DynamicActivationFloat8WeightConfig",
        "TorchAoConfig(Float8DynamicActivationFloat8WeightConfig())",
    ),
    "int8": (
        f"{_TORCHAO}Int8DynamicActivationInt8WeightConfig",
        "TorchAoConfig(Int8DynamicActivationInt8WeightConfig())",
    ),
    "int8wo": (f"{_TORCHAO}Int8WeightOnlyConfig", "TorchAoConfig(Int8WeightOnlyConfig())"),
    "fp8wo": (f"{_TORCHAO}Float8WeightOnlyConfig", "TorchAoConfig(Float8WeightOnlyConfig())"),
    "nf4": (
        "from diffusers import BitsAndBytesConfig",
        "BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type='nf4', "
        "bnb_4bit_compute_dtype=torch.bfloat16)",
    ),
}
DTYPES = ("fp16", "fp8cast", *_QUANTISED)
"""Beside bf16, what the program sets up."""
_OFFLOADS = {
    "model": "pipe.enable_model_cpu_offload()",
    # Groups of blocks are lists at the top of a module, where the denoisers have theirs: an encoder
    # would be one group and come in whole.
    "layerwise": (
        "from diffusers.hooks import apply_group_offloading\n"
        "for name, part in pipe.components.items():\n"
        "    if not isinstance(part, torch.nn.Module) or name == 'vae':\n"
        "        continue\n"
        "    blocks = {'offload_type': 'block_level', 'num_blocks_per_group': 1}\n"
        "    leaves = {'offload_type': 'leaf_level'}\n"
        "    groups = blocks if name.startswith('transformer') else leaves\n"
        "    apply_group_offloading(\n"
        "        part, onload_device=torch.device('cuda'), use_stream=True, **groups\n"
        "    )\n"
        "pipe.vae.to('cuda')"
    ),
}


def program(ctx: Context, config: ParallelConfig) -> str:
    """The source of the program: load, place, one warm-up, one timed run, save."""
    ranks = config.ulysses * config.ring
    lines = ["import json, os, time", "import torch"]
    call = call_of(ctx)
    lines += [f"from diffusers import {name}" for name in _classes(call)]
    if not is_image(ctx):
        lines.append("from diffusers.utils import export_to_video")
    loaders = {source.split("(")[0] for source in loaded_arguments(ctx).values()}
    lines += [f"from diffusers.utils import {loader}" for loader in sorted(loaders)]
    if ranks > 1:
        lines.append("from diffusers import ContextParallelConfig")
    if ranks * config.cfg > 1:
        lines.append("torch.distributed.init_process_group('nccl')")
    lines += [
        "rank = int(os.environ.get('RANK', 0))",
        "torch.cuda.set_device(int(os.environ.get('LOCAL_RANK', 0)))",
    ]
    lines += [*_loaded(ctx), *_placed(ctx, config), *_branches(config)]
    lines += [
        f"arguments = {_arguments(ctx)}",
        "for run in range(2):",
        "    torch.cuda.synchronize(); start = time.perf_counter()",
        "    result = pipe(**arguments)",
        "    torch.cuda.synchronize(); took = time.perf_counter() - start",
        "if rank == 0:",
        f"    json.dump([took], open({TIMINGS!r}, 'w'))",
        _save(ctx),
    ]
    return "\n".join(lines)


def _classes(call: Call) -> list[str]:
    """Classes of the library that the program names."""
    control = call.control.split(".")[0]
    return [call.pipeline, control] if control else [call.pipeline]


def _loaded(ctx: Context) -> list[str]:
    """The pipeline, with its denoiser's weights quantised where asked for."""
    dtype = ctx.behaviour.options.dtype
    width = "float16" if dtype == "fp16" else "bfloat16"
    call = call_of(ctx)
    load = f"pipe = {call.pipeline}.from_pretrained({call.base or ctx.hf_id!r}"
    load += f", torch_dtype=torch.{width}"
    before = []
    if call.control:
        before = [f"controlnet = {call.control}, torch_dtype=torch.{width})"]
        load += ", controlnet=controlnet"
    if call.revision:
        load += f", revision={call.revision!r}"
    parts = [part.removeprefix("pipe.") for part in _DENOISERS[: ctx.experts]]
    if dtype == "fp8cast":
        cast = "enable_layerwise_casting(torch.float8_e4m3fn, torch.bfloat16)"
        return [*before, f"{load})", *(f"pipe.{part}.{cast}" for part in parts)]
    if dtype not in _QUANTISED:
        return [*before, f"{load})"]
    first, config = _QUANTISED[dtype]
    mapping = ", ".join(f"{part!r}: {config}" for part in parts)
    return [
        *before,
        "from diffusers import PipelineQuantizationConfig",
        first,
        f"quantised = PipelineQuantizationConfig(quant_mapping={{{mapping}}})",
        f"{load}, quantization_config=quantised)",
    ]


def _placed(ctx: Context, config: ParallelConfig) -> list[str]:
    options = ctx.behaviour.options
    lines = [_OFFLOADS.get(options.offload, "pipe.to('cuda')")]
    if call_of(ctx).guider:
        lines.append(f"pipe.guider = pipe.guider.new(guidance_scale={guidance.scale(ctx)})")
    if ctx.behaviour.traits.vae_bits > 16:
        lines.append("pipe.vae.to(torch.float32)")
    if config.vae_tiling:
        lines.append("pipe.vae.enable_tiling()")
    if config.cfg > 1:
        shape = (config.cfg, config.ring, config.ulysses)
        lines.append(
            f"mesh = torch.distributed.device_mesh.init_device_mesh('cuda', {shape}, "
            "mesh_dim_names=('cfg', 'ring', 'ulysses'))"
        )
    if ctx.family == "traced" and config.ulysses * config.ring > 1:
        lines.append(
            "# a class without a plan of its own (_cp_plan) needs cp_plan= below: "
            "which inputs and outputs are cut along the tokens"
        )
    calls = []
    if "attention_backend" not in ctx.behaviour.assumed or config.ring > 1:
        calls.append(f"set_attention_backend({_attention(ctx, config)!r})")
    if config.ulysses * config.ring > 1:
        mesh = ", mesh=mesh" if config.cfg > 1 else ""
        calls.append(
            "enable_parallelism(config=ContextParallelConfig("
            f"ulysses_degree={config.ulysses}, ring_degree={config.ring}{mesh}))"
        )
    if ctx.behaviour.compiled:
        calls.append("compile_repeated_blocks()")
    return lines + [f"{part}.{call}" for call in calls for part in _DENOISERS[: ctx.experts]]


_FLASH = {"hopper": "_flash_3", "blackwell": "flash_4_hub"}


def _attention(ctx: Context, config: ParallelConfig) -> str:
    """The backend by the library's word; of FlashAttention the generation that the device has.

    ``_flash_3`` knows no context parallelism, its kernel from the hub does.
    """
    behaviour = ctx.behaviour
    named = behaviour.ring_attention_backend if config.ring > 1 else behaviour.attention_backend
    if named == "FLASH_ATTN" and behaviour.platform == "npu":
        return "_native_npu"
    if named == "FLASH_ATTN":
        name = _FLASH.get(ctx.device_family, "flash")
        shared = config.ulysses * config.ring > 1 and name == "_flash_3"
        return "_flash_3_hub" if shared else name
    return BACKENDS.get(named, "native")


def _branches(config: ParallelConfig) -> list[str]:
    """Guidance branches, which the pipeline joins to one batch, divided over the ranks."""
    if config.cfg == 1:
        return []
    ranks = config.cfg
    return [
        "def divided(forward):",
        "    rank, group = mesh['cfg'].get_local_rank(), mesh['cfg'].get_group()",
        "    def run(*args, **kwargs):",
        "        batch = len(args[0] if args else kwargs['hidden_states'])",
        f"        assert batch % {ranks} == 0, 'the branches must run as one batch to be divided'",
        "        def share(value):",
        "            whole = torch.is_tensor(value) and value.ndim > 0 and len(value) == batch",
        f"            return value.chunk({ranks})[rank] if whole else value",
        "        kwargs = {name: share(value) for name, value in kwargs.items()}",
        "        out = forward(*[share(value) for value in args], **kwargs)",
        f"        parts = [torch.empty_like(out[0]) for _ in range({ranks})]",
        "        torch.distributed.all_gather(parts, out[0].contiguous(), group=group)",
        "        whole = torch.cat(parts)",
        "        return (whole,) if isinstance(out, tuple) else type(out)(whole)",
        "    return run",
        "pipe.transformer.forward = divided(pipe.transformer.forward)",
    ]


def _arguments(ctx: Context) -> str:
    """Arguments of the call, as a Python literal."""
    values = repr(arguments(ctx, PROMPT))[:-1]
    text = values + f", 'generator': torch.Generator().manual_seed({ctx.seed})"
    for name, source in loaded_arguments(ctx).items():
        text += f", {name!r}: {source}"
    return text + "}"


def _save(ctx: Context) -> str:
    call = call_of(ctx)
    if is_image(ctx):
        return f"    result.{call.picture}.save({output_name(ctx)!r})"
    return f"    export_to_video(result.{call.clip}, {output_name(ctx)!r}, fps={ctx.fps:g})"


def render(ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
    """Commands: the program is written to a file and started."""
    del predicted_s
    if not call_of(ctx).pipeline:
        return not_here(f"{ctx.model} runs as modular blocks (ModularPipeline): see its guide")
    name = "run_diffusers.py"
    ranks = config.world_size // config.dp
    argv = launcher([name], ranks, hosts_of(ctx, ranks))
    notes = not_set(ctx)
    texts = without_server(ctx, config, argv, timings=TIMINGS, notes=notes)
    write = f"cat > {name} <<'END_OF_PROGRAM'\n{program(ctx, config)}\nEND_OF_PROGRAM"
    return Commands(
        serve=f"{write}\n{texts.serve}",
        request=f"{write}\n{texts.request}",
        benchmark=f"{write}\n{texts.benchmark}",
    )


def read_launch(argv: Sequence[str]) -> Launch:
    """A Python program tells nothing about itself.

    Raises:
        BadInput: always; degrees are given with ``--parallel ulysses=2``.
    """
    given = " ".join(argv[:3]) or "nothing"
    raise BadInput(
        Problem(
            "launch",
            f'"{given}" is a program whose degrees no flag tells; try --parallel ulysses=2',
            field="--parallel",
            value=json.dumps(list(argv[:3])),
            suggestions=("--parallel ulysses=2",),
        )
    )
