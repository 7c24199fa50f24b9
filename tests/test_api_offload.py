"""Offload: what auto settles on, what fp8 saves under it, what a miss says to type."""

import shlex

import pytest

import perfmodel as pm
from perfmodel.api.offload import host_needs
from perfmodel.api.session import open_session
from perfmodel.plan.make import plan, run_records
from perfmodel.spec.record import RunRecord
from perfmodel.verify.verdict import verify

FLUX = pm.Workload(model="flux.1-dev")


def recommended(offload, gpus="1xRTX-4090", model="flux.1-dev", host_ram_gib=64.0, **settings):
    system = pm.system(gpus, host_ram_gib=host_ram_gib)
    return pm.recommend(
        pm.Workload(model=model), system, options=pm.Options(offload=offload), **settings
    )


def test_fp8_beside_the_answer_takes_as_long_as_fp8_in_it():
    plain = recommended("layerwise")
    (fp8,) = (c for c in plain.lossy_options if c.latency_ms)
    ranked = recommended("layerwise", allow_lossy=True, top=20).recommendations
    (same,) = (one for one in ranked if one.config_id == fp8.config_id)
    assert fp8.latency_ms == pytest.approx(same.latency_ms)
    assert fp8.memory_gib == pytest.approx(same.peak_memory_gib)


@pytest.mark.parametrize("offload", ["none", "layerwise"])
def test_what_is_ranked_is_not_listed_as_left_out(offload):
    gpus = "1xRTX-4090" if offload == "layerwise" else "1xB300"
    allowed = recommended(offload, gpus, allow_lossy=True)
    assert any(one.options["dtype"] == "fp8" for one in allowed.recommendations)
    assert all("fp8" not in choice.title for choice in allowed.lossy_options)
    assert any("fp8" in choice.title for choice in recommended(offload, gpus).lossy_options)


def test_auto_offloads_nothing_where_all_fits():
    auto, none = recommended("auto", "1xB300"), recommended("none", "1xB300")
    assert auto.engine.options["offload"] == "none"
    assert auto.recommendations == none.recommendations


def test_auto_takes_the_least_mode_that_fits():
    auto = recommended("auto")
    mode = auto.engine.options["offload"]
    order = ("none", "text-encoder", "model", "layerwise")
    statuses = {one: recommended(one).status for one in order[: order.index(mode) + 1]}
    assert statuses.pop(mode) == "ok"
    assert statuses
    assert set(statuses.values()) == {"does_not_fit"}
    assert auto.recommendations == recommended(mode).recommendations
    assert auto.recommendations[0].options["offload"] == mode
    assert f"--option offload={mode}" in auto.command


def test_auto_offloads_nothing_that_the_host_cannot_hold():
    poor = recommended("auto", host_ram_gib=8.0)
    assert poor.status == "does_not_fit"
    assert poor.engine.options["offload"] == "none"


def test_auto_holds_for_one_configuration_too():
    options = pm.Options(offload="auto")
    found = pm.predict(FLUX, "1xRTX-4090", parallel="tiling", options=options)
    mode = found.engine.options["offload"]
    assert (found.status, mode != "none") == ("ok", True)
    assert found.prediction.options["offload"] == mode
    large = pm.predict(FLUX, "1xB300", options=options)
    assert large.engine.options["offload"] == "none"
    columns = pm.predict_all(FLUX, "1xRTX-4090", options=options)
    assert columns["fits"].any()


def test_a_miss_says_what_to_type_and_typing_it_helps():
    answer = recommended("none")
    assert answer.status == "does_not_fit"
    suggestions = answer.problems[0].suggestions
    assert any(text.startswith("--offload ") for text in suggestions)
    titles = [choice.title for choice in answer.would_fit if choice.option]
    assert titles == [text for text in suggestions if not text.startswith("--gpus")]
    for text in suggestions:
        words = shlex.split(text)
        flags = dict(zip(words[::2], words[1::2], strict=True))
        gpus = flags.pop("--gpus", "1xRTX-4090")
        assert set(flags) <= {"--offload", "--vae-tiling"}
        options = pm.Options(**{k[2:].replace("-", "_"): v for k, v in flags.items()})
        assert pm.recommend(FLUX, gpus, options=options).status == "ok", text


@pytest.mark.parametrize(
    ("host_ram_gib", "needs"),
    [(None, "--host-ram"), (8, "host RAM, the host has 8"), (64, "host RAM")],
)
def test_host_ram_is_asked_for_only_where_it_is_unknown(host_ram_gib, needs):
    system = pm.system("1xRTX-4090", host_ram_gib=host_ram_gib)
    assert host_needs(system, 40.0 * 1024**3) == f"40 GiB {needs}"
    answer = recommended("none", host_ram_gib=host_ram_gib)
    asked = [choice.needs for choice in answer.would_fit if choice.host_memory_gib]
    assert asked
    assert all(("--host-ram" in text) == (host_ram_gib is None) for text in asked)


def test_the_runs_of_a_plan_ask_for_the_mode_that_auto_settled_on():
    options = pm.Options(offload="auto")
    system = pm.system("1xRTX-4090")
    made = plan(FLUX, system, options=options)
    records = run_records(open_session(FLUX, system, options=options), made)
    assert made.engine.options["offload"] != "none"
    assert records
    assert {one["offload"] for one in records} == {made.engine.options["offload"]}


def test_results_of_such_a_plan_belong_to_its_question():
    options = pm.Options(offload="auto")
    asked = open_session(FLUX, pm.system("1xRTX-4090"), options=options)
    made = plan(FLUX, "1xRTX-4090", options=options)
    measured = {"server": made.runs[0].prediction.latency_ms}
    ran = run_records(asked, made)[0]
    record = RunRecord.model_validate({**ran, "measured_ms": measured, "repeats": 3})
    (run,) = verify(asked, [record]).runs
    assert run.status == "measured"
    assert run.error_pct == pytest.approx(0, abs=1e-6)


def test_a_machine_that_nothing_fits_is_offered_gathered_blocks_over_several_gpus():
    missed = recommended("none", "2xRTX-4090", "cosmos3-super", host_ram_gib=None)
    (gathered,) = (one for one in missed.would_fit if "layerwise-gather" in (one.option or ""))
    assert gathered.num_gpus == 2
    again = recommended("layerwise-gather", "2xRTX-4090", "cosmos3-super", host_ram_gib=None)
    assert again.status == "ok"
    alone = recommended("none", "1xRTX-4090", "cosmos3-super", host_ram_gib=None)
    assert [one.option for one in alone.would_fit if "layerwise" in (one.option or "")]
    assert not [one for one in alone.would_fit if "layerwise-gather" in (one.option or "")]


@pytest.mark.parametrize("gpus", ["2xRTX-4090", "4xRTX-4090", "2xL4", "4xL4"])
def test_auto_streams_blocks_in_the_faster_way(gpus):
    def best(offload):
        found = recommended(offload, gpus, "cosmos3-super", host_ram_gib=2000.0)
        one = found.recommendations[0]
        return one.fit_status != "fits", one.latency_ms

    auto = best("auto")
    assert auto == min(best("layerwise-gather"), best("layerwise"))
