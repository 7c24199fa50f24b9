"""Reading microbenchmark CSV folders: columns per operator, and one line for each bad row.

The format is public (`calibration/README.md`).  Unknown columns are kept and ignored; a bad row
is named by file and line and left out.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import BadInput, Problem
from perfmodel.files import is_dir, is_file
from perfmodel.units import US_PER_S

Column = NDArray[np.generic]

NUMBERS: dict[str, tuple[str, ...]] = {
    "gemm": ("m", "n", "k"),
    "attention": ("batch", "seq_q", "seq_kv", "num_heads", "num_kv_heads", "head_dim"),
    "collective": ("num_ranks", "message_bytes"),
    "quantize": ("m", "k"),
    "conv": ("in_channels", "out_channels", "kt", "kh", "kw", "out_t", "out_h", "out_w"),
    "pointwise": ("bytes_moved",),
    "transfer": ("bytes_moved",),
    "media": ("pixels",),
    "host": (),
}
"""Whole-number columns of each operator, all required and at least 1."""

OPTIONAL: dict[str, tuple[str, ...]] = {
    "gemm": ("batch",),
    "conv": ("batch", "stride_t", "stride_h", "stride_w"),
}
"""Whole-number columns that count as 1 when absent."""

TEXTS: dict[str, tuple[str, ...]] = {
    "gemm": ("dtype",),
    "attention": ("dtype", "causal"),
    "collective": ("collective",),
    "quantize": ("what",),
    "conv": ("dtype",),
    "pointwise": (),
    "transfer": ("direction",),
    "media": ("codec",),
    "host": ("mode",),
}

SKIPPED = "skipped.csv"
MOST_SHOWN = 20
"""Warnings that are told where nothing at all is usable."""
FAR_APART = 1.2
"""Repeats of a row that differ by more are not the same measurement."""
MOST_NAMES = 5
"""What a folder without CSV files holds instead."""
"""What `bench` could not measure, and why: no records."""

DTYPES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "float8_e4m3fn": "fp8",
    "float8_e4m3": "fp8",
    "fp8_e4m3": "fp8",
}
"""Names that other tools give a dtype, without case and ``torch.``."""

TRUE = frozenset({"true", "1", "yes"})
FALSE = frozenset({"false", "0", "no"})


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file that was read: where, its hash, and how many of its rows were good."""

    path: Path
    sha256: str
    rows: int


@dataclass(frozen=True, slots=True)
class Rows:
    """Good rows of one operator as columns.

    Attributes:
        op: ``gemm``, ``attention``...
        columns: int64, bool or text columns; ``latency_s`` is float64.
        origin: (file index, line number) of each row.
    """

    op: str
    columns: dict[str, Column]
    origin: NDArray[np.int64]

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.origin)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        """A numeric column as float64."""
        return np.asarray(self.columns[name], np.float64)

    def text(self, name: str) -> NDArray[np.str_]:
        """A text column."""
        return np.asarray(self.columns[name], np.str_)

    def take(self, index: NDArray[np.generic]) -> Rows:
        """Selected rows."""
        return Rows(
            self.op, {name: c[index] for name, c in self.columns.items()}, self.origin[index]
        )


@dataclass(slots=True)
class Records:
    """All good rows of a folder.

    Attributes:
        ops: rows by operator.
        files: the files behind them.
        problems: one warning for each bad row, file or duplicate; its value names the operator.
        seen: data rows read, good or bad.
    """

    ops: dict[str, Rows] = field(default_factory=dict)
    files: list[SourceFile] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    seen: int = 0

    def where(self, row: NDArray[np.int64]) -> str:
        """``file:line`` of an origin pair; with its folder where another file has its name."""
        path = self.files[int(row[0])].path
        alone = sum(file.path.name == path.name for file in self.files) == 1
        return f"{path.name if alone else path}:{int(row[1])}"


def csv_files(sources: Iterable[Path]) -> list[Path]:
    """CSV files of folders and files, in name order.

    Raises:
        BadInput: a source that does not exist, or no CSV file at all.
    """
    found: list[Path] = []
    problems: list[Problem] = []
    for source in sources:
        if is_dir(source):
            inside = sorted(source.iterdir())
            tables = [p for p in inside if p.suffix.lower() == ".csv" and p.name != SKIPPED]
            found.extend(tables)
            if not tables:
                held = f" (it holds {', '.join(p.name for p in inside[:MOST_NAMES])})" * bool(
                    inside
                )
                message = f"{source}: no CSV file in this folder{held}; make some: perfmodel bench"
                problems.append(_refusal("records-empty", message, source))
        elif is_file(source):
            found.append(source)
        else:
            problems.append(_refusal("records-missing", f"{source}: does not exist", source))
    if problems:
        raise BadInput(*problems)
    return found


def read_records(sources: Iterable[Path]) -> Records:
    """Read all CSV files of `sources` and merge them per operator.

    Raises:
        BadInput: no file, or not a single good row.
    """
    sources = list(sources)
    records = Records()
    good: dict[str, list[tuple[int, int, dict[str, object]]]] = {}
    for path in csv_files(sources):
        _read_file(path, records, good)
    for op, entries in good.items():
        records.ops[op] = _columns(op, entries, records)
    if not records.ops:
        names = ", ".join(str(source) for source in sources)
        read = ", ".join(file.path.name for file in records.files)
        message = (
            f"{names}: nothing usable was found in {records.seen} rows"
            f"{f' of {read}' * bool(read)}; measure: perfmodel bench --out DIR"
        )
        empty = _refusal("records-empty", message, names)
        raise BadInput(*records.problems[:MOST_SHOWN], empty)
    return records


