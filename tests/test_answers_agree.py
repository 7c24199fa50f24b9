"""The parts of an answer agree: the headline, the tables, the plan, what may not fit."""

from __future__ import annotations

import pytest

import perfmodel as pm
from perfmodel.api.session import open_session
from perfmodel.api.table import build_table
from perfmodel.report.answer import Answer
from perfmodel.report.render import Look, render
from perfmodel.search import rank
from perfmodel.spec.parallel import Layouts, ParallelConfig


def asked(gpus: str, model: str, engine: str = "vllm-omni", **settings: object) -> Answer:
    of_job = ("width", "height", "batch", "concurrency")
    size = {k: settings.pop(k) for k in of_job if k in settings}
    return pm.recommend(pm.Workload(model=model, **size), gpus, engine=engine, **settings)


def page(answer: Answer) -> str:
    """The page as one line of words."""
    return " ".join(render(answer, "table", Look()).split())


def test_sharded_weights_win_no_tie_on_devices_that_are_half_empty():
    best, *others = asked("4xB200", "hunyuanvideo", "xdit").recommendations
    assert best.parallel.hsdp_shard_size == 1
    assert best.peak_memory_gib < 0.8 * best.capacity_gib
    assert best.latency_ms < min(row.latency_ms for row in others)
    same = [r for r in others if r.config_id.replace("_hsdp2x2", "") == best.config_id]
    assert same
    assert not any(row.tied_with_best for row in same)


def test_a_tie_says_by_how_much():
    answer = asked("4xB200", "hunyuanvideo", "xdit")
    tied = next(row for row in answer.recommendations[1:] if row.tied_with_best)
    assert f"{tied.config_id} tie {tied.vs_best_pct:+.1f} %" in page(answer)


def test_a_lossy_option_that_is_slower_is_not_listed_like_a_gain():
    answer = asked("4xB200", "hunyuanvideo", "xdit")
    fp8 = answer.lossy_options[0]
    slow = answer.model_copy(
        update={"lossy_options": (fp8.model_copy(update={"latency_change_pct": 4.0}),)}
    )
    fast = answer.model_copy(
        update={"lossy_options": (fp8.model_copy(update={"latency_change_pct": -4.0}),)}
    )
    assert "fp8 linears: slower here, +4 % request" in page(slow)
    assert "slower here" not in page(fast)


def test_the_gpu_table_holds_what_competes():
    lossy = asked("8xL40", "ltx-2.3", width=640, height=384, allow_lossy=True)
    best = lossy.recommendations[0]
    assert not best.lossless
    row = next(row for row in lossy.scaling if row.num_gpus == best.num_gpus)
    assert row.config_id == best.config_id
    assert row.latency_ms == pytest.approx(best.latency_ms)
    assert row.best_latency


def test_the_gpu_table_holds_the_best_of_any_number_of_devices():
    answer = asked("8xMI355X", "z-image-turbo", "vllm-omni@0.24.0", width=1280, height=720)
    best = answer.recommendations[0]
    assert best.num_gpus & (best.num_gpus - 1), "a power of two is in the table anyway"
    (row,) = (row for row in answer.scaling if row.best_latency)
    assert (row.num_gpus, row.config_id) == (best.num_gpus, best.config_id)


def test_a_tie_of_memory_is_the_same_memory():
    answer = asked("4xB300", "cosmos3-nano", objective="memory", top=8)
    best, *others = answer.recommendations
    for row in others:
        assert row.tied_with_best == (row.peak_memory_gib == best.peak_memory_gib)
    assert "tells which runs" not in page(answer)


def test_the_gpu_table_has_the_throughput_of_the_best():
    answer = asked("8xH100-SXM", "wan2.2-t2v-a14b", allow_lossy=True, objective="throughput")
    best = answer.recommendations[0]
    assert answer.throughput_best.config_id == best.config_id
    assert answer.throughput_best.requests_per_hour == pytest.approx(best.requests_per_hour)


def test_what_may_not_fit_is_the_best_of_no_table():
    answer = asked(
        "8xA100-SXM-80G", "cosmos3-super", batch=2, concurrency=8, objective="throughput"
    )
    tight = [row for row in answer.scaling if row.fit_status == "tight"]
    assert tight
    assert not any(row.best_latency or row.best_throughput for row in tight)
    assert answer.throughput_best.requests_per_hour < max(r.requests_per_hour for r in tight)
    assert "tight" in page(answer).split("as replicas", 1)[1]


