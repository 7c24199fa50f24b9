"""What an engine's facts do to time: fp32 modules, offload copies, fused kernels, power, ends."""

from __future__ import annotations

import shlex
from dataclasses import replace

import pytest

from perfmodel import catalog
from perfmodel.api.predict import predict
from perfmodel.api.recommend import recommend
from perfmodel.api.session import open_session
from perfmodel.cost import cost
from perfmodel.cost.machine import Machine
from perfmodel.ops import Attention, Collective, Conv, Gemm, Pointwise
from perfmodel.pipeline.evaluate import evaluate
from perfmodel.pipeline.offload import copied, stored_bytes
from perfmodel.placement.precision import autocast, widened
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.record import RunRecord
from perfmodel.spec.workload import Options, Workload
from perfmodel.stages.base import Component
from perfmodel.topology import Topology
from perfmodel.validate.predicted import predict_record
from perfmodel.validate.questions import Skip

WAN = Workload(model="wan2.2-t2v-a14b", width=832, height=480, frames=81, steps=40)


def stages(engine="diffusers", gpus="1xH100", options=None, workload=WAN, layout=None, **terms):
    """Seconds by stage of one configuration; `terms` replace engine terms."""
    system = catalog.parse_gpus(gpus)
    session = open_session(workload, system, engine=engine, options=options or Options())
    job = session.job
    if terms:
        machine = replace(job.machine, terms={**job.machine.terms, **terms})
        job = replace(job, machine=machine)
    found = evaluate(job, Layouts.of([layout or ParallelConfig()]))
    return {name: float(stage.total_s[0]) for name, stage in found.stages.items()}, job


def machine(name: str) -> Machine:
    system = catalog.parse_gpus(name)
    return Machine.build(system.device, Topology.of(system))


# Modules in fp32


def test_widening_changes_products_and_traffic_and_nothing_else():
    gemm = Gemm(name="a", m=2, n=3, k=4)
    conv = Conv(
        name="b", in_channels=1, out_channels=1, kernel=(1, 1, 1), out_t=1, out_h=1, out_w=1
    )
    moved = Pointwise(name="c", bytes_moved=10.0, eager_bytes=30.0)
    attention = Attention(name="d", seq_q=1, seq_kv=1, heads=1, kv_heads=1, head_dim=8)
    ops = (gemm, conv, moved, attention)
    assert widened(ops, 16) is ops
    wide = widened(ops, 32)
    assert [getattr(op, "dtype", "") for op in wide] == ["fp32", "fp32", "", "bf16"]
    assert (wide[2].bytes_moved, wide[2].eager_bytes) == (20.0, 60.0)


def test_an_fp32_vae_takes_longer_and_at_most_four_times():
    """tf32 has half the rate of bf16, fp32 traffic twice the bytes."""
    fp32, job = stages("wan-official")
    traits = replace(job.behaviour.traits, vae_bits=16)
    bf16 = evaluate(
        replace(job, behaviour=replace(job.behaviour, traits=traits)),
        Layouts.of([ParallelConfig()]),
    )
    ratio = fp32["vae_decode"] / float(bf16.stages["vae_decode"].total_s[0])
    assert 1.5 < ratio < 4.0


# Offload


def test_model_offload_adds_exactly_the_copies():
    plain, job = stages()
    rate = {"h2d_link_frac": 0.5, "d2h_link_frac": 0.25, "transfer_latency_s": 0.0}
    moved, _ = stages(options=Options(offload="model"), **rate)
    link = job.machine.rates.host_link_bytes_per_s
    parts = job.family.components(job.model)
    encoder = sum(c.params * c.bits / 8 for c in parts if c.kind == "text_encoder")
    denoiser = sum(c.params * c.bits / 8 for c in parts if c.kind == "transformer")
    each = 1 / (0.5 * link) + 1 / (0.25 * link)
    assert moved["text_encode"] - plain["text_encode"] == pytest.approx(encoder * each, rel=1e-6)
    assert moved["denoise"] - plain["denoise"] == pytest.approx(denoiser * each, rel=1e-6)
    assert moved["vae_decode"] == plain["vae_decode"]


def test_host_copies_that_stay_are_not_copied_back():
    rate = {"h2d_link_frac": 0.5, "d2h_link_frac": 0.01, "transfer_latency_s": 0.0}
    both, _ = stages(options=Options(offload="model"), **rate)
    one, _ = stages(options=Options(offload="model"), offload_return_frac=0.0, **rate)
    assert one["denoise"] < both["denoise"]


