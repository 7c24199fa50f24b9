"""Texts of flags to the library's records."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given as for_all
from hypothesis import strategies as st

from perfmodel.cli.app import run
from perfmodel.cli.complete import PARALLEL_KEYS, parallel
from perfmodel.cli.flags import ALL, BY_KEY, OUTPUT, SEARCH, WORK
from perfmodel.cli.given import Given, given
from perfmodel.cli.inputs import (
    literal_values,
    option_value,
    read_options,
    read_settings,
    read_stage_times,
    read_system,
    read_workload,
)
from perfmodel.cli.measured import read_measured
from perfmodel.cli.values import Collector, number, pairs, size, switch, whole
from perfmodel.errors import BadInput
from perfmodel.spec.parallel import KEYS, parse_parallel
from perfmodel.spec.workload import Options, Workload
from perfmodel.verify.readings import read_log


def typed(**values) -> Given:
    return Given(values, ALL)


def refused(read) -> list[str]:
    with pytest.raises(BadInput) as caught:
        read()
    return [problem.line() for problem in caught.value.problems]


def test_nothing_given_is_a_workload_of_defaults():
    assert read_workload(typed()) == Workload()
    assert read_workload(typed()).model_fields_set == set()


def test_a_full_request():
    values = dict(
        model="wan2.2-t2v-a14b",
        task="t2v",
        size="832x480",
        frames="81",
        fps="16",
        steps="40",
        guidance="3.5",
        batch="2",
        concurrency="3",
        input_images="1",
        text_tokens="256",
        sound=True,
    )
    found = read_workload(typed(**values))
    assert (found.width, found.height, found.frames, found.fps) == (832, 480, 81, 16.0)
    assert (found.steps, found.guidance, found.batch, found.concurrency) == (40, 3.5, 2, 3)
    assert (found.input_images, found.text_tokens, found.sound) == (1, 256, True)


@pytest.mark.parametrize("text", ["1280x720", "1280X720", " 1280 x 720 ", "1280*720"])
def test_sizes(text):
    assert size(typed(size=text)) == (1280, 720)


@pytest.mark.parametrize("text", ["1280", "1280x", "x720", "720p", "-1x5", "1e3x720", "", "1x2x3"])
def test_sizes_that_cannot_be_read(text):
    (line,) = refused(lambda: size(typed(size=text)))
    assert line.startswith("error[size]: --size ")
    assert line.endswith("try --size 1280x720")


@pytest.mark.parametrize("text", ["99999x99999", "15x720", "1280x0"])
def test_sizes_out_of_range(text):
    assert "out of range; legal: 16 to 16,384" in refused(lambda: size(typed(size=text)))[0]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("frames", "0"),
        ("frames", "10001"),
        ("frames", "2.5"),
        ("steps", "-1"),
        ("steps", "x"),
        ("guidance", "nan"),
        ("guidance", "inf"),
        ("guidance", "-1"),
        ("seconds", "0"),
        ("fps", "0"),
        ("fps", "241"),
        ("batch", "257"),
        ("text_tokens", "0"),
        ("concurrency", "0"),
    ],
)
def test_numbers_that_are_refused_name_their_flag_and_a_value_to_try(key, text):
    (line,) = refused(lambda: read_workload(typed(**{key: text})))
    name = BY_KEY[key].name
    assert line.startswith(f"error[{name}]: --{name} {text} is ")
    assert f"try --{name} {BY_KEY[key].example}" in line


@for_all(st.text(max_size=12))
def test_any_text_is_a_number_in_range_or_one_line(text):
    collect = Collector()
    value = collect(lambda: whole(typed(frames=text), "frames", 1, 10_000))
    assert (value is None) is (len(collect.problems) == 1)
    assert value is None or 1 <= value <= 10_000


def test_cli_bounds_are_those_of_the_workload():
    at = {
        "frames": (1, 10_000),
        "steps": (1, 10_000),
        "batch": (1, 256),
        "text_tokens": (1, 65_536),
        "concurrency": (1, 4096),
        "input_images": (0, 64),
    }
    for key, (low, high) in at.items():
        for inside in (low, high):
            assert getattr(read_workload(typed(**{key: str(inside)})), key) == inside
        for outside in (low - 1, high + 1):
            refused(lambda key=key, outside=outside: read_workload(typed(**{key: str(outside)})))
            with pytest.raises(ValueError, match=key):
                Workload(**{key: outside})


def test_frames_and_seconds_exclude_each_other():
    assert "give one" in refused(lambda: read_workload(typed(frames="5", seconds="2")))[0]


@pytest.mark.parametrize(
    ("values", "field", "expected"),
    [
        (dict(dtype="fp8"), "dtype", "fp8"),
        (dict(option=("dtype=FP8",)), "dtype", "fp8"),
        (dict(attention="CUDNN_ATTN"), "attention_backend", "CUDNN_ATTN"),
        (dict(eager=True), "compile", False),
        (dict(option=("compile=on",)), "compile", True),
        (dict(cache="skip=0.3"), "cache_skip", 0.3),
        (dict(cache="none"), "cache_skip", 0.0),
        (dict(cache="TeaCache"), "cache_method", "tea_cache"),
        (dict(option=("cache_method=cache_dit",)), "cache_method", "cache_dit"),
        (dict(option=("attention-density=0.2",)), "attention_density", 0.2),
        (dict(guardrails=True), "guardrails", True),
        (dict(offload="text_encoder"), "offload", "text-encoder"),
        (dict(vae_tiling="on"), "vae_tiling", "on"),
        (dict(vae_mode="spatial_shard_height"), "vae_mode", "spatial_shard_height"),
        (dict(option=("vae_fast_path=channels_last",)), "vae_fast_path", "channels_last"),
        (dict(option=("ulysses-mode=advanced_uaa",)), "ulysses_mode", "advanced_uaa"),
    ],
)
def test_shorthands_and_options_mean_the_same_keys(values, field, expected):
    found = read_options(typed(**values))
    assert getattr(found, field) == expected
    assert found.model_fields_set == {field}


def test_every_option_key_is_accepted():
    for key in Options.model_fields:
        legal = literal_values(key)
        text = (
            legal[0] if legal else {"cache_skip": "0.1", "attention_density": "0.2"}.get(key, "on")
        )
        assert option_value(key, text) is not None


@pytest.mark.parametrize(
    ("values", "part"),
    [
        (dict(option=("dtyp=fp8",)), 'did you mean "dtype"?'),
        (dict(dtype="fp9"), "legal: bf16, fp16, fp8"),
        (dict(option=("dtype",)), "is not KEY=VALUE"),
        (dict(dtype="fp8", option=("dtype=bf16",)), "given twice"),
        (dict(eager=True, option=("compile=on",)), "given twice"),
        (dict(cache="skip=1"), "impossible share"),
        (dict(cache="nocache"), "neither skip=RATIO nor a method"),
        (dict(option=("guardrails=maybe",)), "neither on nor off"),
    ],
)
def test_options_that_are_refused(values, part):
    assert part in refused(lambda: read_options(typed(**values)))[0]


def test_the_machine_and_its_overrides():
    values = dict(
        gpus="2x8xH100", host_ram="1024", gpu_memory="70", gpu_reserve="2", sockets="2", no_p2p=True
    )
    found = read_system(typed(**values))
    assert (found.num_gpus, found.nodes, found.p2p, found.sockets) == (16, 2, False, 2)
    assert found.host_ram_bytes == 1024 * 1024**3
    assert found.usable_bytes == pytest.approx(68 * 1024**3)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({}, "gpus"),
        (dict(gpus="4xB300", system="box.yaml"), "gpus"),
        (dict(gpus="4xB301"), "gpu-name"),
        (dict(gpus="4xB300", host_ram="-1"), "host-ram"),
        (dict(gpus="4xB300", gpu_memory="0"), "gpu-memory"),
        (dict(gpus="4xB300", sockets="two"), "sockets"),
    ],
)
def test_machines_that_are_refused(values, rule):
    assert refused(lambda: read_system(typed(**values)))[0].startswith(f"error[{rule}]")


def test_settings_that_are_refused_all_at_once():
    found = refused(
        lambda: read_settings(
            typed(objective="fast", top="0", fit="/no/such/file", any_gpus=True, use_all_gpus=True)
        )
    )
    rules = {line.partition("]")[0].removeprefix("error[") for line in found}
    assert rules == {"objective", "top", "fit", "gpus"}


def test_stage_times_know_common_names():
    texts = ("mp4=3850", "VAE-decode=4000", "denoise_ms=1")
    assert read_stage_times(typed(set=texts), "set") == {
        "video_encode": 3850.0,
        "vae_decode": 4000.0,
        "denoise": 1.0,
    }
    assert (
        "is not a time in ms" in refused(lambda: read_stage_times(typed(set=("mp4=-1",)), "set"))[0]
    )
    assert "legal: text_encode" in refused(lambda: read_stage_times(typed(set=("x=1",)), "set"))[0]


def test_response_headers_and_logs_are_read(tmp_path):
    path = tmp_path / "headers.txt"
    path.write_text(
        "HTTP/1.1 200 OK\r\nX-Inference-Time-S: 36.685\r\n"
        'X-Stage-Durations: {"Cosmos3Pipeline.diffuse": 25.9, "Cosmos3Pipeline.vae.decode": 4.02,'
        ' "Cosmos3Pipeline.forward": 30.1}\r\n'
        "INFO Video response encoding (MP4 bytes): 3850.5 ms\n"
    )
    assert read_measured(str(path)) == {
        "request": pytest.approx(36_685.0),
        "denoise": pytest.approx(25_900.0),
        "vae_decode": pytest.approx(4_020.0),
        "pipeline_forward": pytest.approx(30_100.0),
        "video_encode": 3850.5,
    }


def test_profiler_lines_keep_their_unit():
    log = "WanPipeline.diffuse took 25.9 s\nWanPipeline.text_encoder.forward: 45.2 ms\n"
    assert read_log(log).measured_ms == {
        "denoise": pytest.approx(25_900.0),
        "text_encode": pytest.approx(45.2),
    }


@pytest.mark.parametrize("text", ["nothing", "denoise=", "denoise=x", "speed=3", "denoise=-1"])
def test_measurements_that_are_refused(text):
    assert refused(lambda: read_measured(text))[0].startswith("error[measured]: ")


def test_a_file_without_times_is_refused(tmp_path):
    path = tmp_path / "log.txt"
    path.write_text("hello\n")
    assert "holds no x-inference-time-s" in refused(lambda: read_measured(str(path)))[0]


def test_switches_and_numbers():
    assert [switch("eager", text) for text in ("on", "TRUE", "no", "0")] == [
        True,
        True,
        False,
        False,
    ]
    assert [number(text) for text in ("nan", "inf", "1e999", "x", "2.5")] == [None] * 4 + [2.5]
    assert pairs(typed(option=("a=1", "b = 2=3")), "option") == {"a": "1", "b": "2=3"}


def test_a_config_file_gives_flags_and_the_command_line_wins(tmp_path):
    path = tmp_path / "box.yaml"
    path.write_text(
        "gpus: 4xB300\nframes: 93\ngpu-reserve: 2\nsound: true\n"
        "option: {dtype: fp8, compile: false}\n"
    )
    found = typed(config=str(path), frames="189").with_config()
    assert found.text("frames") == "189"
    assert found.text("gpus") == "4xB300"
    assert found.text("gpu_reserve") == "2"
    assert found.on("sound")
    options = read_options(found)
    assert (options.dtype, options.compile) == ("fp8", False)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("framse: 3\n", 'unknown key "framse"; did you mean "frames"?'),
        ("frames: [1, 2]\n", "is not one value"),
        ("sound: 3\n", "is not true or false"),
        ("- a\n", "holds no keys"),
        ("a: [\n", "cannot be read"),
    ],
)
def test_broken_config_files_are_one_line(tmp_path, text, part):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    (line,) = refused(lambda: typed(config=str(path)).with_config())
    assert part in line
    assert "\n" not in line


def test_a_missing_config_file():
    assert "cannot be read" in refused(lambda: typed(config="/no/such.yaml").with_config())[0]


def test_dump_config_can_be_given_back(tmp_path, capsys):
    argv = ["recommend", "--gpus", "4xB300", "--frames", "189", "--option", "dtype=bf16", "--sound"]
    assert run([*argv, "--dump-config"]) == 0
    text = capsys.readouterr().out
    path = tmp_path / "again.yaml"
    path.write_text(text)
    flags = (*WORK, *SEARCH, *OUTPUT)
    again = given({"config": str(path)}, flags, "recommend", ()).with_config()
    assert again.text("frames") == "189"
    assert again.many("option") == ("dtype=bf16",)
    assert again.on("sound")
    assert yaml.safe_load(text)["engine"] == "vllm-omni"


def test_flag_names_are_unique_and_explained():
    assert len({flag.key for flag in ALL}) == len(ALL)
    assert all(flag.help and len(flag.help) < 90 for flag in ALL)


def test_examples_of_flags_are_accepted():
    for key in ("size", "frames", "seconds", "fps", "steps", "guidance", "batch", "text_tokens"):
        read_workload(typed(**{key: BY_KEY[key].example}))
    parse_parallel(BY_KEY["parallel"].example)


def test_completion_knows_the_keys_of_parallel():
    assert PARALLEL_KEYS == KEYS
    assert parallel("") == [f"{key}=" for key in KEYS]
    assert "cfg=2,cfg=" not in parallel("cfg=2,")
    assert parallel("ring=2,tp=") == ["ring=2,tp=2", "ring=2,tp=4", "ring=2,tp=8"]


def test_the_same_option_twice_is_once_where_both_texts_mean_the_same():
    both = typed(guardrails=True, option=("guardrails=true",))
    assert read_options(both).guardrails is True
    assert (
        "given twice"
        in refused(lambda: read_options(typed(guardrails=True, option=("guardrails=off",))))[0]
    )
