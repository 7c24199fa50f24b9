"""Commands that are printed: known flags, valid shell, and a benchmark that really measures."""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from engine_contexts import ASCEND, B300, ENGINE, H100, context

from perfmodel.engines.base import Context
from perfmodel.engines.extract_flags import flags_of, refused_of
from perfmodel.engines.vllm_omni import commands
from perfmodel.engines.vllm_omni.launch import canonical, known_flags, refused_flags, takes_value
from perfmodel.errors import BadInput
from perfmodel.spec.parallel import ParallelConfig, parse_parallel
from perfmodel.spec.workload import Options

CONFIGS = (
    "single", "cfg2", "usp4", "ring2", "cfg2_usp2_vaepp4", "tp2", "tp2_vaepp2", "pp2", "dp4",
    "cfg2_dp2", "hsdp4", "usp4_hsdp4", "usp2_hsdp2x1", "usp4_hsdp2x2", "agkv2", "tiling",
)  # fmt: skip
OPTIONS = (
    Options(),
    Options(dtype="fp8", compile=False, guardrails=True),
    Options(dtype="int8", offload="layerwise", vae_tiling="on"),
    Options(dtype="fp16", offload="text-encoder", vae_fast_path="channels_last"),
    Options(attention_backend="sdpa", ulysses_mode="advanced_uaa", cache_skip=0.3),
    Options(dtype="nvfp4", vae_mode="spatial_shard_height", offload="model"),
)


def requests() -> list[Context]:
    return [
        context(),
        context(sound_tokens=198, tokens=44358),
        context(on=ASCEND, device="ascend-910b3", nodes=2, gpus_per_node=2),
        context(task="t2i", frames=1, width=1024, height=1024, tokens=1024, negative_prompt="it's"),
        context(task="v2v"),
        context("wan2.2-i2v-a14b", on=H100, device="h100-sxm"),
        context("wan2.1-t2v-14b", version="0.20.0"),
        context("qwen-image", task="i2i", input_images=1),
    ]


def grid() -> Iterator[tuple[Context, ParallelConfig]]:
    for ctx in requests():
        for options in OPTIONS:
            changed = replace(
                ctx.behaviour,
                options=ctx.behaviour.options.model_copy(
                    update=options.model_dump(exclude_unset=True)
                ),
            )
            for text in CONFIGS:
                yield replace(ctx, behaviour=changed), parse_parallel(text)[0]


def serve_lines(text: str) -> list[list[str]]:
    """Words of each server; comments, the background mark and the final wait are left out."""
    lines = [line for line in text.splitlines() if not line.startswith("#") and line != "wait"]
    return [shlex.split(line.removesuffix(" &")) for line in lines]


def serve_words(text: str) -> list[str]:
    return serve_lines(text)[0]


def test_every_flag_of_every_command_exists():
    checked = 0
    for ctx, config in grid():
        words = serve_words(ENGINE.commands(ctx, config, 400.0).serve)
        start = words.index("serve")
        for word in words[start + 2 :]:
            if word.startswith("--"):
                assert word in known_flags(), word
                assert word not in refused_flags()
                checked += 1
    assert checked > 1000


@pytest.mark.parametrize(
    ("version", "prefix", "flags"),
    [
        ("0.20.0", "DIFFUSION_ATTENTION_BACKEND=TORCH_SDPA", "--quantization-config"),
        ("0.22.0", "vllm", "--diffusion-attention-backend --diffusion-quantization-config"),
        ("0.30.0", "vllm", "--diffusion-attention-backend --diffusion-quantization-config"),
    ],
)
def test_options_are_named_as_the_release_reads_them(version, prefix, flags):
    options = Options(attention_backend="TORCH_SDPA", dtype="fp8")
    ctx = context("wan2.1-t2v-14b", version=version, options=options, on=H100)
    words = shlex.split(ENGINE.commands(ctx, parse_parallel("usp4")[0], 1.0).serve)
    assert words[0] == prefix
    assert {word for word in words if "quantization" in word or "attention" in word} == {
        *flags.split()
    }
    launch = ENGINE.read_launch(words)
    assert launch.options["attention_backend"] == "TORCH_SDPA"
    assert launch.options["dtype"] == "fp8"


def test_flags_that_take_a_value_have_one():
    for ctx, config in grid():
        words = serve_words(ENGINE.commands(ctx, config, 1.0).serve)
        rest = words[words.index("serve") + 2 :]
        for word, following in zip(rest, [*rest[1:], "--"], strict=True):
            if word.startswith("--"):
                assert following.startswith("--") != takes_value(canonical(word)), word


