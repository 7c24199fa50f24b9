"""Measured runs as questions: what a record states, what it leaves open, what its keys mean."""

from __future__ import annotations

import json
import shlex

import pytest

from perfmodel.api.session import open_session
from perfmodel.cli.app import run as typed
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.record import RunRecord, read_records
from perfmodel.spec.workload import Options, Workload
from perfmodel.validate.predicted import predict_record
from perfmodel.validate.questions import Skip, question
from perfmodel.validate.runs import likely_reason

WAN = Workload(model="wan2.2-t2v-a14b", width=832, height=480, frames=81, steps=40)


def record(**fields) -> RunRecord:
    base = dict(
        id="x", engine="wan-official", model="Wan-AI/Wan2.2-T2V-A14B", task="t2v", gpu="h100-sxm",
        num_gpus=1, width=832, height=480, frames=81, steps=40, cfg=True, measured_ms={"e2e": 1.0},
    )  # fmt: skip
    return RunRecord.model_validate({**base, **fields})


def test_each_replica_takes_a_request():
    record = RunRecord(
        id="x", engine="vllm-omni", engine_version="0.28.0", model="nvidia/Cosmos3-Nano",
        task="t2i", gpu="h100-sxm", num_gpus=4, width=1024, height=1024, frames=1, steps=50,
        measured_ms={"client": 1.0}, parallel={"data_parallel_size": 4},
    )  # fmt: skip
    alone = predict_record(record).predicted_ms
    busy = record.model_copy(update={"concurrency": 4, "num_outputs": 4})
    # Replicas compute beside one another; the server writes their images one by one.
    bounds = predict_record(busy)
    file_ms = bounds.answer.prediction.stages_ms.video_encode
    together_ms = bounds.predicted_ms["client"] - 2.25 * file_ms
    assert together_ms == pytest.approx(alone["client"])
    # Two for each: between one after the other of a wave, and a queue that never empties.
    queued = predict_record(record.model_copy(update={"concurrency": 8, "num_outputs": 8}))
    waited_ms = queued.predicted_ms["client"] - bounds.predicted_ms["client"]
    assert waited_ms == pytest.approx(0.75 * alone["client"])
    assert queued.predicted_ms["client"] > bounds.predicted_ms["client"] > alone["client"]
    stages = busy.model_copy(update={"measured_ms": {"denoise": 1.0}})
    waiting = stages.model_copy(update={"concurrency": 8, "num_outputs": 8})
    assert predict_record(waiting).predicted_ms == predict_record(stages).predicted_ms


def test_a_run_of_an_unknown_engine_or_an_unknown_layout_is_predicted():
    one = record(engine="diffusers", measured_ms={"e2e": 1.0})
    found = predict_record(one.model_copy(update={"engine": "somebody-else"}))
    assert "engine" in found.question.assumed
    assert found.predicted_ms == predict_record(one).predicted_ms
    # Its pipelines have no tensor parallelism, but the run was measured.
    split = one.model_copy(update={"num_gpus": 2, "parallel": {"tensor_parallel_size": 2}})
    answer = predict_record(split).answer
    assert [w.rule_id for w in answer.warnings if w.rule_id == "engine-axis"]
    # An engine that does not know the model: the model's own modules.
    foreign = one.model_copy(update={"engine": "cosmos-official"})
    assert "engine" in predict_record(foreign).question.assumed
    # More ranks than devices stay impossible.
    with pytest.raises(Skip, match="needs 4 GPUs"):
        predict_record(split.model_copy(update={"parallel": {"tensor_parallel_size": 4}}))