@pytest.mark.parametrize("frac", [1e-4, 0.01, 0.5])
def test_layerwise_offload_takes_the_longer_of_compute_and_copies(frac):
    plain, job = stages()
    streamed, _ = stages(
        options=Options(offload="layerwise"),
        pinned_link_frac=frac, offload_overlap_frac=1.0, transfer_latency_s=0.0,
    )  # fmt: skip
    part = next(c for c in job.family.components(job.model) if c.name == "transformer")
    link = job.machine.rates.host_link_bytes_per_s
    copies = int(job.shape.forwards) * part.block_params * part.bits / 8 / (frac * link)
    assert streamed["denoise"] == pytest.approx(max(plain["denoise"], copies), rel=1e-6)


@pytest.mark.parametrize(
    ("layout", "shares", "stride"),
    [
        (ParallelConfig(dp=4), 4, 1),
        (ParallelConfig(dp=2, ulysses=2), 2, 2),
        (ParallelConfig(ulysses=4), 4, 1),
        (ParallelConfig(ulysses=2, tp=2), 2, 2),
        (ParallelConfig(cfg=2), 1, 1),
    ],
)
def test_gathered_offload_copies_a_share_and_gathers_the_block(layout, shares, stride):
    """Copies so slow that they alone count: a share over the host link, then all-gathers."""
    options = Options(offload="layerwise-gather")
    terms = {"pinned_link_frac": 1e-4, "offload_overlap_frac": 1.0, "transfer_latency_s": 0.0}
    streamed, job = stages(
        engine="vllm-omni", gpus="4xH100", options=options, layout=layout, **terms
    )
    part = next(c for c in job.family.components(job.model) if c.name == "transformer")
    forwards = int(job.shape.forwards) // layout.cfg
    moved = forwards * part.block_params * 2 / layout.tp
    gather = Collective(
        name="x", op="all_gather", full_bytes=part.block_params * 2 / layout.tp / part.blocks,
        ranks=shares, stride=stride, groups=layout.world_size // shares,
    )  # fmt: skip
    gather_s = float(cost(gather, job.machine, compiled=True).time_each_s)
    assert (gather_s > 0) == (shares > 1)
    copies_s = moved / shares / (1e-4 * job.machine.rates.host_link_bytes_per_s)
    assert streamed["denoise"] == pytest.approx(
        copies_s + forwards * part.blocks * gather_s, rel=1e-6
    )


def test_each_replica_takes_a_request():
    record = RunRecord(
        id="x", engine="vllm-omni", engine_version="0.28.0", model="nvidia/Cosmos3-Nano",
        task="t2i", gpu="h100-sxm", num_gpus=4, width=1024, height=1024, frames=1, steps=50,
        measured_ms={"client": 1.0}, parallel={"data_parallel_size": 4},
    )  # fmt: skip
    alone = predict_record(record).predicted_ms
    busy = record.model_copy(update={"concurrency": 4, "num_outputs": 4})
    assert predict_record(busy).predicted_ms == alone
    # Two for each: between one after the other of a wave, and a queue that never empties.
    queued = predict_record(record.model_copy(update={"concurrency": 8, "num_outputs": 8}))
    assert queued.predicted_ms["client"] == pytest.approx(1.75 * alone["client"])
    bounds = predict_record(busy)
    assert queued.low_ms["client"] == pytest.approx(1.5 * bounds.low_ms["client"])
    assert queued.high_ms["client"] == pytest.approx(2 * bounds.high_ms["client"])
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


def test_pipefusion_divides_what_follows_the_warm_up_and_is_lossy():
    """Long compute-bound forwards: a share of the steps at full length, the rest over the ranks."""
    flux = Workload(model="flux.1-dev", width=2048, height=2048, steps=20)
    one, _ = stages("xdit", "4xH100", workload=flux)
    four, _ = stages("xdit", "4xH100", workload=flux, layout=ParallelConfig(pp=4))
    blocks = 57
    share = (1 + (19 + 3 / 4) * 15 / blocks) / 20
    assert four["denoise"] / one["denoise"] == pytest.approx(share, rel=0.12)
    answer = predict(
        flux, catalog.parse_gpus("4xH100"), parallel=ParallelConfig(pp=4), engine="xdit"
    )
    assert answer.prediction.lossless is False
    alone = predict(flux, catalog.parse_gpus("4xH100"), engine="xdit").prediction
    assert alone.lossless is True


