"""Hosts with terms of their own, and files that are encoded one after another."""

from dataclasses import replace

import numpy as np
import pytest

from perfmodel import catalog
from perfmodel.calibrate.runs.cases import cases_of
from perfmodel.calibrate.runs.hosts import fit_hosts, with_hosts
from perfmodel.engines.base import Behaviour
from perfmodel.spec.record import RunRecord, read_records
from perfmodel.validate.predicted import predict_record
from perfmodel.validate.questions import question
from perfmodel.validate.waiting import waited

RECORDS = read_records(catalog.data_files("calibration/runs/public.jsonl"))[0]
HOST, STATED = next(iter(catalog.own_terms("vllm-omni")["hosts"].items()))
OF_HOST = [r for r in RECORDS if r.source == STATED["source"]]


def run(**fields) -> RunRecord:
    return RunRecord(id="x", engine="vllm-omni", model="cosmos3-nano", gpu="b300-sxm", **fields)


def behaviour(*, in_turn: bool) -> Behaviour:
    named = {"engine": "e", "version": "1", "date": "2026-01-01", "terms": "e"}
    return Behaviour(**named, encodes_in_turn=in_turn)


# One after another


@pytest.mark.parametrize(
    ("of", "end", "files"),
    [("last", "mid", 3), ("mean", "high", 1.5), (None, "low", 1.5), (None, "mid", 2.25)],
)
def test_of_four_requests_that_end_together_the_last_waits_for_three_files(of, end, files):
    record = run(concurrency=4, latency_of=of, parallel={"data_parallel_size": 4})
    found = waited(record, behaviour(in_turn=True), {"client": 100.0, "denoise": 80.0}, 10.0, end)
    assert found == {"client": 100.0 + files * 10.0, "denoise": 80.0}


def test_files_of_one_replica_or_of_servers_that_encode_beside_one_another_do_not_wait():
    alone = run(concurrency=1, parallel={"data_parallel_size": 4})
    assert waited(alone, behaviour(in_turn=True), {"client": 100.0}, 10.0, "mid")["client"] == 100
    wave = run(concurrency=4, parallel={"data_parallel_size": 4})
    assert waited(wave, behaviour(in_turn=False), {"client": 100.0}, 10.0, "mid")["client"] == 100
    queued = run(concurrency=4)
    assert waited(queued, behaviour(in_turn=True), {"e2e": 100.0}, 10.0, "high")["e2e"] == 400


@pytest.mark.parametrize("end", ["low", "mid", "high"])
@pytest.mark.parametrize(("of", "times"), [("mean", (1 + 2 + 3 + 4) / 4), ("last", 4)])
def test_a_stated_request_of_a_wave_waits_as_long_at_every_end(of, times, end):
    """Four at once on one server are done after 1, 2, 3 and 4 services."""
    queued = run(concurrency=4, latency_of=of)
    found = waited(queued, behaviour(in_turn=False), {"client": 100.0}, 0.0, end)
    assert found == {"client": 100.0 * times}
    open_ = waited(run(concurrency=4), behaviour(in_turn=False), {"client": 100.0}, 0.0, end)
    assert 250 <= open_["client"] <= 400


# Hosts


def test_a_host_belongs_to_one_source_on_one_device():
    record = OF_HOST[0]
    assert question(record).host == HOST
    assert question(record.model_copy(update={"source": None})).host is None
    assert question(record.model_copy(update={"gpu": "b200-sxm"})).host is None


def test_its_term_changes_nothing_but_the_file():
    record = next(r for r in OF_HOST if (r.frames or 1) > 100 and r.concurrency == 1)
    own = predict_record(record).answer.prediction
    usual = predict_record(record.model_copy(update={"source": None})).answer.prediction
    pixels = record.width * record.height * record.frames
    rates = [STATED["terms"]["media_pixels_per_s"]["value"]]
    rates.append(catalog.load_terms("vllm-omni")["terms"]["media_pixels_per_s"]["value"])
    files = [one.stages_ms.video_encode for one in (own, usual)]
    assert files[0] - files[1] == pytest.approx(pixels * (1 / rates[0] - 1 / rates[1]) * 1e3)
    assert own.latency_ms - usual.latency_ms == pytest.approx(files[0] - files[1])


def test_the_term_of_a_host_is_found_again_from_runs_made_with_it():
    cases = cases_of([r for r in OF_HOST if (r.frames or 1) > 1])
    made = []
    for case in cases:
        there = replace(case, host_terms={"media_pixels_per_s": 2e6})
        outcome = there.outcome(there.terms({}))
        targets = dict(zip(case.targets, np.exp(outcome.log_s), strict=True))
        made.append(replace(case, targets=targets))
    (found,) = fit_hosts("vllm-omni", made, {})
    assert found.value == pytest.approx(2e6, rel=0.01)
    assert found.after < 0.01 < found.before
    stored = with_hosts({HOST: STATED}, [found])[HOST]["terms"]["media_pixels_per_s"]
    assert (stored["value"], stored["provenance"]) == (found.value, "fitted")


def test_too_few_runs_leave_the_engines_value():
    (found,) = fit_hosts("vllm-omni", cases_of(OF_HOST[:3]), {})
    assert found.value == STATED["terms"]["media_pixels_per_s"]["prior"]
    stored = with_hosts({HOST: STATED}, [found])[HOST]["terms"]["media_pixels_per_s"]
    assert stored["provenance"] == "prior"


def test_runs_from_elsewhere_leave_a_host_as_it_is_stated():
    others = [r for r in RECORDS if r.engine == "vllm-omni" and r.source != OF_HOST[0].source]
    found = fit_hosts("vllm-omni", cases_of(others[:3]), {})
    assert found == ()
    assert with_hosts({HOST: STATED}, found) == {HOST: STATED}


# Queues


@pytest.mark.parametrize(("of", "end", "times"), [("mean", "high", 2.5), ("last", "low", 4.0)])
def test_a_stated_mean_or_last_of_a_wave_is_not_a_range(of, end, times):
    queued = run(concurrency=4, latency_of=of)
    found = waited(queued, behaviour(in_turn=False), {"e2e": 100.0}, 10.0, end)
    assert found["e2e"] == pytest.approx(100.0 * times)