def test_all_texts_are_valid_shell(tmp_path):
    script = tmp_path / "all.sh"
    texts = []
    for number, (ctx, config) in enumerate(grid()):
        if number % 7 == 0:
            built = ENGINE.commands(ctx, config, 350.0 + number)
            texts += [built.serve, built.request]
            if number % 70 == 0:
                texts.append(built.benchmark)
    script.write_text("\n".join(texts))
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_serve_command_reads_back_as_its_configuration():
    for ctx, config in grid():
        if config.hsdp * config.hsdp_replicate > 1 and config.world_size > 4:
            continue
        built = ENGINE.commands(ctx, config, 1.0).serve
        lines = serve_lines(built)
        assert len(lines) == config.dp
        launch = ENGINE.read_launch(lines[-1])
        tiled = ctx.behaviour.options.vae_tiling == "on" and config.vae_patch == 1
        assert launch.parallel == replace(config, dp=1, vae_tiling=config.vae_tiling or tiled)
        assert launch.model == (ctx.hf_id or ctx.model_id)


def test_the_look_of_the_default_serve_command():
    config = parse_parallel("cfg2_usp2_vaepp4")[0]
    assert ENGINE.commands(context(), config, 33.0).serve == (
        "vllm serve nvidia/Cosmos3-Nano --omni --cfg-parallel-size 2 --usp 2 "
        "--vae-patch-parallel-size 4 --diffusion-attention-backend CUDNN_ATTN --no-guardrails "
        "--enable-diffusion-pipeline-profiler"
    )


def test_replicas_are_servers_with_devices_and_ports_of_their_own():
    serve = ENGINE.commands(context(), ParallelConfig(cfg=2, dp=2), 1.0).serve
    first, second = serve_lines(serve)
    assert first[0] == "CUDA_VISIBLE_DEVICES=0,1"
    assert second[0] == "CUDA_VISIBLE_DEVICES=2,3"
    assert first[-4:] == ["--num-gpus", "2", "--port", "8000"]
    assert second[-4:] == ["--num-gpus", "2", "--port", "8001"]
    assert "--data-parallel-size" not in serve
    assert ENGINE.read_launch(first).problems == ()


def test_one_server_with_replicas_is_warned_about():
    launch = ENGINE.read_launch(["vllm", "serve", "m", "--omni", "--num-gpus", "4"])
    assert launch.parallel.dp == 4
    assert [p.rule_id for p in launch.problems] == ["dp-repeats"]
    gathered = ["--enable-distributed-layerwise-offload"]
    quiet = ENGINE.read_launch(["vllm", "serve", "m", "--omni", "--num-gpus", "4", *gathered])
    assert quiet.problems == ()


def test_replicas_that_gather_weights_are_one_server():
    ctx = context(options=Options(offload="layerwise-gather"))
    (words,) = serve_lines(ENGINE.commands(ctx, ParallelConfig(ulysses=2, dp=2), 1.0).serve)
    launch = ENGINE.read_launch(words)
    assert launch.parallel == ParallelConfig(ulysses=2, dp=2)
    assert launch.options["offload"] == "layerwise-gather"
    assert launch.problems == ()


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        (["--enable-distributed-layerwise-offload"], "layerwise-gather"),
        (["--dlo-no-use-allgather", "--enable-distributed-layerwise-offload"], "layerwise"),
        (["--enable-distributed-layerwise-offload", "--dlo-no-use-allgather"], "layerwise"),
        (
            ["--diffusion-offload-config", '{"mode": "layer", "components": ["dit"], '
             '"layer_options": {"dit": {"weight_transfer": "allgather"}}}'],
            "layerwise-gather",
        ),
        (
            ["--diffusion-offload-config", '{"mode": "layer", "components": ["dit"]}'],
            "layerwise",
        ),
    ],
)  # fmt: skip
def test_how_blocks_come_from_the_host_is_read(words, mode):
    launch = ENGINE.read_launch(["vllm", "serve", "m", "--omni", *words])
    assert launch.options["offload"] == mode


def test_ascend_names_its_devices_and_no_cudnn():
    text = ENGINE.commands(context(on=ASCEND), ParallelConfig(ulysses=2), 1.0).serve
    assert text.startswith("ASCEND_RT_VISIBLE_DEVICES=0,1 vllm serve ")
    assert "CUDNN" not in text


def test_no_backend_is_named_where_a_name_would_be_refused():
    ring = ENGINE.commands(context(), ParallelConfig(ring=2), 1.0).serve
    assert "--diffusion-attention-backend" not in ring
    odd = context("wan2.2-ti2v-5b", on=B300)  # 6,615 tokens, TRTLLM_ATTN takes no mask
    assert (
        "--diffusion-attention-backend"
        not in ENGINE.commands(odd, ParallelConfig(ulysses=2), 1.0).serve
    )


