"""The paths of `bench` that need an accelerator, on one whose clock and stream are simulated."""

from __future__ import annotations

import csv
import gc
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fake_accelerator as fake
import pytest
import torch
import torch.distributed as dist

from perfmodel.calibrate import presets
from perfmodel.calibrate.cases import (
    AttentionCase,
    Case,
    ConvCase,
    GemmCase,
    HostCase,
    PointwiseCase,
    QuantizeCase,
    TransferCase,
)
from perfmodel.calibrate.measure import bench, card, collectives, host, kernels, timing, worker
from perfmodel.calibrate.measure import device as devices
from perfmodel.calibrate.measure.bench import BenchReport, BenchRequest, run_bench
from perfmodel.calibrate.measure.device import Device, open_device
from perfmodel.calibrate.records import read_records
from perfmodel.errors import BadInput, MissingData, Problem

CASES: tuple[Case, ...] = (
    GemmCase("bf16", "", 1024, 4096, 4096),
    GemmCase("fp8", "", 130, 4096, 4096),
    GemmCase("fp8", "", 130, 4096, 4100),
    AttentionCase("bf16", "", False, 1, 2048, 2048, 32, 8, 128),
    AttentionCase("bf16", "", True, 1, 2048, 2048, 12, 12, 64),
    AttentionCase("bf16", "", False, 1, 1024, 1024, 1, 1, 384),
    ConvCase("bf16", "", 96, 96, 3, 3, 3, 1, 1, 1, 1, 4, 64, 64),
    ConvCase("bf16", "", 96, 48, 1, 3, 3, 1, 2, 2, 1, 4, 64, 64),
    presets.pointwise_case("copy", 8192, 8192),
    presets.pointwise_case("rope", 128, 4096),
    QuantizeCase("scale_matrix", "eager", "fp8", 512, 4096),
    *(HostCase("block", mode, 20) for mode in ("eager", "compiled", "graph")),
    TransferCase("pinned", "h2d", 2**20),
    TransferCase("pageable", "d2h", 2**20),
    TransferCase("pageable", "h2h", 2**16),
)


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake.Engine]:
    engine = fake.install(monkeypatch)
    with fake.running(engine):
        yield engine


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def measured(folder: Path, cases: tuple[Case, ...] = CASES, **options: Any) -> BenchReport:
    ops = tuple(dict.fromkeys(case.op for case in cases))
    return run_bench(BenchRequest(folder, ops=ops, cases=cases, budget_s=1e-3, **options))


def latency_us(folder: Path, file: str, **wanted: str) -> float:
    (found,) = [r for r in rows(folder / file) if wanted.items() <= r.items()]
    return float(found["latency_us"])


def test_every_operator_runs_on_cuda_and_takes_the_devices_time(
    engine: fake.Engine, tmp_path: Path
) -> None:
    report = measured(tmp_path)
    assert report.device_id == "h100-sxm"
    assert "cuda 13.0" in report.software
    assert "nccl 2.28.9" in report.software
    chip, launch_us = engine.chip, 1e6 * fake.KERNEL_S
    product_us = 1e6 * 2.0 * 1024 * 4096 * 4096 / chip.flop_per_s + launch_us
    assert latency_us(tmp_path, "gemm.csv", dtype="bf16") == pytest.approx(product_us, rel=1e-3)
    copied_us = 1e6 * 2 * 8192 * 8192 * 2 / chip.bytes_per_s + launch_us
    copy = latency_us(tmp_path, "pointwise.csv", what="copy")
    assert copy == pytest.approx(copied_us, rel=1e-3)
    # five kernels that are each issued slower than they run: only running counts
    assert latency_us(tmp_path, "pointwise.csv", kernel="eager.rope") < 5 * 1e6 * fake.ISSUE_S
    host_us = [latency_us(tmp_path, "host.csv", mode=m) for m in ("eager", "compiled", "graph")]
    assert host_us[0] == pytest.approx(1e6 * fake.ISSUE_S, rel=0.02)
    assert host_us[0] > host_us[1] > host_us[2]
    moved_us = 1e6 * 2**20 / fake.COPY_BYTES_PER_S
    for kind in ("pinned", "pageable"):
        got = latency_us(tmp_path, "transfer.csv", kernel=kind, bytes_moved=str(2**20))
        assert moved_us < got < moved_us + 1e6 * (fake.KERNEL_S + 2 * fake.ISSUE_S)