def test_allowing_lossy_ones_leaves_the_order_of_the_lossless(monkeypatch):
    monkeypatch.setattr(rank, "SCARCE_FRAC", 0.0)  # memory orders every tie
    engine = "sglang-diffusion"
    job = pm.Workload(model="hunyuanvideo")
    plain = pm.recommend(job, "4xH100-SXM", engine=engine, top=100).recommendations
    mixed = pm.recommend(
        job, "4xH100-SXM", engine=engine, top=400, allow_lossy=True
    ).recommendations
    times = [row.latency_ms for row in plain if row.tied_with_best or row.rank == 1]
    assert times != sorted(times)
    shared = {row.config_id for row in plain}
    assert [r.config_id for r in mixed if r.config_id in shared] == [r.config_id for r in plain]


def test_what_is_faster_but_tight_is_said_first():
    answer = asked("2xL40S", "qwen-image", "sglang-diffusion")
    best, (tight, *_) = answer.recommendations[0], answer.worth_trying
    alone = pm.predict(
        pm.Workload(model="qwen-image"),
        "2xL40S",
        engine="sglang-diffusion",
        parallel=tight.config_id,
    ).prediction
    assert best.fit_status == "fits"
    assert alone.fit_status == tight.fit_status == "tight"
    assert tight.latency_ms == pytest.approx(alone.latency_ms)
    assert alone.latency_ms < best.latency_ms
    reach = f"{alone.peak_memory_high_gib:.1f} of {alone.capacity_gib:.1f} GiB"
    assert f"TRY {tight.config_id} first" in page(answer)
    assert reach in page(answer).split("WHY")[0]


def test_offload_is_proposed_where_it_wins():
    answer = asked("2xL40S", "qwen-image")
    (choice,) = answer.worth_trying
    flags = pm.Options(offload="model")
    under = pm.recommend(pm.Workload(model="qwen-image"), "2xL40S", options=flags)
    assert choice.option == "offload=model"
    assert choice.config_id == under.recommendations[0].config_id
    assert choice.latency_ms == pytest.approx(under.recommendations[0].latency_ms)
    assert choice.latency_ms < answer.recommendations[0].latency_ms
    assert choice.host_memory_gib == pytest.approx(under.recommendations[0].host_memory_gib)


@pytest.mark.parametrize("ram_gib", [16, 1024])
def test_offload_is_proposed_where_the_host_has_the_memory(ram_gib):
    box = pm.system("2xL40S", host_ram_gib=ram_gib)
    answer = pm.recommend(pm.Workload(model="qwen-image"), box)
    assert bool(answer.worth_trying) == (ram_gib == 1024)


def test_nothing_is_proposed_where_all_fits():
    assert asked("4xB300", "cosmos3-nano").worth_trying == ()


def test_axes_that_no_candidate_has_are_among_the_rejected():
    answer = asked("4xH100-SXM", "flux.1-dev")
    with pytest.raises(pm.Refused) as refused:
        pm.predict(pm.Workload(model="flux.1-dev"), "4xH100-SXM", parallel="usp2")
    said = [row.example for row in answer.rejected if not row.count]
    assert refused.value.problems[0].message in said
    assert any(example.startswith("ring=2 ") for example in said)
    text = " ".join(render(answer, "table", Look(rejected=True)).split())
    assert "none tried sp-model ulysses=2" in text
    counted = sum(row.count for row in answer.rejected)
    assert counted == answer.combinations.rejected


def test_only_what_is_ranked_is_said_to_be_ranked():
    answer = asked("4xH100-SXM", "flux.1-dev")
    assert [choice.title for choice in answer.lossy_options] == ["fp8 linears", "step cache"]
    assert "(--allow-lossy ranks fp8 linears; check quality)" in page(answer)
    assert "allow-lossy" not in page(asked("4xH100-SXM", "flux.1-dev", allow_lossy=True))


def test_an_attention_that_changes_the_output_is_in_the_id():
    job, box = pm.Workload(model="wan2.1-t2v-14b"), "4xH100-SXM"
    sage = pm.Options(attention_backend="SAGE_ATTN")
    lossy = pm.recommend(job, box, options=sage).recommendations[0]
    plain = pm.recommend(job, box).recommendations[0]
    assert lossy.config_id.endswith("_attn-sage")
    assert "attn" not in plain.config_id
    again = pm.predict(job, box, parallel=lossy.config_id).prediction
    assert again.latency_ms == pytest.approx(lossy.latency_ms)
    assert (again.config_id, again.lossless) == (lossy.config_id, False)
    with pytest.raises(pm.BadInput, match="legal: attn-sage, "):
        pm.predict(job, box, parallel="usp4_attn-best")


def test_places_after_the_first_are_in_the_order_of_time():
    answer = asked("8xL40", "helios-mid", options=pm.Options(dtype="int8"), top=50)
    best, *others = answer.recommendations
    late = [row.rank for row in others if row.tied_with_best]
    assert late
    assert late != list(range(2, 2 + len(late)))
    times = [row.latency_ms for row in others if row.fit_status == "fits"]
    assert times == sorted(times)
    assert best.latency_ms < times[0]


