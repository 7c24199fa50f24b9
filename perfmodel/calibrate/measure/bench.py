"""The workflow behind ``perfmodel bench``: choose cases, run them, describe the device."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from perfmodel.calibrate import presets
from perfmodel.calibrate.cases import CASES, Case, CollectiveCase
from perfmodel.calibrate.measure import card, collectives, runner, worker
from perfmodel.calibrate.measure.device import (
    KINDS,
    Device,
    device_count,
    open_device,
    unseen_accelerator,
)
from perfmodel.calibrate.measure.store import Context, RecordStore
from perfmodel.errors import BadInput, MissingData, Problem
from perfmodel.units import GIGA

OPS = tuple(CASES)
BUDGET_S = {
    ("quick", "cpu"): 0.12,
    ("quick", "accelerator"): 0.3,
    ("full", "cpu"): 0.4,
    ("full", "accelerator"): 0.5,
}
"""Time for one case [s]: enough for a median over five repeats of all but the largest."""

_CPU_RANKS = 2
_BUSY_LOAD_FRAC = 0.3
_CONTEXT_BYTES = 4 * GIGA
"""What drivers and one process's context take at most, with error correction [B]."""

_LONGEST_CALL_S = {"quick": 5.0, "full": 30.0}

Progress = Callable[[str, int, int], None]
"""(operator, cases finished, cases in all)."""


@dataclass(frozen=True)
class BenchRequest:
    """What to measure.

    Attributes:
        out: folder of the records.
        device: cuda, npu or cpu; None takes the first that is there.
        ops: operators; empty takes all (under torchrun: collectives).
        preset: quick or full.
        cases: measure these shapes instead of a preset's (``--for``).
        resume: go on with the records in `out`.
        ranks: local processes for collectives; 0 takes all devices (two on the CPU).
        threads: CPU threads of torch; 0 keeps torch's choice.
        budget_s: time for one case; 0 takes the preset's.
        compiled: also measure what needs ``torch.compile``; None: on accelerators only.
    """

    out: Path
    device: str | None = None
    ops: tuple[str, ...] = ()
    preset: presets.Preset = "quick"
    cases: tuple[Case, ...] | None = None
    resume: bool = False
    ranks: int = 0
    threads: int = 0
    budget_s: float = 0.0
    compiled: bool | None = None


@dataclass
class BenchReport:
    """What was measured.

    Attributes:
        device, software: as in the records.
        out: folder of the records.
        by_op: (measured, skipped, done before) by operator.
        reasons: skipped cases by reason.
        warnings: e.g. a busy machine.
        device_file: description of the device that was written, if any.
        device_id: catalogue id of the device (or that of the file written).
        rank: of this process under torchrun; only rank 0 has something to say.
    """

    device: str
    software: str
    out: Path
    by_op: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    reasons: dict[str, int] = field(default_factory=dict)
    warnings: list[Problem] = field(default_factory=list)
    device_file: Path | None = None
    device_id: str | None = None
    rank: int = 0

    @property
    def records(self) -> int:
        """Rows that the run's cases have now."""
        return sum(measured + before for measured, _, before in self.by_op.values())

    def add(self, op: str, tally: runner.Tally) -> None:
        """Add the outcome of some cases of `op`."""
        old = self.by_op.get(op, (0, 0, 0))
        new = (tally.measured, tally.skipped, tally.done_before)
        self.by_op[op] = (old[0] + new[0], old[1] + new[1], old[2] + new[2])
        for reason, count in tally.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count