def _read_file(
    path: Path, records: Records, good: dict[str, list[tuple[int, int, dict[str, object]]]]
) -> None:
    try:
        data = path.read_bytes()
        lines = data.decode("utf-8-sig").splitlines(keepends=True)
    except (OSError, UnicodeDecodeError) as err:
        records.problems.append(_problem("records-file", f"{path}: cannot be read: {err}"))
        return
    reader = csv.DictReader(lines, delimiter=_delimiter(lines[:1]))
    index, kept, line = len(records.files), 0, 0
    refused: set[str] = set()
    try:
        header = reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
        for raw in reader:
            line = reader.line_num
            records.seen += 1
            op = str(raw.get("op") or path.stem).strip()
            if op in refused:
                continue
            problem = _unknown_header(op, header, path)
            if problem is not None:
                refused.add(op)
                records.problems.append(problem)
                continue
            row, reason = _row(op, raw)
            if reason:
                records.problems.append(_left_out(f"{path}:{line}", raw, reason, op))
                continue
            good.setdefault(op, []).append((index, line, row))
            kept += 1
    except csv.Error as err:
        reason = f"{path}:{line + 1}: no CSV from here on: {err}"
        records.problems.append(_problem("records-file", reason))
    records.files.append(SourceFile(path, hashlib.sha256(data).hexdigest(), kept))


def _delimiter(first: Sequence[str]) -> str:
    """Comma, semicolon or tab: what the header holds most of."""
    return max(",;\t", key="".join(first).count)


def _left_out(place: str, raw: Mapping[str, str | None], reason: str, op: str) -> Problem:
    """A bad row; one of several lines is what a quote that is not closed makes."""
    more = sum(value.strip().count("\n") for value in raw.values() if isinstance(value, str))
    if more > 1:
        reason = f"{reason} ({more + 1} lines are one row: is a quote not closed?)"
    return _problem("records-row", f"{place}: {reason}; row left out", op)


def _unknown_header(op: str, header: Iterable[str], path: Path) -> Problem | None:
    if op not in NUMBERS:
        return _problem(
            "records-op",
            f'{path}: op "{op}" is unknown; left out; known: {", ".join(NUMBERS)}',
            op,
        )
    missing = [c for c in (*TEXTS[op], *NUMBERS[op], "latency_us") if c not in header]
    if missing:
        return _problem(
            "records-column",
            f"{path}: column {', '.join(missing)} is missing; {op} rows left out",
            op,
        )
    return None


def _row(op: str, raw: dict[str, str | None]) -> tuple[dict[str, object], str]:
    """Typed values of a row, or what is wrong with it."""
    row: dict[str, object] = {"kernel": (raw.get("kernel") or raw.get("library") or "").strip()}
    row |= {name: (raw.get(name) or "").strip() for name in ("software", "device")}
    for name in TEXTS[op]:
        text = (raw.get(name) or "").strip()
        if name == "causal":
            if text.lower() not in TRUE | FALSE:
                return row, f'causal="{text}" is neither True nor False'
            row[name] = text.lower() in TRUE
        elif not text:
            return row, f"{name} is empty"
        else:
            row[name] = _dtype(text) if name == "dtype" else text
    for name in (*NUMBERS[op], *OPTIONAL.get(op, ())):
        text = (raw.get(name) or ("1" if name in OPTIONAL.get(op, ()) else "")).strip()
        value = _whole(text)
        if value is None:
            return row, f'{name}="{text}" is not a positive whole number'
        if name == "num_ranks" and value == 1:
            return row, "num_ranks=1: a group has at least 2 ranks"
        row[name] = value
    latency = _real((raw.get("latency_us") or "").strip())
    if latency is None:
        return row, f'latency_us="{raw.get("latency_us")}" is not a number'
    if latency <= 0:
        return row, f"latency_us={latency:g} is not above zero"
    row["latency_s"] = latency / US_PER_S
    return row, ""


def _dtype(text: str) -> str:
    """The name that dtypes have here."""
    name = text.lower().removeprefix("torch.")
    return DTYPES.get(name, name)


def _whole(text: str) -> int | None:
    value = _real(text)
    return int(value) if value is not None and value >= 1 and value == int(value) else None


def _real(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if np.isfinite(value) else None


def _columns(op: str, entries: list[tuple[int, int, dict[str, object]]], records: Records) -> Rows:
    """Columns of good rows; exact repeats of a key keep the median of their latencies."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for number, (_, _, row) in enumerate(entries):
        key = tuple(value for name, value in row.items() if name != "latency_s")
        groups.setdefault(key, []).append(number)
    kept: list[tuple[int, int, dict[str, object]]] = []
    for numbers in groups.values():
        file, line, row = entries[numbers[0]]
        if len(numbers) > 1:
            times = [float(str(entries[i][2]["latency_s"])) for i in numbers]
            row = {**row, "latency_s": float(np.median(times))}
            second, apart = entries[numbers[1]], max(times) / min(times)
            far = f", though they lie {apart:.2g} times apart" if apart > FAR_APART else ""
            records.problems.append(
                _problem(
                    "records-duplicate",
                    f"{records.files[second[0]].path}:{second[1]}: same shape as line {line}"
                    f" ({len(numbers)} rows); their median is used{far}",
                    op,
                )
            )
        kept.append((file, line, row))
    names = list(kept[0][2])
    columns: dict[str, Column] = {
        name: np.asarray([row[name] for _, _, row in kept]) for name in names
    }
    return Rows(op, columns, np.asarray([(f, n) for f, n, _ in kept], np.int64))


def _refusal(rule: str, message: str, value: object) -> Problem:
    return Problem(rule, message, field="--records", value=str(value))


def _problem(rule: str, message: str, op: str = "") -> Problem:
    """A warning; its value is the operator whose rows it is about."""
    return Problem(rule, message, field="--records", value=op, severity="warning")
