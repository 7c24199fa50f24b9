"""Runs of several requests in flight, judged as one request alone; runs that answer nothing."""

from __future__ import annotations

import json

import pytest

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.cli.app import run
from perfmodel.engines.records import run_record
from perfmodel.spec.parallel import parse_parallel
from perfmodel.spec.workload import Workload

ASKED = ["--gpus", "4xB300", "--frames", "189"]


@pytest.fixture(scope="module")
def base():
    session = open_session(Workload(frames=189), catalog.parse_gpus("4xB300"))
    return run_record(session.context, parse_parallel("cfg2_usp2_vaepp4")[0], 4)


def verified(tmp_path, capsys, *records, extra=(), in_flight=4):
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    words = ["verify", *ASKED, "--concurrency", str(in_flight), "--study", "none"]
    words += ["--from", str(path)]
    code = run([*words, *extra])
    return code, capsys.readouterr()


@pytest.mark.parametrize(("of", "services"), [("mean", (1 + 2 + 3 + 4) / 4), ("last", 4)])
def test_a_stated_request_of_a_wave_is_judged_as_one_alone(tmp_path, capsys, base, of, services):
    record = {**base, "latency_of": of, "measured_ms": {"client": 30000.0 * services}}
    code, said = verified(tmp_path, capsys, record, extra=["--json"])
    assert code == 0
    (row,) = json.loads(said.out)["runs"]
    assert row["status"] == "measured"
    assert row["compared_ms"] == pytest.approx(30000)
    assert any("4 requests in flight" in note for note in row["notes"])


def test_what_may_hold_a_wait_is_left_out(tmp_path, capsys, base):
    """Servers differ in whether their own time counts from the arrival."""
    times = {"client": 75000.0, "client_max": 120000.0, "server": 75000.0, "denoise": 25000.0}
    record = {**base, "latency_of": "mean", "measured_ms": times}
    _, said = verified(tmp_path, capsys, record, extra=["--json"])
    answer = json.loads(said.out)
    assert answer["compared_by"] == "client"
    (row,) = answer["runs"]
    seen = {stage["stage"]: stage["measured_ms"] for stage in row["stages"]}
    assert seen["denoise"] == 25000.0
    assert row["compared_ms"] == pytest.approx(30000)


def test_an_unstated_request_of_a_wave_is_set_aside_with_what_is_missing(tmp_path, capsys, base):
    code, said = verified(tmp_path, capsys, {**base, "measured_ms": {"client": 75000.0}})
    assert code == 2
    assert "latency_of names none" in said.err
    assert "try runs of one request at a time" in said.err
    assert "the flags that were measured" not in said.err


def test_the_ranking_is_by_the_requests_in_flight_and_says_so(tmp_path, capsys, base):
    alone = {**base, "concurrency": 1, "num_outputs": 1, "measured_ms": {"server": 31000.0}}
    other = {**alone, "num_gpus": 2, "parallel": {"cfg_parallel_size": 2}}
    other["measured_ms"] = {"server": 54000.0}
    code, said = verified(tmp_path, capsys, alone, other, extra=["--json"], in_flight=16)
    assert code == 0
    rows = {row["config_id"]: row for row in json.loads(said.out)["ranking"]}
    of_four, of_two = rows["cfg2_usp2_vaepp4"], rows["cfg2_tiling"]
    # of 16 on one server the mean is done after 8.5 services, on two after 4.5
    assert of_two["rank"] < of_four["rank"]
    assert of_two["vs_best_pct"] < of_four["vs_best_pct"]
    ratio = (of_four["vs_best_pct"] + 100) / (of_two["vs_best_pct"] + 100)
    assert ratio == pytest.approx(31 * 8.5 / (54 * 4.5))
    _, said = verified(tmp_path, capsys, alone, other, in_flight=16)
    page = " ".join(said.out.split())
    assert "the mean of the 16 in flight" in page
    assert "VERDICT The pick cfg2_tiling held: the fastest of 2 by the mean of 16 in flight" in page
    _, said = verified(tmp_path, capsys, alone, other, in_flight=1)
    assert "VERDICT The pick cfg2_usp2_vaepp4 held: the fastest of 2 by the server's own time" in (
        " ".join(said.out.split())
    )


@pytest.mark.parametrize(
    ("engine", "said"),
    [("vllm-omni", "requests to the server at once"), ("xdit", "one request at a time")],
)
def test_a_plan_says_what_its_runs_send(capsys, engine, said):
    for in_flight in (4, 1):
        words = ["plan", *ASKED, "--engine", engine, "--max-runs", "1"]
        assert run([*words, "--concurrency", str(in_flight)]) == 0
        page = " ".join(capsys.readouterr().out.split())
        assert (said in page) is (in_flight > 1)


@pytest.mark.parametrize(
    ("changed", "listed"),
    [
        ({"error": "out of memory"}, True),
        ({"measured_ms": {"client": 31.8}}, True),
        ({"frames": -1}, False),
        ({"gpu": ""}, False),
        ({"parallel": {"foo": 2}}, False),
        ({"measured_ms": {"unheard": 5.0}}, False),
    ],
)
def test_no_record_that_answers_is_exit_code_2_with_the_reasons(
    tmp_path, capsys, base, changed, listed
):
    record = {**base, "concurrency": 1, "num_outputs": 1, "measured_ms": {"client": 31800.0}}
    assert verified(tmp_path, capsys, record)[0] == 0
    code, said = verified(tmp_path, capsys, {**record, **changed})
    assert code == 2
    assert "error[results]: no record answers the question" in said.err
    assert ("not used" in said.out) is listed
    assert ("1 of 1: " in said.err) is not listed
    code, said = verified(tmp_path, capsys, {**record, **changed}, extra=["--json"])
    assert code == 2
    assert json.loads(said.out)["status"] == "bad_input"
    # one that answers beside it is enough
    assert verified(tmp_path, capsys, record, {**record, **changed})[0] == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("concurrency", 0),
        ("concurrency", 10**9),
        ("ref_images", -3),
        ("ref_images", 10**9),
        ("input_images", -3),
    ],
)
def test_absurd_counts_in_a_record_are_said_and_left_out(tmp_path, capsys, base, name, value):
    good = {**base, "concurrency": 1, "num_outputs": 1, "measured_ms": {"client": 31800.0}}
    code, said = verified(tmp_path, capsys, good, {**good, name: value}, extra=["--json"])
    assert code == 0
    assert len(json.loads(said.out)["runs"]) == 1
    assert f"results.jsonl:2: {name}: " in said.err
    assert str(value) in said.err


def test_input_images_may_go_by_the_name_of_the_flag(tmp_path, capsys, base):
    record = {**base, "concurrency": 1, "num_outputs": 1, "measured_ms": {"client": 31800.0}}
    code, said = verified(tmp_path, capsys, {**record, "input_images": 2})
    assert code == 2
    assert "2 input image(s), asked 0" in said.err
