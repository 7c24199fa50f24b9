"""Runs that state no version: verify and validate date them by the same source."""

from __future__ import annotations

import json

import pytest

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.cli.app import run
from perfmodel.engines.records import run_record
from perfmodel.spec.parallel import parse_parallel
from perfmodel.spec.record import RunRecord
from perfmodel.spec.workload import Workload
from perfmodel.validate.questions import question, version_of

PULL = "https://github.com/vllm-project/vllm-omni/pull/4467"


@pytest.fixture(scope="module")
def base():
    session = open_session(Workload(frames=189), catalog.parse_gpus("4xB300"))
    record = run_record(session.context, parse_parallel("cfg2_usp2_vaepp4")[0])
    return {**record, "measured_ms": {"server": 31000.0}, "source": PULL, "vae_fast_path": None}


@pytest.mark.parametrize(
    ("version", "day", "expected"),
    [
        ("0.24.0", "2026-06-15", ("0.24.0", True)),
        (None, "2026-06-15", ("2026-06-15", False)),
        ("main@46e0b714", "2026-06-15", ("2026-06-15", False)),
    ],
)
def test_the_version_of_a_run_is_its_release_else_the_day_of_its_source(
    base, version, day, expected
):
    record = RunRecord.model_validate({**base, "engine_version": version, "source_date": day})
    assert version_of(record) == expected
    asked = question(record)
    assert asked.engine == f"vllm-omni@{expected[0]}"
    assert ("engine_version" in asked.assumed) is not expected[1]


@pytest.mark.parametrize(
    ("changed", "engine", "said"),
    [
        ({"engine_version": None, "source_date": "2026-06-15"}, "vllm-omni", True),
        ({"engine_version": None, "source_date": "2026-06-15"}, "vllm-omni@2026-06-15", False),
        ({"engine_version": None, "source_date": "2026-11-01"}, "vllm-omni", False),
        ({"engine_version": "0.30.0", "source_date": "2026-06-15"}, "vllm-omni", False),
        ({"engine_version": None, "source": "local"}, "vllm-omni", False),
    ],
)
def test_verify_says_which_runs_it_reads_as_a_later_release(
    tmp_path, capsys, base, changed, engine, said
):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({**base, **changed}) + "\n")
    words = ["verify", "--gpus", "4xB300", "--frames", "189", "--engine", engine]
    assert run([*words, "--study", "none", "--json", "--from", str(path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["status"] == "measured"
    notes = [note for note in row["notes"] if "no version stated" in note]
    assert bool(notes) is said
    if said:
        assert "2026-06-15" in notes[0]
        assert "read as 0.30.0; --engine vllm-omni@2026-06-15" in notes[0]


@pytest.mark.parametrize(
    ("day", "reason"), [("2026-06-15", "the source's date"), (None, "the newest is taken")]
)
def test_a_miss_names_what_stood_in_for_the_version(tmp_path, capsys, base, day, reason):
    path = tmp_path / "runs.jsonl"
    changed = {"engine_version": None, "source_date": day, "measured_ms": {"e2e": 60000.0}}
    record = {**base, **changed, "source": "local"}
    path.write_text(json.dumps(record) + "\n")
    assert run(["validate", str(path), "--json"]) == 0
    (worst,) = json.loads(capsys.readouterr().out)["records_detail"]
    assert reason in worst["likely_reason"]
