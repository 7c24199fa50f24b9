"""Clips in chunks: answers state the steps of the request, times are those of all chunks."""

from __future__ import annotations

import json
import shlex

import pytest

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.catalog import load_model
from perfmodel.cli.app import run
from perfmodel.engines.records import run_record
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.record import RunRecord
from perfmodel.spec.workload import Workload
from perfmodel.validate.predicted import predict_record
from perfmodel.verify.sort import Taken, sort

ASKED = [
    ("helios-mid", "vllm-omni", 132, 4),
    ("helios-base", "vllm-omni", 40, 2),
    ("cosmos-transfer2.5-2b", "diffusers", 190, 3),
]
CASES = pytest.mark.parametrize(("model", "engine", "frames", "chunks"), ASKED)


def recommended(capsys, words: list[str]) -> dict:
    assert run([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@CASES
def test_the_request_and_the_command_state_the_steps_of_a_chunk(
    capsys, model, engine, frames, chunks
):
    spec = load_model(model)
    steps = spec.tasks[spec.default_task].steps
    words = ["recommend", "--gpus", "1xB300", "--model", model, "--engine", engine]
    answer = recommended(capsys, [*words, "--frames", str(frames)])
    work, best = answer["workload"], answer["recommendations"][0]
    assert (work["steps"], work["run_steps"]) == (steps, steps * chunks)
    sent = [text for text in best["commands"].values() if text and "num_inference_steps" in text]
    assert sent
    for text in sent:
        value = text.split("num_inference_steps", 1)[1].lstrip("'\":= ")
        assert value.startswith(str(steps))
        assert not value[len(str(steps))].isdigit()
    assert best["denoise_per_step_ms"] * steps * chunks == pytest.approx(
        best["stages_ms"]["denoise"], rel=1e-9
    )
    again = recommended(capsys, shlex.split(answer["command"])[1:])
    assert again["recommendations"][0]["latency_ms"] == pytest.approx(best["latency_ms"], rel=1e-12)


@CASES
def test_a_record_of_the_request_is_the_same_question(model, engine, frames, chunks):
    asked = Workload(model=model, frames=frames)
    session = open_session(asked, catalog.parse_gpus("1xB300"), engine=engine)
    base = run_record(session.context, ParallelConfig())
    spec = load_model(model)
    assert base["steps"] == spec.tasks[spec.default_task].steps
    times = {"denoise": 1000.0, "denoise_per_step": 1.0}
    record = RunRecord.model_validate({**base, "measured_ms": times})
    taken, aside = sort([record], session)
    assert [type(one) for one in taken] == [Taken], aside
    predicted = predict_record(record).predicted_ms
    steps = base["steps"] * chunks
    assert predicted["denoise_per_step"] * steps == pytest.approx(predicted["denoise"])