@pytest.mark.parametrize(("predicted_s", "limit_s"), [(299.0, None), (301.0, 960), (4000.0, 12000)])
def test_long_requests_raise_the_servers_limit(predicted_s, limit_s):
    built = ENGINE.commands(context(), ParallelConfig(), predicted_s)
    prefix = f"VLLM_OMNI_VIDEO_SYNC_TIMEOUT={limit_s} vllm" if limit_s else "vllm"
    assert built.serve.startswith(prefix)
    assert f"--max-time {limit_s or 600} " in built.request


def test_request_fields_of_a_video_with_an_image():
    request = ENGINE.commands(context("wan2.2-i2v-a14b"), ParallelConfig(), 1.0).request
    words = shlex.split(request)
    for field in (
        "size=1280x720", "num_frames=81", "fps=16", "num_inference_steps=40",
        "guidance_scale=3.5", "flow_shift=5", "seed=42", "input_reference=@input.png",
    ):  # fmt: skip
        assert field in words
    assert words[-1] == "http://localhost:8000/v1/videos/sync"
    assert words[words.index("-D") + 1] == "headers.txt"


class Server(BaseHTTPRequestHandler):
    """Answers like the engine: MP4 with headers, or JSON with an image."""

    seen: list[tuple[str, bytes]]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        type(self).seen.append((self.path, body))
        self.send_response(200)
        stages = {"P.forward": 9.0, "P.diffuse": 7.5, "P.vae.decode": 1.25}
        if self.path == "/v1/videos/sync":
            payload = b"mp4"
            self.send_header("Content-Type", "video/mp4")
            self.send_header("X-Inference-Time-S", "10.500")
            self.send_header("X-Stage-Durations", json.dumps(stages))
            self.send_header("X-Peak-Memory-MB", "2048.000")
        else:
            metrics = {"stage_durations": stages, "peak_memory_mb": 1024.0}
            payload = json.dumps({"data": [{"b64_json": "aGk="}], "metrics": metrics}).encode()
            self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(payload)


@pytest.fixture
def server(monkeypatch):
    Server.seen = []
    http = ThreadingHTTPServer(("localhost", 0), Server)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    monkeypatch.setattr(commands, "PORT", http.server_address[1])
    yield http
    http.shutdown()
    http.server_close()