def test_sparse_attention_and_step_caches_are_predicted_where_their_share_is_stated():
    record = RunRecord(
        id="x", engine="diffusers", model="Wan-AI/Wan2.1-T2V-14B-Diffusers", task="t2v",
        gpu="h100-sxm", num_gpus=1, width=832, height=480, frames=81, steps=50,
        measured_ms={"denoise": 1.0},
    )  # fmt: skip

    def denoise(**changes):
        return predict_record(record.model_copy(update=changes)).predicted_ms["denoise"]

    with pytest.raises(Skip, match="unstated density"):
        denoise(sparse_attention=True)
    dense = denoise()
    thin = [denoise(sparse_attention=True, attention_density=share) for share in (0.5, 0.25)]
    assert dense > thin[0] > thin[1]
    assert denoise(cache="teacache", cache_skip=0.5) == pytest.approx(dense / 2, rel=0.01)


@pytest.mark.parametrize(
    ("spelt", "method"),
    [
        ("teacache", "tea_cache"),
        ("TeaCache 0.2", "tea_cache"),
        ("cache-dit", "cache_dit"),
        ("FBCache", "fb_cache"),
        ("something", "step_cache"),
    ],
)
def test_a_cache_without_a_ratio_skips_its_prior_and_widens_the_range(spelt, method):
    one = record(engine="diffusers", measured_ms={"denoise": 1.0})
    cached = one.model_copy(update={"cache": spelt})
    plain, guessed = predict_record(one), predict_record(cached)
    assert guessed.question.options.cache_method == method
    assert "cache_skip" in guessed.question.assumed
    named = open_session(WAN, "1xH100").job.machine.named
    prior = named.get(f"cache_skip.{method}") or named["cache_skip.other"]
    left = guessed.predicted_ms["denoise"] / plain.predicted_ms["denoise"]
    assert left == pytest.approx(1 - prior.value, rel=0.01)
    (warning,) = (w for w in guessed.answer.warnings if w.rule_id == "cache-ratio")
    assert warning.value == method
    stated = predict_record(cached.model_copy(update={"cache_skip": prior.value}))
    assert stated.predicted_ms["denoise"] == pytest.approx(guessed.predicted_ms["denoise"])
    assert not [w for w in stated.answer.warnings if w.rule_id == "cache-ratio"]

    def width(found):
        return found.high_ms["denoise"] / found.low_ms["denoise"]

    share = (prior.high - prior.low) / 2 / (1 - prior.value)
    assert width(guessed) > max(width(stated), 1 + share)


def test_the_methods_of_a_cache_are_flags_of_the_engines_that_have_them():
    for name, method, flag in (
        ("xdit", "tea_cache", "--cache_method teacache"),
        ("xdit", "cache_dit", "--cache_method dbcache"),
        ("vllm-omni", "cache_dit", "--cache-backend cache_dit"),
    ):
        options = Options(cache_method=method)
        session = open_session(WAN, "1xH100", engine=name, options=options)
        texts = session.engine.commands(session.context, ParallelConfig(), 1.0)
        start = {"xdit": "xdit ", "vllm-omni": "vllm "}[name]
        lines = f"{texts.request}\n{texts.serve}".splitlines()
        line = next(line for line in lines if line.startswith(start))
        assert flag in line
        launch = session.engine.read_launch(shlex.split(line))
        assert launch.options["cache_method"] == method


def test_a_single_forward_needs_no_steps_and_no_memory_of_a_pipeline():
    record = RunRecord(
        id="x", engine="diffusers", model="black-forest-labs/FLUX.1-dev", task="t2i",
        gpu="h100-sxm", num_gpus=1, width=1024, height=1024, dtype="nf4", compile=False,
        measured_ms={"transformer_forward": 1.0}, peak_memory_mib=9000.0,
    )  # fmt: skip
    found = predict_record(record)
    assert found.memory_mib is None
    steps = predict_record(record.model_copy(update={"steps": 7}))
    assert steps.predicted_ms == pytest.approx(found.predicted_ms)


def test_the_end_to_end_time_of_a_program_ends_before_the_file():
    found = predict_record(record(offload="model"))
    one = found.answer.prediction
    assert one.stages_ms.video_encode > 0
    written = found.predicted_ms["e2e"] + one.stages_ms.video_encode
    assert written == pytest.approx(one.latency_ms, rel=1e-9)