@pytest.mark.parametrize("engine", ["xdit", "vllm-omni"])
def test_pipelines_of_patches_are_ranked_where_the_output_may_change(engine):
    asked = dict(workload=Workload(model="sd3.5-large"), system="4xL40S", engine=engine, top=400)
    plain = recommend(**asked).recommendations
    assert not any(one.parallel.pipeline_parallel_size > 1 for one in plain)
    lossy = recommend(**asked, allow_lossy=True).recommendations
    piped = [one for one in lossy if one.parallel.pipeline_parallel_size > 1]
    assert bool(piped) == (engine == "xdit")
    assert not any(one.lossless for one in piped)


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


def test_quantised_weights_are_copied_in_their_width():
    part = Component(name="transformer", kind="transformer", params=100, quantizable_params=80)
    assert stored_bytes(part, 100, "bf16") == 200
    assert stored_bytes(part, 100, "fp8") == pytest.approx(120)


@pytest.mark.parametrize(
    ("kind", "when", "blocks", "mode", "stage"),
    [
        ("text_encoder", ("text_encode",), 0, "model", "text_encode"),
        ("text_encoder", ("text_encode",), 0, "text-encoder", "text_encode"),
        ("text_encoder", ("text_encode",), 0, "layerwise", ""),
        ("transformer", ("denoise",), 40, "layerwise", "denoise"),
        ("transformer", ("denoise",), 40, "text-encoder", ""),
        ("vae", ("vae_decode",), 0, "model", ""),
    ],
)
def test_what_each_mode_copies(kind, when, blocks, mode, stage):
    part = Component(name="x", kind=kind, params=1, when=when, blocks=blocks)
    assert copied(part, mode) == stage


# Engines against one another


def test_the_text_tower_in_every_forward_costs_more():
    cosmos = Workload(model="cosmos3-nano", frames=189, text_tokens=4096)
    once, job = stages("xdit", workload=cosmos)
    traits = replace(job.behaviour.traits, understanding_each_forward=False)
    single = evaluate(
        replace(job, behaviour=replace(job.behaviour, traits=traits)),
        Layouts.of([ParallelConfig()]),
    )
    assert once["denoise"] > float(single.stages["denoise"].total_s[0])


def test_fused_kernels_move_less_than_eager_chains():
    fused, _ = stages("sglang-diffusion")
    eager, _ = stages("wan-official")
    assert fused["denoise"] < eager["denoise"]


def test_only_a_server_copies_the_clip_between_processes():
    server, _ = stages("sglang-diffusion@0.5.21")
    program, _ = stages("xdit")
    assert 0 < program["transfer"] < server["transfer"]


def test_bands_of_the_vae_divide_the_decode():
    layout = ParallelConfig(ulysses=4, vae_patch=4)
    banded, _ = stages("xdit", "4xH100", layout=layout)
    whole, _ = stages("xdit", "4xH100", layout=ParallelConfig(ulysses=4))
    assert whole["vae_decode"] / 4 < banded["vae_decode"] < whole["vae_decode"] / 1.5


def test_an_engine_that_cuts_bands_still_tiles_on_one_rank():
    tiled, _ = stages("xdit", layout=ParallelConfig(vae_tiling=True))
    whole, _ = stages("xdit")
    assert tiled["vae_decode"] > 1.05 * whole["vae_decode"]


# Records


def record(**fields) -> RunRecord:
    base = dict(
        id="x", engine="wan-official", model="Wan-AI/Wan2.2-T2V-A14B", task="t2v", gpu="h100-sxm",
        num_gpus=1, width=832, height=480, frames=81, steps=40, cfg=True, measured_ms={"e2e": 1.0},
    )  # fmt: skip
    return RunRecord.model_validate({**base, **fields})


def test_the_end_to_end_time_of_a_program_ends_before_the_file():
    found = predict_record(record(offload="model"))
    one = found.answer.prediction
    assert one.stages_ms.video_encode > 0
    written = found.predicted_ms["e2e"] + one.stages_ms.video_encode
    assert written == pytest.approx(one.latency_ms, rel=1e-9)


