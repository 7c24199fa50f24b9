"""Everything that a command prints with --json satisfies the schema that is published for it."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from perfmodel.catalog import detect
from perfmodel.cli.app import run
from perfmodel.cli.schema import schema

DIFFUSERS = Path(__file__).parent / "data" / "diffusers"
HARDWARE = Path(__file__).parents[1] / "hardware"


def printed(capsys, words: list[str]) -> tuple[int, dict]:
    code = run([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("models list", "models-list"),
        ("models show cosmos3-nano", "show"),
        ("hardware list", "hardware-list"),
        ("hardware show h100-sxm", "hardware-show"),
        (f"hardware check {HARDWARE / 'l40s.yaml'}", "hardware-check"),
        ("explain usp", "explain"),
        ("explain", "explain"),
    ],
)
def test_what_is_looked_up_has_a_version_and_a_schema(typed, name, capsys):
    code, answer = printed(capsys, typed.split())
    assert code == 0
    assert (answer["schema_version"], answer["status"]) == ("1.0", "ok")
    jsonschema.validate(answer, schema(name))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"schema_version": "1.0", "status": "ok"}, schema(name))


def test_a_detected_machine_has_a_version_and_a_schema(monkeypatch, capsys):
    found = detect.Found(
        name="NVIDIA L40S", count=4, memory_gib=44.9, host_ram_gib=None, sockets=2, p2p=False
    )
    monkeypatch.setattr(detect, "detect", lambda: found)
    code, answer = printed(capsys, ["hardware", "detect"])
    assert code == 0
    assert answer["count"] == 4
    jsonschema.validate(answer, schema("hardware-detect"))


def test_an_imported_model_has_a_version_and_a_schema(tmp_path, capsys):
    folder = sorted(path.parent for path in DIFFUSERS.rglob("model_index.json"))[0]
    words = ["models", "import", str(folder), "--out", str(tmp_path / "mine.yaml")]
    code, answer = printed(capsys, words)
    assert code == 0
    assert answer["schema_version"] == "1.0"
    jsonschema.validate(answer, schema("show"))


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("recommend --gpus 4xB999", "recommend"),
        ("recommend --gpus 4xB300 --no-such-flag", "recommend"),
        ("predict --gpus 4xB300 --parallel usp3x", "predict"),
        ("predict --gpus 4xB300 --parallel usp32 --engine xdit", "predict"),
        ("compare --gpus 4xB300", "compare"),
        ("plan --gpus 4xB300 --budget never", "plan"),
        ("verify --from nofile", "verify"),
        ("validate nofile", "validate"),
        ("validate nofile.jsonl", "validate"),
        ("models show nothing", "show"),
        ("models list --bogus", "models-list"),
        ("hardware show nothing", "hardware-show"),
        ("hardware check nofile.yaml", "hardware-check"),
        ("explain ulyses", "explain"),
        ("validate calibration/microbench --device nothing", "validate"),
    ],
)
def test_a_refusal_satisfies_the_schema_of_its_command_and_of_refusals(typed, name, capsys):
    code, answer = printed(capsys, typed.split())
    assert code in (2, 4)
    assert answer["problems"]
    jsonschema.validate(answer, schema(name))
    jsonschema.validate(answer, schema("refusal"))


def test_a_schema_takes_no_refusal_without_a_problem():
    for name in ("validate", "show", "hardware-list", "explain", "refusal"):
        for wrong in ({"status": "ok"}, {"status": "bad_input", "problems": []}):
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({"schema_version": "1.0", **wrong}, schema(name))
