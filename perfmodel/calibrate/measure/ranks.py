"""Local processes that are the ranks of one job: start them, follow the first, end all together.

``launch`` starts ``python -m MODULE PLAN`` once a rank with the variables that torchrun sets; the
ranks meet through a file, so that no port can be taken.  A rank that fails ends the others, which
would wait for it until their collectives time out; ranks whose launcher is gone end themselves.
"""

from __future__ import annotations

import os
import pickle
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

GRACE_S = 30.0
"""How long ranks may take to part after the last case, and to say why they failed."""

OUTCOMES = ("measured", "skipped", "done before")
"""What the first rank may print for a case, one a line."""

_WATCH_S = 0.5
_PARENT = "PERFMODEL_PARENT"
_EXCEPTION = re.compile(r"^(\[rank\d+\]:\s*)?[\w.]*(Error|Exception|BadInput|MissingData)\b")

_OF_OTHERS = re.compile(r"[Cc]onnection|Broken pipe|NCCL|HCCL|Store|[Tt]imed? ?out|remote")
"""What a rank says that another one left alone."""

Process = subprocess.Popen[str]


def launch(module: str, plan: object, ranks: int, tick: Callable[[str], None]) -> str | None:
    """Run `plan` with `ranks` local processes of `module`; `tick` gets the first's outcomes.

    Other lines that the first prints are not its own: communication libraries write versions.

    Returns:
        Why it failed, in one line; None when every rank ended well.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "plan")
        path.write_bytes(pickle.dumps(plan))
        processes = [_start(module, path, rank, ranks) for rank in range(ranks)]
        broken: list[int] = []
        threading.Thread(target=_watch, args=(processes, broken), daemon=True).start()
        try:
            assert processes[0].stdout is not None
            for line in processes[0].stdout:
                if line.strip() in OUTCOMES:
                    tick(line.strip())
            failed = [rank for rank, one in enumerate(processes) if _code(one)]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if not failed:
            return None
        return min(_reason(path.parent, processes[rank], rank, broken) for rank in failed)[1]


def meeting(plan: Path) -> str:
    """Where the ranks of the plan that `launch` wrote find each other."""
    return f"file://{plan}.rendezvous"


def end_with_launcher() -> None:
    """End this rank when its launcher is gone: it would hold its device and wait for others."""
    parent = int(os.environ[_PARENT])
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_S)
    os._exit(1)


def _start(module: str, plan: Path, rank: int, ranks: int) -> Process:
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    names[_PARENT] = os.getpid()
    environment = os.environ | {name: str(value) for name, value in names.items()}
    with (plan.parent / f"errors{rank}").open("w") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", module, str(plan)],
            env=environment,
            text=True,
            stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            stderr=errors,
        )


def _watch(processes: Sequence[Process], broken: list[int]) -> None:
    """Once a rank has failed (`broken`), give the others a while to notice, then end them."""
    while not broken:
        codes = [one.poll() for one in processes]
        if not any(code is None for code in codes) and not any(codes):
            return
        broken += [rank for rank, code in enumerate(codes) if code]
        time.sleep(_WATCH_S)
    deadline_s = time.monotonic() + GRACE_S
    while time.monotonic() < deadline_s and any(one.poll() is None for one in processes):
        time.sleep(_WATCH_S)
    for process in processes:
        process.kill()


def _code(process: Process) -> int:
    try:
        return process.wait(timeout=GRACE_S)
    except subprocess.TimeoutExpired:
        return 1


def _reason(folder: Path, process: Process, rank: int, broken: Sequence[int]) -> tuple[int, str]:
    """How far a failed rank is from the cause, and its last exception, line or exit code."""
    text = (folder / f"errors{rank}").read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = next((line[:200] for line in reversed(lines) if _EXCEPTION.match(line)), "")
    if named:
        return (2 if _OF_OTHERS.search(named) else 0), named
    code = f"rank {rank} ended with exit code {process.returncode}"
    ended_itself = rank in broken or process.returncode != -signal.SIGKILL
    return (1 if ended_itself else 3), ": ".join([code, *lines[-1:]])[:200]