def test_the_end_to_end_time_of_a_server_ends_with_the_response():
    found = predict_record(record(engine="vllm-omni", source_date="2026-09-01"))
    assert found.predicted_ms["e2e"] == pytest.approx(found.answer.prediction.latency_ms)


def test_a_release_of_sglang_divides_a_video_decode_by_itself():
    fields = dict(engine="sglang-diffusion", num_gpus=2, parallel={"ulysses_degree": 2})
    dated = predict_record(record(engine_version="0.5.23 (wheel)", **fields))
    assert dated.question.parallel.vae_patch == 2
    stated = {"ulysses_degree": 2, "vae_patch_parallel_size": 1}
    off = predict_record(record(**{**fields, "parallel": stated}))
    assert off.question.parallel.vae_patch == 1


# Kernels and power


def attention(backend: str) -> Attention:
    return Attention(
        name="a", seq_q=30000, seq_kv=30000, heads=40, kv_heads=40, head_dim=128, backend=backend
    )


def test_flash_attention_2_is_slow_on_hopper_and_best_on_ampere():
    hopper, ampere = machine("1xH100"), machine("1xA100-SXM-80G")

    def ratio(on: Machine) -> float:  # fmt: skip
        return float(
            cost(attention("FLASH_ATTN_2"), on).time_each_s
            / cost(attention("FLASH_ATTN"), on).time_each_s
        )

    assert 1.4 < ratio(hopper) < 2.2
    assert ratio(ampere) == pytest.approx(1.0)


def test_eight_bit_attention_may_pass_the_bf16_roof_but_not_its_own():
    on = machine("1xRTX-4090")
    fast, plain = (float(cost(attention(b), on).time_each_s) for b in ("SAGE_ATTN", "FLASH_ATTN"))
    work = 4.0 * 30000**2 * 40 * 128
    assert fast < work / on.rates.peak("bf16") < plain
    assert fast >= work / on.rates.roof("fp8")


def test_an_engine_is_asked_for_by_name():
    answer = predict(WAN, catalog.parse_gpus("4xH100"), parallel="ulysses=4,hsdp=4", engine="wan")
    assert answer.engine.name == "wan-official"
    assert answer.prediction.latency_ms > 0


def test_torchao_names_of_quantisation():
    from perfmodel.validate.questions import Skip, question

    fields = dict(engine="diffusers+torchao", gpu="h100-sxm")
    assert question(record(dtype="int8dq", **fields)).options.dtype == "int8"
    assert question(record(dtype="fp8dqrow", **fields)).options.dtype == "fp8"
    assert question(record(dtype="int8wo", **fields)).options.dtype == "int8wo"
    assert question(record(dtype="fp6_e3m2", **fields)).options.dtype == "fp6wo"
    with pytest.raises(Skip, match="int3 is not modelled"):
        question(record(dtype="int3", **fields))


def test_gpus_without_a_degree_split_the_sequence_where_the_engine_does_so():
    from perfmodel.validate.questions import question

    fields = dict(
        model="Tongyi-MAI/Z-Image-Turbo", task="t2i", num_gpus=4, frames=1, cfg=False,
        parallel={"hsdp_shard_size": 4, "tensor_parallel_size": 2},
    )  # fmt: skip
    filled = question(record(engine="sglang-diffusion", **fields)).parallel
    assert (filled.ulysses, filled.tp, filled.hsdp, filled.world_size) == (2, 2, 4, 4)
    alone = question(record(engine="vllm-omni", **fields)).parallel
    assert alone.ulysses == 1


def test_condition_images_and_hosts_of_a_run_are_asked_for():
    from perfmodel.validate.questions import question

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


def test_kernels_inside_a_convolution_call_cost_no_dispatch():
    """An encode in small tiles is bound by its host: only torch calls cost a dispatch."""
    work = Workload(model="cosmos3-nano", task="i2v", width=1280, height=720, frames=189)
    layout = ParallelConfig(cfg=2, ulysses=2, vae_patch=4)

    def seconds(**terms):
        return stages("vllm-omni@2026-06-16", "4xB300", None, work, layout, **terms)[0]

    inside = seconds(launch_in_call_s=2e-6)["vae_encode"]
    as_calls = seconds(launch_in_call_s=12e-6)["vae_encode"]
    assert 1.1 * inside < as_calls < 1.4 * inside