def run_bench(request: BenchRequest, progress: Progress | None = None) -> BenchReport:
    """Measure everything in `request`.

    Raises:
        BadInput: an unknown operator or device, or a folder that holds other records.
        MissingData: the device failed half-way.
    """
    ops = _chosen_ops(request)
    if request.threads:
        torch.set_num_threads(request.threads)
    device = open_device(request.device)
    scale: presets.Scale = "cpu" if device.is_cpu else "accelerator"
    budget_s = request.budget_s or BUDGET_S[request.preset, scale]
    if collectives.under_torchrun():
        return _run_joined(request, device, scale, budget_s, progress)
    _check_ranks(request, device)
    store = RecordStore(request.out, Context.of(device), resume=request.resume)
    report = BenchReport(device.name, device.software, request.out)
    report.warnings += [*_busy(device), *_other_device(request, device)]
    local = runner.expand(_local_cases(request, ops, device, scale), device)
    shared = _shared_cases(request, ops, device, scale) if "collective" in ops else []
    total = len(local) + len(shared)
    run = runner.Runner(device, store, budget_s, _LONGEST_CALL_S[request.preset])
    finished = 0
    for op in dict.fromkeys(case.op for case in local):
        group = [case for case in local if case.op == op]

        def tick(case: Case, outcome: str) -> None:
            nonlocal finished
            del outcome
            finished += 1
            if progress is not None:
                progress(case.op, finished, total)

        report.add(op, run.run(group, tick))
    if shared:
        _run_spawned(report, request, device, shared, budget_s, finished, progress)
    _describe(report, device, request.out)
    return report


def _chosen_ops(request: BenchRequest) -> tuple[str, ...]:
    """The operators to measure, checked.

    Raises:
        BadInput: an operator that does not exist, or one that torchrun's many processes would
            measure against each other.
    """
    problems = [
        Problem(
            "bench-ops",
            f'no operator "{op}"; choose from {", ".join(OPS)}',
            field="--ops",
            value=op,
            legal_values=OPS,
        )
        for op in request.ops
        if op not in OPS
    ]
    if request.device is not None and request.device not in KINDS:
        message = f'no device kind "{request.device}"; choose one of {", ".join(KINDS)}'
        problems.append(Problem("bench-device", message, field="--device", value=request.device))
    joined = collectives.under_torchrun()
    if joined and set(request.ops) - {"collective"}:
        message = "under torchrun only collectives are measured; run the other operators without it"
        problems.append(Problem("bench-ops", message, field="--ops", value=",".join(request.ops)))
    if problems:
        raise BadInput(*problems)
    return request.ops or (("collective",) if joined else OPS)


def _check_ranks(request: BenchRequest, device: Device) -> None:
    """Refuse more ranks than devices before anything is measured.

    Raises:
        BadInput: the collectives could not start.
    """
    here = device_count(device.kind)
    if device.is_cpu or request.ranks <= here:
        return
    message = f"{request.ranks} ranks need {request.ranks} devices, this machine has {here}"
    hint = "; several nodes measure together under torchrun"
    raise BadInput(Problem("bench-ranks", message + hint, "--ranks", str(request.ranks)))


def _local_cases(
    request: BenchRequest, ops: Iterable[str], device: Device, scale: presets.Scale
) -> list[Case]:
    """Cases of one device, with or without their compiled forms."""
    chosen = [op for op in ops if op in presets.PRESETS]
    if request.cases is not None:
        cases = [case for case in request.cases if case.op in chosen]
    else:
        cases = [case for op in chosen for case in presets.PRESETS[op](request.preset, scale)]
    compiled = device.kind == "cuda" if request.compiled is None else request.compiled
    if compiled:
        return cases + presets.compiled_pointwise(cases)
    without = set(runner.compiled_forms(cases))
    return [case for case in cases if case not in without]


def _shared_cases(
    request: BenchRequest, ops: Iterable[str], device: Device, scale: presets.Scale
) -> list[Case]:
    """Collectives of the local devices: group sizes 2, 4, .. as many as there are."""
    del ops
    ranks = request.ranks or _local_ranks(device)
    world = collectives.World(0, ranks, ranks)
    sizes = collectives.group_sizes(world) if ranks > 1 else []
    if request.cases is None:
        cases = presets.collective_cases(request.preset, scale, sizes)
    else:
        cases = [c for c in request.cases if isinstance(c, CollectiveCase) and c.num_ranks <= ranks]
    return collectives.fill_library(cases, device)


def _local_ranks(device: Device) -> int:
    return _CPU_RANKS if device.is_cpu else device_count(device.kind)


