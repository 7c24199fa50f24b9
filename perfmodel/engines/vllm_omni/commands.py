"""Serve, request and benchmark commands of a configuration, ready to paste into a shell."""

from __future__ import annotations

import json
from dataclasses import replace
from math import ceil
from pathlib import Path
from shlex import quote

from perfmodel.engines import guidance
from perfmodel.engines.base import Commands, Context, Version
from perfmodel.engines.records import outputs_note, sent_record
from perfmodel.engines.vllm_omni.attention import MASK_BACKENDS
from perfmodel.engines.vllm_omni.rules_sequence import padding
from perfmodel.engines.vllm_omni.versions import has, of_label
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.units import S_PER_HOUR, S_PER_MINUTE

PORT = 8000
SYNC_TIMEOUT_S = 600
PROMPT = "A robot arm sorts red and blue cubes on a wooden table, slow camera move."
_HEADERS, _VIDEO, _IMAGE = "headers.txt", "output.mp4", "output.png"

_DEGREE_FLAGS = (
    ("cfg", "--cfg-parallel-size"),
    ("ulysses", "--usp"),
    ("ring", "--ring"),
    ("allgather", "--allgather-degree"),
    ("tp", "--tensor-parallel-size"),
    ("pp", "--pipeline-parallel-size"),
    ("vae_patch", "--vae-patch-parallel-size"),
    ("text_encoder_tp", "--text-encoder-tp-size"),
)
MOST_IMAGES = 10
"""``n`` of the image routes: ``entrypoints/openai/protocol/images.py``."""
_CACHES = ("tea_cache", "cache_dit", "mag_cache", "sea_cache", "step_cache")
_QUANTISED = {"fp8": '{"method": "fp8"}', "int8": '{"method": "int8"}'}


def render_commands(ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
    """The three texts; `predicted_s` is the expected time of a request alone [s].

    The server's limit for a synchronous video request, which holds the wait for others in flight,
    is raised when the prediction exceeds half of its default of 600 s.
    """
    predicted_s *= ctx.in_flight
    return Commands(
        serve=_serve(ctx, config, predicted_s),
        request=_request(ctx, predicted_s),
        benchmark=_benchmark(ctx, config, predicted_s),
    )


def is_image(ctx: Context) -> bool:
    """Whether the request goes to the image routes."""
    return ctx.task.endswith("2i")


def _timeout_s(predicted_s: float) -> int:
    """Server limit [s]: the default, or three times the prediction in whole minutes."""
    if predicted_s <= SYNC_TIMEOUT_S / 2:
        return SYNC_TIMEOUT_S
    return ceil(3 * predicted_s / S_PER_MINUTE) * int(S_PER_MINUTE)


def _version(ctx: Context) -> Version:
    return of_label(ctx.behaviour.version)


def _serve(ctx: Context, config: ParallelConfig, predicted_s: float) -> str:
    """One server, or one a replica.

    A single server with data parallel ranks takes one request at a time (each replica repeats it)
    unless weights are gathered between them: ``diffusion_engine.py _init_runtime_state``.
    """
    one = replace(config, dp=1)
    words = _serve_words(ctx, one)
    if config.dp == 1 or ctx.behaviour.options.offload == "layerwise-gather":
        count = ["--num-gpus", str(config.world_size)] if config.dp > 1 else []
        command = _environment(ctx, one, predicted_s) + words + count
        return "\n".join([*_notes(ctx, config), " ".join(command)])
    lines = [*_notes(ctx, one), f"# {config.dp} replicas: a server and a port each"]
    for replica in range(config.dp):
        place = _environment(ctx, one, predicted_s, replica=replica, replicas=config.dp)
        count = ["--num-gpus", str(one.world_size), "--port", str(PORT + replica)]
        lines.append(" ".join([*place, *words, *count, "&"]))
    return "\n".join([*lines, "wait"])


def _serve_words(ctx: Context, config: ParallelConfig) -> list[str]:
    words = ["vllm", "serve", quote(ctx.hf_id or ctx.model_id), "--omni"]
    for key, flag in _DEGREE_FLAGS:
        if getattr(config, key) > 1:
            words += [flag, str(getattr(config, key))]
    if config.hsdp > 1:
        words += ["--use-hsdp", "--hsdp-shard-size", str(config.hsdp)]
        if config.hsdp_replicate > 1:
            words += ["--hsdp-replicate-size", str(config.hsdp_replicate)]
    return words + _option_words(ctx, config) + _measuring_words(ctx)


_VISIBLE = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "rocm": "HIP_VISIBLE_DEVICES",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
}


