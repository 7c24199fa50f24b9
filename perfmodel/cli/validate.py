"""`perfmodel validate`: how far predictions are from measured records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.output import put, warn
from perfmodel.errors import BadInput, Problem

if TYPE_CHECKING:
    from perfmodel.spec.hardware import Device

READS = "folders or files of microbenchmark CSV (with --device)"


def command(
    records: Annotated[list[Path], typer.Argument(help=READS, metavar="RECORDS...")],
    device: Annotated[
        str | None, typer.Option("--device", help="microbenchmarks: the device they were taken on")
    ] = None,
    fit: Annotated[
        Path | None, typer.Option("--fit", help="fit file; default: the shipped one")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="write the answer to a file")] = None,
) -> None:
    """Score predictions against measured records; never fits anything."""
    if not all(_is_microbench(path) for path in records):
        unread = [path for path in records if not _is_microbench(path)]
        raise BadInput(*(_unread(path) for path in unread))
    from perfmodel.validate.microbench import table_lines, validate_microbench

    answer = validate_microbench(records, _device(device), _fit(fit))
    warn(Problem("records", s["reason"], severity="warning") for s in answer["skipped"])
    text = json.dumps(answer, indent=1) if as_json else "\n".join(table_lines(answer))
    put(text + "\n", out)


def _is_microbench(path: Path) -> bool:
    """A CSV file, or a folder (which holds CSV files or is refused by the reader)."""
    return path.is_dir() or path.suffix == ".csv"


def _unread(path: Path) -> Problem:
    reason = "does not exist" if not path.exists() else "is in no format that validate reads"
    return Problem(
        "records-format",
        f"{path} {reason}; it reads {READS}",
        field="RECORDS",
        value=str(path),
    )


def _device(name: str | None) -> Device:
    from perfmodel.catalog import load_device, read_device

    if name is None:
        raise BadInput(
            Problem(
                "option",
                "microbenchmarks need --device NAME (or a hardware YAML); "
                "list: perfmodel hardware list",
                field="--device",
            )
        )
    path = Path(name)
    return read_device(path) if path.suffix in (".yaml", ".yml") else load_device(name)


def _fit(path: Path | None) -> dict[str, Any] | None:
    """A fit file as JSON; None takes the shipped one."""
    if path is None:
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(
            Problem("fit-file", f"{path}: cannot be read as a fit: {error}", field="--fit")
        ) from error
    if not isinstance(data, dict) or "laws" not in data:
        raise BadInput(Problem("fit-file", f"{path}: is not a fit (no laws)", field="--fit"))
    return data