def test_what_a_backend_refuses_is_skipped_with_its_reason(
    engine: fake.Engine, tmp_path: Path
) -> None:
    report = measured(tmp_path)
    reasons = {row["key"]: row["reason"] for row in rows(tmp_path / "skipped.csv")}
    refused = {key.split("|")[2] + "|" + key.split("|")[-1] for key in reasons if "sdpa" in key}
    assert refused == {"sdpa_flash|384", "sdpa_cudnn|384", "sdpa_efficient|128"}
    assert [r for k, r in reasons.items() if k.startswith("gemm")] == [
        "unsupported: torch._scaled_mm needs n and k in multiples of 16"
    ]
    assert report.by_op["gemm"] == (2, 1, 0)
    assert {row["kernel"] for row in rows(tmp_path / "conv.csv")} == {
        base + suffix
        for base in ("torch.conv2d", "torch.conv3d")
        for suffix in ("", ".channels_last")
    }
    assert read_records([tmp_path]).problems == []


@pytest.mark.parametrize(
    ("kind", "name", "identity"),
    [
        ("cuda", "NVIDIA B200", "b200-sxm"),
        ("cuda", "NVIDIA H200", "h200-sxm"),
        ("npu", "Ascend910_9382", "ascend-910c-die"),
    ],
)
def test_the_catalogues_device_is_found_by_the_name_that_torch_reports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, name: str, identity: str
) -> None:
    engine = fake.install(monkeypatch, kind, fake.Chip(name=name))
    few = tuple(case for case in CASES if isinstance(case, HostCase | QuantizeCase | GemmCase))
    with fake.running(engine, kind):
        report = measured(tmp_path, few)
    assert (report.device, report.device_id, report.device_file) == (name, identity, None)
    assert {row["device"] for row in rows(tmp_path / "gemm.csv")} == {name}
    modes = {row["mode"] for row in rows(tmp_path / "host.csv")}
    assert modes == ({"eager", "graph"} | ({"compiled"} if kind == "cuda" else set()))


def test_an_unknown_accelerator_is_described_with_the_clock_it_worked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = fake.install(monkeypatch, chip=fake.Chip(name="NVIDIA X900", capability=(10, 0)))
    clocks = iter([1900, 1965, *[345] * 1000])  # slows down at rest
    monkeypatch.setattr(torch.cuda, "clock_rate", lambda device: next(clocks), raising=False)
    few = tuple(case for case in CASES if isinstance(case, PointwiseCase | GemmCase))
    with fake.running(engine):
        report = measured(tmp_path, few)
    assert report.device_file is not None
    import yaml

    described = yaml.safe_load(report.device_file.read_text(encoding="utf-8"))
    assert described["compute"]["boost_hz"]["value"] == pytest.approx(1.965e9)
    assert described["compute"]["multiprocessors"]["value"] == 132
    assert (described["family"], described["vendor"]) == ("blackwell", "NVIDIA")
    assert described["memory"]["capacity_bytes"]["value"] == engine.chip.total_bytes


def test_a_captured_graph_keeps_the_tensors_it_reads(
    engine: fake.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[torch.Tensor]] = []
    real = Device.random

    def random(self: Device, *shape: int, dtype: torch.dtype) -> torch.Tensor:
        tensor = real(self, *shape, dtype=dtype) * 1.0
        made.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(Device, "random", random)
    case = HostCase("linear", "graph", 8)
    call = host._issue(case, host._CHAINS["linear"], open_device("cuda"))
    gc.collect()
    assert made[0]() is not None
    call()


def test_nothing_is_captured_where_the_runtime_has_no_graphs(
    engine: fake.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", None)
    with pytest.raises(devices.Unsupported, match="no graphs"):
        host.measure(HostCase("linear", "graph", 8), open_device("cuda"), 1e-3)


class OfACompiler(Exception):
    pass


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "out of memory: CUDA out of memory."),
        (OfACompiler("ptxas failed\nlong log"), "OfACompiler: ptxas failed"),
        (TypeError("unexpected keyword 'use_fast_accum'"), "TypeError: unexpected keyword"),
    ],
)
def test_whatever_a_shape_raises_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, reason: str
) -> None:
    def fails(func: Any, args: tuple[Any, ...]) -> Exception | None:
        return error if "linear" in str(func) and args[0].shape[0] == 256 else None

    engine = fake.install(monkeypatch, chip=fake.Chip(fails=fails))
    gemms = tuple(GemmCase("bf16", "", m, 512, 512) for m in (128, 256, 512))
    with fake.running(engine):
        report = measured(tmp_path, gemms)
    assert report.by_op["gemm"] == (2, 1, 0)
    assert rows(tmp_path / "skipped.csv")[0]["reason"].startswith(reason)


