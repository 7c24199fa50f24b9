"""``sglang serve`` commands, written and read; requests to its video and image routes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from perfmodel.engines import guidance
from perfmodel.engines.base import Commands, Context, Launch
from perfmodel.engines.described.commands import (
    FIRST_HOST,
    NODE_RANK,
    PROMPT,
    REPEATS,
    hosts_note,
    hosts_of,
    is_image,
    not_set,
    output_name,
    shell,
)
from perfmodel.engines.described.launch import Grammar, read
from perfmodel.engines.vllm_omni.commands import visible
from perfmodel.errors import BadInput, Problem
from perfmodel.spec.parallel import ParallelConfig

if TYPE_CHECKING:
    from perfmodel.spec.model import ModelSpec

PORT = 30000
MEETING_PORT = 29500
"""Of the first host, where all processes meet: ``--dist-init-addr``."""
POLL_S = 0.2
BACKENDS = {
    "FLASH_ATTN": "fa",
    "FLASH_ATTN_2": "fa2",
    "TORCH_SDPA": "torch_sdpa",
    "CUDNN_ATTN": "torch_cudnn_sdpa",
    "SAGE_ATTN": "sage_attn",
}
"""Attention backends by the package's words: ``runtime/platforms/interface.py``."""
QUANTISED = {"fp8": "fp8", "int8": "convrot_int8"}
"""What it makes of 16-bit checkpoints as it loads them."""
STORED = ("fp8_block", "nvfp4")
"""Formats that it reads as the checkpoint stores them."""


@cache
def known_flags() -> dict[str, dict[str, Any]]:
    """Flags of sglang 0.5.23 (server, generate, benchmark), by spelling."""
    loaded = json.loads((Path(__file__).parent / "flags.json").read_text(encoding="utf-8"))
    flags: dict[str, dict[str, Any]] = loaded["flags"]
    return flags


def _serve(ctx: Context, config: ParallelConfig) -> str:
    """One server for all replicas; one a replica where weights are sharded.

    With ``--dp-size`` above 1 the mesh of the shards would span the replicas:
    ``server_args.py _adjust_offload``.
    """
    world = config.world_size if config.hsdp == 1 else config.world_size // config.dp
    hosts = hosts_note(hosts_of(ctx, world))
    notes = [f"# {note}" for note in (*not_set(ctx, stored=STORED), *hosts)]
    if config.dp == 1 or config.hsdp == 1:
        return "\n".join([*notes, shell(serve_words(ctx, config))])
    one = replace(config, dp=1)
    lines = [*notes, f"# {config.dp} replicas: a server and a port each"]
    for replica in range(config.dp):
        words = serve_words(ctx, one, PORT + replica)
        lines.append(f"{visible(ctx, one, replica)} {shell(words)} &")
    return "\n".join([*lines, "wait"])


def serve_words(ctx: Context, config: ParallelConfig, port: int = PORT) -> list[str]:
    """``sglang serve`` and its flags."""
    options = ctx.behaviour.options
    found = ["sglang", "serve", "--model-path", ctx.hf_id or ctx.model_id]
    found += ["--num-gpus", str(config.world_size), *_degree_words(config)]
    found += _host_words(hosts_of(ctx, config.world_size))
    if config.world_size > 1:
        found += ["--vae-config.use-parallel-decode", str(config.vae_patch > 1).lower()]
    if config.vae_tiling or options.vae_tiling == "on":
        found += ["--vae-tiling", "true"]
    if ctx.behaviour.attention_explicit:
        found += ["--attention-backend", _attention(ctx)]
    if ctx.behaviour.compiled:
        found += ["--enable-torch-compile", "true"]
    if options.dtype in QUANTISED:
        found += ["--quantization", QUANTISED[options.dtype]]
    elif options.dtype == "fp16":
        found += ["--dit-precision", "fp16"]
    if options.offload == "layerwise":
        found += ["--dit-layerwise-offload", "true"]
    elif options.offload == "none":
        # Encoders stay or stream as the auto mode decides, which is what memory assumes.
        found += ["--dit-cpu-offload", "false"]
    elif options.offload == "text-encoder":
        found += ["--dit-cpu-offload", "false", "--text-encoder-cpu-offload", "true"]
    return [*found, "--port", str(port)]


def _host_words(hosts: int) -> list[str]:
    """What tells the hosts of a server apart; only the first one answers requests."""
    if hosts == 1:
        return []
    meeting = f"--dist-init-addr={FIRST_HOST}:{MEETING_PORT}"
    return ["--nnodes", str(hosts), f"--node-rank={NODE_RANK}", meeting]


def _attention(ctx: Context) -> str:
    """The backend that was asked for; FlashAttention of AMD devices is AITER's."""
    named = ctx.behaviour.attention_backend
    if named == "FLASH_ATTN" and ctx.behaviour.platform == "rocm":
        return "aiter"
    return BACKENDS.get(named, "fa")


