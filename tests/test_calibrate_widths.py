"""Widths of ranges from runs: known scales are found, few sources believed less, none is seen."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.calibrate.runs.spreads import Requests, coverage
from perfmodel.calibrate.runs.widths import (
    APART,
    LEAST,
    Errors,
    quantile,
    scales,
    score_of,
    unseen_halfwidths,
    widths_of,
)
from perfmodel.pipeline.request_width import FACTORS, HIGHEST_FACTOR, HIGHEST_RUN, LOWEST_RUN

LENT, RARE = list(FACTORS).index("lent"), list(FACTORS).index("rare")
SCALE = {"good": 0.02, "fair": 0.06, "poor": 0.15}


def drawn(seed=0, sources=40, each=12, noise=0.0, engines=tuple(SCALE)):
    """Runs of engines with the scales of `SCALE`, twice as far off on devices with lent laws."""
    rng = np.random.default_rng(seed)
    source = np.repeat(np.arange(sources), each)
    engine = np.array(engines)[source % len(engines)]
    features = np.zeros((len(source), len(FACTORS)))
    features[:, LENT] = rng.random(len(source)) < 0.4
    scale = np.array([SCALE[name] for name in engine]) * 2.0 ** features[:, LENT]
    scale = scale * np.exp(noise * rng.normal(size=sources))[source]
    return Errors(
        size=rng.exponential(scale),
        features=features,
        engines=tuple(engine.tolist()),
        sources=tuple(str(n) for n in source),
    )


def test_known_scales_are_found():
    found = widths_of(drawn(sources=150))
    assert found.factors[LENT] == pytest.approx(np.log(2.0), abs=0.12)
    assert found.apart == max(APART)
    # four of five exponential errors lie below ln 5 scales
    for name, scale in SCALE.items():
        assert found.run(name) == pytest.approx(np.log(5.0) * scale, rel=0.2)
    further = drawn(seed=1, sources=150)
    assert np.mean(further.size <= found.log_halfwidths(further)) == pytest.approx(0.8, abs=0.04)


def test_one_plain_engine_has_the_weighted_mean_of_its_errors():
    errors = drawn(engines=("fair",))
    errors = replace(errors, features=np.zeros_like(errors.features))
    found = scales(errors, 0.05)
    mean = np.maximum(errors.size, LEAST).mean()  # every source has as many runs as the others
    assert np.exp(found.base + found.engines["fair"]) == pytest.approx(mean, rel=1e-3)
    # no run shows what a factor does: it keeps its prior
    assert found.factors == pytest.approx(np.log(list(FACTORS.values())), abs=1e-3)


def test_engines_whose_sources_disagree_are_not_apart():
    """Every source has a scale of its own: what one says does not hold for others of its engine."""
    rng = np.random.default_rng(1)
    source = np.repeat(np.arange(40), 12)
    scale = 0.06 * np.exp(1.2 * rng.normal(size=40))[source]
    errors = Errors(
        size=rng.exponential(scale),
        features=np.zeros((len(source), len(FACTORS))),
        engines=tuple(f"engine {n // 2}" for n in source),
        sources=tuple(str(n) for n in source),
    )
    assert widths_of(errors).apart < max(APART)


def test_few_sources_are_believed_less_than_many():
    rng = np.random.default_rng(2)
    of_many, of_one = [f"many {n % 20}" for n in range(60)], ["one"] * 60
    others = [f"other {n % 20}" for n in range(200)]
    errors = Errors(
        size=np.concatenate([np.full(60, 0.01), np.full(60, 0.01), rng.exponential(0.1, 200)]),
        features=np.zeros((320, len(FACTORS))),
        engines=("a",) * 60 + ("b",) * 60 + ("c",) * 200,
        sources=tuple(of_many + of_one + others),
    )
    found = scales(errors, 0.4)
    assert found.run("a") < found.run("b") < found.run("c")
    assert found.run("unknown") > found.run("a")


def test_no_range_rests_on_the_source_that_it_is_judged_by():
    errors = drawn(sources=15)
    worse = np.where(np.array(errors.sources) == "3", 10.0, 1.0) * errors.size
    before, after = unseen_halfwidths(errors), unseen_halfwidths(replace(errors, size=worse))
    own = np.array(errors.sources) == "3"
    assert before[own] == pytest.approx(after[own], rel=1e-6)
    assert not np.allclose(before[~own], after[~own], rtol=1e-3)


def test_ranges_hold_four_of_five_runs_of_unseen_sources():
    found = Requests(drawn(noise=0.6, sources=60))
    every = coverage(found, found.of())
    assert every.rows == len(found.errors)
    assert 0.74 < every.inside_frac < 0.86
    lent, fitted = (coverage(found, found.of(lent=x)) for x in (True, False))
    assert lent.rows + fitted.rows == every.rows
    assert lent.halfwidth_frac > 1.5 * fitted.halfwidth_frac
    good, poor = (coverage(found, found.of(engine=x)) for x in ("good", "poor"))
    assert good.halfwidth_frac < 0.5 * poor.halfwidth_frac
    assert coverage(found, found.of(engine="none")).rows == 0


def test_what_is_uncertain_never_narrows_a_range_and_stays_within_its_bounds():
    errors = drawn()
    better = np.where(errors.features[:, LENT] > 0, 1e-3, errors.size)
    found = widths_of(replace(errors, size=better))
    assert found.factors[LENT] == 0.0
    worse = np.where(errors.features[:, LENT] > 0, 50.0, errors.size)
    table = widths_of(replace(errors, size=worse)).table("good")
    assert table["run.lent"] == HIGHEST_FACTOR
    assert set(table) == {"run", *(f"run.{name}" for name in FACTORS)}
    assert all(1.0 <= table[f"run.{name}"] <= HIGHEST_FACTOR for name in FACTORS)
    tiny, huge = (widths_of(replace(errors, size=errors.size * x)).run("good") for x in (1e-6, 1e3))
    assert (tiny, huge) == (LOWEST_RUN, HIGHEST_RUN)


def test_too_few_runs_or_sources_say_nothing_of_others():
    assert not Requests(drawn(sources=3)).enough
    assert not Requests(drawn(sources=4, each=2)).enough
    assert Requests(drawn(sources=4)).enough


@given(st.lists(st.floats(-3, 3), min_size=5, max_size=200))
def test_a_further_run_lies_below_the_quantile_four_times_of_five(values):
    found, count = quantile(np.array(values)), len(values)
    below = np.mean(np.array(values) <= found)
    assert below >= min(1.0, 0.8 * (count + 1) / count) - 1e-9
    assert np.mean(np.array(values) < found) < 0.8 * (count + 1) / count


def test_the_true_quantile_has_the_best_score():
    sizes = np.random.default_rng(0).exponential(1.0, 40_000)
    scores = {x: score_of(np.full(len(sizes), x), sizes) for x in (1.2, np.log(5.0), 2.1)}
    assert min(scores, key=lambda x: scores[x]) == np.log(5.0)
