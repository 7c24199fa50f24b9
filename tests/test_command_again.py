"""The command of an answer asks the same question again."""

from __future__ import annotations

import json
import shlex

import pytest

import perfmodel as pm
from perfmodel.cli.app import run
from perfmodel.cli.flags import BESIDE, PARALLEL, SEARCH, WORK

CASES = {
    "gpus": "--gpus 2x4xL40S",
    "system": "--system {box}",
    "gpu-memory": "--gpu-memory 100.25",
    "gpu-reserve": "--gpu-reserve 2",
    "host-ram": "--host-ram 512",
    "no-p2p": "--gpus 4xL40S --no-p2p",
    "sockets": "--gpus 4xL40S --sockets 2",
    "model": "--model wan2.2-ti2v-5b",
    "task": "--task i2v",
    "size": "--size 832x480",
    "frames": "--frames 81",
    "seconds": "--seconds 3.3",
    "fps": "--fps 23.976024",
    "steps": "--steps 20",
    "guidance": "--guidance 3.14159265",
    "forwards": "--forwards 50",
    "input-images": "--model cosmos3-nano --task i2v --input-images 1",
    "sound": "--sound",
    "text-tokens": "--text-tokens 300",
    "batch": "--batch 2",
    "concurrency": "--concurrency 3",
    "engine": "--engine vllm-omni@2026-06-16",
    "option": "--option ulysses_mode=advanced_uaa",
    "dtype": "--dtype fp8",
    "attention": "--attention FLASH_ATTN",
    "eager": "--eager",
    "cache": "--cache tea_cache",
    "guardrails": "--guardrails",
    "offload": "--gpu-memory 40 --host-ram 900 --offload auto --model cosmos3-super",
    "vae-tiling": "--vae-tiling on",
    "vae-mode": "--vae-mode spatial_shard_height",
    "fit": "--fit {fit}",
    "strict": "--strict",
    "objective": "--objective throughput",
    "max-latency": "--max-latency 40000.5",
    "price": "--price 3.5",
    "any-gpus": "--any-gpus",
    "use-all-gpus": "--use-all-gpus",
    "allow-lossy": "--allow-lossy",
    "top": "--top 2",
    "parallel": "--parallel cfg2_usp2_cache-teacache",
    "measured": "--parallel usp4 --measured denoise=25900.5,request=33000",
    "set": "--parallel usp4 --set mp4=3850.25 --set text=12",
}
SHOWN_ONLY = {"operators"}
"""Of `predict`: how much of the answer the screen shows."""

NUMBERS = (
    *("status", "problems", "recommendations", "prediction", "stages", "scaling", "combinations"),
    *("rejected", "lossy_options", "nearest_miss", "would_fit", "objective", "system"),
    *("provenance", "command", "answer_id"),
)


def test_every_flag_of_a_question_has_a_case():
    names = {flag.name for flag in (*WORK, *SEARCH, *PARALLEL, *BESIDE)}
    assert names - SHOWN_ONLY == set(CASES)


