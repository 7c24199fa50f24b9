"""The whole path against published measurements, hand-derived shapes and the contract."""

import json
import math

import pytest

from perfmodel import api, catalog
from perfmodel.errors import BadInput, MissingData, Refused
from perfmodel.spec.workload import Options, Workload

# Cosmos3-Nano, 1280x720, 189 frames, 35 steps, guidance 6 on B300 in June 2026, before the fast VAE
# path (vllm-omni pull requests 4301 and 4467): milliseconds.
ONE_GPU_DENOISE, ONE_GPU_DECODE = 87_979.0, 6_134.0
FOUR_GPU_DENOISE, FOUR_GPU_DECODE = 24_743.0, 3_933.0
HSDP_DENOISE = 102_088.0
OFF = Options(vae_fast_path="off")


@pytest.fixture(scope="module")
def answer():
    return api.recommend(Workload(frames=189), catalog.parse_gpus("4xB300"))


def predicted(parallel, options=OFF, gpus="4xB300", **workload):
    asked = Workload(**{"frames": 189, **workload})
    return api.predict(asked, catalog.parse_gpus(gpus), parallel=parallel, options=options)


def test_the_short_command_resolves_to_the_published_shape(answer):
    asked = answer.workload
    assert (asked.latent_frames, asked.latent_height, asked.latent_width) == (48, 45, 80)
    assert asked.video_tokens == 44_160
    assert (asked.width, asked.height, asked.steps, asked.guidance) == (1280, 720, 35, 6.0)
    assert (asked.guidance_branches, asked.forwards) == (2, 70)


def test_stages_sum_to_the_latency_of_every_recommendation(answer):
    for one in answer.recommendations:
        stages = one.stages_ms.model_dump()
        assert len(stages) == 6
        assert sum(stages.values()) == pytest.approx(one.latency_ms, rel=1e-9)
        assert one.latency_low_ms < one.latency_ms < one.latency_high_ms
        assert sum(one.memory_gib.model_dump().values()) == pytest.approx(one.peak_memory_gib)
        assert sum(one.provenance_share.values()) == pytest.approx(1.0)
        assert one.denoise_per_step_ms == pytest.approx(one.stages_ms.denoise / 35)


def test_ranks_are_in_order_and_commands_are_complete(answer):
    latencies = [one.latency_ms for one in answer.recommendations if not one.tied_with_best]
    assert latencies[1:] == sorted(latencies[1:])
    best = answer.recommendations[0]
    assert "vllm serve nvidia/Cosmos3-Nano --omni" in best.commands.serve
    assert "/v1/videos/sync" in best.commands.request
    assert best.commands.benchmark


def test_json_holds_no_nan_and_reads_back(answer):
    text = answer.model_dump_json()
    assert "NaN" not in text
    assert "Infinity" not in text
    again = type(answer).model_validate_json(text)
    assert again == answer


def test_the_same_question_gives_the_same_bytes(answer):
    again = api.recommend(Workload(frames=189), catalog.parse_gpus("4xB300"))
    assert again.model_dump_json() == answer.model_dump_json()


@pytest.mark.parametrize(
    ("parallel", "stage", "measured"),
    [
        ("single", "denoise", ONE_GPU_DENOISE),
        ("single", "vae_decode", ONE_GPU_DECODE),
        ("cfg2_usp2_vaepp4", "denoise", FOUR_GPU_DENOISE),
        ("cfg2_usp2_vaepp4", "vae_decode", FOUR_GPU_DECODE),
        ("hsdp4", "denoise", HSDP_DENOISE),
    ],
)
def test_published_stages_of_june_2026_within_12_percent(parallel, stage, measured):
    stages = predicted(parallel).stages_ms
    assert getattr(stages, stage) == pytest.approx(measured, rel=0.12)


def test_weight_sharding_alone_is_slower_than_one_gpu_by_a_sixth_or_so():
    ratio = predicted("hsdp4").stages_ms.denoise / predicted("single").stages_ms.denoise
    assert 1.08 <= ratio <= 1.25


