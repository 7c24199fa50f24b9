"""Results against predictions: what held, what was off, what is set aside, what is kept."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from perfmodel import catalog
from perfmodel.api.recommend import recommend
from perfmodel.api.session import open_session
from perfmodel.api.table import legality, search_space
from perfmodel.cli.app import run as typed
from perfmodel.cli.schema import schema
from perfmodel.engines.records import run_record
from perfmodel.errors import BadInput
from perfmodel.pipeline.evaluate import STAGES
from perfmodel.plan.survey import survey
from perfmodel.report.render import Look, render
from perfmodel.spec.parallel import parse_parallel
from perfmodel.spec.record import RunRecord
from perfmodel.spec.workload import Options, Workload
from perfmodel.verify.learned import judge
from perfmodel.verify.sort import Taken, read_results, sort
from perfmodel.verify.verdict import verify

RAN = ("cfg2_usp2_vaepp4", "usp4_vaepp4", "cfg2_usp2")


@pytest.fixture(scope="module")
def session():
    return open_session(Workload(frames=189), catalog.parse_gpus("4xB300"))


@pytest.fixture(scope="module")
def field(session):
    return survey(session)


def row_of(field, name: str) -> int:
    layouts = field.table.evaluation.layouts
    config = parse_parallel(name)[0]
    return next(i for i in range(len(layouts)) if layouts.row(i) == config)


def predicted_ms(field, name: str, x: np.ndarray | None = None) -> dict[str, float]:
    """Stages and server time that the model predicts, optionally with log-multipliers `x`."""
    row = row_of(field, name)
    stages = {s: float(field.belief.time_s((s,), x)[row]) * 1000 for s in STAGES}
    kept = {name: ms for name, ms in stages.items() if ms > 0 and name != "transfer"}
    return {**kept, "server": sum(stages.values())}


def record(session, name: str, measured_ms: dict[str, float], **changes: object) -> RunRecord:
    base = run_record(session.context, parse_parallel(name)[0])
    return RunRecord.model_validate({**base, "measured_ms": measured_ms, "repeats": 3, **changes})


def records(session, field, x: np.ndarray | None = None, names=RAN) -> list[RunRecord]:
    return [record(session, name, predicted_ms(field, name, x)) for name in names]


def test_what_was_predicted_holds(session, field):
    answer = verify(session, records(session, field))
    assert answer.pick_held is True
    assert answer.pick == answer.best_measured
    assert answer.regret_pct == 0
    assert answer.compared_by == "server"
    assert answer.inside_range == len(RAN)
    assert answer.terms == ()
    assert {run.status for run in answer.runs} == {"measured"}
    for run in answer.runs:
        assert run.error_pct == pytest.approx(0, abs=1e-6)
        assert [row.stage for row in run.stages] == [*STAGES, "request"]
    for row in answer.ranking:
        assert row.latency_ms == pytest.approx(row.before_ms, rel=1e-6)
        assert row.rank == row.rank_before


def off(field, **factors: float) -> np.ndarray:
    """Log-multipliers with some kinds of time off."""
    x = np.zeros(len(field.belief.sources))
    for index, source in enumerate(field.belief.sources):
        kind = source.partition(".")[0] if not source.startswith("axis.") else source
        name = kind.replace(".", "_")
        if name in factors:
            x[index] = np.log(factors[name])
    return x


def test_the_term_that_is_off_is_named_and_moves_unmeasured_neighbours(session, field):
    x = off(field, video_encode=1.5)
    answer = verify(session, records(session, field, x))
    first = answer.terms[0]
    assert first.title == "MP4 encode"
    assert first.shift_pct == pytest.approx(50, abs=5)
    assert first.after_pct < first.before_pct
    unmeasured = [row for row in answer.ranking if not row.measured]
    assert unmeasured
    base = {n: float(field.belief.latency_s[i]) for i, n in enumerate_ids(field)}
    true = {n: float(field.belief.time_s(STAGES, x)[i]) for i, n in enumerate_ids(field)}
    for row in unmeasured:
        wanted = true[row.config_id] * 1000
        assert abs(row.latency_ms / wanted - 1) < 0.2 * abs(base[row.config_id] * 1000 / wanted - 1)


def enumerate_ids(field):
    return ((i, field.table.config_id(i)) for i in range(field.belief.count))


def test_an_axis_that_is_slower_than_thought_loses_its_place(session, field):
    names = ("cfg2_usp2_vaepp4", "usp4_vaepp4", "cfg2_tp2_vaepp4")
    x = off(field, axis_ulysses=1.08)
    answer = verify(session, records(session, field, x, names))
    assert answer.best_measured == "cfg2_tp2_vaepp4"
    assert answer.pick_held is False
    assert answer.regret_pct > 2
    assert any("Ulysses per doubling" in term.title for term in answer.terms)
    assert answer.ranking[0].config_id == "cfg2_tp2_vaepp4"
    assert answer.ranking[0].measured


def test_terms_stop_at_their_bound(session, field):
    answer = verify(session, records(session, field, off(field, video_encode=9.0)))
    mp4 = next(term for term in answer.terms if term.title == "MP4 encode")
    assert mp4.bounded
    assert mp4.shift_pct < 400


@pytest.mark.parametrize("factor", [0.5, 1.5, 2.0, 4.0])
def test_a_stage_that_is_off_alone_is_the_term(session, field, factor):
    """All stages as predicted but the VAE decode: nothing that the denoise loop shares moves."""
    rows = []
    for name in RAN:
        measured = predicted_ms(field, name)
        extra = (factor - 1) * measured["vae_decode"]
        changed = {"vae_decode": measured["vae_decode"] + extra, "server": measured["server"]}
        changed["server"] += extra
        rows.append(record(session, name, {**measured, **changed}))
    answer = verify(session, rows)
    assert [term.title for term in answer.terms] == ["VAE decode as a whole"]
    assert answer.terms[0].shift_pct == pytest.approx((factor - 1) * 100, rel=0.02)
    assert not any("far from" in note for run in answer.runs for note in run.notes)
    row = row_of(field, "usp4")
    true = predicted_ms(field, "usp4")
    wanted = true["server"] + (factor - 1) * true["vae_decode"]
    found = judge(
        field, [Taken(one, parse_parallel(n)[0]) for one, n in zip(rows, RAN, strict=True)]
    )
    assert found.latency_s[row] * 1000 == pytest.approx(wanted, rel=0.01)


def test_patches_that_do_not_divide_the_decode_are_the_term(session, field):
    """The same decode time on one, two and four GPUs: the axis is off, not the denoise loop."""
    names = ("cfg2_usp2_vaepp4", "cfg2_usp2_vaepp2", "cfg2_usp2")
    rows = []
    for name in names:
        measured = predicted_ms(field, name)
        rest = measured["server"] - measured["vae_decode"]
        rows.append(
            record(session, name, {**measured, "vae_decode": 3500.0, "server": rest + 3500.0})
        )
    titles = {term.title for term in verify(session, rows).terms}
    assert "VAE patch parallel per doubling, beyond its operators" in titles
    assert not titles & {"attention", "matrix products"}


def test_no_run_is_far_from_the_others_where_all_are(session, field):
    rows = []
    for name in RAN:
        measured = predicted_ms(field, name)
        extra = 40 * measured["video_encode"]
        changed = {"video_encode": extra, "server": measured["server"] + extra}
        rows.append(record(session, name, {**measured, **changed}))
    answer = verify(session, rows)
    notes = [note for run in answer.runs for note in run.notes]
    assert not any("other runs" in note for note in notes)
    assert any("further from the prediction than the terms may move" in note for note in notes)


def test_measured_values_replace_predictions(session, field):
    seen = predicted_ms(field, RAN[0])
    slower = {key: ms * 1.2 for key, ms in seen.items()}
    answer = verify(session, [record(session, RAN[0], slower)])
    row = next(row for row in answer.ranking if row.config_id == RAN[0])
    assert row.measured
    assert row.latency_ms == pytest.approx(slower["server"])
    assert answer.pick_held is None


OTHERS = [
    ({"frames": 93}, "set aside", "frames 93, asked 189"),
    ({"width": 832, "height": 480}, "set aside", "width 832, asked 1280; height 480, asked 720"),
    ({"steps": 50}, "set aside", "steps 50, asked 35"),
    ({"engine_version": "0.28.0"}, "set aside", "vllm-omni 0.28.0, asked 0.30.0"),
    ({"gpu": "h100-sxm"}, "set aside", "GPU h100-sxm, asked b300-sxm"),
    ({"dtype": "fp8"}, "set aside", "dtype fp8, asked bf16"),
    ({"compile": False}, "set aside", "eager, asked compiled"),
    ({"task": "i2v"}, "set aside", "task i2v, asked t2v"),
    ({"num_outputs": 2}, "set aside", "2 outputs a request, asked 1"),
    ({"offload": "layerwise"}, "set aside", "offload layerwise, asked none"),
    ({"vae_fast_path": "off"}, "set aside", "VAE fast path off, asked lossless"),
    ({"model": "nvidia/Cosmos3-Super"}, "set aside", "asked Cosmos3-Nano"),
    ({"doubtful": True}, "set aside", "marked doubtful"),
    ({"parallel": {"ulysses_degree": 3}, "num_gpus": 3}, "set aside", "not legal under these"),
    ({"cache": "teacache"}, "set aside", "step cache"),
    ({"guardrails": True}, "set aside", "guardrails on, asked off"),
    ({"error": "CUDA out of memory", "measured_ms": {}}, "failed", "CUDA out of memory"),
    ({"error": "HTTP 500: died", "http_status": 500, "measured_ms": {}}, "failed", "(HTTP 500)"),
    ({"measured_ms": {}}, "failed", "no times in it"),
    ({"measured_ms": {"process": 5.0}}, "set aside", "only process: nothing that is predicted"),
]


@pytest.mark.parametrize(("changes", "status", "reason"), OTHERS)
def test_other_questions_are_explained_and_not_mixed(session, field, changes, status, reason):
    good = record(session, RAN[1], predicted_ms(field, RAN[1]))
    bad = {"id": "other", "measured_ms": {"server": 1234.0, "denoise": 1000.0}, **changes}
    other = RunRecord.model_validate({**good.model_dump(), **bad})
    answer = verify(session, [good, other])
    alone = verify(session, [good])
    found = next(run for run in answer.runs if run.record_id == "other")
    assert found.status == status
    assert reason in found.reason
    assert answer.ranking == alone.ranking
    assert answer.terms == alone.terms


def test_doubtful_records_come_in_when_asked_for(session, field):
    one = record(session, RAN[0], predicted_ms(field, RAN[0]), doubtful=True)
    assert verify(session, [one]).runs[0].status == "set aside"
    assert verify(session, [one], include_doubtful=True).runs[0].status == "measured"


def test_seconds_are_not_taken_for_milliseconds(session, field):
    seconds = {key: ms / 1000 for key, ms in predicted_ms(field, RAN[0]).items()}
    answer = verify(session, [record(session, RAN[0], seconds)])
    (found,) = answer.runs
    assert found.status == "set aside"
    assert "looks like seconds" in found.reason
    assert answer.terms == ()


def test_missing_stages_are_said(session, field):
    answer = verify(session, [record(session, RAN[0], {"denoise": 24_000.0})])
    (found,) = answer.runs
    assert answer.compared_by == "denoise"
    text = " ".join(found.notes)
    assert "no VAE decode" in text or "no vae decode" in text
    assert "no request time" in text
    row = next(row for row in answer.ranking if row.config_id == RAN[0])
    assert not row.measured


def test_the_key_that_all_runs_have_is_compared(session, field):
    mixed = [
        record(session, RAN[0], {"denoise": 24_000.0, "server": 31_000.0}),
        record(session, RAN[1], {"denoise": 25_000.0}),
    ]
    answer = verify(session, mixed)
    assert answer.compared_by == "denoise"
    assert answer.best_measured == RAN[0]


def test_records_of_one_configuration_that_disagree_are_said(session, field):
    seen = predicted_ms(field, RAN[0])
    double = {key: ms * 1.5 for key, ms in seen.items()}
    pair = [record(session, RAN[0], seen), record(session, RAN[0], double, id="again")]
    answer = verify(session, pair)
    assert any("differ by 50 %" in note for run in answer.runs for note in run.notes)


def test_a_client_sees_the_engine_through_its_overhead(session, field):
    ms = predicted_ms(field, RAN[0])["server"]
    taken = [Taken(record(session, RAN[0], {"client": ms}), parse_parallel(RAN[0])[0])]
    overhead = session.job.machine.term("client_overhead_s", 0.0)
    found = judge(field, taken)
    assert found.latency_s[row_of(field, RAN[0])] == pytest.approx(ms / 1000 - overhead)


def test_a_time_a_step_is_a_stage(session, field):
    steps = int(session.job.shape.steps)
    whole = predicted_ms(field, RAN[0])["denoise"] * 1.1
    by_step = verify(session, [record(session, RAN[0], {"denoise_per_step": whole / steps})])
    by_stage = verify(session, [record(session, RAN[0], {"denoise": whole})])
    assert by_step.compared_by == "denoise_per_step"
    assert by_step.runs[0].predicted_ms == pytest.approx(by_stage.runs[0].predicted_ms / steps)
    assert by_step.runs[0].error_pct == pytest.approx(by_stage.runs[0].error_pct)
    for one, other in zip(by_step.ranking, by_stage.ranking, strict=True):
        assert one.latency_ms == pytest.approx(other.latency_ms)


@pytest.mark.parametrize(
    ("gpus", "model", "options"),
    [
        ("4xB300", "cosmos3-nano", Options()),
        ("4xB300", "cosmos3-nano", Options(guardrails=True)),
        ("4xB300", "cosmos3-nano", Options(attention_backend="TORCH_SDPA", compile=False)),
        ("8xH100", "wan2.2-t2v-a14b", Options(dtype="fp8", offload="layerwise")),
        ("4xA100", "wan2.1-t2v-1.3b", Options(vae_tiling="on")),
    ],
)
def test_the_records_of_a_plan_answer_its_question(gpus, model, options):
    asked = open_session(Workload(model=model), catalog.parse_gpus(gpus), options=options)
    found = legality(asked, search_space(asked))
    layouts = found.layouts.take(found.legal)
    for index in range(0, len(layouts), 7):
        config = layouts.row(index)
        one = RunRecord.model_validate(
            {**run_record(asked.context, config), "measured_ms": {"server": 1.0}}
        )
        taken, aside = sort([one], asked)
        assert not aside, aside
        assert replace(taken[0].config, vae_tiling=False) == replace(config, vae_tiling=False)


def test_a_configuration_outside_the_search_space_has_its_own_row(session, field):
    name = "agkv2"
    layout = parse_parallel(name)[0]
    assert layout not in {field.table.evaluation.layouts.row(i) for i in range(field.belief.count)}
    answer = verify(session, [record(session, name, {"server": 60_000.0})])
    assert answer.runs[0].config_id == name
    if answer.runs[0].status == "measured":
        assert any(row.config_id == name and row.measured for row in answer.ranking)


def test_files_with_bad_rows_and_other_formats(tmp_path):
    path = tmp_path / "results.jsonl"
    good = '{"id": "a", "engine": "vllm-omni", "model": "m", "measured_ms": {"server": 1}}'
    other = '{"id": "b", "engine": "vllm-omni", "model": "m", "measured_s": {"server": 1}}'
    path.write_text(f"{good}\nnot json\n{other}\n")
    found, bad = read_results([path])
    assert [one.id for one in found] == ["a", "b"]
    assert [problem.rule_id for problem in bad] == ["record", "record-units"]
    assert "results.jsonl:3: times under measured_s" in bad[1].message


def test_the_study_is_told_once_and_continues(session, field, tmp_path):
    import optuna

    path = tmp_path / "study.journal"
    first = verify(session, records(session, field, names=RAN[:1]), study=path)
    again = verify(session, records(session, field, names=RAN[:1]), study=path)
    assert again.study_trials == first.study_trials
    states = [t.state.name for t in only_study(path).trials]
    assert states.count("COMPLETE") == 1
    assert states.count("RUNNING") == len(first.next_runs)
    # what was asked for is told in the same trial
    asked = first.next_runs[0]
    more = verify(session, records(session, field, names=(asked,)), study=path)
    trials = only_study(path).trials
    told = [t for t in trials if t.user_attrs.get("config_id") == asked]
    assert [t.state for t in told] == [optuna.trial.TrialState.COMPLETE]
    assert told[0].value == pytest.approx(predicted_ms(field, asked)["server"] / 1000, rel=1e-4)
    # the first measurement is remembered although these results lack it
    remembered = {row.config_id: row for row in more.ranking}
    assert remembered[RAN[0]].measured
    assert remembered[asked].measured
    assert more.pick_held is not None


def only_study(path: Path):
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(path)))
    (name,) = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage)


def test_failures_are_told_as_failures(session, field, tmp_path):
    failed = record(session, RAN[2], {}, error="out of memory")
    path = tmp_path / "study.journal"
    verify(session, [*records(session, field, names=RAN[:1]), failed], study=path)
    verify(session, [*records(session, field, names=RAN[:1]), failed], study=path)
    trials = [t for t in only_study(path).trials if t.user_attrs.get("config_id") == RAN[2]]
    assert [t.state.name for t in trials] == ["FAIL"]


def test_a_file_that_is_no_study_is_refused(session, field, tmp_path):
    path = tmp_path / "study.journal"
    path.write_text("this is no journal\nat all\n")
    with pytest.raises(BadInput, match="cannot be continued"):
        verify(session, records(session, field, names=RAN[:1]), study=path)
    assert path.read_text() == "this is no journal\nat all\n"


@pytest.fixture
def sweep(tmp_path, session, field, capsys):
    """A plan on disk, and results of its runs."""
    folder = tmp_path / "sweep"
    flags = ["--gpus", "4xB300", "--frames", "189", "--max-runs", "2"]
    assert typed(["plan", *flags, "--out", str(folder)]) == 0
    capsys.readouterr()
    stored = json.loads((folder / "plan.json").read_text())
    lines = []
    for entry in stored["runs"]:
        job = json.loads((folder / entry["run_id"] / "job.json").read_text())
        measured = predicted_ms(field, entry["config_id"])
        lines.append({**job["record"], "run": entry["run_id"], "measured_ms": measured})
    (folder / "results.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    return folder


def test_results_beside_a_plan_need_no_flags(sweep, capsys):
    assert typed(["verify", "--from", str(sweep / "results.jsonl"), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, schema("verify"))
    assert sorted(run["letter"] for run in answer["runs"])[0] == "A"
    assert answer["pick_held"] in (True, None)
    assert answer["workload"]["frames"] == 189
    assert answer["plan_id"]
    assert Path(answer["study"]) == sweep / "study.journal"


def test_the_page_fits_and_gives_a_verdict(sweep, capsys):
    flags = ["--from", str(sweep / "results.jsonl"), "--study", "none"]
    assert typed(["verify", *flags]) == 0
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 100
    assert "VERDICT  The pick" in said or "alone was measured" in said
    assert "measured values replace predictions" in said
    assert not (sweep / "study.journal").exists()


def test_a_planned_run_without_a_record_is_said(sweep, capsys):
    path = sweep / "results.jsonl"
    lines = path.read_text().splitlines()
    path.write_text(lines[0] + "\n")
    assert typed(["verify", "--from", str(path), "--study", "none"]) == 0
    if len(lines) > 1:
        assert "warning[plan-open]: no record of B_" in capsys.readouterr().err


def test_flags_ask_another_question_than_the_plan(sweep, capsys):
    flags = ["--gpus", "4xB300", "--frames", "93", "--study", "none", "--json"]
    assert typed(["verify", "--from", str(sweep / "results.jsonl"), *flags]) == 2
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["rule_id"] == "results"
    assert "frames 189, asked 93" in problem["message"]


def test_published_results_need_neither_plan_nor_flags(tmp_path, capsys):
    rows = [
        json.loads(line)
        for line in (Path(__file__).parent / "data" / "replay_sweeps.jsonl")
        .read_text()
        .splitlines()
    ]
    path = tmp_path / "published.jsonl"
    kept = [row for row in rows if row.get("sweep") == "sweep-97d325fe"]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept))
    assert typed(["verify", "--from", str(path), "--study", "none", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["system"]["spec"] == "4xb300-sxm"
    assert answer["compared_by"] == "denoise"
    assert answer["pick_held"] is True
    assert {run["status"] for run in answer["runs"]} == {"measured"}


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "error[verify]: nothing is verified"),
        (["--from", "/no/such/file.jsonl"], "error[from]: --from /no/such/file.jsonl is not a"),
    ],
)
def test_what_is_typed_wrongly_is_one_line(flags, said, capsys):
    assert typed(["verify", *flags]) == 2
    assert capsys.readouterr().err.startswith(said)


def test_a_broken_plan_is_named(tmp_path, capsys):
    (tmp_path / "plan.json").write_text("{}x")
    (tmp_path / "results.jsonl").write_text("")
    assert typed(["verify", "--from", str(tmp_path / "results.jsonl")]) == 2
    assert "is no plan.json" in capsys.readouterr().err


def test_results_without_records_are_refused(tmp_path, capsys):
    path = tmp_path / "results.jsonl"
    path.write_text("")
    assert typed(["verify", "--from", str(path)]) == 2
    assert capsys.readouterr().err.startswith("error[results]: nothing in the results can be")


def test_csv_and_markdown_are_rendered(session, field):
    answer = verify(session, records(session, field))
    assert render(answer, "csv").startswith("run,record,configuration,status,reason,measured_ms")
    assert "VERDICT" in render(answer, "md", Look(commands=0))
    assert replace(Look(), commands=1).commands == 1


HOSTS = [
    # (asked, sockets of the question, record's devices, record's sockets, what is said)
    ("8xL40S", 2, 8, 1, "8 GPUs over 1 CPU socket(s), asked 2"),
    ("8xL40S", 2, 8, 2, ""),
    ("8xL40S", 2, 4, 1, ""),  # half a host of two CPUs is under one of them
    ("8xL40S", 2, 4, 2, "4 GPUs over 2 CPU socket(s), asked 1"),
    ("8xL40S", 2, 1, 2, ""),  # one device is under one CPU, whatever the host has
    ("4xL40S", 1, 4, 2, "4 GPUs over 2 CPU socket(s), asked 1"),
    ("4xL40S", 1, 4, None, ""),
    ("4xH100", 1, 4, 2, ""),  # NVLink does not cross the CPUs
]


@pytest.mark.parametrize(("gpus", "asked", "count", "sockets", "said"), HOSTS)
def test_runs_on_another_host_are_other_questions(gpus, asked, count, sockets, said):
    machine = catalog.parse_gpus(gpus, catalog.Overrides(sockets=asked))
    question = open_session(Workload(), machine)
    name = f"usp{count}" if count > 1 else "single"
    ran = record(question, name, {"server": 5_000.0}, sockets=sockets)
    taken, aside = sort([ran], question)
    assert [item.reason for item in aside] == ([said] if said else [])
    assert len(taken) == (0 if said else 1)


def test_a_plan_states_its_host_and_its_images():
    machine = catalog.parse_gpus("8xL40S", catalog.Overrides(sockets=2))
    question = open_session(
        Workload(model="qwen-image-edit-2509", input_images=3), machine, engine="diffusers"
    )
    for name, sockets in (("single", 1), ("usp4", 1), ("usp8", 2)):
        made = record(question, name, {"server": 5_000.0})
        assert made.sockets == sockets
        assert made.ref_images == 3
    on_nvlink = open_session(Workload(), catalog.parse_gpus("4xB300"))
    made = record(on_nvlink, "usp4", {"server": 5_000.0})
    assert made.sockets is None
    assert made.ref_images is None


@pytest.mark.parametrize(
    ("sent", "asked", "said"), [(1, 3, "1 input image(s), asked 3"), (3, 3, "")]
)
def test_other_numbers_of_images_are_other_questions(sent, asked, said):
    machine = catalog.parse_gpus("1xH100")
    edit = Workload(model="qwen-image-edit-2509", input_images=asked)
    question = open_session(edit, machine, engine="diffusers")
    ran = record(question, "single", {"server": 5_000.0}, ref_images=sent)
    _, aside = sort([ran], question)
    assert [item.reason for item in aside] == ([said] if said else [])


WIDTHS = [
    (Workload(frames=189), "4xB300", Options()),
    (Workload(model="wan2.1-t2v-14b"), "4xL20", Options(cache_method="tea_cache")),
    (Workload(model="qwen-image"), "2xH100", Options()),
]


@pytest.mark.parametrize(("workload", "gpus", "options"), WIDTHS)
def test_ranges_are_those_that_recommend_states(workload, gpus, options):
    asked = open_session(workload, catalog.parse_gpus(gpus), options=options)
    best = recommend(workload, gpus, options=options, objective="latency").recommendations[0]
    nothing = record(asked, best.config_id, {"server": best.latency_ms}, doubtful=True)
    untouched = next(r for r in verify(asked, [nothing]).ranking if r.config_id == best.config_id)
    assert untouched.latency_low_ms == pytest.approx(best.latency_low_ms)
    assert untouched.latency_high_ms == pytest.approx(best.latency_high_ms)
    (run,) = verify(asked, [nothing], include_doubtful=True).runs
    for row in run.stages:
        if row.stage == "request":
            low, high = best.latency_low_ms, best.latency_high_ms
        else:
            low = getattr(best.stages_low_ms, row.stage)
            high = getattr(best.stages_high_ms, row.stage)
        assert row.low_ms == pytest.approx(low)
        assert row.high_ms == pytest.approx(high)


def test_what_scales_a_whole_run_is_learnt_from_one_run(session, field):
    seen = predicted_ms(field, RAN[0])
    slower = {key: ms * 1.15 for key, ms in seen.items()}
    answer = verify(session, [record(session, RAN[0], slower)])
    rows = [row for row in answer.ranking if not row.measured]
    assert rows
    for row in rows:
        # every stage took 15 % more: so do the layouts that nobody ran, and their range narrows
        assert row.latency_ms == pytest.approx(row.before_ms * 1.15, rel=0.03)
        width = np.log(row.latency_high_ms / row.latency_ms)
        (before,) = [
            float(np.log1p(field.table.halfwidth_s[i] / field.table.evaluation.latency_s[i]))
            for i in [row_of(field, row.config_id)]
        ]
        assert width < 0.7 * before
    assert any(term.source == "run" for term in answer.terms)
