"""Engine terms from whole runs: the same physics, no source in both halves, known terms found."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.calibrate.explore import Options
from perfmodel.calibrate.runs import levels
from perfmodel.calibrate.runs.cases import cases_of
from perfmodel.calibrate.runs.choose import choose
from perfmodel.calibrate.runs.document import document, text_of, write_terms
from perfmodel.calibrate.runs.evaluations import Evaluations
from perfmodel.calibrate.runs.fit import fit_runs
from perfmodel.calibrate.runs.folds import folds_of
from perfmodel.calibrate.runs.groups import groups_of
from perfmodel.calibrate.runs.progress import Progress
from perfmodel.calibrate.runs.report import report_lines
from perfmodel.calibrate.runs.solve import Problem, step, walk
from perfmodel.calibrate.runs.spreads import requests
from perfmodel.calibrate.runs.terms import (
    ENGINE_SIDE,
    engines_under,
    independent_rows,
    parameters,
)
from perfmodel.catalog import data_files, own_terms
from perfmodel.cli.calibrate import command as calibrate
from perfmodel.cli.calibrate_runs import _cases, _left_out, _other_engines
from perfmodel.errors import BadInput
from perfmodel.spec.record import RunRecord, read_records
from perfmodel.units import MS_PER_S
from perfmodel.validate.predicted import predict_record

RUNS = Path(__file__).parent.parent / "calibration" / "runs" / "public.jsonl"
RECORDS = read_records([RUNS])[0]


def some_records():
    """Every twentieth run, and two of each way to divide or to offload a model."""
    chosen = {record.id: record for record in RECORDS[::20]}
    for ask in (
        lambda r: r.parallel.get("ring_degree", 1),
        lambda r: r.parallel.get("hsdp_shard_size", 1) or r.parallel.get("hsdp", 1),
        lambda r: r.parallel.get("vae_patch_parallel_size", 1),
        lambda r: 2 if r.offload not in (None, "none") else 1,
    ):
        found = [r for r in RECORDS if (ask(r) or 1) > 1 and not r.doubtful]
        chosen.update({r.id: r for r in found[:2]})
    return list(chosen.values())


# The same physics


def test_a_run_is_predicted_as_validate_predicts_it():
    cases = cases_of(some_records())
    assert len(cases) > 20
    assert {case.chain[0] for case in cases} >= {"vllm-omni", "xdit", "wan-official"}
    for case in cases:
        outcome = case.outcome(case.terms({}))
        expected = predict_record(case.record).predicted_ms
        for key, log_s in zip(case.targets, outcome.log_s, strict=True):
            assert np.exp(log_s) * MS_PER_S == pytest.approx(expected[key], rel=1e-6), (
                case.record.id
            )


def test_only_stages_that_look_a_changed_term_up_are_costed_again():
    case = cases_of([r for r in RECORDS if r.engine == "vllm-omni" and (r.frames or 1) > 1])[0]
    terms = case.terms({})
    first = case.outcome(terms).log_s
    costed = {name: found[-1].stage for name, found in case.stages.items()}
    slower = case.outcome({**terms, "launch_compiled_s": 1e-2}).log_s
    again = {name for name, found in case.stages.items() if found[-1].stage is not costed[name]}
    assert again == {"denoise"}
    assert slower[-1] > first[-1]
    fresh = cases_of([case.record])[0].outcome({**terms, "launch_compiled_s": 1e-2})
    assert slower == fresh.log_s
    assert case.outcome(terms).log_s == first


def test_what_one_engine_was_fitted_to_leaves_others_at_their_priors_unless_they_share_its_runs():
    runs = [r for r in RECORDS if r.engine in ("xdit", "diffusers", "vllm-omni")]
    cases = cases_of(runs)
    assert engines_under("vllm-omni", "rank_skew_frac", cases) == ["vllm-omni"]
    few = [c for c in cases if c.file != "diffusers"][:40] + [c for c in cases if c.file == "xdit"]
    assert "xdit" in engines_under("diffusers", "rank_skew_frac", few)
    # xdit-wrappers states this one itself
    assert "xdit-wrappers" not in engines_under("diffusers", "launch_eager_s", few)
    case = next(c for c in cases if c.file == "xdit")
    assert case.terms({"vllm-omni": {"rank_skew_frac": 0.1}}) == case.terms({})
    assert case.terms({"xdit": {"rank_skew_frac": 0.1}})["rank_skew_frac"] == 0.1


def test_every_engine_has_candidates_inside_their_bounds():
    for path in data_files("calibration/engines/*.json"):
        if path.stem != "memory":
            found = parameters(path.stem)
            assert set(ENGINE_SIDE) <= set(found)
            assert all(p.low <= p.default <= p.high for p in found.values())


# Halves


@given(st.lists(st.tuples(st.sampled_from("abcdefghij"), st.sampled_from(["x", "y"])), min_size=1))
def test_no_source_lies_in_both_halves(rows):
    sources, groups = [s for s, _ in rows], [g for _, g in rows]
    folds = folds_of(sources, groups)
    for source in set(sources):
        assert len({k for k, s in zip(folds, sources, strict=True) if s == source}) == 1
    assert (folds == folds_of(sources, groups)).all()
    assert len(set(folds.tolist())) == min(5, len(set(sources)))


# The solution


def linear(true, centre, slopes, noise=0.0, seed=1):
    measured = slopes @ (np.asarray(true) - centre)
    measured = measured + noise * np.random.default_rng(seed).normal(size=len(slopes))
    return Problem(
        np.asarray(centre, float),
        slopes,
        np.ones(len(slopes)),
        lambda point: slopes @ (point - centre) - measured,
    )


def test_known_terms_are_found_and_an_unidentified_one_stays_at_its_prior():
    rng = np.random.default_rng(0)
    slopes = rng.uniform(0.5, 3.0, (200, 3))
    slopes[:, 2] = 0.0
    problem = linear([0.7, 0.2, 0.9], np.array([0.5, 0.5, 0.4]), slopes, noise=0.02)
    for found in (
        step(problem, problem.centre, problem.errors(problem.centre)),
        walk(problem, problem.centre),
    ):
        assert found[:2] == pytest.approx([0.7, 0.2], abs=0.02)
        assert found[2] == pytest.approx(0.4, abs=1e-6)


def test_few_runs_move_a_term_less_than_many():
    slopes = np.ones((100, 1)) * 0.3
    few, many = (linear([0.9], np.array([0.5]), slopes[:n]) for n in (1, 100))
    moved = [step(p, p.centre, p.errors(p.centre))[0] for p in (few, many)]
    assert 0.5 < moved[0] < 0.75 < moved[1] < 0.9


def test_one_broken_run_hardly_moves_a_term():
    slopes = np.ones((30, 1))
    problem = linear([0.6], np.array([0.5]), slopes)
    broken = problem.errors(problem.centre)
    broken[0] += 3.0
    assert step(problem, problem.centre, broken)[0] == pytest.approx(0.6, abs=0.03)


def test_only_terms_that_help_unseen_sources_are_chosen_and_at_most_one_for_ten_rows():
    rng = np.random.default_rng(3)
    slopes = rng.normal(size=(60, 5))
    problem = linear([0.8, 0.5, 0.1, 0.5, 0.5], np.full(5, 0.5), slopes, noise=0.05)
    folds = np.arange(60) % 5
    assert set(choose(problem, problem.centre, folds, 6)) == {0, 2}
    assert len(choose(problem, problem.centre, folds, 1)) == 1
    assert choose(problem, problem.centre, np.zeros(60, int), 6) == []


def test_repeats_and_other_step_counts_are_one_independent_row():
    case = next(r for r in RECORDS if r.engine == "wan-official" and r.steps and not r.doubtful)
    again = case.model_copy(update={"id": "again"})
    fewer = case.model_copy(update={"id": "fewer", "steps": case.steps - 1})
    elsewhere = case.model_copy(update={"id": "elsewhere", "source": "another"})
    assert independent_rows(cases_of([case, again, fewer])) == 1
    assert independent_rows(cases_of([case, elsewhere])) == 2


# From records to a file

FEW = ("launch_compiled_s", "request_host_s", "hsdp_hook_s")
TRUE = {"launch_compiled_s": 3.5e-5, "request_host_s": 0.7}


@pytest.fixture(scope="module")
def synthetic():
    """Small images of vLLM-Omni in eight sources, as if the terms were `TRUE`."""
    base = {"engine": "vllm-omni", "engine_version": "0.30.0", "model": "cosmos3-nano"}
    records = [
        RunRecord(
            **base,
            id=f"{gpu} {side}",
            task="t2i",
            source=f"source {(number + 3 * place) % 8}",
            gpu=gpu,
            num_gpus=1,
            width=side,
            height=side,
            frames=1,
            steps=10 + 12 * (number % 3),
            measured_ms={"e2e": 1.0},
        )
        for place, gpu in enumerate(("h100-sxm", "b300-sxm"))
        for number, side in enumerate(range(256, 512, 16))
    ]
    made = []
    for case in cases_of(records):
        logs = case.outcome(case.terms({"vllm-omni": TRUE})).log_s
        targets = {k: float(np.exp(x)) for k, x in zip(case.targets, logs, strict=True)}
        made.append(replace(case, targets=targets))
    assert len(made) == 32
    return made


@pytest.fixture(scope="module")
def fitted(synthetic, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            levels, "parameters", lambda f: {n: p for n, p in parameters(f).items() if n in FEW}
        )
        options = Options(trials=4, storage=str(folder / "study.journal"))
        runs = Evaluations(synthetic)
        fits = []
        for _ in range(2):
            with runs.running():
                fits.append(fit_runs(runs, options, ["vllm-omni"]))
    return folder, fits


def test_terms_behind_synthetic_runs_are_recovered(fitted):
    one = fitted[1][0].files[0]
    assert set(one.terms) == set(TRUE)
    for name, value in TRUE.items():
        assert one.terms[name].value == pytest.approx(value, rel=0.1)
    assert one.after.mean_frac < 0.2 * one.before.mean_frac
    assert one.kept == {"hsdp_hook_s": "0 independent rows depend on it"}
    assert len(one.terms) <= one.independent // 10


def test_each_fold_was_fitted_without_its_sources(fitted):
    fit = fitted[1][0]
    sources = fit.evaluations.sources
    for fold in range(len(fit.by_fold)):
        here = {s for s, k in zip(sources, fit.folds, strict=True) if k == fold}
        assert here.isdisjoint({s for s, k in zip(sources, fit.folds, strict=True) if k != fold})
    assert len({terms["vllm-omni"]["request_host_s"] for terms in fit.by_fold}) > 1


def test_a_study_is_resumed(fitted):
    import optuna
    from optuna.storages.journal import JournalFileBackend

    folder, (first, second) = fitted
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / "study.journal")))
    (summary,) = optuna.get_all_study_summaries(storage)
    assert summary.n_trials == 4
    assert first.values == second.values


def test_a_written_file_says_what_it_rests_on_and_changes_the_prediction(fitted, monkeypatch):
    folder, (fit, _) = fitted
    found = requests(fit)
    content = document(fit, fit.files[0], found, [RUNS])
    path, older = write_terms(content, folder / "calibration" / "engines")
    assert older is None
    term = json.loads(path.read_text())["terms"]["launch_compiled_s"]
    assert term["provenance"] == "fitted"
    assert term["prior"] == own_terms("vllm-omni")["terms"]["launch_compiled_s"]["value"]
    assert set(term["records"]) <= {case.record.id for case in fit.evaluations.cases}
    assert term["rows"] == len(term["records"])
    assert content["fit"]["records"][0]["sha256"]
    before = predict_record(fit.evaluations.cases[0].record)
    monkeypatch.setenv("PERFMODEL_PATH", str(folder))
    after = predict_record(fit.evaluations.cases[0].record)
    key = next(iter(before.predicted_ms))
    assert after.predicted_ms[key] > before.predicted_ms[key]
    assert "launch_compiled_s" in "\n".join(report_lines(fit, found))
    # fitted again to the same runs, it starts from the same prior
    again = cases_of([case.record for case in fit.evaluations.cases[:1]])
    assert again[0].terms({})["launch_compiled_s"] == term["value"]
    changed = {**content, "spread": {}}
    _, older = write_terms(changed, path.parent)
    assert older is not None
    assert json.loads(older.read_text()) == json.loads(text_of(content))


# One site


def fit_of(cases, names=FEW):
    said = []
    runs = Evaluations(cases, progress=Progress(said.append))
    with pytest.MonkeyPatch.context() as patch, runs.running():
        patch.setattr(
            levels, "parameters", lambda f: {n: p for n, p in parameters(f).items() if n in names}
        )
        return fit_runs(runs, Options(trials=2), ["vllm-omni"]), said


def local(cases, **changes):
    return [
        replace(case, record=case.record.model_copy(update={"source": "local", **changes}))
        for case in cases
    ]


def test_runs_of_one_source_are_held_out_by_what_they_ran(synthetic):
    fit, said = fit_of(local(synthetic))
    one = fit.files[0]
    groups = fit.evaluations.groups
    assert groups.unseen == "workload shapes"
    labels = set(groups.labels)
    assert len(labels) == 16
    for label in labels:
        assert len({k for k, x in zip(fit.folds, groups.labels, strict=True) if x == label}) == 1
    assert set(one.terms) == set(TRUE)
    for name, value in TRUE.items():
        assert one.terms[name].value == pytest.approx(value, rel=0.1)
    content = document(fit, one, requests(fit), [RUNS])
    assert "one source (local)" in content["fit"]["evidence"]
    assert content["terms"]["request_host_s"]["site"] == "local"
    assert any("holds for this site" in line for line in report_lines(fit, requests(fit)))
    assert said[0] == "fitting vllm-omni"


def test_noise_of_one_source_moves_no_term(synthetic):
    """Times that differ by chance alone: nothing that helps unseen shapes."""
    random = np.random.default_rng(5)
    noisy = []
    for case in local(synthetic):
        logs = case.outcome(case.terms({})).log_s
        seen = zip(case.targets, logs, strict=True)
        off = random.normal(0.0, 0.1)
        noisy.append(replace(case, targets={k: float(np.exp(x + off)) for k, x in seen}))
    one = fit_of(noisy)[0].files[0]
    assert one.terms == {}


def test_groups_are_the_furthest_apart_that_the_runs_have(synthetic):
    cases = local(synthetic)
    side = [case for case in cases if int(case.job.shape.width) == 256]
    assert groups_of(cases).unseen == "workload shapes"
    assert groups_of(side).unseen == "GPU counts"
    assert groups_of(synthetic).site is None
    assert groups_of(synthetic).labels == tuple(case.source for case in synthetic)
    alone = fit_of([replace(side[0], question=str(n)) for n in range(12)])[0].files[0]
    assert alone.kept == {"": "one shape, GPU count and layout: nothing can be held out"}


def test_progress_is_said_now_and_then_and_at_each_task(monkeypatch):
    now = iter(range(0, 100, 2))
    monkeypatch.setattr("perfmodel.calibrate.runs.progress.monotonic", lambda: float(next(now)))
    said = []
    progress = Progress(said.append)
    progress.task("fitting x")
    assert list(progress.counted(range(7), "runs")) == list(range(7))
    assert said[0] == "fitting x"
    assert said[1:] == ["fitting x: 3 runs, 8 s so far", "fitting x: 6 runs, 14 s so far"]


# As typed


def options(**changes):
    given_options = {"runs": [RUNS], "out": None, "trials": 2, "storage": None}
    return {**given_options, **changes}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"runs": None}, "either --records with --device"),
        ({"records": [RUNS], "device": "h100-sxm"}, "either --records with --device"),
        ({"runs": None, "records": [RUNS]}, "--records needs --device"),
        ({"device": "h100-sxm", "laws": "gemm"}, "--laws goes with --records"),
        ({"runs": None, "records": [RUNS], "device": "a", "engine": ["b"]}, "goes with --runs"),
        ({"runs": [Path("nowhere.jsonl")]}, "nowhere.jsonl cannot be read"),
    ],
)
def test_bad_input_is_one_line_each(tmp_path, changes, message):
    with pytest.raises(BadInput) as caught:
        calibrate(**options(**{"storage": str(tmp_path / "s.journal"), **changes}))
    assert any(message in problem.message for problem in caught.value.problems)


def test_an_engine_without_runs_and_records_without_use_are_refused(tmp_path, capsys):
    lines = [json.loads(line) for line in RUNS.read_text().splitlines()]
    mine = tmp_path / "mine.jsonl"
    mine.write_text(json.dumps(next(x for x in lines if x["engine"] == "wan-official")) + "\n{\n")
    typed = options(runs=[mine], storage=str(tmp_path / "s.journal"), out=tmp_path / "out")
    with pytest.raises(BadInput, match='"xdti" has no run'):
        calibrate(**{**typed, "engine": ["xdti"]})
    mine.write_text('{"id": "a", "engine": "none", "model": "m"}\n')
    capsys.readouterr()
    with pytest.raises(BadInput, match="no run that can be predicted"):
        calibrate(**typed)
    assert capsys.readouterr().err == "", "the refusal carries the bad rows: said once"


def test_runs_in_seconds_are_left_out_and_named(tmp_path, capsys):
    rows = [json.loads(line) for line in RUNS.read_text().splitlines()]
    rows = [row for row in rows if row["engine"] == "vllm-omni" and "e2e" in row["measured_ms"]][:3]
    rows[1]["measured_ms"] = {"e2e": rows[1]["measured_ms"]["e2e"] / 1000}
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert len(_cases([path], Progress())) == 2
    assert f"{rows[1]['id']}: e2e looks like seconds, not ms" in capsys.readouterr().err


def test_too_few_runs_leave_the_priors_and_say_so(tmp_path, capsys):
    lines = [json.loads(line) for line in RUNS.read_text().splitlines()]
    mine = tmp_path / "mine.jsonl"
    mine.write_text(json.dumps(next(x for x in lines if x["engine"] == "lightx2v")) + "\n{\n")
    calibrate(
        **options(runs=[mine], storage=str(tmp_path / "s.journal"), out=tmp_path / "out"),
        engine=["lightx2v"],
    )
    shown = capsys.readouterr()
    assert "all terms keep their priors: 1 independent rows" in shown.out
    assert "mine.jsonl:2" in shown.err
    written = json.loads((tmp_path / "out" / "lightx2v.json").read_text())
    assert all(term["provenance"] == "prior" for term in written["terms"].values())


def test_what_is_left_out_is_said_with_its_reason():
    whole = next(r for r in RECORDS if r.engine == "vllm-omni" and (r.frames or 1) > 1)
    runs = [
        whole,
        whole.model_copy(update={"id": "a", "model": "no-such-model"}),
        whole.model_copy(update={"id": "b", "gpu": "no-such-gpu"}),
        whole.model_copy(update={"id": "c", "doubtful": True}),
        whole.model_copy(update={"id": "d", "measured_ms": {}}),
    ]
    told = {}
    assert len(cases_of(runs, lambda run, why: told.update({run: why}))) == 1
    assert set(told) == {"a", "b", "c", "d"}
    assert "no-such-model" in told["a"]
    assert "no-such-gpu" in told["b"]
    assert told["c"] == "doubtful"


def test_runs_left_out_and_unknown_engines_are_warned_of():
    whole = next(r for r in RECORDS if r.engine == "vllm-omni" and (r.frames or 1) > 1)
    (warning,) = _left_out([("a", "x"), ("b", "y"), ("c", "y")], 7)
    assert warning.message.startswith("3 of 7 runs are left out: 2 y (b); 1 x (a)")
    assert _left_out([], 7) == []
    mine = cases_of([whole, whole.model_copy(update={"engine": "vLLM_Omni_"})])
    (other,) = _other_engines(mine)
    assert other.value == "vLLM_Omni_"
    assert "read as diffusers" in other.message
