"""What an engine's facts do to time: fp32 modules, offload copies, fused kernels, power, ends."""

from __future__ import annotations

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
from perfmodel.spec.workload import Options, Workload
from perfmodel.stages.base import Component
from perfmodel.topology import Topology

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
        op.name.split()[-1]: wide.bytes_moved / op.bytes_moved
        for op, wide in zip(pads, autocast(tuple(pads)), strict=True)
    }
    assert ratios == {"k33": 2.0, "k11": 1.0}


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


def test_group_offload_streams_the_encoder_once_for_each_prompt():
    rate = {"pinned_link_frac": 0.01, "offload_overlap_frac": 1.0, "transfer_latency_s": 0.0}
    streamed, job = stages(options=Options(offload="layerwise"), **rate, layerwise_encoders_frac=1)
    left, _ = stages(options=Options(offload="layerwise"), **rate, layerwise_encoders_frac=0)
    parts = job.family.components(job.model)
    encoder = sum(c.params * c.bits / 8 for c in parts if c.kind == "text_encoder")
    copies = job.shape.branches * encoder / (0.01 * job.machine.rates.host_link_bytes_per_s)
    assert streamed["text_encode"] == pytest.approx(copies, rel=1e-6)
    assert left["text_encode"] < copies
    assert streamed["denoise"] == left["denoise"]


@pytest.mark.parametrize("stages_of_pipeline", [1, 3])
def test_stages_that_take_turns_stream_all_blocks_on_the_way_of_a_request(stages_of_pipeline):
    """Each stage brings in its own blocks while it runs them, so one request waits for all."""
    streamed, job = stages(
        engine="vllm-omni", gpus="4xH100", options=Options(offload="layerwise"),
        layout=ParallelConfig(pp=stages_of_pipeline),
        pinned_link_frac=1e-4, offload_overlap_frac=1.0, transfer_latency_s=0.0,
    )  # fmt: skip
    part = next(c for c in job.family.components(job.model) if c.name == "transformer")
    copies = int(job.shape.forwards) * part.block_params * part.bits / 8
    copies_s = copies / (1e-4 * job.machine.rates.host_link_bytes_per_s)
    assert streamed["denoise"] == pytest.approx(copies_s, rel=1e-6)


def test_the_largest_stage_brings_in_its_blocks_whole():
    """Stages copy side by side: of 40 blocks over 3 stages the first holds 14, of each expert."""
    moved, job = stages(
        engine="vllm-omni", gpus="4xH100", options=Options(offload="model"),
        layout=ParallelConfig(pp=3), h2d_link_frac=1e-4, offload_return_frac=0.0,
        transfer_latency_s=0.0,
    )  # fmt: skip
    plain, _ = stages(engine="vllm-omni", gpus="4xH100", layout=ParallelConfig(pp=3))
    parts = [c for c in job.family.components(job.model) if c.name.startswith("transformer")]
    assert [part.blocks for part in parts] == [40, 40]
    held = sum(part.params * part.bits / 8 * 14 / 40 for part in parts)
    copies_s = held / (1e-4 * job.machine.rates.host_link_bytes_per_s)
    assert moved["denoise"] - plain["denoise"] == pytest.approx(copies_s, rel=1e-6)
