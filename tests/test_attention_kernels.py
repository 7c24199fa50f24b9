"""Which kernel runs an attention, at head widths that were measured and at others."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.catalog import parse_gpus
from perfmodel.cost import Machine, cost
from perfmodel.ops import Attention
from perfmodel.topology import Topology

FITTED = ("b300-sxm", "b200-sxm", "h200-sxm", "h100-sxm", "a100-sxm-80g", "l40s")
BACKENDS = ("FLASH_ATTN", "FLASH_ATTN_4", "FLASH_ATTN_3", "TRTLLM_ATTN", "CUDNN_ATTN", None)


def machine(name: str) -> Machine:
    system = parse_gpus(f"1x{name}")
    return Machine.build(system.device, Topology.of(system))


def seconds(box: Machine, head_dim: int, backend: str | None = None, **dims: object) -> float:
    base = {"seq_q": 32_760, "seq_kv": 32_760, "heads": 24, "kv_heads": 24}
    op = Attention(name="a", head_dim=head_dim, backend=backend, **{**base, **dims})  # type: ignore[arg-type]
    return float(cost(op, box).time_each_s)


@pytest.mark.parametrize("device", FITTED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_heads_wider_than_any_measured_cost_what_the_widest_do_by_width(device, backend):
    """Kernels of narrow heads say nothing of them; products alone grow, by the width."""
    box = machine(device)
    widest = seconds(box, 128, backend)
    for head_dim in (144, 160, 192, 256):
        times_wider = head_dim / 128
        assert (
            0.85 * times_wider * widest
            < seconds(box, head_dim, backend)
            <= 1.05 * (times_wider * widest)
        )


@pytest.mark.parametrize("device", FITTED)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_head_is_no_slower_than_one_it_can_be_padded_to(device, backend):
    box = machine(device)
    times = [seconds(box, head_dim, backend) for head_dim in (88, 96, 112, 128)]
    assert max(times) <= 1.05 * times[-1]


def test_a_backend_keeps_its_own_kernel_between_widths_it_was_measured_at():
    """TensorRT-LLM's causal kernels were measured at 64 and 128, FlashAttention 4 at 64 to 80."""
    box = machine("b200-sxm")
    at = {head_dim: seconds(box, head_dim, "TRTLLM_ATTN") for head_dim in (64, 80, 128)}
    assert at[64] <= at[80] <= at[128]
    assert at[80] < seconds(box, 80, "FLASH_ATTN_4")


@pytest.mark.parametrize(
    ("device", "slower"), [("h100-sxm", 0.95 / 0.4), ("b300-sxm", 0.95 / 0.25), ("mi300x", 1.0)]
)
def test_the_single_head_of_an_image_vae_runs_in_the_memory_efficient_kernel(device, slower):
    """torch's fast kernels take heads up to 256; its other one has a prior rate.

    The bound leaves room for the start of its smaller tiles: 16 % on a B300.
    """
    box = machine(device)
    by_width = seconds(box, 512, None, heads=1, kv_heads=1) / (
        seconds(box, 256, None, heads=1, kv_heads=1)
    )
    assert by_width == pytest.approx(2 * slower, rel=0.2)


def test_the_widest_heads_take_32_query_rows_and_all_keys():
    """148 multiprocessors hold 4,736 rows at once; a tile of 128 rows would be full at 18,944."""
    box = machine("b300-sxm")
    rows = (32, 1024, 4736, 4737, 9472)
    few, some, full, more, two = (
        seconds(box, 384, None, seq_q=n, seq_kv=16_384, heads=1, kv_heads=1) for n in rows
    )
    assert few == pytest.approx(some, rel=1e-3)
    assert some == pytest.approx(full, rel=1e-3)
    assert more > 1.5 * full
    assert two == pytest.approx(more, rel=0.1)
    keys = [seconds(box, 384, None, seq_q=32, seq_kv=n, heads=1, kv_heads=1) for n in (8e4, 16e4)]
    assert keys[1] == pytest.approx(2 * keys[0], rel=0.05)


def test_merging_parts_of_keys_costs_a_cut_down_device_fewer_of_its_slower_products():
    """An H20 has an eighth of the matrix rate of an H100 in a multiprocessor, and the same rest."""
    box = machine("h20")
    fresh = machine("h100-pcie").laws["attention/bf16"].values
    lent = box.laws["attention/bf16"].values
    assert lent["split_kv"] / fresh["split_kv"] == pytest.approx(lent["ramp_kv"] / fresh["ramp_kv"])
    assert lent["split_kv"] < 0.3 * fresh["split_kv"]
    times = np.array([seconds(box, 96, None, seq_q=3, seq_kv=644, heads=h) for h in range(20, 80)])
    assert np.all(times >= 0.9 * np.maximum.accumulate(times))


@pytest.mark.parametrize("device", ["l40s", "rtx-4090", "h100-sxm", "b300-sxm", "a100-sxm-80g"])
def test_products_in_8_bits_read_and_write_the_16_bit_tensors(device):
    """Cross-attention over a few keys is the traffic of queries and outputs, 2 bytes an element."""
    box = machine(device)
    rows, heads, width = 32_760, 40, 128
    for keys in (1, 77, 512):
        dims = {"seq_q": rows, "seq_kv": keys, "heads": heads, "kv_heads": heads}
        found = seconds(box, width, "SAGE_ATTN", **dims)
        traffic = 2 * 2 * (rows + keys) * heads * width
        assert found >= traffic / box.rates.roof_memory_bytes_per_s
    assert seconds(box, width, "SAGE_ATTN") < 0.95 * seconds(box, width, "CUDNN_ATTN")
