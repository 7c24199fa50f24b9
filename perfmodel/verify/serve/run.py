"""``perfmodel verify --serve``: the runs of a plan, on a server of our own that never outlives us.

Each run starts the plan's ``serve.sh`` in a process group of its own, waits until the server says
that it is ready, runs ``bench.sh`` (which appends a run record) and stops the group: SIGTERM, then
SIGKILL.  Signals, exceptions and the end of the interpreter stop it too.  A run that fails is a
record with the end of its logs; a run that has a result is not run again.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import re
import shlex
import shutil
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import BadInput, Problem
from perfmodel.files import as_word
from perfmodel.plan import runner
from perfmodel.plan.runner import Child, Interrupted, RunFailed

READY_S = 1800.0
"""A server of a large model loads its weights for minutes; after so long it is given up."""

HEALTH = "/health"
RESULTS = "results.jsonl"
ASK_TIMEOUT_S = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_SHELL_WORDS = frozenset({"env", "exec", "export", "nohup", "set", "cd"})

_GROUPS: set[int] = set()
"""Process groups that were started here and not yet stopped."""


@dataclass(frozen=True)
class Served:
    """What came of the runs.

    Attributes:
        results: the records of all runs of the plan.
        measured: runs that have a measurement now.
        failed: runs that gave none, and why.
    """

    results: Path
    measured: tuple[str, ...]
    failed: dict[str, str]


def serve(
    folder: Path,
    *,
    runs: Sequence[str] = (),
    ready_s: float = READY_S,
    say: Callable[[str], None] = lambda line: None,
) -> Served:
    """Run a plan here.

    Args:
        folder: where ``perfmodel plan --out`` wrote its scripts.
        runs: letters or run ids; empty takes all.
        ready_s: how long a server may take to get ready.
        say: gets a line about each run.

    Raises:
        BadInput: no plan there, unknown runs, runs over several hosts, or an engine that is not
            installed.
        KeyboardInterrupt: a signal asked to end; everything that was started is stopped.
    """
    folders = chosen(folder, runs)
    _refuse_several_hosts(folders)
    _refuse_missing(folders)
    with listening():
        for path in folders:
            with contextlib.suppress(Interrupted), contextlib.redirect_stdout(Spoken(say)):
                runner.run(path, lambda run, job: measure(run, job, ready_s))
            runner.gather(folder)
            if runner.ASKED:
                raise KeyboardInterrupt
    runner.gather(folder)
    failed = {path.name: _error(path) for path in folders if not runner.is_done(path)}
    measured = tuple(path.name for path in folders if path.name not in failed)
    return Served(folder / RESULTS, measured, failed)


class Spoken(io.TextIOBase):
    """A stream whose lines go to a function: stdout belongs to the answer."""

    def __init__(self, say: Callable[[str], None]) -> None:
        """Each line goes to `say`."""
        self._say, self._begun = say, ""

    def write(self, text: str) -> int:
        """Say the lines that are whole, keep the begun one."""
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._say(line)
        return len(text)


def chosen(folder: Path, runs: Sequence[str]) -> list[Path]:
    """Folders of the wanted runs, in the order of the plan.

    Raises:
        BadInput: the folder holds no plan, or a run is not in it.
    """
    try:
        plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
        names = [str(run["run_id"]) for run in plan["runs"]]
    except (OSError, ValueError, KeyError, TypeError):
        message = (
            f"--serve {folder} holds no plan; write one: perfmodel plan --gpus 4xB300 "
            f"--out {as_word(folder)}"
        )
        raise BadInput(Problem("serve-plan", message, "--serve", str(folder))) from None
    wanted = {name for name in names if not runs or name in runs or name.split("_")[0] in runs}
    letters = {name.split("_")[0] for name in names}
    unknown = [run for run in runs if run not in letters and run not in names]
    if unknown:
        legal = ", ".join(names)
        message = f"--runs {','.join(unknown)} is not in the plan; its runs: {legal}"
        raise BadInput(Problem("serve-runs", message, "--runs", ",".join(unknown), tuple(names)))
    return [folder / name for name in names if name in wanted]


def program_of(script: str) -> str | None:
    """The program that a serve script starts: the first word that is no setting of the shell."""
    text = script.replace("\\\n", " ")
    for line in text.splitlines():
        words = [] if line.lstrip().startswith("#") else shlex.split(line, comments=True)
        words = [word for word in words if not _ASSIGNMENT.match(word)]
        if words and words[0] in ("env", "exec", "nohup"):
            words = words[1:]
        if words and words[0] not in _SHELL_WORDS:
            return words[0]
    return None


def _refuse_several_hosts(folders: Sequence[Path]) -> None:
    wide = [path for path in folders if runner.read_job(path).get("hosts", 1) > 1]
    if wide:
        where = wide[0].parent
        message = (
            f"{', '.join(path.name for path in wide)}: takes several hosts; run "
            f"bash {as_word(where / 'run_all.sh')} on each, then perfmodel verify --from "
            f"{as_word(where / RESULTS)}"
        )
        raise BadInput(Problem("serve-hosts", message, "--serve", str(where)))


def _refuse_missing(folders: Sequence[Path]) -> None:
    programs = {
        name
        for path in folders
        if (name := program_of((path / "serve.sh").read_text(encoding="utf-8"))) is not None
    }
    missing = sorted(name for name in programs if shutil.which(name) is None)
    if missing:
        where = folders[0].parent
        message = (
            f'"{missing[0]}" is not installed here; install the engine, or run '
            f"bash {as_word(where / 'run_all.sh')} where it is and then perfmodel verify --from "
            f"{as_word(where / RESULTS)}"
        )
        raise BadInput(Problem("serve-engine", message, "--serve", missing[0]))


@contextlib.contextmanager
def listening() -> Iterator[None]:
    """Signals ask to end instead of ending; what is left at the end of the interpreter is stopped.

    Python takes signals in the main thread alone, so elsewhere they are left as they are.
    """
    runner.ASKED.clear()
    main = threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in SIGNALS} if main else {}
    for number in before:
        signal.signal(number, lambda number, _: runner.ASKED.append(number))
    atexit.register(end_all)
    try:
        yield
    finally:
        end_all()
        atexit.unregister(end_all)
        for number, handler in before.items():
            signal.signal(number, handler)


def end_all() -> None:
    """Stop every group that was started here and still runs."""
    for group in tuple(_GROUPS):
        runner.stop_group(group)
        _GROUPS.discard(group)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Child]:
    """The server of a run in a process group of its own, stopped at the end whatever happens."""
    note = folder / runner.SERVER_PID
    server = runner.start(folder, "serve.sh", "server.log")
    _GROUPS.add(server.pid)
    try:
        runner.note_process(note, server.pid)
        yield server
    finally:
        runner.stop_group(server.pid, server)
        _GROUPS.discard(server.pid)
        note.unlink(missing_ok=True)


def measure(folder: Path, job: dict[str, Any], ready_s: float) -> dict[str, Any]:
    """Start the server, wait until it is ready, benchmark it, stop it.

    A job without a port has no server.

    Returns:
        The record that the benchmark wrote.

    Raises:
        RunFailed: no record without an error came of it.
        Interrupted: a signal came.
    """
    limit_s = float(job.get("limit_s") or runner.DEFAULT_LIMIT_S)
    if not job.get("port"):
        return runner.benchmark(folder, None, time.monotonic() + limit_s)
    port = int(job["port"])
    if runner.port_answers(port):
        raise RunFailed(f"port {port} is in use by another server, which is left alone")
    with running(folder) as server:
        wait_ready(server, f"http://localhost:{port}{HEALTH}", ready_s)
        return runner.benchmark(folder, server, time.monotonic() + limit_s)


def wait_ready(server: Child, url: str, patience_s: float) -> None:
    """Return when the server answers its health route.

    Raises:
        RunFailed: it ended first, or the time is over.
        Interrupted: a signal came.
    """
    deadline = time.monotonic() + patience_s
    while not _answers(url):
        if time.monotonic() > deadline:
            raise RunFailed(f"the server was not ready within {patience_s:g} s")
        runner.watch(server, deadline + runner.GRACE_S)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=ASK_TIMEOUT_S) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _error(folder: Path) -> str:
    with contextlib.suppress(OSError, ValueError):
        record = json.loads((folder / runner.RECORD).read_text(encoding="utf-8"))
        return str(record.get("error") or "no measurement")
    return "no measurement"