def visible(ctx: Context, config: ParallelConfig, replica: int) -> str:
    """The variable that gives a replica its devices: ``CUDA_VISIBLE_DEVICES=2,3``."""
    first = replica * config.world_size
    devices = ",".join(map(str, range(first, first + config.world_size)))
    return f"{_VISIBLE.get(ctx.behaviour.platform, _VISIBLE['cuda'])}={devices}"


def _environment(
    ctx: Context, config: ParallelConfig, predicted_s: float, replica: int = 0, replicas: int = 1
) -> list[str]:
    """Variables before the command: devices of a replica (on Ascend always), the time limit.

    Releases without a flag for the attention backend read it from the environment
    (``diffusion/attention/selector.py``).
    """
    found = []
    name = _named_attention(ctx, config)
    if name and not has("attention_flag", _version(ctx)):
        found.append(f"DIFFUSION_ATTENTION_BACKEND={name}")
    if replicas > 1 or ctx.behaviour.platform == "npu":
        found.append(visible(ctx, config, replica))
    if not is_image(ctx) and _timeout_s(predicted_s) > SYNC_TIMEOUT_S:
        found.append(f"VLLM_OMNI_VIDEO_SYNC_TIMEOUT={_timeout_s(predicted_s)}")
    return found


def _notes(ctx: Context, config: ParallelConfig) -> list[str]:
    """Comment lines on what no flag can say."""
    found = []
    options = ctx.behaviour.options
    if options.dtype in ("nvfp4", "fp8_block"):
        found.append(f"# needs a checkpoint stored in {options.dtype}: the engine reads its format")
    if options.cache_skip and options.cache_method not in _CACHES:
        found.append(f"# a step cache that skips {options.cache_skip:.0%} of the steps is not set")
    return found


def _option_words(ctx: Context, config: ParallelConfig) -> list[str]:
    options, found = ctx.behaviour.options, []
    if (config.vae_tiling or options.vae_tiling == "on") and config.vae_patch == 1:
        found.append("--vae-use-tiling")
    if options.vae_mode != "tile":
        found += ["--vae-parallel-mode", options.vae_mode]
    if "vae_fast_path" not in ctx.behaviour.assumed and has("vae_fast_path", _version(ctx)):
        found += ["--vae-fast-path", options.vae_fast_path or "off"]
    if options.ulysses_mode != "strict":
        found += ["--ulysses-mode", options.ulysses_mode]
    if not ctx.behaviour.compiled and ctx.behaviour.platform != "npu":
        found.append("--enforce-eager")
    if options.dtype in _QUANTISED:
        since = has("quantization_flag", _version(ctx))
        flag = "--diffusion-quantization-config" if since else "--quantization-config"
        found += [flag, quote(_QUANTISED[options.dtype])]
    elif options.dtype == "fp16":
        found += ["--dtype", "float16"]
    if options.cache_method in _CACHES:
        found += ["--cache-backend", options.cache_method]
    return found + _attention_words(ctx, config) + _offload_words(ctx)


def _named_attention(ctx: Context, config: ParallelConfig) -> str:
    """The backend by name, where naming it does not change what the engine allows; else "".

    A named backend without a ring kernel, or without masks when tokens are padded, is an error;
    the same backend as the platform default is not.
    """
    behaviour = ctx.behaviour
    padded = bool(padding(ctx, Layouts.of([config]))[0])
    harmless = config.ring == 1 and not (
        padded and behaviour.attention_backend not in MASK_BACKENDS
    )
    # On Ascend the default depends on a package, and the name would not install it.
    default = behaviour.platform == "npu" or not harmless
    if default and not behaviour.attention_explicit:
        return ""
    return behaviour.attention_backend


def _attention_words(ctx: Context, config: ParallelConfig) -> list[str]:
    name = _named_attention(ctx, config)
    flag = has("attention_flag", _version(ctx))
    return ["--diffusion-attention-backend", name] if name and flag else []


def _offload_words(ctx: Context) -> list[str]:
    offload = ctx.behaviour.options.offload
    if offload == "layerwise":
        return ["--enable-layerwise-offload"]
    if offload == "layerwise-gather":
        return ["--enable-distributed-layerwise-offload"]
    if offload == "model":
        return ["--enable-cpu-offload"]
    if offload == "text-encoder":
        return [
            "--diffusion-offload-config",
            quote('{"mode": "module", "components": ["text_encoder"]}'),
        ]
    return []


def _measuring_words(ctx: Context) -> list[str]:
    version, found = _version(ctx), []
    cosmos = ctx.behaviour.pipeline.startswith("Cosmos3")
    if cosmos and not ctx.behaviour.options.guardrails and has("no_guardrails", version):
        found.append("--no-guardrails")
    if has("profiler", version):
        found.append("--enable-diffusion-pipeline-profiler")
    return found