def _degree_words(config: ParallelConfig) -> list[str]:
    found = []
    if config.ulysses * config.ring > 1:
        found += ["--sp-degree", str(config.ulysses * config.ring)]
        found += ["--ulysses-degree", str(config.ulysses), "--ring-degree", str(config.ring)]
    if config.allgather > 1:
        found += ["--sp-degree", str(config.allgather)]
        found += ["--kv-gather-degree", str(config.allgather)]
    if config.tp > 1:
        found += ["--tp-size", str(config.tp)]
    if config.dp > 1:
        found += ["--dp-size", str(config.dp)]
    if config.cfg > 1:
        found += ["--enable-cfg-parallel", "true", "--cfg-parallel-size", str(config.cfg)]
    if config.hsdp > 1:
        found += ["--use-fsdp-inference", "true", "--hsdp-shard-dim", str(config.hsdp)]
        if config.hsdp_replicate > 1:
            found += ["--hsdp-replicate-dim", str(config.hsdp_replicate)]
    return found


def request_fields(ctx: Context) -> dict[str, object]:
    """Fields of the request, numbers as numbers."""
    fields: dict[str, object] = {"prompt": PROMPT, "size": f"{ctx.width}x{ctx.height}"}
    if not is_image(ctx):
        fields |= {"num_frames": ctx.frames, "fps": int(ctx.fps)}
    fields |= {"num_inference_steps": ctx.steps, **_sampling(ctx), "seed": ctx.seed}
    if ctx.outputs > 1:
        # As the package's own benchmark names it on its image and video routes.
        fields["n" if is_image(ctx) else "num_outputs_per_prompt"] = ctx.outputs
    return fields


def _sampling(ctx: Context) -> dict[str, object]:
    """Guidance and schedule of a request.

    A negative prompt is always there (``configs/sample/*.py``), so HunyuanVideo, whose scale is
    embedded and fixed (``pipeline_configs/hunyuan.py``), would run a second branch at any scale.
    """
    embedded = ctx.family == "hunyuan_video"
    found: dict[str, object] = {} if embedded else {"guidance_scale": guidance.scale(ctx)}
    if ctx.flow_shift is not None and not is_image(ctx):
        found["flow_shift"] = ctx.flow_shift
    return found


def _request(ctx: Context) -> str:
    base = f"http://localhost:{PORT}/v1"
    fields = {key: f"{value}" for key, value in request_fields(ctx).items()}
    form = " ".join(f"-F {quote(f'{key}={value}')}" for key, value in fields.items())
    if ctx.has_input_image:
        form += " -F " + quote(f"{'image' if is_image(ctx) else 'input_reference'}=@input.png")
    if is_image(ctx):
        if not ctx.has_input_image:
            body = quote(json.dumps(request_fields(ctx)))
            send = "curl -sS --fail-with-body -H 'Content-Type: application/json'"
            return f"{send} -d {body} -o response.json {base}/images/generations"
        return f"curl -sS --fail-with-body {form} -o response.json {base}/images/edits"
    reader = "python3 -c 'import json, sys; print(json.load(sys.stdin)[sys.argv[1]])'"
    return "\n".join(
        [
            f"id=$(curl -sS --fail-with-body {form} {base}/videos | {reader} id)",
            f'until [ "$(curl -sS {base}/videos/"$id" | {reader} status)" != in_progress ] '
            f'&& [ "$(curl -sS {base}/videos/"$id" | {reader} status)" != queued ]; '
            f"do sleep {POLL_S}; done",
            f'curl -sS --fail-with-body -o {output_name(ctx)} {base}/videos/"$id"/content',
        ]
    )


def _benchmark(ctx: Context) -> str:
    words = ["python3", "-m", "sglang.multimodal_gen.benchmarks.bench_serving"]
    words += ["--port", str(PORT), "--dataset", "random", "--num-prompts", str(REPEATS)]
    words += ["--max-concurrency", "1", "--warmup-requests", "1"]
    words += ["--width", str(ctx.width), "--height", str(ctx.height)]
    if not is_image(ctx):
        words += ["--num-frames", str(ctx.frames), "--fps", str(int(ctx.fps))]
    if ctx.outputs > 1:
        words += ["--num-outputs-per-prompt", str(ctx.outputs)]
    words += ["--num-inference-steps", str(ctx.steps), "--output-file", "bench.json"]
    words += ["--extra-body", json.dumps(_sampling(ctx))]
    return shell(words)


