"""The output flags, and an answer shown as they say."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.cli.given import Given
from perfmodel.cli.streams import is_utf8, no_color, put, say, warn
from perfmodel.cli.values import Collector, choice, refuse, whole
from perfmodel.errors import BadInput, PerfmodelError, Problem

if TYPE_CHECKING:
    from perfmodel.report.answer import Document, Prediction
    from perfmodel.report.page import Page
    from perfmodel.report.render import Format

DEFAULT_COLUMNS = 100
WRITTEN = (".json", ".csv", ".md", ".txt")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|[+-]?inf(inity)?", re.IGNORECASE)
SUFFIXES: dict[str, Format] = {".json": "json", ".csv": "csv", ".md": "md"}


@dataclass(frozen=True, slots=True)
class Target:
    """Where the answer goes and how it looks.

    `commands` configurations show their commands (None: only how to serve the best); `folder`, if
    given, gets them as files.
    """

    form: Format = "table"
    path: Path | None = None
    color: bool = False
    ascii_only: bool = False
    width: int = DEFAULT_COLUMNS
    rejected: bool = False
    commands: int | None = None
    folder: Path | None = None
    operators: int = 10


def page_columns(path: Path | None = None) -> int:
    """Columns of a page: those of the terminal that it is printed on, else 100."""
    terminal = sys.stdout.isatty() and path is None
    return shutil.get_terminal_size().columns if terminal else DEFAULT_COLUMNS


def read_target(given: Given, commands: int | None = None) -> Target:
    """The output flags, the terminal and the environment.

    Raises:
        BadInput: every output flag that cannot be read.
    """
    collect = Collector()
    form = collect(lambda: _format(given))
    color = collect(lambda: choice("color", given.text("color") or "auto", COLORS))
    operators = collect(lambda: whole(given, "operators", 0, 10_000))
    shown = collect(lambda: _commands(given, commands))
    path = collect(lambda: out_path(given))
    collect.finish()
    count, folder = shown or (commands, None)
    terminal = sys.stdout.isatty() and path is None
    return Target(
        form=form or "table",
        path=path,
        color=color == "always" or (color == "auto" and terminal and not no_color()),
        ascii_only=path is None and not is_utf8(sys.stdout.encoding),
        width=page_columns(path),
        rejected=given.on("rejected"),
        commands=count,
        folder=folder,
        operators=10 if operators is None else operators,
    )


def out_path(given: Given) -> Path | None:
    """Where ``--out`` says; a file that is no answer of ours is left alone.

    Raises:
        BadInput: no name of a file, or a file that another program wrote.
    """
    text = given.text("out")
    if text is None:
        return None
    if "\0" in text:
        raise refuse("out", text.replace("\0", "\\0"), "holds a NUL byte; try a plain file name")
    path = Path(text)
    try:
        foreign = path.is_file() and not _is_ours(path, given.command == "plan")
    except OSError as error:
        raise refuse("out", text, f"cannot be written: {error.strerror}") from None
    if foreign:
        raise refuse("out", text, "is a file that perfmodel did not write; remove it first")
    return path


def _is_ours(path: Path, to_folder: bool) -> bool:
    """An empty file, or one with the suffix of an answer; JSON has the fields of one too."""
    suffix = path.suffix.lower()
    if path.stat().st_size == 0:
        return not to_folder or suffix in WRITTEN
    if suffix == ".json":
        return b'"schema_version"' in path.read_bytes()
    return suffix in WRITTEN


COLORS = ("auto", "always", "never")


def _format(given: Given) -> Format:
    from perfmodel.report.render import FORMATS

    text, out = given.text("format"), given.text("out")
    if given.on("json"):
        if text and text != "json":
            raise refuse("format", text, "and --json exclude each other; give one", try_="json")
        return "json"
    if text:
        wanted = choice("format", text, FORMATS)
        return next(form for form in FORMATS if form == wanted)
    return SUFFIXES.get(Path(out).suffix.lower(), "table") if out else "table"


def _commands(given: Given, default: int | None) -> tuple[int | None, Path | None]:
    text = given.text("commands")
    if text is None:
        return default, None
    last = text.strip().removeprefix("1-")
    if not last or "\0" in text or (NUMBER.fullmatch(last) and not last.lstrip("+-").isdecimal()):
        shown = text.replace("\0", "\\0")
        raise refuse("commands", shown, "is neither a count nor a folder", ("0 to 999", "a folder"))
    if last.lstrip("+-").isdecimal():
        count = whole(given.with_values({"commands": last}), "commands", 0, 999)
        return count or 0, None
    return default, Path(text)


def emit(document: Document, target: Target, seconds: float | None = None) -> int:
    """Show an answer, its warnings and problems.

    Returns:
        The exit code that belongs to the answer.

    Raises:
        BadInput: the file or folder to write to cannot be written.
    """
    from perfmodel.report.render import Look, render

    warn([*document.problems, *document.warnings])
    # the screen shows a refusal as its lines only
    if target.form in ("json", "csv") or document.has_page:
        look = Look(
            width=target.width,
            color=target.color,
            ascii_only=target.ascii_only,
            rejected=target.rejected,
            commands=target.commands,
            operators=target.operators,
            seconds=seconds,
        )
        put(render(document, target.form, look), target.path)
    if target.folder:
        _write_commands(document, target.folder)
    return document.exit_code


def put_json(found: Mapping[str, Any]) -> None:
    """What was looked up, as a document of its schema version."""
    from perfmodel.report.asked import SCHEMA_VERSION

    document = {"schema_version": SCHEMA_VERSION, "status": "ok", **found}
    put(json.dumps(document, indent=2, ensure_ascii=False) + "\n")


def show_found(answer: Callable[[], Page | Mapping[str, Any]], as_json: bool) -> None:
    """Print the page or the document that `answer` finds; a refusal is its lines and exit code.

    Raises:
        typer.Exit: a refusal, with its exit code.
    """
    import typer

    from perfmodel.report.page import Page
    from perfmodel.report.tables import render_text

    try:
        found = answer()
    except PerfmodelError as error:
        raise typer.Exit(emit_refusal(error, as_json)) from None
    if isinstance(found, Page):
        color = sys.stdout.isatty() and not no_color()
        plain = not is_utf8(sys.stdout.encoding)
        put(render_text(found, page_columns(), color=color, ascii_only=plain))
    else:
        put_json(found)


def emit_refusal(error: PerfmodelError, as_json: bool, kind: type[Document] | None = None) -> int:
    """Lines on stderr; with ``--json`` the same as a document on stdout.

    The document is one of `kind`, for commands whose answer has room for problems.

    Returns:
        The error's exit code.
    """
    warn(error.problems)
    if as_json:
        from perfmodel.report.answer import refusal

        try:
            put(refusal(error, kind).model_dump_json() + "\n")
        except BadInput as unwritten:
            warn(unwritten.problems)
    return error.exit_code


def _write_commands(document: Document, folder: Path) -> None:
    try:
        for prediction in _predictions(document):
            _write_scripts(prediction, folder)
    except OSError as error:
        raise BadInput(
            Problem(
                "commands",
                f"--commands {folder} cannot be written: {error.strerror}",
                field="--commands",
                value=str(folder),
            )
        ) from None


def _predictions(document: Document) -> tuple[Prediction, ...]:
    from perfmodel.report.answer import Answer, PredictAnswer

    if isinstance(document, Answer):
        return document.recommendations
    if isinstance(document, PredictAnswer) and document.prediction:
        return (document.prediction,)
    return ()


def _write_scripts(prediction: Prediction, folder: Path) -> None:
    commands = prediction.commands
    if commands is None:
        return
    name = f"{prediction.rank or 1}_{prediction.config_id}"
    (folder / name).mkdir(parents=True, exist_ok=True)
    for stem in ("serve", "request", "benchmark"):
        text: str | None = getattr(commands, stem)
        if text:
            path = folder / name / f"{stem}.sh"
            path.write_text(f"#!/usr/bin/env bash\nset -euo pipefail\n{text}\n", encoding="utf-8")
            path.chmod(0o755)
    say(f"wrote {folder / name}: serve.sh, request.sh, benchmark.sh")
