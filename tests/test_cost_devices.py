"""The laws on every device of the catalogue: shares of the peak that hardware can have."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from perfmodel.catalog import hardware_ids, load_device, parse_gpus
from perfmodel.cost import Machine, cost
from perfmodel.cost.machine import Rates
from perfmodel.ops import Attention, Gemm, Pointwise
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


@pytest.mark.parametrize("name", ["h100-sxm", "b200-sxm", "ascend-910c-die", "mi300x", "l40s"])
def test_a_device_file_without_multiprocessors_keeps_its_order_of_magnitude(name):
    device = load_device(name)
    stated, unknown = Rates.of(device), Rates.of(without_units(device))
    assert stated.exp_per_s / 10 < unknown.exp_per_s <= 1.1 * stated.exp_per_s
    system = parse_gpus(f"1x{name}")
    box = Machine.build(without_units(device), Topology.of(system))
    op = Pointwise(name="p", bytes_moved=1e9, strided=True)
    assert cost(op, box).time_each_s <= cost(op, machine(name)).time_each_s


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
