"""Records on disk: one CSV an operator, appended row by row, resumed by key."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path

import torch

from perfmodel.calibrate.cases import CASES, Case, NodesCollectiveCase, header
from perfmodel.calibrate.measure.device import Device, host_cpu
from perfmodel.calibrate.measure.timing import Timing
from perfmodel.errors import BadInput, Problem
from perfmodel.files import whole_lines
from perfmodel.units import US_PER_S

SKIPPED_FILE = "skipped.csv"
SKIPPED_COLUMNS = ("file", "key", "reason", "device", "software", "date")

_ALL_CASES: tuple[type[Case], ...] = (*CASES.values(), NodesCollectiveCase)
_SIGNIFICANT = 6


@dataclass(frozen=True, slots=True)
class Context:
    """Who measures: the same for all rows of a run."""

    device: str
    software: str
    host_cpu: str
    torch: str
    threads: int

    @classmethod
    def of(cls, device: Device) -> Context:
        """The context of an opened device."""
        return cls(
            device=device.name,
            software=device.software,
            host_cpu=host_cpu(),
            torch=str(torch.__version__),
            threads=torch.get_num_threads(),
        )


class RecordStore:
    """The record folder of one device.

    Every row is written and flushed as soon as it is measured, so that an interrupted run loses
    one row at most; a half-written last line is dropped when the folder is opened again.
    """

    def __init__(self, folder: Path, context: Context, *, resume: bool) -> None:
        """Open `folder` (made if missing).

        Raises:
            BadInput: it holds records and `resume` is off, or they are of another device or have
                other columns.
        """
        self.folder = folder
        self.context = context
        self._done: set[tuple[str, ...]] = set()
        for case in _ALL_CASES:
            self._load(case, resume)
        if resume:
            self._load_skipped()

    def done(self, case: Case) -> bool:
        """Whether `case` was measured or skipped before."""
        return (case.file, *case.key()) in self._done

    def append(self, case: Case, timing: Timing, clock_mhz: float | None) -> None:
        """Write one measured row."""
        own = {
            "latency_us": _digits(timing.median_s * US_PER_S),
            "device": self.context.device,
            "software": self.context.software,
            "spread_us": _digits(timing.spread_s * US_PER_S),
            "repeats": str(timing.repeats),
            "clock_mhz": "" if clock_mhz is None else f"{clock_mhz:.0f}",
            "threads": str(self.context.threads),
            "host_cpu": self.context.host_cpu,
            "torch": self.context.torch,
            "date": _now(),
        }
        row = {name: str(value) for name, value in case.columns().items()} | own
        columns = header(type(case))
        self._write(case.file, columns, [row[name] for name in columns])
        self._done.add((case.file, *case.key()))

    def skip(self, case: Case, reason: str) -> None:
        """Note why `case` has no row; it is not tried again until ``skipped.csv`` is deleted."""
        line = " ".join(reason.split()) or "no reason given"
        row = [case.file, "|".join(case.key()), line, self.context.device]
        self._write(SKIPPED_FILE, SKIPPED_COLUMNS, [*row, self.context.software, _now()])
        self._done.add((case.file, *case.key()))

    def _write(self, file: str, columns: Sequence[str], values: Iterable[str]) -> None:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        buffer = StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        if not path.exists() or path.stat().st_size == 0:
            writer.writerow(columns)
        writer.writerow(values)
        with path.open("a", encoding="utf-8", newline="") as stream:
            stream.write(buffer.getvalue())
            stream.flush()

    def _load(self, case: type[Case], resume: bool) -> None:
        path = self.folder / case.file
        columns = header(case)
        rows = _read(path)
        if not rows:
            return
        if not resume:
            raise BadInput(_occupied(path, len(rows) - 1))
        if tuple(rows[0]) != columns:
            raise BadInput(_other_columns(path, rows[0], columns))
        key_length = columns.index("latency_us")
        device = columns.index("device")
        for row in rows[1:]:
            if row[device] != self.context.device:
                raise BadInput(_other_device(path, row[device], self.context.device))
            self._done.add((case.file, *row[:key_length]))

    def _load_skipped(self) -> None:
        for row in _read(self.folder / SKIPPED_FILE)[1:]:
            self._done.add((row[0], *row[1].split("|")))


def _read(path: Path) -> list[list[str]]:
    """Complete rows of a CSV; an interrupted last line is cut off in the file."""
    rows = list(csv.reader(StringIO(whole_lines(path))))
    return [row for row in rows if len(row) == len(rows[0])]


def _digits(value: float) -> str:
    return f"{value:.{_SIGNIFICANT}g}"


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _occupied(path: Path, rows: int) -> Problem:
    return Problem(
        "bench-out",
        f"{path} already holds {rows} records; add --resume to go on from there, "
        "or choose another --out",
        field="--out",
        value=str(path.parent),
        suggestions=("--resume",),
    )


def _other_columns(path: Path, found: Sequence[str], wanted: Sequence[str]) -> Problem:
    missing = [name for name in wanted if name not in found]
    return Problem(
        "bench-columns",
        f"{path} has other columns (missing: {', '.join(missing) or 'none, another order'}); "
        "choose another --out",
        field="--out",
        value=str(path.parent),
    )


def _other_device(path: Path, found: str, here: str) -> Problem:
    return Problem(
        "bench-device",
        f"{path} holds records of {found}, this device is {here}; choose another --out",
        field="--out",
        value=str(path.parent),
    )
