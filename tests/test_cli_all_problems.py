"""All problems are said at once, and none that only follows from another."""

from __future__ import annotations

import pytest

import perfmodel as pm
from perfmodel.cli.app import run


def errors(capsys, text: str) -> list[str]:
    assert run(text.split()) == 2
    lines = capsys.readouterr().err.splitlines()
    return [line.partition("]")[0].removeprefix("error[") for line in lines if "error[" in line]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            "--gpus 4xH100 --model nope --engine nope --dtype fp5",
            ["dtype", "engine-name", "model-name"],
        ),
        ("--gpus 4xH100 --model nope --engine nope", ["engine-name", "model-name"]),
        ("--gpus 4xnope --model nope", ["gpu-name", "model-name"]),
        ("--gpus 4xH100 --model nope", ["model-name"]),
        ("--gpus 4xH100 --engine nope --steps 0", ["engine-name", "steps"]),
    ],
)
def test_names_are_refused_with_the_values(capsys, flags, expected):
    assert sorted(errors(capsys, f"recommend {flags}")) == expected
    assert sorted(errors(capsys, f"predict {flags} --parallel usp2")) == expected


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        (
            "--gpus 4xH100 --model hunyuanvideo --engine vllm-omni --parallel usp4_vaepp4",
            ["model-not-in-engine"],
        ),
        (
            "--gpus 4xH100 --model cogvideox-5b --engine vllm-omni --parallel usp4_vaepp4"
            " --dtype fp8wo --vae-mode spatial_shard_height",
            ["model-not-in-engine"],
        ),
        (
            "--gpus 2xH100 --model hunyuanvideo --engine wan-official --parallel usp4_tp2",
            ["model-not-in-engine", "world-size"],
        ),
        ("--gpus 4xH100 --model cosmos3-nano --parallel usp3_cfg3", ["cfg", "ulysses", "world"]),
    ],
)
def test_of_a_model_that_the_engine_lacks_nothing_else_is_said(capsys, question, expected):
    found = errors(capsys, f"predict {question}")
    assert [name[: len(start)] for name, start in zip(sorted(found), expected, strict=True)] == (
        expected
    )


def test_every_refused_layout_of_such_a_model_is_refused_still():
    with pytest.raises(pm.Refused) as refused:
        pm.predict(pm.Workload(model="hunyuanvideo"), "4xH100-SXM", parallel="usp4_tp2")
    assert "model-not-in-engine" in [one.rule_id for one in refused.value.problems]
