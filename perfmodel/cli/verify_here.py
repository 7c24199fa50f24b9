"""``perfmodel verify --live`` and ``--serve``: what runs on this machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from perfmodel.cli.given import Given
from perfmodel.errors import BadInput, Problem, needs
from perfmodel.units import S_PER_MINUTE

BUILT_DTYPES = ("bf16", "fp16")
MOST_RANKS, MOST_SCALE, MOST_THREADS = 1024, 64, 1024
MOST_READY_MINUTES = 24 * 60.0


def live(given: Given) -> int:
    """Build, time and compare the blocks of a configuration."""
    started = time.perf_counter()
    from perfmodel.cli.inputs import read_options, read_settings, read_workload
    from perfmodel.cli.output import emit, read_target
    from perfmodel.cli.streams import say
    from perfmodel.cli.values import Collector, whole

    collect = Collector()
    collect.problems += _refused(given)
    target = collect(lambda: read_target(given, commands=0))
    workload = collect(lambda: read_workload(given))
    options = collect(lambda: read_options(given))
    settings = collect(lambda: read_settings(given)) or {}
    ranks = collect(lambda: whole(given, "ranks", 1, MOST_RANKS))
    scale = collect(lambda: whole(given, "scale", 1, MOST_SCALE))
    threads = collect(lambda: whole(given, "threads", 1, MOST_THREADS))
    collect.finish()
    assert target is not None
    assert workload is not None
    assert options is not None
    from perfmodel.engines import DEFAULT_ENGINE
    from perfmodel.verify.live.run import LiveRequest
    from perfmodel.verify.live.run import live as run_live

    request = LiveRequest(
        workload=workload,
        parallel=given.text("parallel"),
        options=options,
        device=given.text("device"),
        out=Path(given.text("records") or "live"),
        dtype=options.dtype,
        ranks=ranks or 0,
        scale=scale or 0,
        threads=threads or 0,
        engine=settings.get("engine", DEFAULT_ENGINE),
        fit=settings.get("fit"),
    )
    try:
        with _progress() as update:
            answer = run_live(request, update, say)
    except KeyboardInterrupt:
        say(f"interrupted: the rows so far are in {request.out}; start it again to go on")
        raise
    return 0 if answer is None else emit(answer, target, time.perf_counter() - started)


def _refused(given: Given) -> list[Problem]:
    found = []
    if find_spec("torch") is None:
        found.append(Problem("live-torch", needs("--live", "torch", "bench"), "--live"))
    for flag in ("gpus", "system"):
        if given.text(flag) not in (None, "here"):
            message = f"--live predicts and measures the devices here; leave out --{flag}"
            found.append(Problem("live-device", message, f"--{flag}", given.text(flag)))
    dtype = given.text("dtype")
    if dtype and dtype not in BUILT_DTYPES:
        message = f"--live builds blocks in {' or '.join(BUILT_DTYPES)}, not in {dtype}"
        found.append(Problem("live-dtype", message, "--dtype", dtype, BUILT_DTYPES))
    return found


@contextmanager
def _progress() -> Iterator[Callable[[str, int], None]]:
    """How many operators are measured, on stderr where it is a terminal."""
    shown = sys.stderr.isatty()

    def update(outcome: str, finished: int) -> None:
        if shown:
            sys.stderr.write(f"\r{finished} operators, last one {outcome}   ")
            sys.stderr.flush()

    yield update
    if shown:
        sys.stderr.write("\n")


def serve(given: Given) -> Path:
    """Run a plan with the engine here.

    Returns:
        The records of its runs.

    Raises:
        BadInput: no plan, or no run of it gave a record.
    """
    from perfmodel.cli.streams import say
    from perfmodel.cli.values import Collector, real
    from perfmodel.verify.serve.run import READY_S
    from perfmodel.verify.serve.run import serve as run_plan

    collect = Collector()
    minutes = collect(lambda: real(given, "ready", 0, MOST_READY_MINUTES, above_low=True))
    collect.finish()
    names = tuple(part.strip() for part in (given.text("runs") or "").split(",") if part.strip())
    ready_s = READY_S if minutes is None else minutes * S_PER_MINUTE
    folder = Path(given.text("serve") or "")
    served = run_plan(folder, runs=names, ready_s=ready_s, say=say)
    if not served.results.is_file() or not served.results.read_text(encoding="utf-8").strip():
        message = f"--serve {folder}: no run gave a record"
        raise BadInput(Problem("serve-results", message, "--serve", str(folder)))
    return served.results
