"""The whole loop on the machine at hand: bench, calibrate, predict, measure, compare.

``python -m perfmodel.calibrate.measure.live`` prints the errors.  What is predicted and measured
is a transformer block, a VAE residual block and an all-reduce between processes, at sizes that no
record has; laws, device description and links come from records made a minute before.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from perfmodel.calibrate import presets
from perfmodel.calibrate.cases import AttentionCase, Case, CollectiveCase
from perfmodel.calibrate.explore import Options
from perfmodel.calibrate.fitfile import fit_document
from perfmodel.calibrate.measure import collectives, kernels, slices, worker
from perfmodel.calibrate.measure.bench import BenchRequest, run_bench
from perfmodel.calibrate.measure.device import Device, open_device
from perfmodel.calibrate.measure.timing import buffer_sets, time_calls
from perfmodel.calibrate.run import calibrate
from perfmodel.catalog import build_system, load_device, read_device
from perfmodel.cost import Machine, cost
from perfmodel.ops import Collective, Op
from perfmodel.topology import Topology
from perfmodel.units import MS_PER_S, PERCENT, US_PER_S

DTYPE = "bf16"
OPS = ("gemm", "attention", "conv", "pointwise", "collective")


@dataclass(frozen=True, slots=True)
class Compared:
    """A prediction beside its measurement [s]."""

    name: str
    predicted_s: float
    measured_s: float

    @property
    def error_frac(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True, slots=True)
class LiveProof:
    """What the loop found.

    Attributes:
        device: name of the device.
        records: measured rows.
        heldout_mape: held-out error of each law in percent.
        compared: predictions and measurements.
    """

    device: str
    records: int
    heldout_mape: dict[str, float]
    compared: tuple[Compared, ...]

    def lines(self) -> list[str]:
        """The report as text."""
        laws = ", ".join(f"{name} {mape:.0f} %" for name, mape in self.heldout_mape.items())
        head = [f"{self.device}: {self.records} records; held-out error by law: {laws}", ""]
        head.append(f"  {'':<20}{'predicted ms':>14}{'measured ms':>14}{'error %':>10}")
        return head + [
            f"  {row.name:<20}{row.predicted_s * MS_PER_S:>14.3f}"
            f"{row.measured_s * MS_PER_S:>14.3f}{row.error_frac * PERCENT:>+10.0f}"
            for row in self.compared
        ]


def live_proof(
    out: Path,
    *,
    device: str | None = None,
    budget_s: float = 0.1,
    threads: int = 1,
    ranks: int = 2,
    trials: int = 30,
) -> LiveProof:
    """Run the loop with records in `out`.

    Args:
        out: folder of the records.
        device: cuda, npu or cpu; None takes the first there is.
        budget_s: time for one shape.
        threads: CPU threads; one is the most repeatable on a machine that others use too.
        ranks: processes of the all-reduce; 1 leaves it out.
        trials: trials of each law's study.
    """
    torch.set_num_threads(threads)
    opened = open_device(device)
    scale: presets.Scale = "cpu" if opened.is_cpu else "accelerator"
    request = BenchRequest(
        out=out,
        device=opened.kind,
        ops=OPS if ranks > 1 else OPS[:-1],
        cases=tuple(_preset_cases(opened, scale, ranks)),
        ranks=ranks,
        threads=threads,
        budget_s=budget_s,
        compiled=False,
    )
    report = run_bench(request)
    described = (
        read_device(report.device_file)
        if report.device_file
        else load_device(str(report.device_id))
    )
    result = calibrate([out], described, Options(trials=trials))
    fit = fit_document(result)
    machine = Machine.build(
        described, Topology.of(build_system(described, count=max(ranks, 1))), fit=fit
    )
    compared = _compare(opened, machine, scale, budget_s)
    if ranks > 1:
        compared.append(_all_reduce(opened, machine, out, ranks, slices.SIZES[scale][0]))
    heldout = {law.law.name: float(str(law.heldout["mape"])) for law in result.laws}
    return LiveProof(report.device, report.records, heldout, tuple(compared))


def _preset_cases(device: Device, scale: presets.Scale, ranks: int) -> list[Case]:
    """The quick preset in one dtype, torch's first choice of attention, and all-reduces."""
    cases: list[Case] = [
        replace(case, kernel=kernels.first_choice(device))
        if isinstance(case, AttentionCase)
        else case
        for op in OPS[:-1]
        for case in presets.PRESETS[op]("quick", scale)
        if getattr(case, "dtype", DTYPE) == DTYPE
    ]
    messages = presets.collective_cases("quick", scale, [ranks])
    return cases + [case for case in messages if "all_reduce" in case.key()]