def test_the_end_to_end_time_of_a_server_ends_with_the_response():
    found = predict_record(record(engine="vllm-omni", source_date="2026-09-01"))
    assert found.predicted_ms["e2e"] == pytest.approx(found.answer.prediction.latency_ms)


def test_a_time_in_another_unit_is_the_reason_before_the_version():
    predicted_ms = predict_record(record()).predicted_ms["e2e"]

    def reason(times: float) -> str | None:
        return likely_reason(predict_record(record(measured_ms={"e2e": times * predicted_ms})))

    assert reason(1e-3) == "looks like seconds, not ms: e2e"
    assert reason(1e3) == "looks like µs, not ms: e2e"
    assert reason(1.0) is None
    assert "version" in str(reason(0.1))


def test_a_release_of_sglang_divides_a_video_decode_by_itself():
    fields = dict(engine="sglang-diffusion", num_gpus=2, parallel={"ulysses_degree": 2})
    dated = predict_record(record(engine_version="0.5.23 (wheel)", **fields))
    assert dated.question.parallel.vae_patch == 2
    stated = {"ulysses_degree": 2, "vae_patch_parallel_size": 1}
    off = predict_record(record(**{**fields, "parallel": stated}))
    assert off.question.parallel.vae_patch == 1


def test_torchao_names_of_quantisation():
    fields = dict(engine="diffusers+torchao", gpu="h100-sxm")
    assert question(record(dtype="int8dq", **fields)).options.dtype == "int8"
    assert question(record(dtype="fp8dqrow", **fields)).options.dtype == "fp8"
    assert question(record(dtype="int8wo", **fields)).options.dtype == "int8wo"
    assert question(record(dtype="fp6_e3m2", **fields)).options.dtype == "fp6wo"
    with pytest.raises(Skip, match="int3 is not modelled"):
        question(record(dtype="int3", **fields))


def test_gpus_without_a_degree_split_the_sequence_where_the_engine_does_so():
    fields = dict(
        model="Tongyi-MAI/Z-Image-Turbo", task="t2i", num_gpus=4, frames=1, cfg=False,
        parallel={"hsdp_shard_size": 4, "tensor_parallel_size": 2},
    )  # fmt: skip
    filled = question(record(engine="sglang-diffusion", **fields)).parallel
    assert (filled.ulysses, filled.tp, filled.hsdp, filled.world_size) == (2, 2, 4, 4)
    alone = question(record(engine="vllm-omni", **fields)).parallel
    assert alone.ulysses == 1


def test_condition_images_and_hosts_of_a_run_are_asked_for():
    edit = record(
        engine="diffusers", model="Qwen/Qwen-Image-Edit-2509", task="i2i", frames=1,
        width=1024, height=1024, num_gpus=16, nodes=2,
    )  # fmt: skip
    two = edit.model_copy(update={"ref_images": 2})
    assert question(two).workload.input_images == 2
    system = question(two).system
    assert (system.nodes, system.gpus_per_node, system.num_gpus) == (2, 8, 16)
    one = edit.model_copy(update={"num_gpus": 1, "nodes": 1})
    more = one.model_copy(update={"ref_images": 2})
    assert predict_record(more).predicted_ms["e2e"] > predict_record(one).predicted_ms["e2e"]


def test_stage_timers_that_do_not_wait_are_not_compared():
    fields = dict(
        engine="sglang-diffusion", engine_version="0.5.23",
        measured_ms={"vae_decode": 5.0, "denoise": 900.0},
    )  # fmt: skip
    video = predict_record(record(**fields))
    assert set(video.predicted_ms) == {"vae_decode", "denoise"}
    image = dict(model="nvidia/Cosmos3-Nano", task="t2i", frames=1, width=1024, height=1024)
    assert set(predict_record(record(**fields, **image)).predicted_ms) == {"denoise"}


