"""What a launch command after ``--`` tells: its engine, its model, and what it leaves open."""

from __future__ import annotations

import json
import shlex

import pytest

import perfmodel as pm
from perfmodel.cli.app import run
from perfmodel.cli.compare import name_cases
from perfmodel.cli.explain import all_entries
from perfmodel.cli.flags import BY_KEY
from perfmodel.cli.launched import started_engine, words
from perfmodel.errors import BadInput
from perfmodel.report.answer import Answer
from perfmodel.report.asked import ProblemInfo
from perfmodel.report.glossary import explain

SERVE = "vllm serve nvidia/Cosmos3-Nano --omni --usp 4"


def predict(*argv, launch):
    return run(["predict", "--gpus", "4xH100", *argv, "--parallel", "--", *launch])


@pytest.mark.parametrize("backend", ["tea_cache", "cache_dit"])
def test_a_cache_of_unknown_ratio_is_said_on_stderr_and_in_json(backend, capsys):
    assert predict("--json", launch=[*SERVE.split(), "--cache-backend", backend]) == 0
    out, err = capsys.readouterr()
    found = [w for w in json.loads(out)["warnings"] if w["rule_id"] == "cache-ratio"]
    assert [w["value"] for w in found] == [backend]
    assert err.count("warning[cache-ratio]") == 1


def test_without_a_cache_nothing_is_said_of_one(capsys):
    assert predict("--json", launch=SERVE.split()) == 0
    assert "cache-ratio" not in "".join(capsys.readouterr())


def test_compare_shows_the_warnings_of_its_launch_command_once(capsys):
    argv = ["compare", "--vary", "gpus=4xH100,4xH200", "--parallel", "--", *SERVE.split()]
    assert run([*argv, "--cache-backend", "tea_cache"]) == 0
    assert capsys.readouterr().err.count("cache-ratio") == 1


def test_two_models_are_refused_by_name(capsys):
    assert predict("--model", "qwen-image", launch=SERVE.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("error[model]") == 1
    assert "qwen-image" in err
    assert "nvidia/Cosmos3-Nano" in err


@pytest.mark.parametrize("name", ["cosmos3-nano", "nvidia/Cosmos3-Nano"])
def test_the_same_model_by_another_name_is_one_model(name):
    assert predict("--model", name, launch=SERVE.split()) == 0


def test_model_names_a_checkpoint_that_the_catalogue_does_not_know():
    assert predict("--model", "cosmos3-nano", launch=["vllm", "serve", "/data/w", "--omni"]) == 0


def test_the_engine_is_the_one_that_the_command_starts(capsys):
    launch = "sglang serve --model-path nvidia/Cosmos3-Nano --ulysses-degree 4 --num-gpus 4"
    assert predict("--json", launch=launch.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["engine"]["name"] == "sglang-diffusion"
    assert found["prediction"]["num_gpus"] == 4
    assert predict("--engine", "sglang", launch=launch.split()) == 0


def test_another_engine_than_the_command_starts_is_refused(capsys):
    assert predict("--engine", "vllm-omni", launch=["sglang", "serve", "M"]) == 2
    assert "--engine sglang-diffusion" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("vllm serve xdit --omni", "vllm-omni"),
        ("env A=1 /opt/bin/vllm serve M", "vllm-omni"),
        ("sglang serve --model-path M", "sglang-diffusion"),
        ("xdit --model M", "xdit"),
        ("torchrun --nproc_per_node 4 x.py", None),
        ("torchrun --nproc_per_node=8 generate.py --task t2v-14B", "wan-official"),
        ("python examples/video2world.py --num_gpus 2", "cosmos-official"),
    ],
)
def test_engines_by_their_program(command, engine):
    assert started_engine(command.split()) == engine


def test_a_program_that_tells_no_engine_asks_for_one(capsys):
    assert predict(launch=["torchrun", "x.py"]) == 2
    assert "--engine" in capsys.readouterr().err


def test_one_quoted_text_is_split_as_a_shell_does():
    assert words(['vllm serve "a b" \\\n  --omni']) == ["vllm", "serve", "a b", "--omni"]
    assert words(["vllm", "serve", "a b"]) == ["vllm", "serve", "a b"]
    assert words(["vllm"]) == ["vllm"]
    with pytest.raises(BadInput, match="split into words"):
        words(["vllm serve 'a"])


def test_a_quoted_command_is_the_same_as_its_words(capsys):
    assert predict("--json", launch=[SERVE]) == 0
    quoted = capsys.readouterr().out
    assert predict("--json", launch=SERVE.split()) == 0
    assert capsys.readouterr().out == quoted


