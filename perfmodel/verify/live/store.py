"""Measured rows on disk: one JSON object a line, written as soon as it is measured."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfmodel.files import whole_lines

Key = tuple[str, str, str]


@dataclass(frozen=True)
class Row:
    """One measured operator.

    Attributes:
        piece: denoise, block or vae_decode.
        operator: its name in the prediction.
        signature: shapes of the inputs; an operator may run on several.
        occurrences: how often one block (or one forward) runs it on these shapes.
        each_ms, spread_ms: median and interquartile range of one execution, the slowest rank.
        repeats: timed repeats.
        also: further operators of the prediction that the same call does.
        skipped: why there is no time.
    """

    piece: str
    operator: str
    signature: str
    occurrences: int
    each_ms: float | None = None
    spread_ms: float | None = None
    repeats: int = 0
    also: tuple[str, ...] = ()
    skipped: str | None = None

    @property
    def key(self) -> Key:
        """What makes a row the same as another."""
        return self.piece, self.operator, self.signature


def setup_id(setup: Mapping[str, Any]) -> str:
    """A short name of everything that changes the times."""
    text = json.dumps(setup, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class LiveStore:
    """The rows of one setup in a file that may hold others.

    Rows are flushed one by one; a half-written last line is cut off when the file is opened again.
    """

    def __init__(self, path: Path, setup: Mapping[str, Any]) -> None:
        """Open `path`, made if it is not there, for the rows of `setup`."""
        self.path, self.setup, self.identity = path, dict(setup), setup_id(setup)
        self.rows: dict[Key, Row] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for record in _read(path):
            if record.get("setup") == self.identity:
                row = _row(record)
                self.rows[row.key] = row

    def done(self, key: Key) -> bool:
        """Whether a row was measured (or skipped) before."""
        return key in self.rows

    def append(self, row: Row) -> None:
        """Write one row to the disk."""
        record = {
            "setup": self.identity,
            **self.setup,
            **asdict(row),
            "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }
        with self.path.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(record) + "\n")
            stream.flush()
        self.rows[row.key] = row


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in whole_lines(path).splitlines() if line.strip()]


def _row(record: Mapping[str, Any]) -> Row:
    names = Row.__dataclass_fields__
    values = {name: record[name] for name in names if name in record}
    return Row(**{**values, "also": tuple(record.get("also", ()))})