def render(ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
    """Commands: the server, one request, the package's own benchmark."""
    del predicted_s
    return Commands(serve=_serve(ctx, config), request=_request(ctx), benchmark=_benchmark(ctx))


_READ = {
    **{word: name for name, word in BACKENDS.items()},
    **dict.fromkeys(("fa3", "fa4", "aiter"), "FLASH_ATTN"),
    "dynamic_cudnn_sdpa": "CUDNN_ATTN",
}


def read_launch(argv: Sequence[str]) -> Launch:
    """Read ``sglang serve ...`` or ``sglang generate ...`` as typed."""
    grammar = Grammar(
        engine="sglang-diffusion",
        programs=("sglang",),
        flags=known_flags(),
        degrees={
            "--ulysses-degree": "ulysses",
            "--ring-degree": "ring",
            "--kv-gather-degree": "allgather",
            "--tp-size": "tp",
            "--data-parallel-size": "dp",
            "--sp-degree": "sp",
            "--cfg-parallel-size": "cfg",
            "--hsdp-shard-dim": "hsdp",
            "--hsdp-replicate-dim": "hsdp_replicate",
            "--num-gpus": "num_gpus",
        },
        switches={
            "--enable-cfg-parallel": ("cfg", 2),
            "--enable-torch-compile": ("option:compile", True),
            "--dit-layerwise-offload": ("option:offload", "layerwise"),
            "--text-encoder-cpu-offload": ("option:offload", "text-encoder"),
            "--vae-tiling": ("option:vae_tiling", "on"),
            "--vae-config.use-parallel-decode": ("vae_patch", -1),
        },
        texts={
            "--attention-backend": ("attention_backend", _READ),
            "--quantization": ("dtype", {v: k for k, v in QUANTISED.items()}),
            "--dit-precision": ("dtype", {"fp16": "fp16", "bf16": "bf16"}),
        },
        model=("--model-path",),
        request={
            "--height": "height",
            "--width": "width",
            "--num-frames": "frames",
            "--num-inference-steps": "steps",
            "--fps": "fps",
            "--guidance-scale": "guidance",
        },
        hints={
            "--attention-backend": "--attention BACKEND",
            "--quantization": "--dtype DTYPE",
            "--dit-cpu-offload": "--offload MODE",
            "--enable-cache-dit": "--cache METHOD",
            "--enable-teacache": "--cache METHOD",
            "--vae-precision": "",
            "--resolution": "--size WxH",
            "--task": "--task TASK",
        },
        settle=_settle,
    )
    return read(grammar, argv)


PARALLEL_VAES = ("wan", "hunyuanvideo", "hunyuanvideo15", "ltx", "ltx2", "minimax_h3")
"""VAEs that all ranks of a replica decode together unless told otherwise.

Source: https://pypi.org/project/sglang/0.5.23/ ``configs/models/vaes/base.py``
``should_use_spatial_shard_parallel_decode``: ``use_parallel_decode`` is on, and the mode ``auto``
cuts bands for the configurations that prefer it (Wan, HunyuanVideo, LTX), which a single image is
too small for (4,096 latent positions a rank); HunyuanVideo and MiniMax-H3 ask for tiles.
"""


def _settle(degrees: dict[str, int], model: str, request: Mapping[str, float]) -> None:
    """Complete the degrees as sglang 0.5.23 does.

    Raises:
        BadInput: degrees that the server refuses.
    """
    spec = _spec(model)
    _settle_ranks(degrees, spec)
    usual = 1 if spec is None else next(iter(spec.tasks.values())).frames
    if spec is not None and spec.vae.kind in PARALLEL_VAES and request.get("frames", usual) > 1:
        degrees.setdefault("vae_patch", -1)


def _settle_ranks(degrees: dict[str, int], spec: ModelSpec | None) -> None:
    """Complete the degrees of the transformer.

    Source: ``runtime/server_args/server_args.py`` of its wheel, ``_adjust_parallelism`` and
    ``_validate_parallelism``: guided models halve the GPUs by guidance branch where no sequence
    degree and no guidance degree is stated; what is left is the sequence degree, exchanged by
    gathered keys on two ranks and by Ulysses on more.

    Raises:
        BadInput: degrees that the server refuses.
    """
    sp, gpus = degrees.pop("sp", None), degrees.get("num_gpus")
    ranks = degrees.get("tp", 1) * degrees.get("dp", 1)
    split = any(key in degrees for key in ("ulysses", "ring", "allgather"))
    free = gpus is not None and gpus >= 2 and gpus % (2 * ranks) == 0
    if free and sp is None and not split and "cfg" not in degrees and _guided(spec):
        degrees["cfg"] = 2
    ranks *= degrees.get("cfg", 1)
    if sp is None and gpus is not None:
        sp = gpus // ranks if gpus % ranks == 0 else 1
    if sp is None or sp == 1:
        return
    if not split:
        degrees["allgather" if sp == 2 else "ulysses"] = sp
        return
    found = degrees.get("ulysses", 1) * degrees.get("ring", 1)
    if sp != (found if found > 1 else degrees.get("allgather", 1)):
        message = (
            f"sglang does not start so: sequence parallel over {sp} ranks (--sp-degree, or "
            f"--num-gpus over the other degrees), but Ulysses times ring is {found}; try "
            f"--ulysses-degree {max(sp // degrees.get('ring', 1), 1)}"
        )
        raise BadInput(Problem("launch-value", message, field="--parallel", value=str(sp)))


def _spec(model: str) -> ModelSpec | None:
    """The model of the catalogue; None for one that is not in it."""
    from perfmodel import catalog

    try:
        return catalog.load_model(model)
    except BadInput:
        return None


def _guided(spec: ModelSpec | None) -> bool:
    """Whether requests of the model run two branches when they do not say."""
    if spec is None:
        return False
    default = next(iter(spec.tasks.values()))
    return default.guidance > 1 and not spec.transformer.guidance_embedded