def test_two_gpus_decode_about_as_slowly_as_one_without_the_fast_path():
    one, two, four = (
        predicted(p).stages_ms.vae_decode
        for p in ("cfg2_usp2", "cfg2_usp2_vaepp2", "cfg2_usp2_vaepp4")
    )
    assert 0.9 <= two / one <= 1.15
    assert four < min(one, two)


def test_the_fast_path_nearly_halves_the_decode():
    off = predicted("single").stages_ms.vae_decode
    fast = predicted("single", Options()).stages_ms.vae_decode
    assert 1.7 <= off / fast <= 2.0


def test_kernels_by_kind_match_the_published_trace():
    """Sums over four ranks of a torch profiler trace (pull request 4467), per rank in seconds."""
    operators = api.predict(
        Workload(frames=189, task="i2v"),
        catalog.parse_gpus("4xB300"),
        parallel="cfg2_usp2_vaepp4",
        engine="vllm-omni@2026-06-16",
    ).operators

    def seconds(*kinds):
        return (
            sum(op.time_ms for op in operators if op.kind in kinds and op.stage == "denoise") / 1e3
        )

    assert seconds("attention") == pytest.approx(13.4, rel=0.12)
    assert seconds("gemm") == pytest.approx(8.2, rel=0.12)
    assert seconds("collective", "wait") == pytest.approx(2.3, rel=0.40)


def test_illegal_layouts_name_the_rule_and_the_nearest_legal_value():
    with pytest.raises(Refused) as refused:
        predicted("ulysses=3")
    (problem,) = [p for p in refused.value.problems if p.rule_id == "ulysses-heads"]
    assert "32" in problem.message
    assert "8" in problem.message
    assert problem.suggestions


def test_a_missing_peak_is_missing_data_not_a_refusal():
    with pytest.raises(MissingData):
        predicted("single", Options(dtype="fp8"), gpus="1xA100")


def test_strict_refuses_an_uncalibrated_device():
    with pytest.raises(MissingData) as refused:
        api.recommend(Workload(frames=81), catalog.parse_gpus("1xH20"), strict=True)
    assert "calibrate" in refused.value.problems[0].message


def test_nothing_fits_is_an_answer_with_a_reason():
    answer = api.recommend(
        Workload(model="cosmos3-super", frames=189), catalog.parse_gpus("1xRTX4090")
    )
    assert answer.status == "does_not_fit"
    assert answer.exit_code == 3
    assert answer.recommendations == ()
    assert answer.nearest_miss.peak_phase
    assert answer.over_gib > 0
    assert answer.would_fit
    assert any("weights" in note for note in answer.fit_notes)


def test_fixed_stages_replace_predictions():
    plain = predicted("cfg2_usp2")
    pinned = api.predict(
        Workload(frames=189),
        catalog.parse_gpus("4xB300"),
        parallel="cfg2_usp2",
        options=OFF,
        overrides={"mp4": 3850.0},
    )
    assert pinned.stages_ms.video_encode == pytest.approx(3850.0)
    change = 3850.0 - plain.stages_ms.video_encode
    assert pinned.latency_ms == pytest.approx(plain.latency_ms + change)


def test_measured_stages_stand_beside_predictions():
    shown = api.predict(
        Workload(frames=189),
        catalog.parse_gpus("4xB300"),
        parallel="cfg2_usp2_vaepp4",
        measured={"denoise": FOUR_GPU_DENOISE, "video_encode": 10_343.0},
    )
    rows = {row.stage: row for row in shown.stages}
    assert rows["denoise"].error_pct == pytest.approx(
        (rows["denoise"].predicted_ms / FOUR_GPU_DENOISE - 1) * 100
    )
    assert rows["video_encode"].outside_range
    assert "mp4" in shown.largest_gap


def test_an_unknown_measured_stage_is_refused():
    with pytest.raises(BadInput):
        api.predict(
            Workload(frames=189),
            catalog.parse_gpus("1xB300"),
            measured={"decoding": 1.0},
        )