GENERATE = (
    "torchrun --nproc_per_node=4 generate.py --task t2v-1.3B --ulysses_size 4 --ckpt_dir ./w "
    "--size '1280*720' --frame_num 45 --sample_steps 11 --sample_guide_scale 3"
)
XDIT = (
    "xdit --model Wan-AI/Wan2.1-T2V-1.3B-Diffusers --ulysses_degree 4 --height 720 --width 1280 "
    "--num_frames 45 --num_inference_steps 11 --guidance_scale 3"
)
SGLANG = (
    "sglang generate --model-path Wan-AI/Wan2.1-T2V-1.3B-Diffusers --num-gpus 4 --height 720 "
    "--ulysses-degree 4 --width 1280 --num-frames 45 --num-inference-steps 11 --guidance-scale 3"
)


@pytest.mark.parametrize(
    ("engine", "launch"), [("wan-official", GENERATE), ("xdit", XDIT), ("sglang", SGLANG)]
)
def test_the_request_in_a_launch_command_is_what_is_predicted(engine, launch, capsys):
    assert predict("--json", "--engine", engine, launch=[launch]) == 0
    found = json.loads(capsys.readouterr().out)
    work = found["workload"]
    assert work["model"] == "wan2.1-t2v-1.3b"
    assert [work[key] for key in ("width", "height", "frames", "steps", "guidance")] == [
        1280, 720, 45, 11, 3,
    ]  # fmt: skip
    assert not {"width", "height", "frames", "steps", "guidance"} & set(work["assumed"])
    # SGLang decodes videos on all ranks unless told otherwise
    ran = "usp4_vaepp4" if engine == "sglang" else "usp4"
    plain = ["predict", "--gpus", "4xH100", "--json", "--engine", engine, "--parallel", ran]
    flags = ["--size", "1280x720", "--frames", "45", "--steps", "11", "--guidance", "3"]
    assert run([*plain, "--model", "wan2.1-t2v-1.3b", *flags]) == 0
    stated = json.loads(capsys.readouterr().out)
    assert found["prediction"]["latency_ms"] == stated["prediction"]["latency_ms"]


def test_flags_that_are_given_win_over_the_launch_command(capsys):
    typed = ["--json", "--engine", "wan-official", "--steps", "5", "--seconds", "2"]
    assert predict(*typed, "--size", "832x480", launch=[GENERATE]) == 0
    work = json.loads(capsys.readouterr().out)["workload"]
    assert [work[key] for key in ("width", "frames", "steps", "guidance")] == [832, 33, 5, 3]


@pytest.mark.parametrize("wrong", ["--size 1280x", "--frame_num 45000"])
def test_a_request_that_cannot_be_is_refused(wrong, capsys):
    assert predict("--engine", "wan-official", launch=[f"{GENERATE} {wrong}"]) == 2
    assert "error[launch-value]" in capsys.readouterr().err


def test_a_flag_that_is_not_read_is_said_with_what_to_give_instead(capsys):
    launch = "sglang serve --model-path nvidia/Cosmos3-Nano --num-gpus 1 --quantization mxfp4"
    assert predict("--json", launch=[*launch.split(), "--port", "3"]) == 0
    out, err = capsys.readouterr()
    (found,) = (w for w in json.loads(out)["warnings"] if w["rule_id"] == "launch-ignored")
    assert (found["field"], found["value"]) == ("--quantization", "mxfp4")
    assert "--dtype" in found["message"]
    assert err.count("warning[launch-ignored]") == 1


def warning(message):
    return ProblemInfo(rule_id="priors", message=message, severity="warning")


def test_warnings_of_some_cases_name_them_and_common_ones_do_not():
    cases = [
        ({"gpus": "a"}, Answer(status="ok", warnings=(warning("all"), warning("25 %")))),
        ({"gpus": "b"}, Answer(status="ok", warnings=(warning("all"), warning("27 %")))),
        ({"gpus": "c"}, Answer(status="ok", warnings=(warning("27 %"), warning("all")))),
    ]
    shown = [[w.message for w in document.warnings] for _, document in name_cases(cases)]
    assert shown == [
        ["all", "gpus=a: 25 %"],
        ["all", "gpus=b; gpus=c: 27 %"],
        ["gpus=b; gpus=c: 27 %", "all"],
    ]


@pytest.mark.parametrize(
    ("flag", "said", "not_said"),
    [
        ("guardrails", "not predicted", "count"),
        ("strict", "fitted kernel laws", "extrapolation"),
        ("max_latency", "exit code 5", "refuse"),
    ],
)
def test_help_and_glossary_say_what_a_flag_does(flag, said, not_said):
    entry = explain(f"--{BY_KEY[flag].name}", all_entries())[0]
    assert said in BY_KEY[flag].help
    assert not_said not in BY_KEY[flag].help
    assert said in entry.text


def test_strict_refuses_only_a_device_without_laws(capsys):
    assert run(["predict", "--gpus", "1xH100", "--strict", "--json"]) == 0
    shares = json.loads(capsys.readouterr().out)["prediction"]["provenance_share"]
    assert shares["prior"] > 0
    assert run(["predict", "--gpus", "1xRTX-4090", "--strict"]) == 4