def test_the_fast_path_of_a_record_is_asked_for():
    """Published on one GB200: 6.0 s off, 3.26 s lossless, 2.51 s with channels last."""
    fields = dict(task="t2v", width=1280, height=720, frames=189, steps=None)
    base = record(engine="vllm-omni", gpu="gb200", model="nvidia/Cosmos3-Nano", **fields)
    found = {
        path: predict_record(
            base.model_copy(update={"vae_fast_path": path, "measured_ms": {"vae_decode": 1.0}})
        ).predicted_ms["vae_decode"]
        for path in ("off", "lossless", "channels_last")
    }
    published = {"off": 6000.0, "lossless": 3260.0, "channels_last": 2510.0}
    assert found == pytest.approx(published, rel=0.12)


def test_cpus_of_a_record_slow_exchanges_between_its_cards():
    row = RunRecord(
        id="x", engine="xdit", model="maxin-cn/Latte-1", gpu="l20", num_gpus=4, steps=50,
        width=512, height=512, frames=16, parallel={"ulysses_degree": 4}, measured_ms={"e2e": 1.0},
    )  # fmt: skip
    two = row.model_copy(update={"sockets": 2})
    assert question(two).system.sockets == 2
    assert predict_record(two).predicted_ms["e2e"] > 1.5 * predict_record(row).predicted_ms["e2e"]


@pytest.mark.parametrize(
    ("field", "value"), [("cache_skip", 1.5), ("cache_skip", -1), ("attention_density", 0)]
)
def test_impossible_shares_are_bad_rows_and_the_rest_is_used(tmp_path, field, value):
    good = {"id": "good", "engine": "xdit", "model": "flux.1-dev", "measured_ms": {"e2e": 1.0}}
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{json.dumps(good)}\n{json.dumps(good | {field: value})}\n")
    records, bad = read_records([path])
    assert [record.id for record in records] == ["good"]
    (problem,) = bad
    assert field in problem.message


def test_a_limit_without_a_scored_record_is_missed(tmp_path, capsys):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"id": "a"}\n')
    assert typed(["validate", str(path), "--fail-above", "e2e=10"]) == 5
    assert "measured by no scored record" in capsys.readouterr().err


def test_the_page_gives_the_whole_reason_of_its_worst_rows():
    from perfmodel.report.tables import render_text
    from perfmodel.report.validate_answer import RecordDetail, SweepSummary, ValidateAnswer
    from perfmodel.report.validate_page import validate_page

    reasons = [
        "engine version not stated, taken from the source's date",
        "vae decode, limited by device memory and launch latency, whichever is the larger",
    ]
    rows = tuple(
        RecordDetail(
            id=f"a-source-with-a-long-name-and-a-configuration-{number}",
            engine="vllm-omni",
            model="wan2.1-t2v-14b",
            gpu="h100-sxm",
            num_gpus=4,
            config_id="usp4",
            predicted_ms={"e2e": 100.0},
            measured_ms={"e2e": 200.0},
            ape={"e2e": 50.0 - number},
            likely_reason=reasons[number % 2],
        )
        for number in range(4)
    )
    answer = ValidateAnswer(
        records=4,
        predicted=4,
        scored=4,
        scope="all",
        sweep_summary=SweepSummary(n=0),
        records_detail=rows,
    )
    page = " ".join(render_text(validate_page(answer)).split())
    assert f"#1, #3, likely reason: {reasons[0]}" in page
    assert f"#2, #4, likely reason: {reasons[1]}" in page
    assert all(row.id in page for row in rows)


def test_no_usable_row_is_bad_input(tmp_path, capsys):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": "a", "engine": "none", "model": "m"}\n')
    assert typed(["validate", str(path)]) == 2
    assert "no record can be predicted (1: GPU unknown)" in capsys.readouterr().err
    path.write_text("{\n")
    assert typed(["validate", str(path)]) == 2
    assert "none is readable" in capsys.readouterr().err