def test_speed_up_losses_lead_from_the_ideal_to_the_latency():
    one = predicted("cfg2_usp2_vaepp4").prediction
    assert one.ideal_ms + sum(one.speedup_loss_ms.values()) == pytest.approx(one.latency_ms)


def test_lossy_options_are_shown_but_never_ranked_unless_allowed(answer):
    assert all(one.lossless for one in answer.recommendations)
    assert any("fp8" in choice.title for choice in answer.lossy_options)
    allowed = api.recommend(
        Workload(frames=189), catalog.parse_gpus("4xB300"), allow_lossy=True, top=10
    )
    lossy = [one for one in allowed.recommendations if not one.lossless]
    assert all(one.config_id.endswith("fp8") for one in lossy)


def test_all_configurations_as_columns(answer):
    columns = api.predict_all(Workload(frames=189), catalog.parse_gpus("4xB300"))
    assert len(columns["config_id"]) == answer.combinations.legal
    stages = sum(columns[key] for key in columns if key.endswith("_ms") and key != "latency_ms")
    assert stages == pytest.approx(columns["latency_ms"])
    assert all(math.isfinite(x) for x in columns["peak_memory_gib"])


def test_throughput_prefers_replicas_where_scaling_is_below_linear():
    answer = api.recommend(
        Workload(frames=189), catalog.parse_gpus("4xB300"), objective="throughput"
    )
    assert answer.recommendations[0].num_gpus == 1
    assert answer.throughput_best.num_gpus == 1
    assert answer.throughput_best.replicas == 4
    best = answer.recommendations[0]
    assert best.replicas == 4
    assert best.requests_per_hour == pytest.approx(4 * 3.6e6 / best.latency_ms)
    assert best.commands.serve.count("vllm serve") == 4
    assert not any(w.rule_id == "idle-gpus" for w in answer.warnings)


@pytest.mark.parametrize(
    ("changed", "exact"),
    [
        ({}, True),
        ({"attention_backend": "SAGE_ATTN"}, False),
        ({"cache_skip": 0.3}, False),
        ({"attention_density": 0.5}, False),
        ({"cache_method": "tea_cache"}, False),
        ({"dtype": "fp8"}, False),
    ],
)
def test_what_changes_the_output_is_lossy(changed, exact):
    machine = catalog.parse_gpus("1xL40S")
    answer = api.predict(
        Workload(model="wan2.1-t2v-1.3b", frames=17), machine, options=Options(**changed)
    )
    assert answer.prediction.lossless is exact


def test_compare_keeps_the_order_and_measures_against_the_first():
    answered = [
        ({"gpus": gpus}, api.recommend(Workload(frames=81), catalog.parse_gpus(gpus)))
        for gpus in ("1xB300", "1xH100")
    ]
    compared = api.compare(answered)
    assert [row.values["gpus"] for row in compared.rows] == ["1xB300", "1xH100"]
    assert compared.rows[0].vs_first_pct == 0.0
    assert compared.rows[1].vs_first_pct > 0
    json.loads(compared.model_dump_json())


def test_compare_cites_every_fit_and_heads_only_what_is_common():
    answered = [
        ({"gpus": name}, api.recommend(Workload(frames=93), catalog.parse_gpus(f"4x{name}")))
        for name in ("b300-sxm", "h200-sxm")
    ]
    compared = api.compare(answered)
    fits = [document.provenance["fit"] for _, document in answered]
    assert compared.provenance["fit"] == " + ".join(fits)
    assert compared.provenance["rules"] == answered[0][1].provenance["rules"]
    assert compared.system is None
    options = [document.engine.options for _, document in answered]
    assert options[0]["attention_backend"] != options[1]["attention_backend"]
    assert "attention_backend" not in compared.engine.options
    assert compared.engine.options["dtype"] == "bf16"
    same = api.compare([({"frames": "93"}, answered[0][1])] * 2)
    assert same.system == answered[0][1].system
    assert same.engine == answered[0][1].engine
    assert same.provenance == answered[0][1].provenance
