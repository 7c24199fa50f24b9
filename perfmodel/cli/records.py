"""``perfmodel records``: measured runs in the public format."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from perfmodel.cli.command import flag_command
from perfmodel.cli.flags import FILES, OUTPUT, PARALLEL, WORK
from perfmodel.cli.given import Given
from perfmodel.errors import BadInput, Problem
from perfmodel.files import is_file

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Measured runs in the public format."
)
WRITTEN = tuple(flag for flag in OUTPUT if flag.name in ("out", "config", "dump-config"))


@app.callback()
def group() -> None:
    """Measured runs in the public format."""


@flag_command(*FILES, *WORK, *PARALLEL, *WRITTEN)
def convert(given: Given) -> int:
    """One run record (JSON, a line) from what an engine printed and sent about one run.

    Reads response headers, profiler and MP4 log lines, and benchmark JSON.

    Example: perfmodel records convert headers.txt server.log --gpus 4xB300 --parallel usp4
    """
    from perfmodel.api.session import open_session
    from perfmodel.cli.inputs import read_inputs
    from perfmodel.cli.output import put, warn
    from perfmodel.spec.parallel import parse_parallel
    from perfmodel.verify.convert import convert as read_run

    paths = [Path(text) for text in given.many("files")]
    if not paths:
        message = "no file is named; try perfmodel records convert headers.txt --gpus 4xB300"
        raise BadInput(Problem("files", message, "FILE"))
    inputs, path = read_inputs(given), _fresh(given.text("out"))
    config = parse_parallel(given.text("parallel") or "single")[0]
    opened = {k: v for k, v in inputs.settings.items() if k in ("engine", "fit", "strict")}
    session = open_session(inputs.workload, inputs.system, options=inputs.options, **opened)
    record, notes = read_run(paths, session, config)
    warn(notes)
    put(json.dumps(record) + "\n", path)
    return 0


def _fresh(text: str | None) -> Path | None:
    """Where ``--out`` says, unless something is there."""
    path = None if text is None else Path(text)
    if path is not None and is_file(path) and path.stat().st_size:
        message = f"--out {text} holds something; leave --out away and append with >> {text}"
        raise BadInput(Problem("out", message, "--out", text))
    return path


app.command("convert")(convert)
