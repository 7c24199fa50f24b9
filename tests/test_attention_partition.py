"""Tiles and parts of FlashAttention 3, against the rule written out and measured kernels."""

import csv
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.catalog import load_device
from perfmodel.cost.attention import attention_time_s
from perfmodel.cost.fits import load_laws
from perfmodel.cost.machine import Rates
from perfmodel.cost.partition import partitions, parts_at_once

RECORDS = Path(__file__).parents[1] / "calibration" / "microbench" / "h200-sxm" / "attention.csv"


@given(tiles=st.integers(1, 400), blocks=st.integers(1, 600), units=st.sampled_from([78, 132, 148]))
def test_one_part_more_would_not_run_at_once(tiles, blocks, units):
    found = int(parts_at_once(np.float64(tiles), np.float64(blocks), units))
    assert 1 <= found <= blocks
    if blocks <= 4:
        assert found == 1
    elif found < blocks:
        assert tiles * (found + 1) > units
    assert found == 1 or tiles * found <= units


@pytest.mark.parametrize(
    ("tokens", "tiles", "split"), [(12_288, 64, 2), (14_400, 75, 1), (7_744, 41, 3)]
)
def test_one_head_of_64_is_cut_as_its_measured_times_say(tokens, tiles, split):
    """86 us: all keys in halves; 186 us: no parts; 46 us: in thirds."""
    size = np.float64(tokens)
    ((rows, found),) = partitions(
        "hopper", 132, seq_q=size, seq_kv=size, heads=np.float64(1), head_dim=np.float64(64),
        causal=False,
    )  # fmt: skip
    assert (float(rows), math.ceil(tokens / float(rows)), float(found)) == (192, tiles, split)


def test_blackwell_pairs_tiles_and_splits_no_causal_ones():
    """One head of 8192 tokens: 32 pairs on 148 multiprocessors, so 4 parts of the 64 blocks."""
    size, one = np.float64(8192), np.float64(1)
    for causal, split in ((False, 4), (True, 1)):
        ((rows, found),) = partitions(
            "blackwell", 148, seq_q=size, seq_kv=size, heads=one, head_dim=one, causal=causal
        )
        assert (float(rows), float(found)) == (256, split)


def test_a_kernel_that_was_not_measured_may_have_either_tile():
    """44,672 tokens, 8 heads, 148 SMs: 9.5 waves of 256 rows cost 10, 18.9 waves of 128 rows 19."""
    law = load_laws("b300-sxm", "blackwell", None)[0]["attention/bf16"]
    values = {**law.values, "wave_frac": 1.0, "ramp_kv": 0.0}
    rates = Rates.of(load_device("b300-sxm"))
    dims = {"seq_q": 44_672.0, "seq_kv": 44_672.0, "heads": 8.0, "kv_heads": 8.0}
    dims = {name: np.float64(x) for name, x in {**dims, "head_dim": 128.0, "batch": 1.0}.items()}
    known, other = (
        float(attention_time_s(values, rates, "bf16", causal=False, measured=flag, **dims))
        for flag in (True, False)
    )
    assert known / other == pytest.approx(10 * 256 / (19 * 128), rel=0.01)


def test_other_families_choose_the_best_of_some():
    size = np.float64(4096)
    same = {"seq_q": size, "seq_kv": size, "heads": size, "head_dim": size, "causal": False}
    assert [float(split) for _, split in partitions("ampere", 108, **same)] == [1, 2, 4]


def test_few_heads_on_an_h200_are_as_measured():
    """Full attention with too few tiles: the best of 1, 2 and 4 parts is off by 18 % here."""
    device = load_device("h200-sxm")
    law = load_laws(device.id, device.family, None)[0]["attention/bf16"]
    errors = []
    with RECORDS.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            heads = int(row["batch"]) * int(row["num_heads"])
            tokens = int(row["seq_q"])
            if row["causal"].lower() in {"1", "true"} or tokens < 4096 or heads > 2:
                continue
            names = ("seq_q", "seq_kv", "head_dim", "batch")
            dims = {name: np.float64(row[name]) for name in names}
            dims |= {"heads": np.float64(row["num_heads"])}
            dims |= {"kv_heads": np.float64(row["num_kv_heads"])}
            time_s = attention_time_s(law.values, Rates.of(device), "bf16", causal=False, **dims)
            errors.append(float(time_s) / float(row["latency_us"]) * 1e6 - 1)
    assert len(errors) > 10
    assert np.mean(np.abs(errors)) < 0.1