def answer(capsys, words: list[str]) -> dict:
    run([*words, "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def files(tmp_path):
    box = tmp_path / "my box.yaml"
    box.write_text("device: l40s\ngpus: 4\nhost_ram_gib: 256\np2p: false\n")
    fit = pm.__file__.replace("perfmodel/__init__.py", "calibration/fits/b300-sxm.json")
    return {"box": f"'{box}'", "fit": fit}


@pytest.mark.parametrize("name", CASES)
def test_the_command_of_an_answer_repeats_it(name, files, capsys):
    typed = CASES[name].format(**files)
    command = "predict" if "--parallel" in typed else "recommend"
    machine = "" if "--gpus" in typed or "--system" in typed else "--gpus 4xB300"
    first = answer(capsys, shlex.split(f"{command} {machine} {typed}"))
    assert first["status"] in ("ok", "does_not_fit"), first["problems"]
    again = answer(capsys, shlex.split(first["command"])[1:])
    assert {k: again.get(k) for k in NUMBERS} == {k: first.get(k) for k in NUMBERS}


@pytest.mark.parametrize(
    ("model", "engine"),
    [
        ("cosmos3-nano", "vllm-omni"),
        ("hunyuanvideo-1.5-i2v", "vllm-omni"),
        ("fasthunyuan", "sglang-diffusion"),
        ("cosmos3-super", "xdit"),
        ("flux.1-dev", "diffusers"),
        ("wan2.1-t2v-14b", "wan-official"),
        ("cosmos3-nano", "cosmos-official"),
    ],
)
def test_what_the_engine_chose_stays_its_choice(model, engine, capsys):
    first = answer(capsys, f"recommend --gpus 4xB300 --model {model} --engine {engine}".split())
    assert first["status"] == "ok"
    again = answer(capsys, shlex.split(first["command"])[1:])
    assert again["engine"]["assumed"] == first["engine"]["assumed"]
    assert {k: again[k] for k in NUMBERS if k in again} == {
        k: first.get(k) for k in NUMBERS if k in again
    }


def test_a_ratio_that_is_a_prior_is_not_stated(capsys):
    words = ["predict", "--gpus", "4xB300", "--parallel", "usp4", "--cache", "tea_cache"]
    first = answer(capsys, words)
    assert first["prediction"]["config_id"] == "usp4_cache-teacache"
    assert "cache_skip=0.45" not in first["command"]
    again = answer(capsys, shlex.split(first["command"])[1:])
    assert [w["rule_id"] for w in again["warnings"]] == [w["rule_id"] for w in first["warnings"]]
    stated = answer(capsys, [*words[:-1], "skip=0.45"])
    assert stated["prediction"]["config_id"] == "usp4_cache-0.45"
    assert stated["prediction"]["latency_ms"] == first["prediction"]["latency_ms"]
    assert stated["prediction"]["latency_high_ms"] < first["prediction"]["latency_high_ms"]


@pytest.mark.parametrize("part", ["cache-much", "cache-2", "sparse-7", "offload-away"])
def test_a_part_of_an_id_that_means_nothing_is_one_line(part, capsys):
    assert run(["predict", "--gpus", "4xB300", "--parallel", f"usp4_{part}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert part in line


@pytest.mark.parametrize(
    "typed",
    [
        "compare --gpus 4xB300 --vary dtype=bf16,fp8 --top 2",
        "compare --gpus 4xH100 --vary parallel=usp4,cfg2_usp2",
        "recommend --gpus 4xB300 --model flux.1-dev --engine any",
        "plan --gpus 1xRTX4090 --model cosmos3-super --max-runs 2",
        "plan --gpus 4xB300 --max-runs 2 --budget 1h30m --candidates usp4,cfg2_usp2 --use-all-gpus",
    ],
)
def test_side_by_side_and_plans_repeat_too(typed, capsys):
    first = answer(capsys, typed.split())
    again = answer(capsys, shlex.split(first["command"])[1:])
    assert first["command"]
    keys = ("status", "nearest_miss", "rows", "runs", "answer_id", "command", "minutes", "varied")
    assert {k: again.get(k) for k in keys} == {k: first.get(k) for k in keys}


def test_devices_that_fill_hosts_unevenly_or_tightly_keep_their_hosts(capsys):
    for gpus in ("12xH100", "1x16xH100", "2x4xH100"):
        first = answer(capsys, ["recommend", "--gpus", gpus])
        again = answer(capsys, shlex.split(first["command"])[1:])
        assert again["system"]["nodes"] == first["system"]["nodes"]
        assert again["system"]["gpus_per_node"] == first["system"]["gpus_per_node"]


def test_the_library_says_the_same_command():
    box = pm.system("4xL40S", gpu_memory_gib=40, p2p=False, host_ram_gib=100.5)
    said = pm.recommend(pm.Workload(frames=81), box, top=3, allow_lossy=True).command
    assert said is not None
    for words in ("--gpu-memory 40 ", "--no-p2p ", "--host-ram 100.5 ", "--top 3", "--allow-lossy"):
        assert words in f"{said} "


@pytest.mark.parametrize("option", ["cache_skip=0.333333333333", "attention_density=0.123456789"])
def test_shares_of_many_digits_are_repeated_to_the_last(option, capsys):
    words = ["predict", "--gpus", "4xB300", "--parallel", "ring2", "--option", option]
    first = answer(capsys, words)
    again = answer(capsys, shlex.split(first["command"])[1:])
    for key in ("command", "answer_id", "prediction"):
        assert again[key] == first[key]


@pytest.mark.parametrize(
    ("option", "part", "code"),
    [
        ("cache_skip=0.3", "cache-0.5", 2),
        ("cache_skip=0.3", "cache-0.3", 0),
        ("dtype=int8", "fp8", 2),
        ("dtype=bf16", "fp8", 0),
        ("offload=model", "offload-layer", 2),
        ("offload=auto", "offload-layer", 0),
    ],
)
def test_an_id_and_an_option_that_say_two_things_are_one_line(option, part, code, capsys):
    question = ["predict", "--gpus", "4xB300", "--parallel", f"usp2_{part}", "--option", option]
    assert run(question) == code
    if code:
        lines = [row for row in capsys.readouterr().err.splitlines() if row.startswith("error")]
        assert len(lines) == 1
        assert f'"{part}" in --parallel and --option {option} both state' in lines[0]
