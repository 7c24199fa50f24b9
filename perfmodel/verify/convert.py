"""What an engine printed and sent, as a run record."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from perfmodel.api.session import Session
from perfmodel.engines.records import run_record
from perfmodel.errors import BadInput, Problem
from perfmodel.files import Unreadable, read_text
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.record import MOST_MS
from perfmodel.verify.readings import Reading, impossible, read


def convert(
    paths: Sequence[Path], session: Session, config: ParallelConfig
) -> tuple[dict[str, object], list[Problem]]:
    """One run record from the texts of one run (headers, logs, benchmark files).

    Args:
        paths: files of the same run; a later one replaces what an earlier one says.
        session: the question: model, shape, machine, engine.
        config: the configuration that ran.

    Returns:
        The record, and what was assumed in reading it.

    Raises:
        BadInput: a file that cannot be read, or no times in any of them.
    """
    found = Reading()
    notes: list[Problem] = []
    for path in paths:
        one = _read(path)
        if not one.measured_ms and one.peak_memory_mib is None:
            message = (
                f"{path} holds no times that are known: headers, profiler lines, benchmark JSON"
            )
            notes.append(Problem("no-times", message, value=str(path), severity="warning"))
        notes += [
            Problem("reading", f"{path.name}: {note}", value=str(path), severity="warning")
            for note in one.notes
        ]
        found.update(one)
    if not found.measured_ms:
        names = ", ".join(str(path) for path in paths)
        message = (
            f"no times in {names}; known: X-Inference-Time-S and X-Stage-Durations headers, "
            "DiffusionPipelineProfiler lines, the JSON of a benchmark"
        )
        raise BadInput(Problem("no-times", message, value=names))
    if bad := impossible(found.measured_ms):
        names = ", ".join(str(path) for path in paths)
        message = f"{names}: {', '.join(bad)}; a time is above 0 and at most {MOST_MS:,.0f} ms"
        raise BadInput(Problem("times", message, value=names))
    record = run_record(session.context, config, session.workload.concurrency)
    record["measured_ms"] = {name: round(ms, 3) for name, ms in found.measured_ms.items()}
    if found.peak_memory_mib:
        record.update(peak_memory_mib=found.peak_memory_mib, memory_kind="reserved")
    if found.requests:
        record["repeats"] = found.requests
    return record, notes


def _read(path: Path) -> Reading:
    try:
        return read(read_text(path, "replace"))
    except Unreadable as error:
        message = f"{path} cannot be read: {error}"
        raise BadInput(Problem("record-file", message, value=str(path))) from None
