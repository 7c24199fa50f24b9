"""The laws on every device of the catalogue: shares of the peak that hardware can have."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from perfmodel.catalog import hardware_ids, load_device, load_fit, parse_gpus
from perfmodel.cost import Machine, cost
from perfmodel.cost.machine import Rates
from perfmodel.cost.pointwise import cost_pointwise
from perfmodel.errors import MissingData
from perfmodel.ops import Attention, Collective, Gemm, Pointwise
from perfmodel.spec.hardware import Device
from perfmodel.topology import Topology

DEVICES = sorted(hardware_ids())


@cache
def machine(name: str) -> Machine:
    system = parse_gpus(f"1x{name}")
    return Machine.build(system.device, Topology.of(system))


def attention(head_dim: int = 128, **more: object) -> Attention:
    base = {"seq_q": 32_768, "seq_kv": 32_768, "heads": 24, "kv_heads": 24}
    return Attention(name="a", head_dim=head_dim, **{**base, **more})  # type: ignore[arg-type]


def flop_per_s(box: Machine, op: Attention | Gemm) -> float:
    found = cost(op, box)
    return float(found.flops_each / found.time_each_s)


@pytest.mark.parametrize("name", DEVICES)
def test_long_attention_runs_at_a_share_of_the_peak_that_kernels_reach(name):
    """FlashAttention reaches 0.25 to 0.9 of the peak on everything that was ever measured."""
    box = machine(name)
    assert 0.25 < flop_per_s(box, attention()) / box.rates.peak("bf16") < 0.95


@pytest.mark.parametrize("name", DEVICES)
def test_strided_kernels_stay_within_a_decade_of_the_memory(name):
    box = machine(name)
    times = [
        float(cost(Pointwise(name="p", bytes_moved=1e9, strided=flag), box).time_each_s)
        for flag in (False, True)
    ]
    assert times[0] <= times[1] < 4 * times[0]


def without_units(device: Device) -> Device:
    compute = device.compute.model_copy(update={"multiprocessors": None})
    return device.model_copy(update={"compute": compute, "exp_per_s": None})


@pytest.mark.parametrize(
    "name", ["h100-sxm", "b200-sxm", "a100-sxm-80g", "ascend-910c-die", "mi300x", "mi355x", "l40s"]
)
def test_a_device_file_without_multiprocessors_is_taken_for_one_of_its_family(name):
    device = load_device(name)
    stated, unknown = Rates.of(device), Rates.of(without_units(device))
    assert 0.8 * stated.exp_per_s < unknown.exp_per_s < 1.25 * stated.exp_per_s
    system = parse_gpus(f"1x{name}")
    box = Machine.build(without_units(device), Topology.of(system))
    op = Pointwise(name="p", bytes_moved=1e9, strided=True)
    assert cost(op, box).time_each_s <= cost(op, machine(name)).time_each_s


def test_short_rows_are_free_of_blocks_where_the_multiprocessors_are_not_stated():
    """As of a single multiprocessor, blocks would take a hundred times as long."""
    op = Pointwise(name="norm", bytes_moved=1e9, eager_bytes=1e9, rowwise_frac=1.0, row_bytes=256.0)
    system = parse_gpus("1xh100-sxm")
    box = Machine.build(without_units(system.device), Topology.of(system))
    times = [
        float(cost_pointwise(op, m, compiled=False).time_each_s) for m in (box, machine("h100-sxm"))
    ]
    assert times[0] <= times[1]
    assert times[1] < 10 * times[0]


def test_a_stated_exponential_rate_wins():
    assert Rates.of(load_device("b300-sxm")).exp_per_s == 1.07e13


@pytest.mark.parametrize("head_dim", [64, 128])
def test_two_boards_of_one_chip_run_attention_alike(head_dim):
    """GB300 and B300 are Blackwell Ultra, with twice the exponentials of a B200 (NVIDIA)."""
    rack, board = (flop_per_s(machine(n), attention(head_dim)) for n in ("gb300", "b300-sxm"))
    assert rack > board
    # cuDNN and FlashAttention 4 reach 1.88 PFLOP/s there (flash-attention, pull 2605)
    assert flop_per_s(machine("gb300"), attention()) == pytest.approx(1.882e15, rel=0.15)


def test_the_default_attention_of_every_ascend_is_its_own_kernel():
    for name in ("ascend-910c-die", "ascend-950pr", "ascend-950dt", "atlas-350"):
        box = machine(name)
        plain, own = (cost(attention(backend=b), box).time_each_s for b in (None, "ASCEND"))
        assert np.array_equal(plain, own)


RNG = np.random.default_rng(7)


def spread(high: float, rows: int = 300) -> np.ndarray:
    """Whole numbers from 1 to `high`, even on a logarithmic scale, with both ends."""
    found = np.exp(RNG.uniform(0, np.log(high), rows)).astype(np.int64)
    found[:2] = 1, int(high)
    return found


@pytest.mark.parametrize("name", DEVICES)
def test_every_size_has_a_finite_time_above_the_roof(name):
    box = machine(name)
    ops: list[Gemm | Attention] = [
        Gemm(name="g", m=spread(1e7), n=spread(1e6), k=spread(1e6), batch=spread(64), dtype=dtype)
        for dtype in ("bf16", "fp32", "fp8", "fp8_block", "int8", "nvfp4")
    ]
    tokens = {"seq_q": spread(1e6), "seq_kv": spread(1e7), "batch": spread(1000)}
    ops += [
        Attention(name="a", heads=spread(96), kv_heads=1, head_dim=width, causal=causal, **tokens)
        for width in (32, 64, 88, 96, 128, 256, 512)
        for causal in (False, True)
    ]
    for op in ops:
        try:
            found = cost(op, box)
        except MissingData:
            continue
        assert np.all(np.isfinite(found.time_each_s))
        assert np.all(found.time_each_s > 0)
        assert np.all(found.time_each_s >= found.roof_s * (1 - 1e-12))


@pytest.mark.parametrize("name", DEVICES)
def test_a_reduction_is_about_a_scatter_and_a_gather_and_no_link_is_passed(name):
    node = load_device(name).node_size
    system = parse_gpus(f"2x{node}x{name}")
    box = Machine.build(system.device, Topology.of(system))
    sizes = np.geomspace(1, 1e11, 200)
    for ranks in sorted({2, node, 2 * node} - {1}):
        times = {
            op: cost(Collective(name="x", op=op, full_bytes=sizes, ranks=ranks), box).time_each_s
            for op in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "p2p")
        }
        for time in times.values():
            assert np.all(np.isfinite(time) & (time > 0))
            assert np.all(np.diff(time) >= -1e-9 * time[1:])
        both = times["reduce_scatter"] + times["all_gather"]
        large = sizes > 1e8
        assert np.all(times["all_reduce"] < 1.5 * both)
        assert np.all(times["all_reduce"][large] > 0.6 * both[large])
        link = box.topology.path(ranks).bytes_per_s_per_direction
        sent = sizes * (ranks - 1) / ranks
        assert np.all(times["all_gather"] * np.maximum(link, 1) >= sent * (1 - 1e-9))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_laws_measured_in_one_16_bit_type_serve_the_other(dtype):
    """Without this a table in fp16 alone is fitted, and predictions never look at the fit."""
    system = parse_gpus("1xh100-sxm")
    shipped = load_fit("h100-sxm")
    assert shipped is not None
    kinds = ("gemm", "attention")
    laws = {f"{kind}/fp16": shipped["laws"][f"{kind}/bf16"] for kind in kinds}
    box = Machine.build(system.device, Topology.of(system), fit={**shipped, "laws": laws})
    for op in (
        Gemm(name="g", m=8192, n=8192, k=8192, dtype=dtype),
        attention(dtype=dtype, backend="FLASH_ATTN"),
    ):
        found = cost(op, box)
        assert found.provenance == "fitted"
        assert found.time_each_s == cost(op, machine("h100-sxm")).time_each_s


@pytest.mark.parametrize("name", DEVICES)
def test_products_have_a_time_in_every_type_that_the_device_has_a_rate_for(name):
    box = machine(name)
    wide = {"m": 4096, "n": 4096, "k": 4096}
    for dtype in box.rates.peak_flop_per_s:
        found = cost(Gemm(name="g", dtype=dtype, **wide), box)
        assert found.roof_s <= found.time_each_s < np.inf
