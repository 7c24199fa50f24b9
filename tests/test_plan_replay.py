"""Would the plan have found the best?  Published sweeps, and sweeps drawn from the model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from plan_replay import replay, sweeps

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.pipeline.evaluate import STAGES
from perfmodel.pipeline.uncertainty import REPEAT_FRAC, parts_s
from perfmodel.plan.survey import choose_runs, survey
from perfmodel.spec.record import read_records
from perfmodel.spec.workload import Workload

SWEEPS = Path(__file__).parent / "data" / "replay_sweeps.jsonl"
Z80 = 1.2815515655
QUESTIONS = [
    ("2xB300", "cosmos3-nano", 189),
    ("4xB300", "cosmos3-nano", 189),
    ("8xH100", "cosmos3-nano", 25),
    ("4xH200", "wan2.2-t2v-a14b", 81),
    ("8xL40S", "wan2.1-t2v-1.3b", 81),
]
DRAWN = 200


@pytest.fixture(scope="module")
def played():
    records, bad = read_records([SWEEPS])
    assert not bad
    return replay(records, max_runs=2)


def test_enough_sweeps_are_played(played):
    assert len(played) >= 10
    assert all(one.layouts >= 3 for one in played)


def test_two_runs_contain_a_configuration_near_the_best(played):
    missed = [one for one in played if one.planned_loss_frac > 0.02]
    assert not missed, missed
    assert all(len(one.planned) <= 2 for one in played)


def test_after_two_runs_the_pick_is_the_best_to_one_percent(played):
    final = np.mean([one.final_loss_frac for one in played])
    assert final <= 0.01
    assert final <= np.mean([one.first_loss_frac for one in played]) + 1e-12


def test_a_sweep_compares_equal_questions_only():
    records, _ = read_records([SWEEPS])
    for _, key, rows, _ in sweeps(records):
        for name in ("frames", "height", "steps", "model", "gpu", "engine"):
            assert len({getattr(record, name) for record in rows.values()}) == 1
        assert all(record.measured_ms[key] > 0 for record in rows.values())


@pytest.fixture(scope="module")
def fields():
    return [
        survey(open_session(Workload(model=model, frames=frames), catalog.parse_gpus(gpus)))
        for gpus, model, frames in QUESTIONS
    ]


def drawn_latency(field, random) -> np.ndarray:
    """One sweep from the model's own residuals: every kind of time off by its own factor."""
    evaluation = field.table.evaluation
    factors: dict[str, float] = {}
    total = np.zeros(len(evaluation.layouts))
    for stage in STAGES:
        for source, seconds, halfwidth in parts_s(evaluation.stages[stage], evaluation.job.spread):
            sd = np.log1p(halfwidth) / Z80
            factor = factors.setdefault(source, float(np.exp(sd * random.standard_normal())))
            total = total + seconds * factor
    return total * np.exp(np.log1p(REPEAT_FRAC) / Z80 * random.standard_normal(len(total)))


@pytest.mark.parametrize("max_runs", [2, 6])
def test_drawn_sweeps_have_their_best_in_the_plan(fields, max_runs):
    random = np.random.default_rng(11)
    plans = [choose_runs(field, max_runs=max_runs) for field in fields]
    found, regrets = 0, []
    for number in range(DRAWN):
        field, choice = fields[number % len(fields)], plans[number % len(fields)]
        times = drawn_latency(field, random)
        best = times[field.rows].min()
        ours = times[field.contenders[list(choice.runs)]].min()
        found += ours <= best * (1 + REPEAT_FRAC)
        regrets.append(ours / best - 1)
    assert found >= 0.9 * DRAWN
    assert np.mean(regrets) <= 0.01


def test_sweeps_drawn_with_errors_by_axis_too(fields):
    """The wider belief that the plan itself works with."""
    found = 0
    plans = [choose_runs(field, max_runs=6) for field in fields]
    for number in range(DRAWN):
        field, choice = fields[number % len(fields)], plans[number % len(fields)]
        truth = field.belief.draws_s(1, seed=1000 + number)[0]
        runs = field.contenders[list(choice.runs)]
        found += truth[runs].min() <= truth[field.rows].min() * (1 + REPEAT_FRAC)
    assert found >= 0.9 * DRAWN