def request_fields(ctx: Context) -> dict[str, str]:
    """Form (or JSON) fields of the request."""
    fields = {"prompt": PROMPT, "size": f"{ctx.width}x{ctx.height}"}
    if not is_image(ctx):
        fields |= {"num_frames": str(ctx.frames), "fps": f"{ctx.fps:g}"}
    fields["num_inference_steps"] = str(ctx.steps)
    for name, value in guidance.fields(ctx).items():
        fields[name] = value if isinstance(value, str) else f"{value:g}"
    if ctx.flow_shift is not None:
        fields["flow_shift"] = f"{ctx.flow_shift:g}"
    if ctx.sound_tokens > 0:
        fields["generate_sound"] = "true"
    if sent_outputs(ctx) > 1:
        fields["n"] = str(ctx.outputs)
    return fields | {"seed": str(ctx.seed)}


def sent_outputs(ctx: Context) -> int:
    """Outputs that one request asks for.

    One clip: the video routes answer with the first of several, before 0.28 they take no number,
    and not all pipelines heed it (``entrypoints/openai/serving_video.py``).
    """
    return ctx.outputs if is_image(ctx) and ctx.outputs <= MOST_IMAGES else 1


def _few_outputs(ctx: Context) -> list[str]:
    limit = f"at most {MOST_IMAGES} images" if is_image(ctx) else "one clip"
    few = outputs_note(ctx, sent_outputs(ctx), f"a request is answered with {limit}")
    return [f"# {line}" for line in few]


def _uploads(ctx: Context) -> dict[str, str]:
    if ctx.task.startswith("v2"):
        return {"input_reference": "input.mp4"}
    if not ctx.has_input_image:
        return {}
    return {"image" if is_image(ctx) else "input_reference": "input.png"}


def _route(ctx: Context) -> str:
    if not is_image(ctx):
        return "/v1/videos/sync"
    return "/v1/images/edits" if ctx.has_input_image else "/v1/images/generations"


def _json_fields(ctx: Context) -> dict[str, object]:
    """Fields with numbers as numbers, for the JSON route."""
    scales = ("guidance_scale", "true_cfg_scale", "flow_shift")
    numbers = ("num_inference_steps", *scales, "n", "seed")
    fields: dict[str, object] = dict(request_fields(ctx))
    for name in numbers:
        if name in fields:
            fields[name] = json.loads(str(fields[name]))
    return fields


def _request(ctx: Context, predicted_s: float) -> str:
    url = f"http://localhost:{PORT}{_route(ctx)}"
    limit = f"--max-time {_timeout_s(predicted_s)}"
    if _route(ctx) == "/v1/images/generations":
        body = quote(json.dumps(_json_fields(ctx)))
        send = f"curl -sS --fail-with-body {limit} -D {_HEADERS} -o response.json"
        command = f"{send} -H 'Content-Type: application/json' -d {body} {url}"
        return "\n".join([*_few_outputs(ctx), command, _decode_image()])
    parts = [f"-F {quote(f'{name}={value}')}" for name, value in request_fields(ctx).items()]
    parts += [f"-F {quote(f'{name}=@{path}')}" for name, path in _uploads(ctx).items()]
    output = "response.json" if is_image(ctx) else _VIDEO
    command = f"curl -sS --fail-with-body {limit} -D {_HEADERS} -o {output} {' '.join(parts)} {url}"
    decode = [_decode_image()] if is_image(ctx) else []
    return "\n".join([*_few_outputs(ctx), command, *decode])


def _decode_image() -> str:
    program = (
        "import base64, json; "
        'data = json.load(open("response.json"))["data"][0]["b64_json"]; '
        f'open("{_IMAGE}", "wb").write(base64.b64decode(data))'
    )
    return f"python3 -c {quote(program)}"


def _benchmark(ctx: Context, config: ParallelConfig, predicted_s: float) -> str:
    form = _route(ctx) != "/v1/images/generations"
    job = {
        "url": f"http://localhost:{PORT}{_route(ctx)}",
        "health": f"http://localhost:{PORT}/health",
        "form": form,
        "fields": request_fields(ctx) if form else _json_fields(ctx),
        "uploads": _uploads(ctx),
        "timeout_s": _timeout_s(predicted_s),
        "patience_s": int(S_PER_HOUR),
        "warmups": 1,
        "repeats": 3,
        "in_flight": ctx.in_flight,
        "out": "results.jsonl",
        "record": sent_record(ctx, config, sent_outputs(ctx)),
    }
    client = (Path(__file__).parent / "bench_client.py").read_text(encoding="utf-8")
    send = f"python3 - {quote(json.dumps(job))} <<'END_OF_CLIENT'\n{client}END_OF_CLIENT"
    return "\n".join([*_few_outputs(ctx), send])
