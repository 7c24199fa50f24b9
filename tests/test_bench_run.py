"""Timing, the record store, resume, skips, and the command."""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from perfmodel.calibrate.cases import CASES, Case, GemmCase, TransferCase, header
from perfmodel.calibrate.measure import card, kernels, runner, timing
from perfmodel.calibrate.measure.bench import BenchRequest, run_bench
from perfmodel.calibrate.measure.device import Device, open_device
from perfmodel.calibrate.measure.store import Context, RecordStore
from perfmodel.calibrate.records import read_records
from perfmodel.cli import main
from perfmodel.errors import BadInput, MissingData

CONTEXT = Context("Test CPU", "torch x", "Test CPU", "x", 1)


@pytest.fixture(autouse=True)
def _keep_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@dataclass
class Scripted:
    """A device whose calls take scripted times."""

    script: list[float]
    is_cpu: bool = False
    cache_bytes: int = 1000
    free: float = 1e6
    head_starts: list[float] = field(default_factory=list)

    def batch_s(self, calls: Sequence[Any], *, head_start_s: float = 0.0) -> float:
        self.head_starts.append(head_start_s)
        for call in calls:
            call()
        each = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        return each * len(calls)

    def free_bytes(self) -> float:
        return self.free

    def synchronize(self) -> None:
        pass


def test_summary_is_the_median_and_the_interquartile_range() -> None:
    samples = [5.0, 1.0, 2.0, 9.0, 4.0, 100.0, 3.0]
    got = timing.summary(samples)
    low, middle, high = np.percentile(samples, [25, 50, 75])
    assert (got.median_s, got.spread_s, got.repeats) == (middle, high - low, 7)


def test_warm_up_is_not_measured_and_outliers_do_not_move_the_median() -> None:
    device = Scripted([9.0, 9.0, *[1e-2] * 300])
    device.script[40] = 7.0
    got = timing.time_calls(device, [lambda: None], 1e-3)  # type: ignore[arg-type]
    assert got.median_s == 1e-2
    assert got.repeats >= timing.SLOW_REPEATS


def test_calls_rotate_their_buffers_and_the_host_gets_a_head_start() -> None:
    used: list[int] = []
    device = Scripted([1e-4])
    calls = [lambda i=i: used.append(i) for i in range(3)]
    timing.time_calls(device, calls, 1e-3)  # type: ignore[arg-type]
    measured = used[-12:]
    assert all(a != b for a, b in itertools.pairwise(measured))
    assert max(device.head_starts) > 0


def test_slow_calls_are_repeated_three_times_only() -> None:
    calls = iter(range(100))
    got = timing.repeat(lambda: float(next(calls)), budget_s=0.0, once_s=1.0)
    assert got.repeats == timing.SLOW_REPEATS


@pytest.mark.parametrize(
    ("set_bytes", "sets"), [(100.0, 21), (1e9, 1), (3.0, 256), (2000.0, 2), (0.0, 256)]
)
def test_buffers_cover_the_cache_twice_within_memory(set_bytes: float, sets: int) -> None:
    assert timing.buffer_sets(Scripted([1.0]), set_bytes) == sets  # type: ignore[arg-type]


def test_a_measured_product_takes_the_time_of_the_product() -> None:
    cpu = open_device("cpu")
    case = GemmCase("fp32", kernels.LINEAR, 256, 512, 512)
    got = timing.time_calls(cpu, kernels.build(case, cpu), 0.2)
    a, w = torch.randn(256, 512), torch.randn(512, 512)
    times = []
    for _ in range(60):
        start = time.process_time()
        torch.nn.functional.linear(a, w)
        times.append(time.process_time() - start)
    assert np.median(times) / 3 < got.median_s < 3 * np.median(times)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def one_timing(median_s: float = 1.5e-3) -> timing.Timing:
    return timing.Timing(median_s, 1e-5, 7)


def example(cls: type[Case]) -> Case:
    kinds: dict[str, Any] = {"str": "bf16", "int": 64, "bool": True, "float": 1.0}
    return cls(**{f.name: kinds[str(f.type)] for f in fields(cls)})


def test_every_record_is_read_by_calibrate_without_a_complaint(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, CONTEXT, resume=False)
    for cls in CASES.values():
        store.append(example(cls), one_timing(), 1234.5)
    store.skip(example(GemmCase), "out of memory: 1 of 2")
    records = read_records([tmp_path])
    assert records.problems == []
    assert set(records.ops) == set(CASES)
    for op, table in records.ops.items():
        assert table["latency_s"].tolist() == [pytest.approx(1.5e-3)], op


