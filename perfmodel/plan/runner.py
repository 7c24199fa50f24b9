"""Runs the configurations of a plan one after the other; standard library only.

The source of this file is copied beside the scripts of a plan, and runs there as
``python3 runner.py FOLDER...``.  For each folder it starts ``serve.sh``, runs ``bench.sh`` (which
waits for the server and appends a record to ``results.jsonl`` in the folder), and stops the server.
The record, or a record of the failure with the end of the logs, goes to ``record.json``; all of
them together are ``results.jsonl`` beside the folders.

A folder whose record has no error is done and is skipped, so a second start continues where an
interrupted one ended.  Only process groups that were started here are ever signalled.

A run over several hosts is started on each of them, with NODE_RANK and MASTER_ADDR set, in a folder
that all of them see.  The first (NODE_RANK=0) measures and records as above; the others start their
part once it has begun, and stop it when its record is there.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

POLL_S = 0.2
GRACE_S = 30.0
TAIL_LINES = 40
DEFAULT_LIMIT_S = 7200.0
USAGE = 2
"""Exit code of a start that lacks something."""
MS_PER_S = datetime.timedelta(seconds=1) / datetime.timedelta(milliseconds=1)
RECORD, RUNNER_PID = "record.json", "runner.pid"
SERVER_PID, BENCH_PID = "server.pid", "bench.pid"
Child = subprocess.Popen[bytes]

HOST_VARIABLE, FIRST_VARIABLE = "NODE_RANK", "MASTER_ADDR"


class RunFailed(Exception):
    """A run that gave no measurement, and why."""


class Interrupted(Exception):
    """A signal asked to end; what was started is stopped, and nothing is recorded."""


ASKED: list[int] = []
"""Signals that came.  They are looked at between steps, so that none falls between the start of a
process and the note of it."""


def started_at(pid: int) -> str | None:
    """What tells a process from a later one of the same number; None when there is none."""
    with contextlib.suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        state, *rest = stat.rpartition(")")[2].split()
        return None if state == "Z" else rest[18]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        asked = ["ps", "-o", "lstart=", "-p", str(pid)]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
        return said.stdout.strip() or None
    return None


def note_process(path: Path, pid: int) -> None:
    """Write down a process that was started here."""
    path.write_text(json.dumps({"pid": pid, "started": started_at(pid)}), encoding="utf-8")


def noted_process(path: Path) -> int | None:
    """The process of a note, if it is still the same one."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads(path.read_text(encoding="utf-8"))
        if note["started"] is not None and started_at(note["pid"]) == note["started"]:
            return int(note["pid"])
    return None


