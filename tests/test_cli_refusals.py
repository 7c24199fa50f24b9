"""What is typed wrongly: a line a problem, exit code 2, and nothing written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import perfmodel
from perfmodel.cli.app import run
from perfmodel.engines import engine
from perfmodel.errors import BadInput
from perfmodel.spec.parallel import MOST_DEGREE, parse_parallel

GPUS = ("--gpus", "4xB300")
HUGE = "9" * 25


def refusals(capsys) -> list[str]:
    captured = capsys.readouterr()
    assert captured.out == ""
    return [line for line in captured.err.splitlines() if line.startswith("error[")]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["predict", f"--parallel=usp{HUGE}"], ("error[degree]", HUGE, "--parallel", "1 to 100,0")),
        (["predict", f"--parallel=usp={HUGE}"], ("error[degree]", HUGE, "--parallel")),
        (["predict", "--parallel=hsdp99999x99999"], ("error[degree]", "9,999,800,001 ranks")),
        (["predict", "--set=denoise=1e308"], ("error[set]", "1e308", "0 to 1e+12")),
        (["predict", "--measured=denoise=1e308"], ("error[measured]", "1e308")),
        (["predict", "--engine=vllm-omni@1999-01-01"], ("1999-01-01", "2025-12-01", "--engine")),
        (["predict", "--engine=xdit@1999-01-01"], ("1999-01-01", "2024-01-01", "--engine")),
        (["recommend", "--fps=1e-9"], ("error[fps]", "--fps 1e-09", "3,600 s", "try --fps 24")),
        (["recommend", "--task=i2v", "--input-images=0"], ("--input-images 0", "needs 1 or more")),
        (["recommend", "--task=t2v", "--input-images=3"], ("takes none", "try --task i2v")),
        (
            ["recommend", "--model=qwen-image-edit", "--input-images=0"],
            ("error[input-images]", "qwen-image-edit i2i needs 1 or more"),
        ),
        (["recommend", "--option=attention_density=0"], ("attention_density", "up to 1")),
        (["recommend", "--option=cache_skip=0.99999"], ("0.99999", "skip=0 to skip=0.99")),
        (["recommend", "--engine="], ("error[engine]", "--engine is empty", "vllm-omni")),
        (["recommend", "--dtype="], ("error[dtype]", "--dtype is empty", "--dtype bf16")),
        (["recommend", "--attention="], ("--attention is empty",)),
        (["recommend", "--out="], ("--out is empty",)),
        (["recommend", "--gpus=8xH200"], ("--gpus 4xB300 and --gpus 8xH200", "--gpus once")),
        (["recommend", "--option=dtype=fp8", "--option=dtype=bf16"], ("dtype=bf16 and fp8",)),
        (["compare", "--vary=steps=1,,2"], ("error[vary]", "steps=1,,2", "empty value")),
        (["compare", "--vary=steps="], ("error[vary]", "names no values")),
        (["recommend", "--option=compile=maybe"], ("legal: on, off", "try --option compile=on")),
        (["recommend", "--option=ulysses_mode=x"], ("try --option ulysses_mode=strict",)),
        (["recommend", "--attention=nope"], ("NOPE is no backend of vllm-omni", "legal here:")),
        (["recommend", "--out=a\0b"], ("error[out]", "NUL byte")),
        (["recommend", "--commands="], ("error[commands]",)),
        (["recommend", "--commands=nan"], ("error[commands]", "nan", "a folder")),
        (["recommend", "--commands=1.5"], ("error[commands]", "1.5", "0 to 999")),
        (["recommend", "--commands=1e3"], ("error[commands]", "1e3")),
    ],
)
def test_one_line_names_the_value_and_what_is_right(argv, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run([argv[0], *GPUS, *argv[1:]]) == 2
    (line,) = refusals(capsys)
    assert all(word in line for word in words), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", ["vllm serve nvidia/Cosmos3-Nano --omni --usp", "sglang"])
def test_a_huge_degree_of_a_launch_command(command, capsys):
    if command == "sglang":
        command = "sglang serve --model-path nvidia/Cosmos3-Nano --ulysses-degree"
    assert run(["predict", *GPUS, "--", *command.split(), HUGE]) == 2
    (line,) = refusals(capsys)
    assert HUGE in line
    assert "1 to 100,000" in line


def test_ranks_up_to_the_bound_are_read():
    assert parse_parallel(f"usp{MOST_DEGREE}")[0].ulysses == MOST_DEGREE
    for text in (f"usp{MOST_DEGREE + 1}", "usp0", f"cfg=2,ulysses={MOST_DEGREE}"):
        with pytest.raises(BadInput):
            parse_parallel(text)


def test_the_first_known_day_is_answered():
    assert engine("vllm-omni").version("2025-12-01").date == "2025-12-01"
    with pytest.raises(BadInput):
        engine("vllm-omni").version("2025-11-30")
    assert engine("vllm-omni").version(None, "2025-11-01").date == "2025-12-01"


def test_the_same_value_twice_is_one(capsys):
    assert run(["recommend", *GPUS, *GPUS, "--dump-config"]) == 0
    assert "gpus: 4xB300" in capsys.readouterr().out


def test_legal_values_are_apart(capsys):
    assert run(["recommend", *GPUS, "--option", "compile=maybe", "--json"]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["legal_values"] == ["on", "off"]
    assert problem["suggestions"] == ["--option compile=on"]


@pytest.mark.parametrize(
    ("command", "name", "text", "code"),
    [
        ("recommend", "photo.png", "pixels", 2),
        ("recommend", "package.json", "{}", 2),
        ("recommend", "answer.json", '{"schema_version":"1.0"}', 0),
        ("recommend", "answer.md", "# old", 0),
        ("recommend", "fresh", "", 0),
        ("plan", "sweep", "", 2),
        ("plan", "notes", "mine", 2),
    ],
)
def test_only_answers_are_overwritten(command, name, text, code, tmp_path, capsys):
    path = tmp_path / name
    path.write_text(text)
    assert run([command, *GPUS, "--out", str(path)]) == code
    assert (path.read_text() == text) is (code == 2)
    assert ("remove it first" in capsys.readouterr().err) is (code == 2)


@pytest.mark.parametrize("limit", [("1", 5), ("1e9", 0)])
def test_compare_misses_a_limit_as_recommend_does(limit, capsys):
    text, code = limit
    argv = ["compare", *GPUS, "--vary", "steps=1,2", "--max-latency", text]
    assert run(argv) == code
    assert ("error[max-latency]" in capsys.readouterr().err) is (code == 5)


def test_results_without_a_record_are_no_verdict(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    path.write_text('{"x": 1}\n')
    assert run(["verify", *GPUS, "--from", str(path)]) == 2
    assert any("no run record" in line for line in refusals(capsys))


def test_idle_gpus_are_told_once(capsys):
    assert run(["predict", *GPUS]) == 0
    assert capsys.readouterr().err.count("warning[idle-gpus]") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("to", [">&-", ">/dev/full"])
@pytest.mark.parametrize(
    "typed",
    ["models list", "schema recommend", "explain usp", "--version", "bench --help", "bogus --json"],
)
def test_a_stdout_that_takes_nothing_is_one_line(typed, to):
    command = f'"{sys.executable}" -m perfmodel {typed} {to}'
    done = subprocess.run(
        ["/bin/sh", "-c", command], capture_output=True, text=True, env=os.environ, check=False
    )
    assert done.returncode == 2
    lines = done.stderr.splitlines()
    assert [line for line in lines if line.startswith("error[stdout]")] == lines[-1:]
    assert all(line.startswith("error[") for line in lines)


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["validate", "nosuch.csv"], "error[records-missing]: nosuch.csv: does not exist"),
        (
            ["calibrate", "--records", "r", "--device", "l40s", "--trials", "-1"],
            "error[usage]: --trials -1: Input should be greater than or equal to 1",
        ),
        (["calibrate", "--runs", "r", "--seed=x"], "error[usage]: --seed x: Input should be"),
    ],
)
def test_a_value_that_typer_refuses_is_named(argv, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(argv) == 2
    (found,) = refusals(capsys)
    assert found.startswith(line)


def test_extras_are_installed_from_the_source():
    """perfmodel is on no index: no text tells to install it from there."""
    root = Path(perfmodel.__file__).parent
    texts = [*root.rglob("*.py"), *root.parent.glob("*.md"), *root.parent.glob("*/*.md")]
    for path in texts:
        text = path.read_text()
        assert not re.search(r"pip install '?perfmodel\b", text), path
