"""The first recommendation is one that nothing else which fits beats in both time and memory."""

from __future__ import annotations

import pytest

import perfmodel as pm

# Each machine holds some configurations only just: a faster one may run out of memory.
QUESTIONS = [
    ("wan2.2-t2v-a14b", "4xL40S", "vllm-omni"),
    ("wan2.2-t2v-a14b", "8xL40S", "vllm-omni"),
    ("wan2.1-t2v-14b", "2xRTX-5090", "vllm-omni"),
    ("wan2.2-ti2v-5b", "4xRTX-4090", "vllm-omni"),
    ("ovis-image", "2xRTX-4090", "vllm-omni"),
    ("flux.2-dev", "4xL40S", "sglang-diffusion"),
    ("hunyuanvideo", "4xL40S", "xdit"),
    ("cosmos3-super-t2i", "2xH100-SXM", "vllm-omni"),
    ("cosmos3-nano", "4xRTX-5090", "vllm-omni"),
]


@pytest.mark.parametrize("lossy", [False, True])
@pytest.mark.parametrize(("model", "gpus", "engine"), QUESTIONS)
def test_nothing_that_fits_beats_the_first_in_time_and_memory(model, gpus, engine, lossy):
    answer = pm.recommend(pm.Workload(model=model), gpus, engine=engine, allow_lossy=lossy, top=200)
    if answer.status != "ok":
        pytest.skip("nothing fits")
    best, *others = answer.recommendations
    sure = [row for row in others if row.fit_status == "fits"]
    if sure:
        assert best.fit_status == "fits"
    better = [
        row.config_id
        for row in sure
        if row.latency_ms < best.latency_ms and row.peak_memory_gib <= best.peak_memory_gib
    ]
    assert better == []
    # a negative difference is a tie that gave way to less memory, or what may not fit
    for row in others:
        assert row.vs_best_pct >= 0 or row.tied_with_best or row.fit_status == "tight"


def test_a_faster_configuration_that_may_not_fit_takes_no_tie_away():
    answer = pm.recommend(pm.Workload(model="wan2.2-t2v-a14b"), "4xL40S", top=100)
    rows = {row.config_id: row for row in answer.recommendations}
    tight = [row for row in rows.values() if row.fit_status == "tight"]
    best = answer.recommendations[0]
    assert min(row.latency_ms for row in tight) < best.latency_ms
    fitting = [row for row in rows.values() if row.fit_status == "fits"]
    assert best.latency_ms == min(row.latency_ms for row in fitting)
    assert not any(row.tied_with_best for row in tight)


def test_cost_is_the_time_of_all_devices_of_a_request():
    """The cheapest may be slow: device-seconds, least first."""
    asked = {"workload": pm.Workload(model="cosmos3-nano", frames=93), "system": "4xH100-SXM"}
    cheap = pm.recommend(**asked, objective="cost", top=40).recommendations
    spent = [row.num_gpus * row.latency_ms for row in cheap]
    assert spent[0] == min(spent)
    assert spent == pytest.approx(sorted(spent), rel=0.05)  # ties go by memory
    assert cheap[0].num_gpus < pm.recommend(**asked).recommendations[0].num_gpus