def test_autocast_runs_norms_in_fp32_and_casts_around_them():
    """A group norm with its SiLU: 10 bytes an element in bf16, 32 and two kernels more under it."""
    job = stages("diffusers", workload=Workload(model="flux.1-dev"))[1]
    decoder = job.family.vae_decode(job.model, 1, 8, 8, job.behaviour.traits)
    ops = [op for op in decoder if isinstance(op, Pointwise) and " L3 128" in op.name]
    named = {op.name.split(": ")[1].split(" L")[0]: op for op in ops}
    norm = [named[what] for what in ("group norm statistics", "group norm", "SiLU")]
    size = norm[1].bytes_moved / 4
    assert sum(op.bytes_moved for op in norm) == pytest.approx(10 * size)
    wide = autocast(tuple(norm))
    assert sum(op.bytes_moved for op in wide) == pytest.approx(32 * size)
    assert sum(op.launches for op in wide) == sum(op.launches for op in norm) + 2
    other = named["residual"]
    assert autocast((other,)) == (other,)
    clip = Workload(model="hunyuanvideo", width=640, height=384, frames=17)
    job = stages("diffusers", workload=clip)[1]
    decoder = job.family.vae_decode(job.model, 5, 32, 32, job.behaviour.traits)
    pads = [op for op in decoder if ": pad L" in op.name]
    ratios = {
        op.name[-3:]: wide.bytes_moved / op.bytes_moved
        for op, wide in zip(pads, autocast(tuple(pads)), strict=True)
    }
    assert ratios == {" k3": 2.0, " k1": 1.0}


def test_bands_over_the_sequence_group_leave_the_guidance_ranks_out():
    """Four ranks, two of them a sequence group: half the map each, as two ranks do."""
    work = Workload(model="cosmos3-nano", width=1280, height=720, frames=189)
    layout = ParallelConfig(cfg=2, ulysses=2, vae_patch=4)

    def decode(engine, gpus="4xH200", layout=layout):
        return stages(engine, gpus, workload=work, layout=layout)[0]["vae_decode"]

    old, single = (
        decode("sglang-diffusion@2026-06-11"),
        decode("sglang-diffusion@2026-06-11", "1xH200", ParallelConfig()),
    )
    assert 0.5 * single < old < 0.58 * single
    two = decode("sglang-diffusion@2026-06-11", "2xH200", ParallelConfig(ulysses=2, vae_patch=2))
    assert old == pytest.approx(two, rel=0.01)
    later = decode("sglang-diffusion@2026-07-01")
    assert later < 0.32 * single


def test_ranks_encode_in_bands_or_each_the_whole_clip():
    """SGLang cuts the clips that Wan encodes into bands; Cosmos3 encodes them on every rank."""
    wan = Workload(model="wan2.1-i2v-14b", task="i2v", width=832, height=480, frames=81, steps=40)
    nano = Workload(model="cosmos3-nano", task="i2v", width=1280, height=720, frames=189)
    two = ParallelConfig(ulysses=2, vae_patch=2)

    def encode(work, gpus, layout):
        return stages("sglang-diffusion", gpus, workload=work, layout=layout)[0]["vae_encode"]

    one = encode(wan, "1xH100", ParallelConfig())
    # Half of the work, copies that join the rows, and the messages.
    assert 0.5 * one < encode(wan, "2xH100", two) < 0.65 * one
    alone = encode(nano, "1xH100", ParallelConfig())
    assert encode(nano, "2xH100", two) == pytest.approx(alone)


def test_bands_join_the_rows_of_their_neighbours_unless_they_are_written_in_place():
    work = Workload(model="cosmos3-nano", width=1280, height=720, frames=5)
    layout = ParallelConfig(ulysses=2, vae_patch=2)

    def joined(engine):
        job = stages(engine, "2xH200", workload=work, layout=layout)[1]
        lines = evaluate(job, Layouts.of([layout])).stages["vae_decode"].lines
        return {line.name: line for line in lines if line.name.endswith("join rows")}

    assert not joined("sglang-diffusion@0.5.23")
    found = joined("sglang-diffusion@0.5.14")
    # The first convolution reads 48 channels of one latent frame and two past ones, half of the
    # 46 rows (padded) of 80 columns, once, and writes them once.
    first = next(
        line for name, line in found.items() if name.startswith("decode first: conv L0 48")
    )
    assert first.bytes[0] * first.count[0] == pytest.approx(2 * 2 * 48 * 3 * 46 * 80 / 2, rel=0.05)
