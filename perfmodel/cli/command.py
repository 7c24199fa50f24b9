"""From the table of flags to a typer command."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli import complete
from perfmodel.cli.flags import Flag
from perfmodel.cli.given import Given, given, repeated
from perfmodel.errors import BadInput, PerfmodelError, Problem

if TYPE_CHECKING:
    from perfmodel.report.answer import Document

Run = Callable[[Given], int]
TYPES: dict[str, Any] = {
    "text": list[str] | None,
    "switch": bool | None,
    "list": list[str] | None,
    "files": list[str] | None,
}


def flag_command(
    *flags: Flag, kind: Callable[[], type[Document]] | None = None
) -> Callable[[Run], Callable[..., None]]:
    """Make ``run(given) -> exit code`` a typer command with `flags`.

    Refusals become lines on stderr (and a document of `kind` on stdout with ``--json``) and the
    exit code of the error; ``--config`` and ``--dump-config`` are handled here.
    """

    def decorate(run: Run) -> Callable[..., None]:
        def command(ctx: typer.Context, **raw: Any) -> None:
            launch = ctx.find_root().obj or ()
            typed = given(raw, flags, ctx.info_name or "", launch)
            raise typer.Exit(_run(run, typed, kind, repeated(raw, flags)))

        command.__doc__ = run.__doc__
        _set_parameters(command, flags)
        return command

    return decorate


def _run(
    run: Run,
    typed: Given,
    kind: Callable[[], type[Document]] | None,
    problems: Sequence[Problem] = (),
) -> int:
    from perfmodel.cli.output import emit_refusal
    from perfmodel.cli.streams import put

    full = typed
    try:
        _check_launch(typed)
        full = typed.with_config()
        if found := (*problems, *full.empty()):
            raise BadInput(*found)
        if full.on("dump_config"):
            put(full.dump())
            return 0
        return run(full)
    except PerfmodelError as error:
        as_json = full.on("json") or full.text("format") == "json"
        return emit_refusal(error, as_json, kind() if kind and as_json else None)


def _check_launch(typed: Given) -> None:
    if typed.launch and "parallel" not in {flag.key for flag in typed.flags}:
        raise BadInput(
            Problem(
                "usage",
                f"perfmodel {typed.command} takes no launch command after --; perfmodel predict "
                "--parallel -- COMMAND reads one",
                field="--",
                value=" ".join(typed.launch),
            )
        )


def _set_parameters(command: Callable[..., None], flags: Sequence[Flag]) -> None:
    context = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    options = [
        inspect.Parameter(
            flag.key, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_annotation(flag)
        )
        for flag in flags
    ]
    # typer reads a command's options from its signature and annotations
    command.__signature__ = inspect.Signature([context, *options])  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in (context, *options)}


def _annotation(flag: Flag) -> Any:
    completer = getattr(complete, flag.complete) if flag.complete else None
    help_text = f"{flag.help} [{flag.default}]" if flag.default else flag.help
    if flag.kind == "files":
        return Annotated[TYPES[flag.kind], typer.Argument(help=help_text, metavar=flag.metavar)]
    option = typer.Option(
        f"--{flag.name}",
        help=help_text,
        metavar=flag.metavar or None,
        autocompletion=completer,
        show_default=False,
    )
    return Annotated[TYPES[flag.kind], option]
