"""Properties that every cost law keeps, on every family with a fit and on priors."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import load_device, parse_gpus
from perfmodel.cost import Machine, cost
from perfmodel.errors import MissingData
from perfmodel.ops import (
    Attention,
    Collective,
    Conv,
    Gemm,
    HostWork,
    Media,
    Pointwise,
    Transfer,
)
from perfmodel.topology import Topology

DEVICES = ("b300-sxm", "h200-sxm", "a100-sxm-80g", "l40s", "ascend-910c-die", "mi300x")
SIZES = np.unique(np.geomspace(1, 200_000, 400).astype(np.int64))


@cache
def machine(device: str, gpus: int = 8) -> Machine:
    system = parse_gpus(f"{gpus}x{device}")
    return Machine.build(system.device, Topology.of(system))


def gemm(**dims):
    return Gemm(name="g", **{"m": 4096, "n": 4096, "k": 4096, **dims})


def attention(**dims):
    base = {"seq_q": 4096, "seq_kv": 4096, "heads": 16, "kv_heads": 4, "head_dim": 128}
    return Attention(name="a", **{**base, **dims})


def conv(**dims):
    base = {"in_channels": 96, "out_channels": 96, "kernel": (3, 3, 3), "out_t": 4}
    return Conv(name="c", **{**base, "out_h": 240, "out_w": 416, **dims})


def collective(op="all_reduce", **dims):
    return Collective(name="x", op=op, **{"full_bytes": 1e7, "ranks": 4, **dims})


def increases(times):
    assert np.all(np.diff(times) >= -1e-9 * times[1:]), np.diff(times).min()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dim", ["m", "n", "k", "batch"])
def test_gemm_is_monotone_in_each_dimension(device, dim):
    increases(cost(gemm(**{dim: SIZES}), machine(device)).time_each_s)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_monotone_in_each_dimension(device, causal):
    box = machine(device)
    increases(cost(attention(seq_q=SIZES, seq_kv=SIZES, causal=causal), box).time_each_s)
    increases(cost(attention(seq_kv=SIZES + 4096, causal=causal), box).time_each_s)
    heads = np.arange(1, 129)
    increases(cost(attention(heads=heads, kv_heads=heads, causal=causal), box).time_each_s)
    increases(cost(attention(batch=heads, causal=causal), box).time_each_s)
    if not causal:
        increases(cost(attention(seq_q=SIZES), box).time_each_s)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all",
                                "broadcast", "p2p"])  # fmt: skip
@pytest.mark.parametrize("device", DEVICES)
def test_collectives_are_monotone_in_bytes(device, op):
    sizes = np.geomspace(1, 1e10, 2000)
    for ranks in (2, 4, 8):
        increases(cost(collective(op, full_bytes=sizes, ranks=ranks), machine(device)).time_each_s)


@pytest.mark.parametrize("device", DEVICES)
def test_conv_and_traffic_are_monotone(device):
    box = machine(device)
    increases(cost(conv(out_h=SIZES[SIZES < 5000]), box).time_each_s)
    increases(cost(Pointwise(name="p", bytes_moved=SIZES * 1e3), box).time_each_s)
    increases(cost(Transfer(name="t", bytes_moved=SIZES * 1e3), box).time_each_s)
    increases(cost(Media(name="m", pixels=SIZES * 1e3), box).time_each_s)


@given(
    m=st.integers(1, 300_000),
    n=st.integers(1, 70_000),
    k=st.integers(1, 70_000),
    device=st.sampled_from(DEVICES),
)
@settings(max_examples=150, deadline=None)
def test_gemm_never_beats_the_roofline(m, n, k, device):
    got = cost(gemm(m=m, n=n, k=k), machine(device), sustained=False)
    facts = load_device(device)
    flops = 2.0 * m * n * k / facts.roof_flop_per_s("bf16")
    traffic = 2.0 * (m * k + k * n + m * n) / facts.roof_bytes_per_s()
    assert got.time_each_s >= max(flops, traffic) * (1 - 1e-12)


@given(
    seq=st.integers(1, 200_000),
    heads=st.integers(1, 64),
    width=st.sampled_from([64, 72, 80, 128]),
    causal=st.booleans(),
    device=st.sampled_from(DEVICES),
)
@settings(max_examples=150, deadline=None)
def test_attention_never_beats_the_roofline(seq, heads, width, causal, device):
    op = attention(
        seq_q=seq, seq_kv=seq, heads=heads, kv_heads=heads, head_dim=width, causal=causal
    )
    got = cost(op, machine(device), sustained=False)
    flops = 4.0 * seq * seq * heads * width / (2 if causal else 1)
    assert got.time_each_s >= flops / load_device(device).roof_flop_per_s("bf16") * (1 - 1e-12)
    assert got.time_each_s >= got.roof_s


@given(
    size=st.floats(1, 1e11),
    ranks=st.sampled_from([2, 4, 8]),
    op=st.sampled_from(["all_gather", "reduce_scatter", "all_to_all"]),
    device=st.sampled_from(DEVICES),
)
@settings(max_examples=150, deadline=None)
def test_bus_bandwidth_stays_below_the_link(size, ranks, op, device):
    got = cost(collective(op, full_bytes=size, ranks=ranks), machine(device))
    link = machine(device).topology.link_bytes_per_s
    assert size * (ranks - 1) / ranks / got.time_each_s <= link * (1 + 1e-12)


def test_off_means_exactly_zero():
    box = machine("b300-sxm")
    off = np.array([0, 1, 0])
    for op in (
        gemm(count=off),
        attention(count=off),
        conv(count=off),
        Pointwise(name="p", bytes_moved=1e6, count=off),
        collective(count=off),
        Transfer(name="t", bytes_moved=1e6, count=off),
        Media(name="m", pixels=1e6, count=off),
    ):
        times = np.broadcast_to(cost(op, box).time_each_s, 3)
        assert times[0] == times[2] == 0.0
        assert times[1] > 0
    one = cost(collective(ranks=np.array([1, 2])), box).time_each_s
    assert one[0] == 0.0
    assert one[1] > 0
    assert cost(gemm(m=np.array([0, 5])), box).time_each_s[0] == 0.0


def test_scalars_and_columns_agree_and_repeats_share_their_cost():
    box = machine("h200-sxm")
    rng = np.random.default_rng(1)
    m = rng.choice([256, 1000, 44_160, 22_080], 5000)
    n = rng.choice([4096, 2048, 12_288], 5000)
    column = cost(gemm(m=m, n=n), box).time_each_s
    for i in (0, 17, 4999):
        one = cost(gemm(m=int(m[i]), n=int(n[i])), box).time_each_s
        assert column[i] == pytest.approx(float(one), rel=1e-12)


def test_all_rates_doubled_halve_the_time_without_latency():
    box = machine("b300-sxm")
    floors = ("launch_s", "split_s", "throttle_s", "host_floor_s", "row_s", "chunk_s")
    laws = {
        name: replace(
            law,
            values={k: (0.0 if k in ("launch_s", "split_s") else v) for k, v in law.values.items()},
        )
        for name, law in box.laws.items()
    }
    # The knees of the power limit are times: they halve with everything else.
    fast_laws = {
        name: replace(law, values={k: (v / 2 if k in floors else v) for k, v in law.values.items()})
        for name, law in laws.items()
    }
    slow = replace(box, laws=laws)
    fast = replace(box, laws=fast_laws, rates=box.rates.scaled(2.0))
    for op in (gemm(m=44_160, n=12_288), attention(seq_q=44_160, seq_kv=44_672)):
        assert cost(op, fast).time_each_s == pytest.approx(cost(op, slow).time_each_s / 2, rel=1e-9)


def test_a_sustained_fraction_slows_the_kernel_but_not_its_launch():
    box = machine("h200-sxm")

    def seconds(frac):
        slow = replace(box, terms={"sustained_frac.gemm": frac})
        return float(cost(gemm(m=44_160), slow).time_each_s)

    launch = box.laws["gemm/bf16"].values["launch_s"]
    assert seconds(0.8) == pytest.approx(launch + (seconds(1.0) - launch) / 0.8, rel=1e-9)


def test_a_busy_device_is_at_its_power_limit_whatever_the_kernel_length():
    box = replace(machine("b300-sxm"), terms={"sustained_frac.gemm": 1.0})
    burst = float(cost(gemm(m=2048), box, sustained=False).time_each_s)
    assert float(cost(gemm(m=2048), box).time_each_s) > burst


@given(knee_s=st.floats(1e-4, 1e-2), m=st.integers(256, 65_536))
def test_a_slowdown_beyond_the_power_limit_is_not_lent_to_short_kernels(knee_s, m):
    """Products on the matrix units alone, whose times with and without a slowdown are compared."""
    box = machine("h100-sxm")
    rates = replace(box.rates, memory_bytes_per_s=1e18, roof_memory_bytes_per_s=1e18)
    law = box.laws["gemm/fp8"]
    alone = {"launch_s": 0.0, "row_s": 0.0, "chunk_s": 0.0}

    def seconds(frac):
        values = {**law.values, **alone, "throttle_frac": frac, "throttle_s": knee_s}
        laws = {**box.laws, "gemm/fp8": replace(law, values={**values, "throttle_k": 1e6})}
        busy = replace(box, rates=rates, laws=laws, terms={"sustained_frac.gemm": 1.0})
        return float(cost(gemm(m=m, n=8192, k=8192, dtype="fp8"), busy).time_each_s)

    plain = seconds(0.0)
    limit_s = 2 * box.laws["gemm/bf16"].values["throttle_s"]
    expected = 1 + 0.2 / (1 + (knee_s / max(plain, limit_s)) ** 4)
    assert seconds(0.2) / plain == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("dtype", ["fp8", "nvfp4"])
def test_an_activation_that_arrives_quantised_costs_what_quantising_does_less(dtype):
    box = replace(machine("b300-sxm"), terms={"sustained_frac.gemm": 0.8})
    values = box.laws[f"gemm/{dtype}"].values
    m, n, k = 8192, 4096, 5000
    op = gemm(m=m, n=n, k=k, dtype=dtype)
    saved = cost(op, box).time_each_s - cost(replace(op, input_quantised=True), box).time_each_s
    rows = m * (values["row_s"] + 3 * values["chunk_s"])  # 5000 is three chunks of 2048
    passes = m * k * values["input_pass_bytes"] / box.rates.memory_bytes_per_s
    assert rows / 0.8 <= float(saved) * (1 + 1e-9)
    assert float(saved) <= (rows + passes) / 0.8 * (1 + 1e-9)
    plain, marked = gemm(m=m), replace(gemm(m=m), input_quantised=True)
    assert cost(marked, box).time_each_s == cost(plain, box).time_each_s


def test_eager_traffic_and_launches_replace_the_fused_ones():
    box = replace(machine("b300-sxm"), terms={"cache_hit_frac": 0.0})
    op = Pointwise(name="norm", bytes_moved=1e8, eager_bytes=3e8, launches=1, eager_launches=4)
    fused = cost(op, box, compiled=True)
    eager = cost(op, box, compiled=False)
    assert fused.bytes_each == 1e8
    assert eager.bytes_each == 3e8
    floor = float(fused.time_each_s - (eager.time_each_s - fused.time_each_s * 3))
    assert floor == pytest.approx(0.0, abs=2e-5)


@given(share=st.floats(0.0, 1.0), moved=st.floats(1e6, 1e11))
@pytest.mark.parametrize(("device", "binds"), [("h200-sxm", True), ("l40s", False)])
def test_broadcast_vectors_cost_addresses_in_eager_code_where_the_memory_is_fast(
    device, binds, share, moved
):
    box = replace(machine(device), terms={"cache_hit_frac": 0.0, "strided_bytes_per_clock": 8.0})
    plain = Pointwise(name="gate", bytes_moved=moved)
    op = replace(plain, scattered_frac=share)
    assert cost(op, box).time_each_s == cost(plain, box).time_each_s
    memory_s = float(cost(plain, box, compiled=False).time_each_s)
    eager_s = float(cost(op, box, compiled=False).time_each_s)
    rates = box.rates
    issued_s = moved / (8.0 * rates.multiprocessors * rates.clock_hz)
    law = box.laws.get("pointwise")
    floor_s = law.values["kernel_floor_s"] if law else 3.5e-6
    streamed_s = memory_s - floor_s
    expected = floor_s + (1 - share) * streamed_s + share * max(issued_s, streamed_s)
    assert eager_s == pytest.approx(expected, rel=1e-6)
    assert (issued_s > streamed_s) == binds


def strided_rate(name, **changes):
    box = machine(name)
    box = replace(box, rates=replace(box.rates, **changes), terms={"cache_hit_frac": 0.0})
    op = Pointwise(name="norm", bytes_moved=1e11, strided=True)
    return 1e11 / float(cost(op, box, compiled=True).time_each_s), box


def test_strided_kernels_are_issued_element_by_element():
    """Bytes a clock of a multiprocessor, so faster memory does not help; slow memory binds."""
    rate, box = strided_rate("h200-sxm")
    issued = box.term("strided_bytes_per_clock") * 132 * 1.98e9
    assert rate == pytest.approx(issued, rel=1e-3)
    assert strided_rate("h200-sxm", memory_bytes_per_s=9.6e12)[0] == pytest.approx(rate, rel=1e-6)
    assert strided_rate("h200-sxm", multiprocessors=66)[0] == pytest.approx(rate / 2, rel=1e-3)
    slow, box = strided_rate("l40")
    assert slow == pytest.approx(box.term("copy_memory_frac") * 864e9, rel=1e-3)


def test_large_messages_use_the_fast_protocol_and_small_ones_the_quick_start():
    box = machine("b300-sxm")
    sizes = np.array([1e3, 1e9])
    small, large = cost(collective("all_gather", full_bytes=sizes), box).time_each_s
    assert small < 2e-5
    assert 1e9 * 0.75 / large > 0.5 * 900e9


def test_two_ascend_ranks_share_one_link():
    box = machine("ascend-910c-die")
    pair = 0.5 * 1e9 / float(cost(collective("all_gather", full_bytes=1e9, ranks=2),
                                  box).time_each_s)  # fmt: skip
    mesh = 0.875 * 1e9 / float(cost(collective("all_gather", full_bytes=1e9, ranks=8),
                                    box).time_each_s)  # fmt: skip
    assert pair < 0.75 * mesh


def test_quantised_products_carry_their_activation_pass():
    box = machine("b300-sxm")
    narrow = float(cost(gemm(m=32_768, n=256, k=256, dtype="fp8"), box).time_each_s)
    assert narrow > float(cost(gemm(m=32_768, n=256, k=256), box).time_each_s)
    wide = {"m": 32_768, "n": 16_384, "k": 16_384}
    fast = float(cost(gemm(**wide, dtype="fp8"), box).time_each_s)
    assert fast < float(cost(gemm(**wide), box).time_each_s)


def test_missing_peak_is_refused_not_guessed():
    with pytest.raises(MissingData, match="fp8"):
        cost(gemm(dtype="fp8"), machine("a100-sxm-80g"))


def test_host_terms_are_engine_terms():
    box = replace(machine("b300-sxm"), terms={"image_prepare_s": 0.25})
    assert float(cost(HostWork(name="h", term="image_prepare_s"), box).time_each_s) == 0.25
    with pytest.raises(MissingData, match="unknown_s"):
        cost(HostWork(name="h", term="unknown_s"), box)


def test_provenance_and_extrapolation_are_said():
    box = machine("b300-sxm")
    fitted = cost(gemm(), box)
    assert fitted.provenance == "fitted"
    assert not np.any(fitted.extrapolated)
    assert np.any(cost(gemm(m=10_000_000), box).extrapolated)
    assert cost(conv(), box).provenance == "prior"
    assert cost(gemm(), machine("mi300x")).provenance == "prior"
    assert cost(Transfer(name="t", bytes_moved=1e9), box).bound in ("link", "host")


def test_bound_names_what_limits():
    box = machine("b300-sxm")
    assert cost(gemm(m=44_160, n=12_288), box).bound == "matrix"
    assert cost(gemm(m=64, n=51_200, k=51_200), box).bound == "memory"
    assert cost(gemm(m=64, n=64, k=64), box).bound == "latency"
    assert cost(attention(seq_q=44_160, seq_kv=44_160), box).bound in ("matrix", "exp")
    assert cost(collective(full_bytes=1e9), box).bound == "link"


def test_what_is_known_of_a_device_or_its_family_wins_over_what_an_engine_says_of_all():
    base = machine("h100-sxm")
    lent = base.named["attention_rate_fa2@hopper"].value
    general = replace(base, terms={"attention_rate_fa2": 0.9})
    assert general.term("attention_rate_fa2") == lent
    special = replace(base, terms={"attention_rate_fa2@hopper": 0.6, "attention_rate_fa2": 0.9})
    assert special.term("attention_rate_fa2") == 0.6
    assert replace(machine("a100-sxm-80g"), terms=general.terms).term("attention_rate_fa2") == 0.9


@pytest.mark.parametrize(
    ("op", "small_s"), [("all_gather", 1.4e-5), ("all_reduce", 2.81e-5), ("all_to_all", 1.99e-5)]
)
def test_groups_measured_across_hosts_hold_the_network_once(op, small_s):
    """Groups of 32 dies leave the server of 16; their short messages are in the hardware file.

    A second latency for each of five doublings would add 75 us.
    """
    system = machine("ascend-910c-die", 32)
    assert int(system.topology.path(32).tier) == 3
    (time,) = np.atleast_1d(cost(collective(op=op, full_bytes=256.0, ranks=32), system).time_each_s)
    assert small_s - 1e-5 < time < small_s + 2e-5


def test_groups_that_were_measured_inside_a_host_pay_for_the_network():
    """Eight ranks were measured in one H100 host; two hosts of four add three doublings."""
    system = parse_gpus("2x4xh100-sxm")
    across = Machine.build(system.device, Topology.of(system))
    (inside,), (outside,) = (
        np.atleast_1d(cost(collective(full_bytes=1024.0, ranks=8), m).time_each_s)
        for m in (machine("h100-sxm"), across)
    )
    assert outside - inside > 3 * 1.4e-5


@pytest.mark.parametrize("gpus", ["2x8xh100-sxm", "2x16xascend-910c-die", "2x8xmi300x"])
def test_a_message_to_the_next_rank_is_one_hop_in_a_group_of_any_size(gpus):
    """Two ranks in two hosts send over one port after one latency; so does each of all ranks."""
    system = parse_gpus(gpus)
    box = Machine.build(system.device, Topology.of(system))
    node = system.gpus_per_node
    sizes = np.array([1e3, 1e8])
    pair, all_ranks = (
        cost(collective("p2p", full_bytes=sizes, ranks=n, stride=2 * node // n), box).time_each_s
        for n in (2, 2 * node)
    )
    assert all_ranks == pytest.approx(pair)
    inside = cost(collective("p2p", full_bytes=sizes, ranks=2), box).time_each_s
    assert all_ranks[0] - inside[0] == pytest.approx(box.term("network_latency_s"), rel=0.05)


def test_a_message_over_a_mesh_takes_the_link_of_its_pair():
    box = machine("mi300x")
    times = [
        float(cost(collective("p2p", full_bytes=1e9, ranks=n), box).time_each_s) for n in (2, 4, 8)
    ]
    assert min(times) >= 1e9 / 64e9
    assert max(times) == min(times)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce"])
def test_groups_larger_than_those_measured_across_hosts_cross_them_too(op):
    """910C, measured on 32 dies of two hosts: 48 and 64 dies pay for the network no less."""
    system = parse_gpus("8x16xascend-910c-die")
    box = Machine.build(system.device, Topology.of(system))
    for size in (1e3, 1e9, 1e10):
        few, more, most = (
            float(cost(collective(op, full_bytes=size, ranks=n), box).time_each_s)
            for n in (32, 48, 64)
        )
        assert few <= more <= most < 2 * few
