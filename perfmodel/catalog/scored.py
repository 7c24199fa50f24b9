"""Measured requests beside what the model says of each (``calibration/runs/scored.csv``)."""

import csv
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from perfmodel.catalog.data import data_roots
from perfmodel.errors import BadInput, Problem

SCORED_FILE = "calibration/runs/scored.csv"

OPTIONS = ("compile", "attention_backend", "vae_fast_path", "guardrails")
"""Options that decide the time of a request and that no configuration id names."""


def options_text(values: Mapping[str, object]) -> str:
    """Resolved options of a run as ``name=value`` words: those of `OPTIONS` that the engine has."""
    return " ".join(f"{name}={values[name]}" for name in OPTIONS if values.get(name) is not None)


class ScoredRun(NamedTuple):
    """One measured request and its prediction; ids are those of the catalogue.

    Attributes:
        num_gpus: devices of the run.
        version: release or day whose rules the prediction follows.
        options: resolved, as `options_text` writes them.
        width, height: pixels.
        forwards: of the transformer in a request.
        in_fit: some engine term was fitted to it.
        source: URL it was read from.
        source_date: of the measurement or of its page, empty where unknown.
    """

    id: str
    model: str
    device: str
    num_gpus: int
    engine: str
    version: str
    config_id: str
    options: str
    task: str
    width: int
    height: int
    frames: int
    steps: int
    forwards: int
    batch: int
    concurrency: int
    measured_ms: float
    predicted_ms: float
    in_fit: bool
    source: str
    source_date: str

    @property
    def error_frac(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_ms / self.measured_ms - 1.0

    @classmethod
    def read(cls, cells: Sequence[str]) -> Self:
        """A line of the file.

        Raises:
            ValueError: text where a number is needed, or cells are missing.
        """
        pairs = zip(cls.__annotations__.values(), cells, strict=True)
        values: list[Any] = [cell == "True" if kind is bool else kind(cell) for kind, cell in pairs]
        return cls(*values)


def scored_runs(model: str, device: str) -> tuple[ScoredRun, ...]:
    """The shipped runs of a model or of a device; none where the file is absent.

    Raises:
        BadInput: the file is broken.
    """
    path = data_roots()[0] / SCORED_FILE
    at_model, at_device = (ScoredRun._fields.index(name) for name in ("model", "device"))
    try:
        return tuple(
            ScoredRun.read(cells)
            for cells in _lines(path)
            if cells[at_model] == model or cells[at_device] == device
        )
    except (ValueError, IndexError) as error:
        raise _broken(path, error) from None


def _broken(path: Path, error: Exception) -> BadInput:
    message = f"{path}: {error}; written by python -m perfmodel.validate.scored"
    return BadInput(Problem("data-file", message, field=str(path)))


def all_scored_runs() -> tuple[ScoredRun, ...]:
    """All shipped runs; none where the file is absent.

    Raises:
        BadInput: the file is broken.
    """
    path = data_roots()[0] / SCORED_FILE
    try:
        return tuple(map(ScoredRun.read, _lines(path)))
    except (ValueError, IndexError) as error:
        raise _broken(path, error) from None


@cache
def _lines(path: Path) -> tuple[list[str], ...]:
    if not path.is_file():
        return ()
    with path.open(encoding="utf-8", newline="") as lines:
        return tuple(csv.reader(lines))[1:]
