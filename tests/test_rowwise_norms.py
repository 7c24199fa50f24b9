"""Norms of eager code that give a block of threads to each row, however short."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import catalog
from perfmodel.cost.machine import Machine
from perfmodel.cost.pointwise import cost_pointwise
from perfmodel.ops import Pointwise
from perfmodel.topology import Topology

BLOCK_S = 2e-6
BLOCKS = {"a100-sxm-80g": 108 * 16, "h100-sxm": 132 * 16, "l40": 142 * 12}


def machine(name: str) -> Machine:
    system = catalog.parse_gpus(f"1x{name}")
    return Machine.build(system.device, Topology.of(system))


def norm(rows: float, width: int, share: float = 1.0) -> Pointwise:
    moved = rows * width * 4.0
    return Pointwise(
        name="norm", bytes_moved=moved, eager_bytes=moved / share, rowwise_frac=share,
        row_bytes=width * 4.0,
    )  # fmt: skip


def seconds(op: Pointwise, on: Machine, *, compiled: bool = False) -> float:
    return float(np.ravel(cost_pointwise(op, on, compiled=compiled).time_each_s)[0])


@pytest.mark.parametrize(("name", "blocks"), BLOCKS.items())
def test_short_rows_take_their_blocks(name, blocks):
    rows = 2e6
    assert seconds(norm(rows, 64), machine(name)) == pytest.approx(
        rows * BLOCK_S / blocks, rel=0.01
    )


@pytest.mark.parametrize("name", BLOCKS)
def test_rows_of_the_model_width_take_their_bytes(name):
    """3072 elements a block move 12 KiB in 2 us, more than the memory gives to all blocks."""
    on = machine(name)
    without = Pointwise(name="norm", bytes_moved=2e5 * 3072 * 4.0)
    assert seconds(norm(2e5, 3072), on) == seconds(without, on)


def test_only_in_eager_code_and_on_cuda():
    rows = 2e6
    plain = Pointwise(name="norm", bytes_moved=rows * 64 * 4.0)
    a100, amd = machine("a100-sxm-80g"), machine("mi300x")
    assert seconds(norm(rows, 64), a100, compiled=True) == seconds(plain, a100, compiled=True)
    assert seconds(norm(rows, 64), amd) == seconds(plain, amd)
    assert seconds(norm(rows, 64), a100) > 3 * seconds(plain, a100)


def test_other_kernels_of_the_operator_keep_their_time():
    """A copy as large as the norm before it: its bytes come on top of the blocks."""
    on = machine("h100-sxm")
    rows = 2e6
    copy_s = seconds(Pointwise(name="copy", bytes_moved=rows * 64 * 4.0), on)
    both = seconds(norm(rows, 64, share=0.5), on)
    assert both == pytest.approx(rows * BLOCK_S / BLOCKS["h100-sxm"] + copy_s, rel=0.02)
