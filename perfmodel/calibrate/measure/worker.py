"""One rank of a local collective benchmark, and the launcher of all of them.

``python -m perfmodel.calibrate.measure.worker PLAN`` runs one rank; `launch` starts N of them with
the variables that torchrun sets, meeting through a file, so that no port can be taken.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from perfmodel.calibrate.cases import Case
from perfmodel.calibrate.measure import collectives
from perfmodel.calibrate.measure.device import open_device
from perfmodel.calibrate.measure.store import Context, RecordStore
from perfmodel.errors import MissingData, Problem

_GRACE_S = 30


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
        MissingData: a process failed; the message ends with its last line.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan")
        path.write_bytes(pickle.dumps(plan))
        processes = [_start(path, rank, ranks) for rank in range(ranks)]
        try:
            measured = _follow(processes[0], tick)
            failed = [p for p in processes if p.wait(timeout=_GRACE_S) != 0]
        except subprocess.TimeoutExpired:
            failed = [p for p in processes if p.poll() != 0]
        finally:
            for process in processes:
                process.kill()
        if failed:
            raise MissingData(_failure(failed[0], ranks))
    return measured


def _start(plan: Path, rank: int, ranks: int) -> subprocess.Popen[str]:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    environment = os.environ | {name: str(value) for name, value in names.items()}
    command = [sys.executable, "-m", __name__, str(plan)]
    errors = (plan.parent / f"errors{rank}").open("w")
    with errors:
        return subprocess.Popen(
            command,
            env=environment,
            text=True,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=errors,
        )


def _follow(first: subprocess.Popen[str], tick: Callable[[str], None] | None) -> int:
    """Read rank 0's outcomes, one a line, to the end."""
    measured = 0
    assert first.stdout is not None
    for line in first.stdout:
        outcome = line.strip()
        measured += outcome == "measured"
        if tick is not None:
            tick(outcome)
    return measured


def _failure(process: subprocess.Popen[str], ranks: int) -> Problem:
    plan = Path(str(process.args[-1]) if isinstance(process.args, list) else "")
    lines: list[str] = []
    for rank in range(ranks):
        path = plan.parent / f"errors{rank}"
        lines += path.read_text().strip().splitlines() if path.exists() else []
    last = lines[-1][:200] if lines else f"exit code {process.returncode}"
    message = f"a rank of the {ranks}-process collective benchmark failed: {last}"
    return Problem("bench-collective", message, field="--ranks", value=str(ranks))


def main(path: Path) -> None:
    """Run one rank."""
    plan: Plan = pickle.loads(path.read_bytes())
    torch.set_num_threads(plan.threads)
    device = open_device(plan.device)
    world = collectives.join(device, f"file://{path}.rendezvous")
    store = None
    if world.rank == 0:
        store = RecordStore(plan.out, Context.of(device), resume=plan.resume)

    def tick(case: Case, outcome: str) -> None:
        del case
        if world.rank == 0:
            print(outcome, flush=True)

    collectives.measure_all(plan.cases, device, world, store, plan.budget_s, tick)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
