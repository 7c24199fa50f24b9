"""Names of attention kernels in records: by which a backend is predicted, and by which none is."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest
from calibrate_rows import DEVICE, QUICK

from perfmodel.calibrate.fitfile import fit_document
from perfmodel.calibrate.run import calibrate
from perfmodel.catalog import parse_gpus
from perfmodel.cost.backends import KernelChoice, kernel_choice
from perfmodel.cost.machine import Machine
from perfmodel.ops import Attention
from perfmodel.topology import Topology


def write_attention(path: Path, rates: dict[str, float]) -> list[Path]:
    """Rows of kernels that reach some FLOP/s at every shape."""
    with (path / "attention.csv").open("w", newline="") as file:
        out = csv.writer(file)
        columns = "op dtype kernel causal batch seq_q seq_kv num_heads num_kv_heads head_dim"
        out.writerow([*columns.split(), "latency_us"])
        for (kernel, rate), seq, heads in itertools.product(
            rates.items(), (1024, 2048, 3072, 4096, 8192, 16384), (8, 16, 24, 40)
        ):
            work = 4 * seq * seq * heads * 128
            row = ["attention", "bf16", kernel, False, 1, seq, seq, heads, heads, 128]
            out.writerow([*row, f"{work / rate * 1e6 + 10:.8g}"])
    return [path]


def choice(document: dict[str, object], backend: str) -> KernelChoice:
    system = parse_gpus(f"1x{DEVICE.id}")
    machine = Machine.build(system.device, Topology.of(system), fit=document)
    op = Attention(
        name="a", seq_q=8192, seq_kv=8192, heads=24, kv_heads=24, head_dim=128, backend=backend
    )
    return kernel_choice(machine, machine.laws["attention/bf16"], op)


@pytest.mark.parametrize("name", ["my_attention_v7", "fmha_v2"])
def test_a_kernel_that_no_backend_is_known_by_is_named(tmp_path, name):
    result = calibrate(write_attention(tmp_path, {name: 4e14}), DEVICE, QUICK)
    (problem,) = [p for p in result.records.problems if p.rule_id == "records-kernel"]
    assert problem.severity == "warning"
    assert f'"{name}" (24 rows)' in problem.message
    assert all(part in problem.message for part in ("cudnn", "fa3", "sdpa_efficient"))
    assert "\n" not in problem.message
    assert choice(fit_document(result), "FLASH_ATTN").provenance == "prior"


@pytest.mark.parametrize(
    ("kernel", "backend"),
    [
        ("fa3", "FLASH_ATTN"),
        ("sdpa_cudnn", "CUDNN_ATTN"),
        ("sdpa_efficient", "SDPA_EFFICIENT"),
        ("sdpa_efficient", "XFORMERS"),
    ],
)
def test_a_kernel_that_bench_measures_stands_behind_its_backend(tmp_path, kernel, backend):
    result = calibrate(write_attention(tmp_path, {kernel: 4e14}), DEVICE, QUICK)
    assert "records-kernel" not in {p.rule_id for p in result.records.problems}
    found = choice(fit_document(result), backend)
    assert (found.provenance, found.measured) == ("fitted", True)