def test_maps_of_the_vae_are_costed_together_and_judged_alone():
    """On an A100 some products of its tiles lie beyond the measured ones, of the map none."""
    session = open_session(pm.Workload(model="fasthunyuan"), "4xA100", engine="diffusers")
    configs = [ParallelConfig(), ParallelConfig(vae_tiling=True)]
    both = build_table(session, Layouts.of(configs)).evaluation.stages["vae_decode"]
    told = set()
    for row, config in enumerate(configs):
        alone = build_table(session, Layouts.of([config])).evaluation.stages["vae_decode"]
        single = {line.name: bool(line.extrapolated[alone.index[0]]) for line in alone.lines}
        for line in both.lines:
            beyond = bool(line.extrapolated[both.index[row]])
            assert beyond == single.get(line.name, False), line.name
            told.add((row, beyond))
    assert {(0, False), (1, True)} <= told


def test_tiled_decodes_have_a_speed_up_too():
    """With tiling on, configurations that decode patches have no tiling of their own."""
    tiled = pm.recommend(
        pm.Workload(model="cosmos3-nano"), "4xB300", options=pm.Options(vae_tiling="on")
    )
    best = tiled.recommendations[0]
    assert best.speedup == pytest.approx(best.one_gpu_ms / best.latency_ms)
    assert best.speedup > 2
    assert f"{best.speedup:.2f}x one GPU" in page(tiled)


@pytest.mark.parametrize(("gpus", "size"), [("2x8xH100", (1280, 720)), ("4xB300", None)])
def test_speed_ups_of_an_answer_agree(gpus, size):
    """The 1-GPU row may be tiled (memory); the first recommendation and the table share a base."""
    asked = {} if size is None else {"width": size[0], "height": size[1]}
    found = pm.recommend(pm.Workload(model="wan2.2-t2v-a14b", frames=81, **asked), gpus)
    best = found.recommendations[0]
    (row,) = [row for row in found.scaling if row.config_id == best.config_id]
    assert row.speedup == pytest.approx(best.speedup)
    for row in found.scaling:
        assert row.efficiency == pytest.approx(row.speedup / row.num_gpus)


def test_what_rules_out_all_gpus_is_said():
    workload = pm.Workload(model="wan2.2-t2v-a14b", frames=81)
    found = pm.recommend(workload, "2x8xH100")
    assert found.refused_on_all_gpus.rule == "one-host"
    assert "of all GPUs none is legal, most for one-host: The ranks of a server" in page(found)
    other = pm.Workload(model="wan2.2-i2v-a14b", frames=81)
    assert pm.recommend(other, "2x8xH100", engine="xdit").refused_on_all_gpus is None
    assert pm.recommend(workload, "8xH100").refused_on_all_gpus is None


OF_A_RANKING = {"rank", "vs_best_pct", "tied_with_best", "why", "commands"}
"""Fields that a prediction has only beside others."""


@pytest.mark.parametrize(
    ("gpus", "model", "engine"),
    [
        ("2x8xH100", "wan2.2-t2v-a14b", "xdit"),
        ("2x8xH200", "hunyuanvideo", "sglang-diffusion"),
        ("8xL40S", "wan2.2-t2v-a14b", "vllm-omni"),
        ("4xB300", "cosmos3-nano", "vllm-omni"),
    ],
)
def test_one_of_many_is_predicted_like_one_alone(gpus, model, engine):
    """Between hosts collectives are priors and inside they are fitted, in every answer alike."""
    workload = pm.Workload(model=model)
    ranked = pm.recommend(workload, gpus, engine=engine, top=6).recommendations
    for record in ranked:
        alone = pm.predict(workload, gpus, parallel=record.config_id, engine=engine).prediction
        beside = record.model_dump(exclude=OF_A_RANKING)
        for key, value in alone.model_dump(exclude=OF_A_RANKING).items():
            number = isinstance(value, float)
            if isinstance(value, dict):
                number = all(isinstance(one, float) for one in value.values())
            assert beside[key] == (pytest.approx(value) if number else value), key


def test_collectives_between_hosts_are_priors_and_inside_are_not():
    session = open_session(pm.Workload(model="wan2.2-t2v-a14b"), "2x8xH100", engine="xdit")
    configs = [ParallelConfig(ulysses=8), ParallelConfig(ulysses=8, ring=2)]
    denoise = build_table(session, Layouts.of(configs)).evaluation.stages["denoise"]
    seen = {
        (line.axis, row, line.provenance)
        for line in denoise.lines
        for row in range(2)
        if line.kind == "collective" and line.total_s[denoise.index[row]] > 0
    }
    assert {("ulysses", 0, "fitted"), ("ulysses", 1, "fitted"), ("ring", 1, "prior")} <= seen
    assert ("ulysses", 0, "prior") not in seen