def predict_s(ops: Iterable[Op], machine: Machine) -> float:
    """Sum over operators of count times time, eager, at the short-burst rates of the records."""
    total = 0.0
    for op in ops:
        costed = cost(op, machine, compiled=False, sustained=False)
        total += float(op.count * costed.time_each_s)
    return total


def _compare(
    device: Device, machine: Machine, scale: presets.Scale, budget_s: float
) -> list[Compared]:
    block_size, map_size = slices.SIZES[scale]
    dtype = device.dtype(DTYPE)
    rows = (block_size.tokens, block_size.width), (block_size.text_tokens, block_size.width)
    voxels = (map_size.channels, map_size.frames, map_size.rows, map_size.cols)
    return [
        Compared(
            "transformer block",
            predict_s(slices.block_ops(block_size, DTYPE), machine),
            _measure(device, slices.Block(block_size), rows, dtype, budget_s),
        ),
        Compared(
            "VAE slice",
            predict_s(slices.map_ops(map_size, DTYPE), machine),
            _measure(device, slices.MapBlock(map_size), (voxels,), dtype, budget_s),
        ),
    ]


def _measure(
    device: Device,
    module: torch.nn.Module,
    shapes: Sequence[tuple[int, ...]],
    dtype: torch.dtype,
    budget_s: float,
) -> float:
    """Median time of a forward of `module` on inputs that rotate."""
    module = module.to(device.torch_device, dtype).eval()
    input_bytes = float(sum(torch.Size(shape).numel() for shape in shapes) * dtype.itemsize)
    with torch.inference_mode():
        calls = [
            partial(module, *(device.random(1, *shape, dtype=dtype) for shape in shapes))
            for _ in range(min(8, buffer_sets(device, input_bytes)))
        ]
        return time_calls(device, calls, 10 * budget_s).median_s


def _all_reduce(
    device: Device, machine: Machine, out: Path, ranks: int, size: slices.BlockSize
) -> Compared:
    """The all-reduce of the block's hidden state, as tensor parallelism does it."""
    case = presets.collective_case("all_reduce", ranks, size.tokens * size.width * 2)
    cases = tuple(collectives.fill_library([case], device))
    folder = out / "check"
    worker.launch(worker.Plan(device.kind, cases, folder, True, 1.0, 1), ranks)
    with (folder / CollectiveCase.file).open(encoding="utf-8", newline="") as stream:
        row: dict[str, Any] = list(csv.DictReader(stream))[-1]
    message = Collective(name="sum", op="all_reduce", full_bytes=case.message_bytes, ranks=ranks)
    measured_s = float(row["latency_us"]) / US_PER_S
    return Compared("all-reduce", predict_s([message], machine), measured_s)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the loop and print its report."""
    parser = argparse.ArgumentParser(description="bench, calibrate, predict, measure, compare")
    parser.add_argument("--device", choices=("cuda", "npu", "cpu"))
    parser.add_argument("--out", type=Path, help="keep the records in this folder")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--budget", type=float, default=0.1, help="seconds for one shape")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        proof = live_proof(
            given.out or Path(scratch, "records"),
            device=given.device,
            budget_s=given.budget,
            threads=given.threads,
            ranks=given.ranks,
        )
    print("\n".join(proof.lines()))


if __name__ == "__main__":
    main()
