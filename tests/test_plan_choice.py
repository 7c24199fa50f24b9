"""Which runs are chosen: the belief and what a measurement does to it, changes, choice, answer."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.cli.app import run as typed
from perfmodel.cli.schema import schema
from perfmodel.errors import BadInput, Refused
from perfmodel.pipeline.evaluate import STAGES
from perfmodel.plan import belief as beliefs
from perfmodel.plan.belief import Belief, Observation, learn, log_sd
from perfmodel.plan.changes import changes, things, words
from perfmodel.plan.choose import choose, losses
from perfmodel.plan.make import letter_of, plan
from perfmodel.plan.survey import survey
from perfmodel.report.answer import Answer
from perfmodel.report.render import Look, render
from perfmodel.spec.parallel import ParallelConfig, parse_parallel
from perfmodel.spec.workload import Workload


@pytest.fixture(scope="module")
def field():
    session = open_session(Workload(frames=189), catalog.parse_gpus("4xB300"))
    return survey(session)


def one_source(seconds: float = 2.0, sd: float = 0.2) -> Belief:
    """A single stage of a single source in two configurations, the second twice as long."""
    times = {name: np.zeros((1, 2)) for name in STAGES}
    times["denoise"] = np.array([[seconds, 2 * seconds]])
    return Belief(("a",), np.array([sd]), np.zeros(1), np.array([[sd**2]]), times, {})


def test_an_unmeasured_belief_is_the_prediction(field):
    evaluation = field.table.evaluation
    assert field.belief.latency_s == pytest.approx(evaluation.latency_s, rel=1e-12)
    for stage in STAGES:
        assert field.belief.time_s((stage,)) == pytest.approx(
            evaluation.stages[stage].total_s, rel=1e-12, abs=1e-12
        )


def test_one_measurement_is_weighed_against_the_prior():
    # conjugate Gaussian in the logarithm: x = s2 / (s2 + r2) * log(y / t)
    prior = one_source()
    noise = sum(log_sd(f) ** 2 for f in (0.05, beliefs.OWN_FRAC, beliefs.FIT_FRAC))
    after = learn(prior, [Observation(0, ("denoise",), 2.5, 0.05)])
    gain = 0.2**2 / (0.2**2 + noise)
    assert after.mean[0] == pytest.approx(gain * np.log(2.5 / 2.0), rel=1e-9)
    assert after.cov[0, 0] == pytest.approx(0.2**2 * (1 - gain), rel=1e-9)
    # the configuration that nobody ran moves by the same factor
    assert after.latency_s[1] == pytest.approx(2 * after.latency_s[0], rel=1e-12)


def test_a_measurement_moves_a_term_no_further_than_its_bound():
    after = learn(one_source(), [Observation(0, ("denoise",), 2000.0, 0.01)])
    assert after.mean[0] == pytest.approx(beliefs.BOUND_SD * 0.2)


def test_the_predicted_times_teach_nothing(field):
    belief = field.belief
    rows = field.rows[:3]
    seen = [
        Observation(int(r), (s,), float(belief.time_s((s,))[r]))
        for r in rows
        for s in STAGES
        if belief.time_s((s,))[r] > 0
    ]
    after = learn(belief, seen)
    assert np.abs(after.mean).max() < 1e-9
    assert np.all(np.diag(after.cov) <= np.diag(belief.cov) + 1e-12)


def test_unmeasured_neighbours_move_towards_the_truth(field):
    belief = field.belief
    before, after = [], []
    for seed in range(12):
        random = np.random.default_rng(seed)
        truth = belief.prior_sd * random.standard_normal(len(belief.sources))
        true_s = belief.time_s(STAGES, truth)
        rows, others = field.rows[[0, 3, 8]], field.rows[[1, 2, 4, 5, 6, 7]]
        seen = [
            Observation(int(r), (s,), float(belief.time_s((s,), truth)[r]))
            for r in rows
            for s in STAGES
            if belief.time_s((s,))[r] > 0
        ]
        learnt = learn(belief, seen)
        before.append(np.abs(belief.latency_s / true_s - 1)[others].mean())
        after.append(np.abs(learnt.latency_s / true_s - 1)[others].mean())
    assert np.mean(after) < 0.25 * np.mean(before)


def test_draws_spread_as_the_half_width_says(field):
    some = field.belief.take(field.rows[:4])
    ratio = np.abs(np.log(some.draws_s(20_000, seed=3) / some.latency_s))
    assert np.expm1(np.quantile(ratio, 0.8, axis=0)) == pytest.approx(
        some.halfwidth_frac(), rel=0.1
    )


CHANGES = [
    ("cfg2_usp2_vaepp4", "usp4_vaepp4", "cfg 2 to usp 2", "CFG or Ulysses for 2 GPUs?", 1),
    ("cfg2_usp2_vaepp4", "cfg2_usp2", "vaepp 4 to 1", "does VAE patch parallel pay?", 1),
    ("cfg2_usp2", "cfg2_usp2_vaepp4", "vaepp 1 to 4", "does VAE patch parallel pay?", 1),
    ("usp4_vaepp4", "usp4_vaepp2", "vaepp 4 to 2", "VAE tiles on 2 or 4 GPUs?", 1),
    ("cfg2_ring2", "usp4", "cfg 2, ring 2 to usp 4", "CFG with ring or Ulysses?", 2),
    ("usp4", "usp4_hsdp4", "hsdp 1 to 4", "what does weight sharding cost?", 1),
    ("single", "cfg2", "cfg 1 to 2", "do 2 GPUs pay against 1 GPU?", 1),
    ("usp2", "usp2_tiling", "tiling on", "what does VAE tiling cost?", 1),
    ("cfg2_usp2_vaepp4", "tp4", "cfg 2, usp 2 to tp 4, vaepp 4 to 1",
     "CFG with Ulysses or TP?", 3),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new", "text", "question", "count"), CHANGES)
def test_changes_are_named_and_counted(old, new, text, question, count):
    found = changes(parse_parallel(old)[0], parse_parallel(new)[0])
    assert words(found) == (text, question)
    assert things(found) == count


DEGREES = st.sampled_from((1, 2, 3, 4, 8))
CONFIGS = st.builds(
    ParallelConfig, cfg=DEGREES, ulysses=DEGREES, ring=DEGREES, tp=DEGREES, vae_patch=DEGREES
)


@given(CONFIGS, CONFIGS)
def test_nothing_changes_only_between_equals(old, new):
    found = changes(old, new)
    assert (found == ()) == (old == new)
    assert things(found) == things(changes(new, old))


def made_draws(seed: int, count: int = 7, size: int = 400) -> np.ndarray:
    random = np.random.default_rng(seed)
    shared = random.normal(0, 0.1, (size, 1))
    means = 10 * (1 + 0.03 * np.arange(count))
    return means * np.exp(shared + random.normal(0, 0.03, (size, count)))


def nothing_changes(candidate: int, runs: object) -> int:
    return 1


@pytest.mark.parametrize("seed", range(6))
def test_two_greedy_runs_against_all_pairs(seed):
    draws = made_draws(seed)
    ones = np.ones(draws.shape[1])
    found = choose(draws, 0, ones, ones, nothing_changes, max_runs=2, all_runs=True)
    best = min(float(losses(draws, pair).mean()) for pair in combinations(range(7), 2))
    now = min(float(losses(draws, [run]).mean()) for run in range(7))
    assert found.loss_after_frac <= found.loss_now_frac
    # greedy takes at least 1 - 1/e of what the best pair takes away
    assert now - found.loss_after_frac >= (1 - 1 / np.e) * (now - best) - 1e-12


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 100), st.floats(0.1, 100))
def test_scale_and_order_do_not_matter(seed, factor):
    draws = made_draws(seed)
    ones = np.ones(7)
    order = np.random.default_rng(seed).permutation(7)
    plain = choose(draws, 0, ones, ones, nothing_changes, max_runs=3)
    scaled = choose(draws * factor, 0, ones, ones, nothing_changes, max_runs=3)
    place = int(np.flatnonzero(order == 0)[0])
    mixed = choose(draws[:, order], place, ones, ones, nothing_changes, max_runs=3)
    assert scaled.runs == plain.runs
    assert [int(order[run]) for run in mixed.runs] == list(plain.runs)


def test_a_sure_winner_needs_one_run_and_one_request():
    draws = np.column_stack([np.full(100, 1.0), np.full(100, 2.0)])
    ones = np.ones(2)
    found = choose(draws, 0, ones, ones, nothing_changes, max_runs=6)
    assert found.runs == (0,)
    assert found.loss_now_frac == found.loss_after_frac == 0
    # what would be used without a run is run first, however bad
    both = choose(draws, 1, ones, ones, nothing_changes, max_runs=6)
    assert both.runs == (1, 0)
    assert both.loss_now_frac == pytest.approx(1.0)
    assert both.loss_after_frac == 0


def test_runs_far_apart_are_measured_once():
    random = np.random.default_rng(0)
    near = 1 + 0.005 * random.standard_normal(2000)
    wide = np.exp(0.5 * random.standard_normal(2000))
    draws = np.column_stack([np.ones(2000), near, wide])
    ones = np.ones(3)
    found = choose(draws, 0, ones, ones, nothing_changes, max_runs=3, all_runs=True)
    repeats = dict(zip(found.runs, found.repeats, strict=True))
    assert repeats[2] == 1
    assert repeats[0] == repeats[1] == 3


def test_dear_runs_must_gain_more():
    random = np.random.default_rng(1)
    draws = np.column_stack([np.ones(4000), *np.exp(0.2 * random.standard_normal((2, 4000)))])
    for dear in (1, 2):
        minutes = np.ones(3)
        minutes[dear] = 4
        found = choose(draws, 0, minutes, minutes, nothing_changes, max_runs=2, all_runs=True)
        assert dear not in found.runs


def test_one_change_goes_before_a_slightly_larger_gain():
    random = np.random.default_rng(1)
    draws = np.column_stack([np.ones(4000), *np.exp(0.2 * random.standard_normal((2, 4000)))])
    ones = np.ones(3)
    for single in (1, 2):
        found = choose(
            draws, 0, ones, ones, lambda c, _, s=single: 1 if c == s else 2, max_runs=2,
            all_runs=True,
        )  # fmt: skip
        assert single in found.runs


def test_a_budget_is_kept():
    draws = made_draws(3)
    ones = np.ones(7)
    for budget in (1.0, 2.0, 3.5):
        found = choose(
            draws, 0, ones, ones, nothing_changes, max_runs=7, budget_minutes=budget, all_runs=True
        )
        assert len(found.runs) == int(budget)


def test_letters_go_on_after_z():
    assert [letter_of(n) for n in (0, 25, 26, 27)] == ["A", "Z", "AA", "AB"]


def make(**settings):
    return plan(Workload(frames=189), catalog.parse_gpus("4xB300"), **settings)


def test_a_plan_adds_up():
    answer = make()
    assert [run.letter for run in answer.runs] == ["A", "B", "C", "D", "E", "F"][: len(answer.runs)]
    assert all(run.run_id == f"{run.letter}_{run.config_id}" for run in answer.runs)
    assert answer.minutes == pytest.approx(sum(run.minutes for run in answer.runs))
    assert answer.gpu_minutes == pytest.approx(
        sum(run.minutes * run.prediction.num_gpus for run in answer.runs)
    )
    assert 0 <= answer.expected_loss_after_pct <= answer.expected_loss_now_pct
    assert answer.contains_best_share > 0.9
    first, *rest = answer.runs
    assert first.reference is None
    letters = [run.letter for run in answer.runs]
    for index, run in enumerate(rest, start=1):
        assert run.reference in letters[:index]
        assert run.question.endswith("?")
    for run in answer.runs:
        wanted = (run.warmups + run.repeats) * run.prediction.latency_ms / 60_000
        assert run.minutes > answer.start_minutes + wanted
        assert run.prediction.commands.serve.startswith(("vllm serve", "#", "VLLM"))
    assert answer.stop_rules[-1].text == f"after {letters[-1]} in any case"


def test_more_runs_leave_less_to_chance():
    losses_pct = [make(max_runs=n).expected_loss_after_pct for n in (1, 2, 4)]
    assert losses_pct == sorted(losses_pct, reverse=True)


def test_candidates_limit_the_plan_and_illegal_ones_are_refused():
    answer = make(candidates=("usp4", "cfg2_usp2"), max_runs=6)
    assert {run.config_id for run in answer.runs} <= {"usp4", "cfg2_usp2"}
    assert answer.full_sweep_runs == 2
    with pytest.raises(Refused, match="ulysses"):
        make(candidates=("usp3",))


def test_memory_is_no_time_and_nothing_fits_is_an_answer():
    with pytest.raises(BadInput, match="legal: latency, throughput, cost"):
        make(objective="memory")
    job = Workload(model="cosmos3-super", frames=189)
    answer = plan(job, catalog.parse_gpus("2xRTX4090"))
    assert isinstance(answer, Answer)
    assert answer.status == "does_not_fit"


def test_the_json_agrees_with_its_schema(capsys):
    assert typed(["plan", "--gpus", "4xB300", "--max-runs", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, schema("plan"))
    assert answer["flags"] == {"gpus": "4xB300", "max_runs": "2"}


def test_the_page_is_narrow_and_says_what_matters():
    text = render(make(max_runs=3), "table", Look(commands=0))
    assert max(map(len, text.splitlines())) <= 100
    assert "GPU-minutes; the full sweep of" in text
    assert "Expected loss of the final pick against the true best:" in text
    assert "does the prediction hold?" in text
    assert "Stop after" in " ".join(text.split())
    assert "Left out:" in text
    csv = render(make(max_runs=3), "csv")
    assert csv.splitlines()[0].startswith("run,reference,changes,question,minutes,repeats,")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--budget", "soon"], "error[budget]: --budget soon is not a duration"),
        (["--budget", "0m"], "error[budget]: --budget 0m leaves no time"),
        (["--max-runs", "0"], "error[max-runs]: --max-runs 0 is out of range"),
        (["--candidates", "cfg2,usq4"], 'error[option]: "usq4" in --parallel is unknown'),
        (["--objective", "memory"], "error[objective]: --objective memory needs no runs"),
    ],
)
def test_what_is_typed_wrongly_is_one_line(flags, said, capsys):
    assert typed(["plan", "--gpus", "4xB300", *flags]) == 2
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("text", "minutes"), [("30m", 30), ("1h30m", 90), ("90s", 1.5), ("45", 45), ("1.5h", 90)]
)
def test_budgets_are_durations(text, minutes):
    from perfmodel.cli.flags import PLAN
    from perfmodel.cli.given import given as flags
    from perfmodel.cli.plan import read_budget

    assert read_budget(flags({"budget": text}, PLAN, "plan", ())) == minutes


def test_a_folder_gets_the_scripts(tmp_path, capsys):
    folder = tmp_path / "sweep"
    flags = ["--gpus", "4xB300", "--frames", "25", "--max-runs", "2"]
    assert typed(["plan", *flags, "--out", str(folder)]) == 0
    said = capsys.readouterr()
    assert f"perfmodel verify --from {folder}/results.jsonl" in said.err
    stored = json.loads((folder / "plan.json").read_text())
    assert stored["flags"]["frames"] == "25"
    names = [entry["run_id"] for entry in stored["runs"]]
    for name in names:
        assert {p.name for p in (folder / name).iterdir()} == {
            "serve.sh", "request.sh", "bench.sh", "job.json",
        }  # fmt: skip


def test_one_outlier_does_not_bend_the_terms(field):
    belief = field.belief
    rows = [int(row) for row in field.rows[:6]]
    seen = [Observation(row, STAGES, float(belief.latency_s[row])) for row in rows]
    wild = replace(seen[0], seconds=seen[0].seconds * 1.7)
    after = learn(belief, [*seen[1:], wild])
    assert after.latency_s[rows] == pytest.approx(belief.latency_s[rows], rel=0.04)
    assert beliefs.distance_sd(after, wild) > beliefs.HUBER_SD
    assert all(abs(beliefs.distance_sd(after, one)) < beliefs.HUBER_SD for one in seen[1:])


def test_slopes_are_those_of_finite_differences(field):
    belief, step = field.belief, 1e-5
    random = np.random.default_rng(5)
    x = 0.3 * belief.prior_sd * random.standard_normal(len(belief.sources))
    for row in (int(field.rows[0]), int(field.rows[-1])):
        for stages in (STAGES, ("denoise",), ("vae_decode", "transfer")):
            value, slope = belief.slope(row, stages, x)
            assert value == pytest.approx(np.log(belief.time_s(stages, x)[row]))
            for index in range(len(x)):
                moved = x.copy()
                moved[index] += step
                change = np.log(belief.time_s(stages, moved)[row]) - value
                assert slope[index] == pytest.approx(change / step, abs=1e-4)


def test_a_candidate_names_a_layout_and_no_option(capsys):
    named = ["plan", "--gpus", "2xH100", "--candidates", "usp2_fp8,cfg2_fp8"]
    assert typed(named) == 2
    assert "options hold for the whole plan" in capsys.readouterr().err
    assert typed([*named, "--dtype", "fp8"]) == 0
    assert "usp2_fp8" in capsys.readouterr().out