def run(text: str, folder: Any) -> None:
    done = subprocess.run(
        ["bash", "-c", text], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_benchmark_writes_a_run_record(server, tmp_path):
    config = parse_parallel("cfg2_usp2")[0]
    run(ENGINE.commands(context(), config, 30.0).benchmark, tmp_path)
    (record,) = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert len(Server.seen) == 4  # one warm-up and three measured
    assert record["measured_ms"]["server"] == 10_500
    assert record["measured_ms"]["denoise"] == 7_500
    assert record["measured_ms"]["vae_decode_max"] == 1_250
    assert record["peak_memory_mib"] == 2048
    assert record["memory_kind"] == "reserved"
    assert record["parallel"] == {"cfg_parallel_size": 2, "ulysses_degree": 2}
    assert (record["engine"], record["engine_version"]) == ("vllm-omni", "0.30.0")
    assert b'name="num_frames"\r\n\r\n189' in Server.seen[0][1]


def test_the_benchmark_of_an_image_reads_its_metrics(server, tmp_path):
    image = context(task="t2i", frames=1, tokens=1024)
    run(ENGINE.commands(image, ParallelConfig(), 3.0).benchmark, tmp_path)
    record = json.loads((tmp_path / "results.jsonl").read_text())
    assert record["measured_ms"]["denoise"] == 7_500
    assert record["peak_memory_mib"] == 1024
    assert json.loads(Server.seen[0][1])["num_inference_steps"] == 35


def test_several_images_are_one_request_and_one_record(server, tmp_path):
    image = context(task="t2i", frames=1, tokens=1024, outputs=4)
    run(ENGINE.commands(image, ParallelConfig(), 3.0).benchmark, tmp_path)
    assert json.loads(Server.seen[0][1])["n"] == 4
    assert json.loads((tmp_path / "results.jsonl").read_text())["num_outputs"] == 4
    edit = replace(image, task="i2i", input_images=1)
    assert "-F n=4" in ENGINE.commands(edit, ParallelConfig(), 3.0).request
    one = replace(image, outputs=1)
    assert "n" not in commands.request_fields(one)


@pytest.mark.parametrize(("task", "outputs"), [("t2v", 4), ("t2i", 11)])
def test_a_command_for_one_output_says_so(server, tmp_path, task, outputs):
    asked = context(task=task, outputs=outputs)
    texts = ENGINE.commands(asked, ParallelConfig(), 3.0)
    for text in (texts.request, texts.benchmark):
        assert text.startswith(f"# measures 1 output a request, not {outputs}: ")
    run(texts.benchmark, tmp_path)
    assert json.loads((tmp_path / "results.jsonl").read_text())["num_outputs"] == 1


def test_the_requests_save_their_output(server, tmp_path):
    run(ENGINE.commands(context(), ParallelConfig(), 3.0).request, tmp_path)
    assert (tmp_path / "output.mp4").read_bytes() == b"mp4"
    assert "X-Stage-Durations" in (tmp_path / "headers.txt").read_text()
    image = context(task="t2i", frames=1, tokens=1024)
    run(ENGINE.commands(image, ParallelConfig(), 3.0).request, tmp_path)
    assert (tmp_path / "output.png").read_bytes() == b"hi"


LAUNCHES = [
    (
        "vllm serve nvidia/Cosmos3-Nano --omni --cfg-parallel-size 2 --ulysses_degree=2 --port 80",
        "cfg2_usp2", {"guardrails": True},
    ),
    (
        "HF_HOME=/x vllm serve Wan-AI/Wan2.2-T2V-A14B-Diffusers --omni --num-gpus 8 --usp 4 "
        "--use-hsdp --hsdp-shard-size 8 --cfg-parallel-size 2 --enforce-eager",
        "cfg2_usp4_hsdp8", {"compile": False},
    ),
    ("vllm serve m --omni --use-hsdp --ring 4", "ring4_hsdp4", {}),
    ("vllm serve m --omni --use-hsdp --hsdp-replicate-size 2 --usp 8", "usp8_hsdp4x2", {}),
    ("vllm serve --model m --omni -tp 2 --num-gpus 8", "tp2_dp4", {}),
    (
        "vllm serve m --omni --diffusion-attention-config.default.backend FLASH_ATTN "
        "--vae-use-tiling --dtype bfloat16",
        "tiling", {"attention_backend": "FLASH_ATTN", "vae_tiling": "on", "dtype": "bf16"},
    ),
    (
        "vllm serve m --omni --diffusion-quantization-config '{\"method\": \"fp8\"}' "
        "--diffusion-offload-config '{\"mode\": \"layer\", \"components\": [\"dit\"]}' \\\n",
        "single", {"dtype": "fp8", "offload": "layerwise"},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "config_id", "options"), LAUNCHES)
def test_launch_commands_are_read_as_typed(text, config_id, options):
    launch = ENGINE.read_launch(shlex.split(text))
    assert launch.parallel.config_id == config_id
    assert dict(launch.options) == options
    assert Options.model_validate(dict(launch.options))
    assert launch.model


def test_a_bad_launch_command_lists_all_its_problems():
    text = "vllm serve m --omni --data-parallel-size 2 --uspp 2 --ring two --vae-fast-path slow"
    with pytest.raises(BadInput) as caught:
        ENGINE.read_launch(shlex.split(text))
    by_rule = {p.value: p for p in caught.value.problems}
    assert set(by_rule) == {"--data-parallel-size", "--uspp", "two", "slow"}
    assert by_rule["--uspp"].suggestions == ("--usp",)
    assert by_rule["--data-parallel-size"].suggestions == ("--num-gpus 2",)


@pytest.mark.parametrize(
    "text",
    ["", "python train.py", "vllm serve m --omni --usp 4 --num-gpus 6", "vllm serve m --use-hsdp"],
)
def test_launch_commands_that_cannot_be(text):
    with pytest.raises(BadInput):
        ENGINE.read_launch(shlex.split(text))


def test_a_missing_omni_is_a_warning_and_a_cache_an_option():
    launch = ENGINE.read_launch(["vllm", "serve", "m", "--cache-backend", "cache_dit"])
    assert {p.rule_id for p in launch.problems} == {"launch"}
    assert {p.severity for p in launch.problems} == {"warning"}
    assert launch.options["cache_method"] == "cache_dit"


def test_flag_lists_say_where_they_come_from():
    assert len(known_flags()) > 150
    assert canonical("--ulysses-degree") == "--usp"
    assert "--data-parallel-size" in refused_flags()


def test_flags_are_extracted_from_source():
    source = (
        "group.add_argument('--usp', '--ulysses-degree', type=int, default=None)\n"
        "group.add_argument('--mode', choices=('a', 'b'), default='a')\n"
        "group.add_argument('--permute', action=argparse.BooleanOptionalAction)\n"
        "group.add_argument('model')\n"
        "prohibited_with_omni: dict[str, str] = {'x': '--x', 'a': '--a'}\n"
    )
    assert flags_of(source) == {
        "--usp": {"type": "int", "default": None},
        "--ulysses-degree": {"same_as": "--usp"},
        "--mode": {"choices": ["a", "b"], "default": "a"},
        "--permute": {"action": "argparse.BooleanOptionalAction"},
        "--no-permute": {"same_as": "--permute"},
    }
    assert refused_of(source) == ["--a", "--x"]