def test_a_wan_script_needs_no_engine(capsys):
    assert predict("--json", launch=[GENERATE]) == 0
    alone = capsys.readouterr().out
    assert predict("--json", "--engine", "wan-official", launch=[GENERATE]) == 0
    assert capsys.readouterr().out == alone
    assert json.loads(alone)["engine"]["name"] == "wan-official"


@pytest.mark.parametrize("launch", [[], [""], ["vllm", "serve", "", "--omni"]])
def test_a_command_of_nothing_is_not_answered(launch, capsys):
    assert predict(launch=launch) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = [row for row in err.splitlines() if row.startswith("error")]
    assert "--parallel" in line or "model" in line


def test_an_empty_value_is_not_the_next_flag(capsys):
    assert predict("--json", launch=[*SERVE.split(), "--host", "", "--usp", "2"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"]["parallel"]["ulysses_degree"] == 2


def test_an_example_of_xdit_is_read_as_xdit(capsys):
    # The usual launch in xDiT's documentation.
    command = [
        "torchrun", "--nproc_per_node=8", "examples/hunyuan_video_usp_example.py",
        "--model", "tencent/HunyuanVideo", "--ulysses_degree", "4", "--ring_degree", "2",
        "--num_inference_steps", "30", "--warmup_steps", "0", "--height", "720",
        "--width", "1280", "--num_frames", "129", "--enable_tiling",
    ]  # fmt: skip
    for engine in ([], ["--engine", "xdit"]):
        asked = ["predict", "--gpus", "8xH100", *engine, "--json", "--parallel", "--", *command]
        assert run(asked) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["engine"]["name"] == "xdit"
        assert answer["prediction"]["config_id"].startswith("usp4_ring2")
        assert answer["workload"]["steps"] == 30


@pytest.mark.parametrize(
    ("engine", "model"),
    [
        ("sglang-diffusion", "hunyuanvideo-1.5-i2v"),
        ("sglang-diffusion", "wan2.1-t2v-14b"),
        ("vllm-omni", "hunyuanvideo-1.5"),
        ("vllm-omni", "qwen-image"),
        ("xdit", "cogvideox-5b"),
    ],
)
@pytest.mark.parametrize("tiling", ["auto", "on"])
def test_a_printed_command_reads_back_as_its_configuration(engine, model, tiling):
    options = pm.Options(vae_tiling=tiling)
    answer = pm.recommend(pm.Workload(model=model), "4xH200", engine=engine, options=options, top=4)
    assert len(answer.recommendations) > 1
    for row in answer.recommendations:
        lines = row.commands.serve.splitlines()
        command = next(line for line in lines if line and not line.startswith("#"))
        again = pm.predict(
            pm.Workload(model=model), "4xH200", engine=engine, launch=shlex.split(command)
        )
        assert again.config_id == row.config_id, command


SGLANG = "sglang serve --model-path Wan-AI/Wan2.1-T2V-1.3B-Diffusers --num-gpus 4 --sp-degree 4"
XDIT = "xdit --model zai-org/CogVideoX-5b --ulysses_degree 4"


@pytest.mark.parametrize(
    ("command", "flags", "instead"),
    [
        (SGLANG, "--enable-teacache true", "--cache METHOD"),
        (SGLANG, "--enable-cache-dit true", "--cache METHOD"),
        (SGLANG, "--dit-cpu-offload true", "--offload MODE"),
        (SGLANG, "--vae-precision fp32", ""),
        (SGLANG, "--dit-cpu-offload false", None),
        (XDIT, "--enable_sequential_cpu_offload", "--offload MODE"),
        (XDIT, "--batch_size 2", "--batch N"),
    ],
)
def test_flags_that_change_the_answer_are_read_or_said(command, flags, instead, capsys):
    assert predict("--json", launch=f"{command} {flags}".split()) == 0
    warnings = json.loads(capsys.readouterr().out)["warnings"]
    said = [w for w in warnings if w["rule_id"] == "launch-ignored"]
    assert len(said) == (instead is not None)
    for warning in said:
        assert flags.split()[0] in warning["message"]
        assert warning["suggestions"] == ([instead] if instead else [])


def test_an_offloaded_text_encoder_reads_back():
    wide = pm.predict(
        pm.Workload(),
        "1xH200",
        engine="sglang-diffusion",
        launch=[*SGLANG.split()[:4], "--text-encoder-cpu-offload", "true"],
    )
    assert wide.config_id == "offload-text-encoder"


@pytest.mark.parametrize(
    ("program", "config_id"),
    [
        ("python generate.py", "offload-model"),
        ("python generate.py --offload_model False", "single"),
        ("torchrun --nproc_per_node=4 generate.py --ulysses_size 4", "usp4"),
    ],
)
def test_wan_offloads_on_one_gpu_unless_told_not_to(program, config_id):
    """``generate.py``: offload_model is True where there is one process, if it is not given."""
    answer = pm.predict(
        pm.Workload(),
        "4xH200",
        engine="wan-official",
        launch=f"{program} --task t2v-14B --size 832*480 --ckpt_dir x".split(),
    )
    assert answer.config_id == config_id
