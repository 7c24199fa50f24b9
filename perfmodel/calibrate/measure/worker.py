"""One rank of a local collective benchmark, and the launcher of all of them.

``python -m perfmodel.calibrate.measure.worker PLAN`` runs one rank; `launch` starts N of them.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from perfmodel.calibrate.cases import Case
from perfmodel.calibrate.measure import collectives
from perfmodel.calibrate.measure import ranks as processes
from perfmodel.calibrate.measure.device import open_device
from perfmodel.calibrate.measure.store import Context, RecordStore
from perfmodel.errors import MissingData, Problem


@dataclass(frozen=True)
class Plan:
    """What every rank needs to know."""

    device: str
    cases: tuple[Case, ...]
    out: Path
    resume: bool
    budget_s: float
    threads: int


def launch(plan: Plan, ranks: int, tick: Callable[[str], None] | None = None) -> int:
    """Run `plan` with `ranks` local processes; `tick` gets the outcome of each case.

    Returns:
        Rows measured.

    Raises:
        MissingData: a process failed; the message ends with what it said last.
    """
    measured = 0

    def count(outcome: str) -> None:
        nonlocal measured
        measured += outcome == "measured"
        if tick is not None:
            tick(outcome)

    reason = processes.launch(__name__, plan, ranks, count)
    if reason is not None:
        message = f"a rank of the {ranks}-process collective benchmark failed: {reason}"
        raise MissingData(Problem("bench-collective", message, "--ranks", str(ranks)))
    return measured


def main(path: Path) -> None:
    """Run one rank."""
    processes.end_with_launcher()
    plan: Plan = pickle.loads(path.read_bytes())
    torch.set_num_threads(plan.threads)
    device = open_device(plan.device)
    world = collectives.join(device, processes.meeting(path))
    store = None
    if world.rank == 0:
        store = RecordStore(plan.out, Context.of(device), resume=plan.resume)

    def tick(case: Case, outcome: str) -> None:
        del case
        if world.rank == 0:
            print(outcome, flush=True)

    collectives.measure_all(plan.cases, device, world, store, plan.budget_s, tick)
    collectives.leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