def group_lives(pid: int) -> bool:
    """Whether the process group `pid` has members."""
    try:
        os.killpg(pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def stop_group(pid: int, child: Child | None = None) -> None:
    """End a process group that was started here: ask, wait, then force."""
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if child is not None:
                child.poll()  # a zombie would keep its group alive
            if not group_lives(pid):
                return
            time.sleep(POLL_S / 2)


def start(folder: Path, script: str, log: str) -> Child:
    """Start a script of a folder in a process group of its own."""
    with (folder / log).open("ab") as out:
        command = ["bash", script]
        return subprocess.Popen(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def tail(path: Path) -> list[str]:
    """The last lines of a log."""
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    return []


def port_answers(port: int) -> bool:
    """Whether something listens on a port of this machine."""
    with contextlib.suppress(OSError), socket.create_connection(("localhost", port), timeout=1):
        return True
    return False


def measure(folder: Path, job: dict[str, Any]) -> dict[str, Any]:
    """Start the server, benchmark it, stop it.

    A job without a port has no server: its benchmark runs the program itself.

    Returns:
        The record that the benchmark wrote.

    Raises:
        RunFailed: no record without an error came of it.
        Interrupted: a signal came.
    """
    deadline = time.monotonic() + float(job.get("limit_s") or DEFAULT_LIMIT_S)
    if not job.get("port"):
        return benchmark(folder, None, deadline)
    port = int(job["port"])
    if port_answers(port):
        raise RunFailed(f"port {port} is in use by another server, which is left alone")
    server = start(folder, "serve.sh", "server.log")
    try:
        note_process(folder / SERVER_PID, server.pid)
        while not port_answers(port):
            watch(server, deadline)
        return benchmark(folder, server, deadline)
    finally:
        stop_group(server.pid, server)
        (folder / SERVER_PID).unlink(missing_ok=True)


def benchmark(folder: Path, server: Child | None, deadline: float) -> dict[str, Any]:
    """Run the benchmark to its end; the record that it wrote."""
    bench = start(folder, "bench.sh", "bench.log")
    try:
        note_process(folder / BENCH_PID, bench.pid)
        wait(server, bench, deadline - time.monotonic())
    finally:
        stop_group(bench.pid, bench)
        (folder / BENCH_PID).unlink(missing_ok=True)
    return last_record(folder, bench.returncode)


def wait(server: Child | None, bench: Child, limit_s: float) -> None:
    """Return when the benchmark ends; raises what `watch` raises."""
    deadline = time.monotonic() + limit_s
    while bench.poll() is None:
        watch(server, deadline)


def watch(server: Child | None, deadline: float) -> None:
    """Wait a moment.

    Raises:
        RunFailed: the server ended, or the time is over.
        Interrupted: a signal came.
    """
    if ASKED:
        raise Interrupted
    if server is not None and server.poll() is not None:
        raise RunFailed(f"the server ended with code {server.returncode} before the benchmark")
    if time.monotonic() > deadline:
        raise RunFailed("no result within the time limit of the run")
    time.sleep(POLL_S)


def last_record(folder: Path, code: int | None) -> dict[str, Any]:
    """The newest record of the benchmark."""
    lines = []
    with contextlib.suppress(OSError):
        lines = (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()
    if not lines and (found := summary(folder)):
        return found
    if not lines:
        raise RunFailed(f"the benchmark ended with code {code} and wrote no record")
    record: dict[str, Any] = json.loads(lines[-1])
    if code and not record.get("error"):
        record["error"] = f"the benchmark ended with code {code}"
    return record


def summary(folder: Path) -> dict[str, Any] | None:
    """The client time of a benchmark that writes its own JSON (``latency_*`` [s]), no record."""
    with contextlib.suppress(OSError, ValueError):
        whole = json.loads((folder / "bench.json").read_text(encoding="utf-8"))
        value = whole.get("latency_median") or whole.get("latency_mean")
        if value:
            milliseconds = float(value) * MS_PER_S
            return {"measured_ms": {"client": milliseconds}, "benchmark": whole}
    return None


def write_whole(path: Path, text: str) -> None:
    """Replace a file in one step, so that no reader ever sees half of it."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)


def gather(root: Path) -> None:
    """All records of the plan's folders in one file, in the order of the folders."""
    lines = []
    for path in sorted(
        root.glob(f"*/{RECORD}"), key=lambda p: (len(p.parent.name.split("_")[0]), p)
    ):
        with contextlib.suppress(OSError, ValueError):
            lines.append(json.dumps(json.loads(path.read_text(encoding="utf-8"))))
    write_whole(root / "results.jsonl", "".join(f"{line}\n" for line in lines))


def is_done(folder: Path) -> bool:
    """Whether the folder has a record without an error."""
    with contextlib.suppress(OSError, ValueError):
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        return isinstance(record, dict) and not record.get("error")
    return False


def claim(folder: Path) -> bool:
    """Take a folder, and end what an interrupted start left behind in it.

    Returns:
        False when another runner is at work in it.
    """
    other = noted_process(folder / RUNNER_PID)
    if other is not None and other != os.getpid():
        return False
    note_process(folder / RUNNER_PID, os.getpid())
    for name in (BENCH_PID, SERVER_PID):
        left = noted_process(folder / name)
        if left is not None:
            print(f"{folder.name}: ends the {name[:-4]} of an interrupted run", flush=True)
            stop_group(left)
    return True


def host_number() -> int:
    """Which of the hosts of a run this is; 0, the first, where no number says so."""
    text = os.environ.get(HOST_VARIABLE, "")
    return int(text) if text.isdecimal() else 0


def read_job(folder: Path) -> dict[str, Any]:
    """What a folder asks for."""
    job: dict[str, Any] = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    return job


def record_time(folder: Path) -> int:
    """When the first host wrote its record, 0 if it has not."""
    with contextlib.suppress(OSError):
        return (folder / RECORD).stat().st_mtime_ns
    return 0


def take_part(folder: Path, number: int) -> bool:
    """The share of one of the other hosts in a run: until the first host has a record of it.

    Returns:
        False when its program failed.
    """
    job = read_job(folder)
    if is_done(folder) or job.get("hosts", 1) <= number:
        print(f"{folder.name}: nothing to do on host {number}", flush=True)
        return True
    before = record_time(folder)
    deadline = time.monotonic() + 2 * float(job.get("limit_s") or DEFAULT_LIMIT_S)
    print(f"{folder.name}: waits for the first host", flush=True)
    while not (folder / RUNNER_PID).exists():
        watch(None, deadline)
        if record_time(folder) != before:
            return True
    script = "serve.sh" if job.get("port") else "bench.sh"
    child = start(folder, script, f"host{number}.log")
    print(f"{folder.name}: takes part", flush=True)
    try:
        while record_time(folder) == before and child.poll() is None:
            watch(None, deadline)
    finally:
        stop_group(child.pid, child)
    failed = record_time(folder) == before and bool(child.returncode)
    if failed:
        print(f"{folder.name}: failed with code {child.returncode}, see host{number}.log")
    return not failed


Measure = Callable[[Path, dict[str, Any]], dict[str, Any]]


def run(folder: Path, measuring: Measure = measure) -> bool:
    """Run one folder unless it is done; its record is written whatever happens.

    `measuring` turns the folder and its job into a record.

    Returns:
        Whether there is a measurement.
    """
    if is_done(folder):
        print(f"{folder.name}: done before, skipped", flush=True)
        return True
    if not claim(folder):
        print(f"{folder.name}: another runner is at work, skipped", flush=True)
        return False
    job = read_job(folder)
    for name in ("results.jsonl", "bench.json", "server.log", "bench.log"):
        (folder / name).unlink(missing_ok=True)
    print(f"{folder.name}: starts, about {job.get('minutes', 0):.0f} minutes", flush=True)
    begun = time.monotonic()
    try:
        record = measuring(folder, job)
    except (RunFailed, OSError, ValueError) as error:
        record = {"measured_ms": {}, "error": str(error)}
    finally:
        (folder / RUNNER_PID).unlink(missing_ok=True)
    record = {**job["record"], **record, "run": job["run"], "plan": job["plan"]}
    record["id"] = job["record"]["id"]
    record["run_seconds"] = round(time.monotonic() - begun, 1)
    record.setdefault("source_date", datetime.date.today().isoformat())
    if record.get("error"):
        record["log_tail"] = tail(folder / "bench.log")[-TAIL_LINES // 4 :] + tail(
            folder / "server.log"
        )
    write_whole(folder / RECORD, json.dumps(record, indent=1) + "\n")
    said = f"failed: {record['error']}" if record.get("error") else "measured"
    print(f"{folder.name}: {said}", flush=True)
    return not record.get("error")


def main(folders: list[str]) -> int:
    """Run folders in order.

    Returns:
        0 when all have a measurement, 1 when one has none, 2 when the hosts are not told apart,
        128 + the signal when interrupted.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: ASKED.append(number))
    root = Path(__file__).resolve().parent
    host, most = host_number(), max(read_job(root / name).get("hosts", 1) for name in folders)
    number_given = os.environ.get(HOST_VARIABLE, "").isdecimal()
    if most > 1 and not (number_given and os.environ.get(FIRST_VARIABLE)):
        print(
            f"{most} hosts take part: start this on each, from one folder that all see, with "
            f"{HOST_VARIABLE}=0 to {most - 1} and {FIRST_VARIABLE}=HOST0 (the first one's address)",
            file=sys.stderr,
        )
        return USAGE
    good = True
    for name in folders:
        try:
            good = (take_part(root / name, host) if host else run(root / name)) and good
        except (Interrupted, RunFailed) as error:
            print(f"{name}: {error}" if str(error) else f"{name}: stopped", flush=True)
            good = False
        if not host:
            gather(root)
        if ASKED:
            print("interrupted: start it again to continue", flush=True)
            return 128 + ASKED[0]
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
