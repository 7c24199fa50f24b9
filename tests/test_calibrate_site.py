"""A site's own runs: many that agree are followed, few move little, ranges follow."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.calibrate.runs.cases import cases_of
from perfmodel.calibrate.runs.document import write_terms
from perfmodel.calibrate.runs.site import (
    SitePriors,
    SiteRows,
    fit_site,
    site_priors,
    solve,
    width_ratio,
)
from perfmodel.calibrate.runs.site_spread import spread_of
from perfmodel.calibrate.runs.sites import (
    fit_sites,
    own_cases,
    placed,
    site_lines,
    sites_document,
    under,
)
from perfmodel.catalog import own_terms
from perfmodel.pipeline.site import DEVICE, HOST, REQUEST, SITE_TERMS, VAE
from perfmodel.spec.record import read_records

RUNS = Path(__file__).parent.parent / "calibration" / "runs" / "public.jsonl"
RECORDS = read_records([RUNS])[0]
PRIORS = SitePriors(0.54, 0.09, 0.2, 0.46, 0.45, 4.3)


def rows(logs, *, slopes=(1.0, 0.1, 0.0, 0.0), models=None):
    count = len(logs)
    return SiteRows(
        np.asarray(logs, float),
        np.tile(slopes, (count, 1)),
        np.full(count, 0.13),
        tuple(str(n) for n in range(count)),
        tuple(models or ["m"] * count),
    )


# The estimate


def test_more_runs_that_agree_move_a_site_further_to_nearly_all_the_way():
    moved = [solve(rows([0.22] * n), PRIORS).unknowns @ (1.0, 0.1, 0.0, 0.0) for n in (1, 3, 24)]
    assert 0.02 < moved[0] < 0.17
    assert moved[0] < moved[1] < moved[2]
    assert moved[2] == pytest.approx(0.22, rel=0.02)


def test_one_run_of_a_plain_site_is_the_ratio_of_variances():
    """Closed form where tails do not matter: prior / (prior + scatter) of a small difference."""
    prior, scatter = (0.54 * 0.13) ** 2, (0.45 * 0.13) ** 2
    found = solve(rows([0.001], slopes=(1.0, 0.0, 0.0, 0.0)), PRIORS).unknowns[0]
    # the scatter of four published runs and one own, in which t weights count 5 / 4
    noise = 4.0 / 5.0
    expected = 0.001 * prior / (prior + scatter * noise)
    assert found == pytest.approx(expected, rel=0.05)


def test_a_far_site_that_all_runs_agree_on_is_no_outlier():
    assert solve(rows([0.9] * 24), PRIORS).unknowns[0] == pytest.approx(0.9, abs=0.05)


def test_one_run_far_from_the_others_hardly_moves_a_site():
    plain, broken = ([0.22] * 23, [0.22] * 23 + [0.22 + np.log(3.0)])
    there = [solve(rows(logs), PRIORS).unknowns[0] for logs in (plain, broken)]
    assert there[1] == pytest.approx(there[0], abs=0.01)


def test_repeats_of_a_configuration_count_as_one():
    once = rows([0.2, 0.1, 0.15])
    again = SiteRows(
        *(np.repeat(x, 5, axis=0) for x in (once.errors, once.slopes, once.widths)),
        tuple(np.repeat(once.questions, 5)),
        tuple(np.repeat(once.models, 5)),
    )
    first, second = (solve(one, PRIORS).unknowns for one in (once, again))
    assert second == pytest.approx(first, abs=1e-6)
    assert fit_site(again, PRIORS).width_ratio == pytest.approx(fit_site(once, PRIORS).width_ratio)


def test_seconds_and_ratios_are_told_apart_by_runs_of_different_length():
    predicted = np.geomspace(1.0, 100.0, 24)
    slopes = np.stack([np.ones(24), np.full(24, 0.05), np.zeros(24), 1.0 / (predicted + 1.0)], 1)
    errors = slopes @ (0.0, 0.0, 0.0, 1.0)
    found = solve(replace(rows([0.0] * 24), errors=errors, slopes=slopes), PRIORS).unknowns
    assert found[3] == pytest.approx(1.0, abs=0.1)
    assert abs(found[0]) < 0.02


# Widths


def test_width_without_runs_is_as_it_was_and_with_runs_what_they_support():
    assert width_ratio(np.array([]), PRIORS) == pytest.approx(1.0)
    assert width_ratio(np.full(24, 0.05), PRIORS) < 0.35
    assert width_ratio(np.full(24, 2.0), PRIORS) > 2.0


@settings(max_examples=50)
@given(st.lists(st.floats(0.0, 5.0), min_size=1, max_size=30), st.floats(0.1, 5.0))
def test_widths_grow_with_the_errors_of_own_runs(errors, more):
    less = width_ratio(np.array(errors), PRIORS)
    assert width_ratio(np.array(errors) + more, PRIORS) > less


def test_the_width_is_the_quantile_of_what_it_was_derived_from():
    """Monte Carlo: scales inverse gamma, errors exponential, the next inside four times of 5."""
    random = np.random.default_rng(7)
    shape = PRIORS.errors_shape
    scale = 1.0 / (5.0 ** (1.0 / shape) - 1.0)
    inside = []
    for theta in scale / random.gamma(shape, size=4000):
        errors = random.exponential(theta, size=9)
        inside.append(errors[-1] <= width_ratio(errors[:-1], PRIORS))
    assert np.mean(inside) == pytest.approx(0.8, abs=0.02)


def test_ranges_of_models_that_did_not_run_are_narrower_only_where_others_predicted_them():
    one = fit_site(rows([0.2] * 12), PRIORS)
    assert one.width_ratio < 1.0 <= one.other_width_ratio
    agreeing = fit_site(rows([0.2] * 12, models=list("abcdef") * 2), PRIORS)
    assert one.width_ratio <= agreeing.other_width_ratio < 1.0


def test_runs_that_disagree_widen_the_range():
    off = np.random.default_rng(2).normal(0.0, 0.4, 12)
    assert fit_site(rows(off), PRIORS).width_ratio > 1.2


# The published spread


def test_the_spread_behind_made_sources_is_found():
    random = np.random.default_rng(4)
    made = []
    for _ in range(60):
        slopes = random.uniform(0.2, 1.0, (8, 4)) * (1.0, 0.3, 0.3, 0.3)
        site = random.normal(size=4) * (0.6 * 0.13, 0.1, 0.2, 0.4)
        errors = slopes @ site + random.normal(0.0, 0.3 * 0.13, 8)
        made.append(replace(rows([0.0] * 8), errors=errors, slopes=slopes))
    found = spread_of(made)
    assert found.device_of_width == pytest.approx(0.6, rel=0.35)
    assert found.within_of_width == pytest.approx(0.3, rel=0.2)
    assert found.request_s == pytest.approx(0.4, rel=0.4)


# Through the pipeline

BASE = {"engine": "vllm-omni", "engine_version": "0.30.0", "gpu": "h200-sxm", "num_gpus": 1}


def made_records():
    from perfmodel.spec.record import RunRecord

    asked = [
        ("cosmos3-nano", "t2v", 832, 480, 61),
        ("cosmos3-nano", "t2v", 1280, 720, 93),
        ("cosmos3-nano", "t2i", 512, 512, 1),
        ("qwen-image", "t2i", 1024, 1024, 1),
        ("qwen-image", "t2i", 512, 512, 1),
        ("wan2.2-t2v-a14b", "t2v", 832, 480, 49),
    ]
    return [
        RunRecord(
            **BASE,
            id=f"own {number} {steps}",
            model=model,
            task=task,
            width=width,
            height=height,
            frames=frames,
            steps=steps,
            measured_ms={"e2e": 1.0},
        )
        for number, (model, task, width, height, frames) in enumerate(asked)
        for steps in (20, 40)
    ]


@pytest.fixture(scope="module")
def cases():
    found = cases_of(made_records())
    assert len(found) == 12
    return found


def on(cases, **site):
    """Runs as a site measures them, without noise."""
    made = []
    for case in cases:
        truth = placed(case, site)
        logs = truth.outcome(truth.terms({})).log_s
        made.append(
            replace(
                case, targets={k: float(np.exp(x)) for k, x in zip(case.targets, logs, strict=True)}
            )
        )
    return made


def errors(cases, sites):
    return np.array(
        [
            case.outcome(case.terms({})).log_s[0] - np.log(next(iter(case.targets.values())))
            for case in under(cases, sites)
        ]
    )


@pytest.mark.parametrize("ratio", [1.25, 0.8])
def test_a_machine_that_is_slower_or_faster_throughout_is_followed(cases, ratio):
    runs = on(cases, **{DEVICE: ratio, HOST: ratio})
    assert np.abs(errors(runs, {})).min() > 0.2
    found = fit_sites(runs, {})
    assert np.abs(errors(runs, found)).max() < 0.04
    (one,) = found.values()
    assert one.values[DEVICE] == pytest.approx(ratio, rel=0.04)
    assert one.after < 0.05 < 0.2 < one.before
    assert one.width_ratio < 0.6


def test_extra_seconds_are_found_as_seconds(cases):
    (one,) = fit_sites(on(cases, **{REQUEST: 1.0}), {}).values()
    assert one.values[REQUEST] == pytest.approx(1.0, abs=0.15)
    assert one.values[DEVICE] == pytest.approx(1.0, abs=0.02)


def test_a_slow_vae_is_told_from_a_slow_device_by_runs_that_time_the_decode():
    timed = [
        record.model_copy(update={"measured_ms": {"vae_decode": 1.0, "e2e": 1.0}})
        for record in made_records()
        if record.frames > 1
    ]
    (one,) = fit_sites(on(cases_of(timed), **{VAE: 2.0}), {}).values()
    assert one.values[VAE] > 1.5
    assert one.values[DEVICE] == pytest.approx(1.0, abs=0.04)


def test_a_site_that_is_as_predicted_stays_there(cases):
    (one,) = fit_sites(on(cases), {}).values()
    assert [one.values[n] for n in SITE_TERMS] == pytest.approx([1.0, 1.0, 1.0, 0.0], abs=1e-3)


def test_a_ratio_of_all_multiplies_a_request_and_other_devices_stay(cases):
    case = cases[0]
    plain = case.outcome(placed(case, {}).terms({})).log_s[0]
    twice = case.outcome(placed(case, {DEVICE: 2.0, HOST: 2.0}).terms({})).log_s[0]
    assert twice - plain == pytest.approx(np.log(2.0), abs=1e-9)
    elsewhere = [replace(c, job=c.job) for c in cases]
    assert [c.site_terms[DEVICE] for c in under(elsewhere, {})] == [1.0] * len(cases)


def test_answers_use_the_site_on_its_device_and_say_it(cases, tmp_path, monkeypatch):
    found = fit_sites(on(cases, **{DEVICE: 1.25, HOST: 1.25}), {})
    content = {**own_terms("vllm-omni"), "sites": sites_document("vllm-omni", found)}
    write_terms(json.loads(json.dumps(content)), tmp_path / "calibration" / "engines")
    job = pm.Workload(model="qwen-image", width=1024, height=1024)
    ask = {gpus: pm.predict(job, gpus, parallel="single") for gpus in ("1xH200", "1xH100")}
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path))
    again = {gpus: pm.predict(job, gpus, parallel="single") for gpus in ask}
    (before, after), (other, same) = ([a[g].prediction for a in (ask, again)] for g in ask)
    assert after.latency_ms / before.latency_ms == pytest.approx(1.25, rel=0.03)
    assert same.latency_ms == other.latency_ms
    spans = [(p.latency_high_ms - p.latency_low_ms) / p.latency_ms for p in (before, after)]
    assert spans[1] < 0.7 * spans[0]
    said = [item.text for item in again["1xH200"].evidence]
    words = "your runs of 6 configurations on this GPU (fitted): device time x1.2"
    assert any(words in text for text in said)
    assert any("device x1.2" in line for line in site_lines(found))


# Whose runs


def test_runs_without_a_source_are_one_site_and_published_ones_are_not(cases):
    assert len({case.source for case in cases}) == 1
    assert own_cases(cases) == cases
    ids = [r for r in RECORDS if r.engine == "vllm-omni" and "e2e" in r.measured_ms][::9]
    published = cases_of(ids)
    assert len({case.source for case in published}) > 1
    assert own_cases([*published, *cases]) == cases
    changed = replace(published[0], targets={"e2e": 1.7 * published[0].targets["e2e"]})
    assert own_cases([changed, *published[1:]]) == [changed]


def test_the_shipped_spread_is_stated_with_its_source():
    assert 0.2 < site_priors().within_of_width < 1.0
    data = json.loads((RUNS.parent.parent / "priors.json").read_text())["sites"]
    assert all(entry["source"] and entry["meaning"] for entry in data.values())
