"""``perfmodel records``: measured runs in the public format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfmodel.cli.command import flag_command
from perfmodel.cli.flags import FILES, OUTPUT, PARALLEL, WORK
from perfmodel.cli.given import Given
from perfmodel.errors import BadInput, Problem
from perfmodel.files import as_word, is_file

if TYPE_CHECKING:
    from perfmodel.api.session import Session
    from perfmodel.spec.parallel import ParallelConfig

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
    from perfmodel.cli.streams import put, warn
    from perfmodel.verify.convert import convert as read_run

    paths = [Path(text) for text in given.many("files")]
    if not paths:
        message = "no file is named; try perfmodel records convert headers.txt --gpus 4xB300"
        raise BadInput(Problem("files", message, "FILE"))
    path = _fresh(given.text("out"))
    session, config = _ran(given)
    record, notes = read_run(paths, session, config)
    warn(notes)
    put(json.dumps(record) + "\n", path)
    return 0


def _ran(given: Given) -> tuple[Session, ParallelConfig]:
    """The question and the configuration, of ``--parallel`` or of the launch command."""
    from perfmodel.api.configuration import asked_configuration
    from perfmodel.api.offload import settled
    from perfmodel.api.session import open_session
    from perfmodel.cli.inputs import read_inputs
    from perfmodel.cli.predict import read_extra
    from perfmodel.cli.streams import warn
    from perfmodel.engines import DEFAULT_ENGINE, parse_engine
    from perfmodel.spec.parallel import Layouts

    inputs, extra = read_inputs(given), read_extra(given)
    asked = {**inputs.settings, **extra}
    engine = asked.get("engine", DEFAULT_ENGINE)
    config, workload, options = asked_configuration(
        asked.get("parallel"), asked.get("launch"), engine, inputs.workload, inputs.options
    )
    if launch := asked.get("launch"):
        warn(parse_engine(engine)[0].read_launch(launch).problems)
    kept = {name: asked[name] for name in ("fit", "strict") if name in asked}
    session = open_session(workload, inputs.system, engine=engine, options=options, **kept)
    return settled(session, Layouts.of([config])), config


def _fresh(text: str | None) -> Path | None:
    """Where ``--out`` says, unless something is there."""
    path = None if text is None else Path(text)
    if path is not None and is_file(path) and path.stat().st_size:
        message = (
            f"--out {text} holds something; leave --out away and append with >> {as_word(path)}"
        )
        raise BadInput(Problem("out", message, "--out", text))
    return path


app.command("convert")(convert)
