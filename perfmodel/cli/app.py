"""The tree of commands, and what happens to everything that is typed wrongly."""

from __future__ import annotations

import errno
import itertools
import re
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any

import typer
import typer.core
import typer.main

from perfmodel.cli import INTERRUPTED, PROGRAM
from perfmodel.cli.output import emit_refusal
from perfmodel.cli.streams import put, quiet_pipe, unwritable
from perfmodel.errors import BadInput, PerfmodelError, Problem

UNWRITABLE = (errno.EBADF, errno.ENOSPC, errno.EIO)
NO_COMMAND = re.compile(r"No such command '(.*?)'")
GROUPS: dict[str, tuple[tuple[str, str, str], ...]] = {
    "decide": (
        ("recommend", "which parallel configuration to use", "--gpus 4xB300 --frames 189"),
        ("predict", "one configuration by stage and operator", "--gpus 4xB300 --parallel usp4"),
        ("compare", "the same question side by side", "--vary gpus=4xB300,8xH200"),
        ("plan", "the few runs that decide a tie", "--gpus 4xB300 --max-runs 3"),
    ),
    "check": (
        ("verify", "did my pick hold?", "--from sweep/results.jsonl"),
        ("validate", "how wrong is the model?", "calibration/runs/*.jsonl"),
        ("records", "measured runs in the public format", "convert headers.txt"),
    ),
    "calibrate": (
        ("bench", "measure this device", "--out records/"),
        ("calibrate", "fit the laws to measurements", "--records records/ --device NAME"),
    ),
    "look up": (
        ("hardware", "accelerators and their sources", "list"),
        ("models", "models, their shapes and sources", "list"),
        ("explain", "any axis, stage, rule or column", "usp"),
        ("schema", "JSON Schema of an answer", "recommend"),
    ),
}


def command_names() -> list[str]:
    """Commands whose file is there, in the order of the overview."""
    names = [name for rows in GROUPS.values() for name, _, _ in rows]
    return [name for name in names if find_spec(f"perfmodel.cli.{name}") is not None]


class LazyCommands(typer.core.TyperGroup):
    """Imports the file of a command when the command is used."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Names in the order of the overview."""
        return command_names()

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of that name, None when there is none."""
        return load(cmd_name) if cmd_name in command_names() else None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As typer does, with our own line for a name that does not exist."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            raise BadInput(_unknown_command(args[0]))
        return super().resolve_command(ctx, args)


def load(name: str) -> Any:
    """The click command of `perfmodel.cli.<name>`: its `app` (a group) or its `command`."""
    module = import_module(f"perfmodel.cli.{name}")
    app: typer.Typer | None = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode=None)
        app.command(name)(module.command)
    else:
        app.info.name = name
        app.rich_markup_mode = None
        app._add_completion = False
    return typer.main.get_command(app)


def overview() -> str:
    """Four groups with an example each, for ``perfmodel`` alone."""
    present = set(command_names())
    lines = ["Predicts diffusion inference by stage, and recommends a parallel configuration.", ""]
    for group, rows in GROUPS.items():
        shown = [row for row in rows if row[0] in present]
        if shown:
            lines.append(group)
            lines.extend(f"  {name:<10} {what}" for name, what, _ in shown)
            lines.append(f"    {PROGRAM} {shown[0][0]} {shown[0][2]}")
    lines += [
        "",
        f"{PROGRAM} COMMAND --help lists the flags; {PROGRAM} explain TERM explains them.",
    ]
    return "\n".join(lines) + "\n"


def _version(wanted: bool) -> None:
    if wanted:
        from perfmodel import __version__

        put(f"{PROGRAM} {__version__}\n")
        raise typer.Exit


def _root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Predicts diffusion inference by stage, and recommends a parallel configuration."""
    if ctx.invoked_subcommand is None:
        put(overview())


def build() -> Any:
    """The root command."""
    app = typer.Typer(
        cls=LazyCommands, invoke_without_command=True, rich_markup_mode=None, add_completion=True
    )
    app.callback()(_root)
    return typer.main.get_command(app)


def split_launch(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Own flags, and the launch command after ``--``.

    ``--parallel`` before it is dropped, unless nothing follows: then it lacks its value.
    """
    if "--" not in argv:
        return list(argv), []
    at = list(argv).index("--")
    own, launch = list(argv[:at]), list(argv[at + 1 :])
    if launch and own and own[-1] == "--parallel":
        own.pop()
    return own, launch


def run(argv: Sequence[str]) -> int:
    """Parse and run; everything that was typed wrongly becomes one line a problem.

    Returns:
        The exit code.
    """
    own, launch = split_launch(argv)
    as_json = "--json" in own or "--format=json" in own or ("--format", "json") in _adjacent(own)
    try:
        code = build().main(own, prog_name=PROGRAM, standalone_mode=False, obj=tuple(launch))
    except PerfmodelError as error:
        return emit_refusal(error, as_json)
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except BrokenPipeError:
        quiet_pipe()
        return 0
    except OSError as error:
        if error.errno not in UNWRITABLE or error.filename is not None:
            raise
        return emit_refusal(unwritable(error), as_json)
    except Exception as error:
        if not _is_usage_error(error):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":
            put(f"{error}\n")
            return 0
        return emit_refusal(BadInput(_usage(error, own)), as_json)
    return code if isinstance(code, int) else 0


def _adjacent(words: list[str]) -> set[tuple[str, str]]:
    return set(itertools.pairwise(words))


def _is_usage_error(error: Exception) -> bool:
    # the base of typer's own usage errors, whichever click it carries
    bases = typer.BadParameter.__mro__
    return isinstance(error, bases[1])


def _unknown_command(name: str, known: Sequence[str] = ()) -> Problem:
    names = known or command_names()
    near = get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f'did you mean "{near[0]}"?' if near else f"commands: {', '.join(names)}"
    return Problem(
        "command",
        f'no command "{name}"; {hint}',
        value=name,
        legal_values=tuple(names),
        suggestions=tuple(near),
    )


def _typed(flag: str, argv: Sequence[str]) -> str:
    """The value that follows `flag`, last as typed; "" where it is not there."""
    found = ""
    for word, after in itertools.pairwise([*argv, ""]):
        if word == flag:
            found = after
        elif word.startswith(f"{flag}="):
            found = word.removeprefix(f"{flag}=")
    return found


def _usage(error: Any, argv: Sequence[str]) -> Problem:
    """A line for a flag that does not exist, lacks its value, or stands where none is expected."""
    option: str | None = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    typed = argv[0] if argv and argv[0] in command_names() else ""
    see = f"{PROGRAM} {typed} --help".replace("  ", " ")
    if option and hasattr(error, "possibilities"):
        known = context.command.params if context else ()
        flags = [text for parameter in known for text in parameter.opts]
        near = get_close_matches(option, flags, n=1, cutoff=0.5)
        hint = f'did you mean "{near[0]}"?' if near else f"flags: {see}"
        message = f'{typed or PROGRAM} has no flag "{option}"; {hint}'
        return Problem("flag", message, field=option, value=option, suggestions=tuple(near))
    text = " ".join(str(error.format_message()).split()).rstrip(".")
    for flag in getattr(getattr(error, "param", None), "opts", ()):
        text = text.replace(f"Invalid value for '{flag}'", f"{flag} {_typed(flag, argv)}")
    inner = getattr(getattr(context, "command", None), "commands", None)
    if inner and (missing := NO_COMMAND.match(text)):
        return _unknown_command(missing[1], tuple(inner))
    return Problem("usage", f"{text}; see {see}", field=option, value=option)