def _run_spawned(
    report: BenchReport,
    request: BenchRequest,
    device: Device,
    cases: list[Case],
    budget_s: float,
    finished: int,
    progress: Progress | None,
) -> None:
    """Measure collectives in processes of their own.

    When one of them fails the rest of `cases` counts as skipped for that reason: what was measured
    before remains to be described and used.
    """
    ranks = request.ranks or _local_ranks(device)
    threads = max(1, torch.get_num_threads() // ranks) if device.is_cpu else 1
    plan = worker.Plan(device.kind, tuple(cases), request.out, True, budget_s, threads)
    tally = runner.Tally()
    total = finished + len(cases)

    def tick(outcome: str) -> None:
        nonlocal finished
        finished += 1
        if outcome == "skipped":
            tally.count_skip("see skipped.csv")
        else:
            tally.count(outcome)
        if progress is not None:
            progress("collective", finished, total)

    device.release()
    try:
        worker.launch(plan, ranks, tick)
    except MissingData as error:
        for _ in range(total - finished):
            tally.count_skip(error.problems[0].message)
        report.warnings += [replace(problem, severity="warning") for problem in error.problems]
    report.add("collective", tally)


def _run_joined(
    request: BenchRequest,
    device: Device,
    scale: presets.Scale,
    budget_s: float,
    progress: Progress | None,
) -> BenchReport:
    """Measure collectives as one of torchrun's processes; rank 0 writes and reports."""
    store = None
    if collectives.is_first():
        store = RecordStore(request.out, Context.of(device), resume=request.resume)
    world = collectives.join(device)
    sizes = collectives.group_sizes(world)
    inside = presets.collective_cases(request.preset, scale, sizes or [2])
    if request.cases is not None:
        inside = [c for c in request.cases if isinstance(c, CollectiveCase)]
    cases = collectives.across_nodes(collectives.fill_library(inside, device), world)
    local = [c for c in inside if isinstance(c, CollectiveCase) and c.num_ranks in sizes]
    cases = [*collectives.fill_library(local, device), *cases]
    tally, finished = runner.Tally(), 0

    def tick(case: Case, outcome: str) -> None:
        nonlocal finished
        finished += 1
        if outcome == "skipped":
            tally.count_skip("see skipped.csv")
        else:
            tally.count(outcome)
        if progress is not None and world.rank == 0:
            progress(case.op, finished, len(cases))

    collectives.measure_all(cases, device, world, store, budget_s, tick)
    collectives.leave()
    report = BenchReport(device.name, device.software, request.out, rank=world.rank)
    report.device_id = card.catalogue_id(device)
    report.add("collective", tally)
    return report


def _other_device(request: BenchRequest, device: Device) -> list[Problem]:
    """A warning when the CPU is measured on a machine whose accelerator torch does not see."""
    file = unseen_accelerator() if device.is_cpu and request.device is None else None
    if file is None:
        return []
    message = (
        f"measured the CPU: this machine has {file}, but torch {torch.__version__} sees no device "
        "there; install a build of torch for it and check the driver (--device cpu silences this)"
    )
    return [Problem("bench-device", message, severity="warning")]


def _busy(device: Device) -> list[Problem]:
    """Warnings when others use the device or the cores that are about to be measured."""
    found = []
    if device.used_by_others_bytes() > _CONTEXT_BYTES:
        held = device.used_by_others_bytes() / GIGA
        message = (
            f"another process holds {held:.0f} GB of {device.name}: times include its work, and "
            "shapes may find no memory"
        )
        found.append(Problem("bench-busy", message, severity="warning"))
    return found + _busy_cores(device)


def _busy_cores(device: Device) -> list[Problem]:
    cores = os.cpu_count() or 1
    load = os.getloadavg()[0]
    if load < _BUSY_LOAD_FRAC * cores:
        return []
    advice = "times include that"
    if device.is_cpu and torch.get_num_threads() > 1:
        advice += "; --threads 1 measures this process's own time instead"
    elif device.is_cpu:
        advice = "collectives, transfers and media include that"
    message = f"this machine is busy (load {load:.1f} on {cores} cores): {advice}"
    return [Problem("bench-busy", message, severity="warning")]


def _describe(report: BenchReport, device: Device, out: Path) -> None:
    """Find the device in the catalogue, or write a description of it from its own records."""
    report.device_id = card.catalogue_id(device)
    if report.device_id is None:
        written = card.write(device, out)
        if written is not None:
            report.device_id, report.device_file = written.stem, written