def test_a_row_says_who_measured_when_and_how(tmp_path: Path) -> None:
    store = RecordStore(tmp_path, CONTEXT, resume=False)
    store.append(GemmCase("bf16", "k", 1, 2, 3), one_timing(), None)
    (row,) = rows(tmp_path / "gemm.csv")
    assert tuple(row) == header(GemmCase)
    assert (row["latency_us"], row["spread_us"], row["repeats"]) == ("1500", "10", "7")
    assert (row["device"], row["clock_mhz"], row["threads"]) == ("Test CPU", "", "1")
    assert row["date"].startswith("20")
    assert row["date"].endswith("Z")


def test_a_folder_with_records_is_not_overwritten(tmp_path: Path) -> None:
    RecordStore(tmp_path, CONTEXT, resume=False).append(
        GemmCase("bf16", "k", 1, 2, 3), one_timing(), None
    )
    with pytest.raises(BadInput, match="already holds 1 records; add --resume"):
        RecordStore(tmp_path, CONTEXT, resume=False)


def test_records_of_another_device_or_of_other_columns_are_refused(tmp_path: Path) -> None:
    RecordStore(tmp_path, CONTEXT, resume=False).append(
        GemmCase("bf16", "k", 1, 2, 3), one_timing(), None
    )
    other = Context("Another CPU", "torch x", "", "x", 1)
    with pytest.raises(BadInput, match=r"records of Test CPU, this device is Another CPU"):
        RecordStore(tmp_path, other, resume=True)
    path = tmp_path / "gemm.csv"
    path.write_text(path.read_text().replace("spread_us", "spread"))
    with pytest.raises(BadInput, match=r"missing: spread_us"):
        RecordStore(tmp_path, CONTEXT, resume=True)


def test_a_half_written_last_line_is_dropped_and_measured_again(tmp_path: Path) -> None:
    first, second = GemmCase("bf16", "k", 1, 2, 3), GemmCase("bf16", "k", 4, 5, 6)
    store = RecordStore(tmp_path, CONTEXT, resume=False)
    store.append(first, one_timing(), None)
    store.append(second, one_timing(), None)
    path = tmp_path / "gemm.csv"
    path.write_text(path.read_text()[:-40])
    again = RecordStore(tmp_path, CONTEXT, resume=True)
    assert (again.done(first), again.done(second)) == (True, False)
    again.append(second, one_timing(2e-3), None)
    assert [row["latency_us"] for row in rows(path)] == ["1500", "2000"]


def cpu_runner(folder: Path, resume: bool = False) -> runner.Runner:
    cpu = open_device("cpu")
    return runner.Runner(cpu, RecordStore(folder, Context.of(cpu), resume=resume), 1e-3)


GEMMS = [GemmCase("fp32", kernels.LINEAR, m, 16, 16) for m in (8, 16, 24)]


def test_failures_are_written_down_and_the_rest_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = kernels.build

    def failing(case: GemmCase, device: Device) -> Any:
        if case.m == 16:
            raise RuntimeError("CUDA out of memory. Tried to allocate 3 GiB\nsecond line")
        if case.m == 24:
            raise NotImplementedError("no such kernel")
        return build(case, device)

    monkeypatch.setattr(kernels, "build", failing)
    tally = cpu_runner(tmp_path).run(GEMMS)
    assert (tally.measured, tally.skipped) == (1, 2)
    skipped = rows(tmp_path / "skipped.csv")
    assert [row["reason"] for row in skipped] == [
        "out of memory: CUDA out of memory. Tried to allocate 3 GiB",
        "unsupported: no such kernel",
    ]
    assert "|16|" in skipped[0]["key"]
    monkeypatch.setattr(kernels, "build", build)
    resumed = cpu_runner(tmp_path, resume=True).run(GEMMS)
    assert (resumed.measured, resumed.done_before) == (0, 3)