def test_a_lost_device_ends_the_run_and_the_next_one_leaves_that_shape_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = fake.install(monkeypatch)
    poison = RuntimeError("CUDA error: an illegal memory access was encountered")

    def fails(func: Any, args: tuple[Any, ...]) -> Exception | None:
        if "linear" in str(func) and args[0].shape[0] == 256:
            engine.lost = poison
        return engine.lost

    engine.chip.fails = fails
    gemms = tuple(GemmCase("bf16", "", m, 512, 512) for m in (128, 256, 512))
    with fake.running(engine):
        with pytest.raises(MissingData, match=r"stopped working after: .*--resume"):
            measured(tmp_path, gemms)
        engine.lost = None  # another process
        report = measured(tmp_path, gemms, resume=True)
    assert report.by_op["gemm"] == (1, 0, 2)
    assert [row["m"] for row in rows(tmp_path / "gemm.csv")] == ["128", "512"]


def test_skipped_shapes_are_tried_again_without_resume(engine: fake.Engine, tmp_path: Path) -> None:
    engine.chip.fails = lambda func, args: RuntimeError("no") if "linear" in str(func) else None
    gemms = (GemmCase("bf16", "", 128, 512, 512),)
    assert measured(tmp_path, gemms).records == 0
    engine.chip.fails = lambda func, args: None
    assert measured(tmp_path, gemms).by_op["gemm"] == (1, 0, 0)


def test_the_clock_is_the_drivers_for_this_very_device(
    engine: fake.Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = open_device("cuda")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert device.clock_mhz() is None
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\ncase "$1" in --id=GPU-01234567-89ab-cdef-0123-456789abcdef) echo 1755;; '
        "*) echo 345;; esac\n"
    )
    tool.chmod(0o755)
    assert device.clock_mhz() == 1755
    monkeypatch.setattr(torch.cuda, "clock_rate", lambda device: 1980, raising=False)
    assert device.clock_mhz() == 1980