def test_an_interrupted_run_keeps_its_rows_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = kernels.build

    def interrupted(case: GemmCase, device: Device) -> Any:
        if case.m == 24:
            raise KeyboardInterrupt
        return build(case, device)

    monkeypatch.setattr(kernels, "build", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cpu_runner(tmp_path).run(GEMMS)
    assert [row["m"] for row in rows(tmp_path / "gemm.csv")] == ["8", "16"]
    monkeypatch.setattr(kernels, "build", build)
    tally = cpu_runner(tmp_path, resume=True).run(GEMMS)
    assert (tally.measured, tally.done_before) == (1, 2)
    assert [row["m"] for row in rows(tmp_path / "gemm.csv")] == ["8", "16", "24"]


def test_what_needs_too_much_memory_or_time_is_not_tried(tmp_path: Path) -> None:
    run = cpu_runner(tmp_path)
    run.longest_call_s = 1e-9
    huge = GemmCase("fp32", kernels.LINEAR, 10**7, 10**6, 10**6)
    tally = run.run([GEMMS[0], GEMMS[2], huge])
    assert tally.measured == 1
    reasons = [row["reason"] for row in rows(tmp_path / "skipped.csv")]
    assert reasons[0].startswith("one call would take about")
    assert reasons[1].startswith("out of memory: needs 8.4e+13 B")


def test_a_device_that_is_lost_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: Device) -> None:
        raise RuntimeError("device-side assert")

    run = cpu_runner(tmp_path)
    monkeypatch.setattr(Device, "synchronize", lost)
    with pytest.raises(MissingData, match="stopped working"):
        run.run(GEMMS)


def test_a_host_device_copy_on_the_host_is_unsupported(tmp_path: Path) -> None:
    case = TransferCase("pinned", "h2d", 1024)
    assert cpu_runner(tmp_path).run([case]).reasons == {
        "unsupported: the device is the host: there is nothing to transfer": 1
    }


def test_bench_describes_an_unknown_device_that_the_catalogue_then_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = BenchRequest(
        tmp_path, device="cpu", ops=("gemm", "pointwise", "transfer"), threads=1, budget_s=1e-3
    )
    report = run_bench(request)
    assert report.device_file is not None
    assert report.by_op["gemm"][0] > 20
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path))
    from perfmodel.catalog import load_device

    device = load_device(str(report.device_id))
    best = max(
        2.0 * int(r["m"]) * int(r["n"]) * int(r["k"]) / float(r["latency_us"]) * 1e6
        for r in rows(tmp_path / "gemm.csv")
        if r["dtype"] == "bf16"
    )
    peak = device.peak_flop_per_s["bf16"]
    assert (peak.kind, peak.value) == ("measured", pytest.approx(best, rel=1e-3))
    assert device.family == "cpu"
    copies = [
        int(r["bytes_moved"]) / float(r["latency_us"]) for r in rows(tmp_path / "transfer.csv")
    ]
    host_link = device.host_link.bytes_per_s_per_direction.value
    assert host_link == pytest.approx(max(copies) * 1e6, rel=1e-3)


def test_without_products_there_is_nothing_to_describe(tmp_path: Path) -> None:
    assert card.write(open_device("cpu"), tmp_path) is None


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stop:
        main(["bench", *arguments])
    return int(str(stop.value.code)), capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--device", "abacus"), 'error[bench-device]: no device kind "abacus"'),
        (("--device", "cpu", "--ops", "gem"), 'error[bench-ops]: no operator "gem"; choose from'),
        (("--preset", "huge"), 'error[bench-preset]: --preset "huge" is unknown; one of: quick'),
        (("--for", "cosmos3-nano"), "error[bench-for]: --for MODEL and --gpus NxNAME belong"),
        (("--for", "cosmos9", "--gpus", "4xB300"), "error["),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(
    arguments: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, text = refusal(capsys, *arguments, "--out", str(tmp_path / "r"))
    assert code == 2
    assert text.startswith(line)
    assert text.count("\n") == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_missing_accelerator_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    code, text = refusal(capsys, "--device", "cuda")
    assert code == 2
    assert text.startswith("error[bench-device]: no cuda device: torch ")
    assert text.count("\n") == 1


def test_the_command_measures_resumes_and_prints_json(tmp_path: Path) -> None:
    out = str(tmp_path / "records")
    command = [sys.executable, "-m", "perfmodel", "bench", "--device", "cpu", "--threads", "1"]
    command += ["--ops", "host,quantize", "--budget", "0.002", "--out", out]
    first = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "quantize" in first.stdout
    assert "next: perfmodel calibrate --records" in first.stdout
    again = subprocess.run([*command, "--resume", "--json"], capture_output=True, check=True)
    report = json.loads(again.stdout)
    assert report["status"] == "ok"
    assert report["operators"]["quantize"] == {"measured": 0, "skipped": 0, "done_before": 16}


def test_importing_the_command_does_not_load_torch() -> None:
    code = "import sys, perfmodel.cli.bench; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