def test_each_rank_of_a_node_opens_its_own_device(
    engine: fake.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert open_device().torch_device == torch.device("cuda", 3)
    assert torch.cuda.current_device() == 3
    monkeypatch.setenv("LOCAL_RANK", "8")
    with pytest.raises(BadInput, match="no cuda:8 device"):
        open_device("cuda")


def test_a_failed_rank_leaves_the_other_records_and_says_why(
    engine: fake.Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def launch(plan: worker.Plan, ranks: int, tick: Any) -> int:
        assert (plan.device, ranks) == ("cuda", 8)
        assert {case.columns()["library"] for case in plan.cases} == {"nccl"}
        tick("measured")
        tick("skipped")
        raise MissingData(Problem("bench-collective", "a rank failed: NCCL error"))

    monkeypatch.setattr(worker, "launch", launch)
    messages = [presets.collective_case("all_reduce", n, 4096) for n in (2, 4, 8, 16)]
    steps: list[tuple[str, int, int]] = []
    request = BenchRequest(
        tmp_path, ops=("gemm", "collective"), cases=(CASES[0], *messages), budget_s=1e-3
    )
    report = run_bench(request, lambda op, done, total: steps.append((op, done, total)))
    # the group of 16 ranks is another machine's
    assert report.by_op == {"gemm": (1, 0, 0), "collective": (1, 2, 0)}
    assert report.reasons["a rank failed: NCCL error"] == 1
    assert [p.message for p in report.warnings if p.rule_id == "bench-collective"]
    assert report.device_id == "h100-sxm"
    assert steps == [("gemm", 1, 4), ("collective", 2, 4), ("collective", 3, 4)]


def test_more_ranks_than_devices_are_refused_at_once(engine: fake.Engine, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="9 ranks need 9 devices, this machine has 8"):
        measured(tmp_path / "new", CASES[:1], ranks=9)
    assert not (tmp_path / "new").exists()


def test_ranks_without_a_local_rank_are_refused(
    engine: fake.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(BadInput, match="LOCAL_RANK is not"):
        collectives.join(open_device("cuda"))


def test_a_cluster_that_sets_the_variables_for_one_process_measures_everything(
    engine: fake.Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert measured(tmp_path, CASES[:1]).by_op["gemm"] == (1, 0, 0)


def test_a_device_that_others_use_is_named(
    engine: fake.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = open_device("cuda")
    assert not [p for p in bench._busy(device) if "process" in p.message]
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda d: (20 * 10**9, 80 * 10**9))
    (found,) = [p for p in bench._busy(device) if "process" in p.message]
    assert "another process holds 60 GB of NVIDIA H100 80GB HBM3" in found.message


def test_measuring_the_cpu_beside_an_unseen_accelerator_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cpu = open_device("cpu")
    monkeypatch.setattr(bench, "unseen_accelerator", lambda: "/dev/nvidia0")
    (found,) = bench._other_device(BenchRequest(tmp_path), cpu)
    assert "this machine has /dev/nvidia0, but torch" in found.message
    assert bench._other_device(BenchRequest(tmp_path, device="cpu"), cpu) == []


def test_short_messages_take_the_devices_time_not_the_hosts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = fake.Engine(fake.Chip())
    runtime = fake.Runtime("cuda", engine, torch.cuda)
    device = Device("cuda", torch.device("cpu"), runtime)
    device.__dict__["_blocker"] = (torch.zeros(1, 1), 2e-4)
    monkeypatch.setattr(torch, "mm", lambda a, b: engine.launch(2e-4))
    monkeypatch.setattr("time.perf_counter", engine.clock)
    started: list[float] = []

    def all_reduce(box: torch.Tensor, group: Any, op: Any = None) -> None:
        started.append(engine.host_s)
        engine.launch(8e-6, issue_s=40e-6)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    call = partial(all_reduce, torch.zeros(4), None)
    got = collectives._timed(call, device, SimpleNamespace(), 1e-3)  # type: ignore[arg-type]
    assert isinstance(got, timing.Timing)
    assert got.median_s == pytest.approx(8e-6, rel=0.02)


def test_rotation_outgrows_the_largest_cache(engine: fake.Engine) -> None:
    device = open_device("cuda")
    device.__dict__["cache_bytes"] = 126 * 10**6
    case = GemmCase("bf16", kernels.LINEAR, 256, 512, 512)
    assert timing.buffer_sets(device, case.memory_bytes) * case.memory_bytes > 2 * 126e6


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [("gfx942:sramecc+:xnack-", torch.float8_e4m3fnuz), ("gfx950", torch.float8_e4m3fn)],
)
def test_devices_under_hip_have_their_own_fp8_and_a_cache_that_is_not_reported(
    monkeypatch: pytest.MonkeyPatch, architecture: str, dtype: torch.dtype
) -> None:
    chip = fake.Chip(
        name="AMD Instinct", capability=(9, 4), architecture=architecture, cache_bytes=4 * 2**20
    )
    engine = fake.install(monkeypatch, chip=chip)
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with fake.running(engine):
        device = open_device("cuda")
        (call, *_) = kernels.build(GemmCase("fp8", kernels.SCALED_MM, 64, 64, 64), device)
        assert {one.dtype for one in call.args} == {dtype}
        (cast, *_) = kernels.build(QuantizeCase("scale_matrix", "eager", "fp8", 8, 16), device)
        assert cast().dtype == dtype
        assert device.cache_bytes >= 256 * 2**20


def test_families_of_unknown_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fake.install(monkeypatch, chip=fake.Chip(capability=(8, 9)))
    with fake.running(engine):
        assert card._family(open_device("cuda")) == "ada"
        monkeypatch.setattr(torch.version, "hip", "7.0")
        assert card._family(open_device("cuda")) == "cdna3"
    engine = fake.install(monkeypatch, "npu")
    with fake.running(engine, "npu"):
        device = open_device("npu")
        assert (card._family(device), card._capability(device)) == ("davinci", "npu")
        assert device.software.endswith("torch_npu 2.7.1")
