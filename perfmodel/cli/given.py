"""What was typed: flags and the ``--config`` file, as text."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from perfmodel.cli.flags import COMMANDS, OUTPUT, Flag, key_of
from perfmodel.errors import BadInput, Problem

Value = str | bool | tuple[str, ...]
SELF = ("config", "dump_config")
TRUE = ("true", "on", "yes", "1")
FALSE = ("false", "off", "no", "0")


@dataclass(frozen=True, slots=True)
class Given:
    """Flags that the user gave (a flag's key -> its text), and the launch command after ``--``."""

    values: Mapping[str, Value]
    flags: tuple[Flag, ...]
    command: str = ""
    launch: tuple[str, ...] = ()

    def text(self, key: str) -> str | None:
        """The text of a flag; None when it was not given."""
        value = self.values.get(key)
        return value if isinstance(value, str) else None

    def on(self, key: str) -> bool:
        """Whether a switch was given."""
        return self.values.get(key) is True

    def many(self, key: str) -> tuple[str, ...]:
        """The texts of a flag that may be repeated."""
        value = self.values.get(key)
        return value if isinstance(value, tuple) else ()

    def empty(self) -> list[Problem]:
        """Flags that were given no text."""
        found = []
        for flag in self.flags:
            value = self.values.get(flag.key)
            if isinstance(value, str) and not value.strip():
                example = flag.default or flag.example
                hint = f"try --{flag.name} {example}" if example else "leave it out"
                again = (f"--{flag.name} {example}",) if example else ()
                message = f"--{flag.name} is empty; {hint}"
                found.append(Problem(flag.name, message, f"--{flag.name}", "", suggestions=again))
        return found

    def with_values(self, changes: Mapping[str, Value]) -> Given:
        """The same with some flags replaced."""
        return replace(self, values={**self.values, **changes})

    def with_config(self) -> Given:
        """The ``--config`` file's flags under the given ones.

        Raises:
            BadInput: unreadable file, unknown key or a value of the wrong kind.
        """
        path = self.text("config")
        if path is None:
            return self
        found = dict(_read_config(Path(path), self.flags))
        return replace(self, values={**found, **self.values})

    def dump(self) -> str:
        """YAML with every flag that was given or has a fixed default."""
        import yaml

        out: dict[str, Any] = {}
        for flag in self.flags:
            value = self.values.get(flag.key, flag.default)
            if flag.key not in SELF and value not in ("", (), False):
                out[flag.name] = list(value) if isinstance(value, tuple) else _typed(value)
        return yaml.safe_dump(out, sort_keys=False)

    def again(self) -> str:
        """The command that asks the same, without where its answer goes and how that looks."""
        from perfmodel.api.command import flag

        asked = [f.key for f in self.flags if f not in (*OUTPUT, *COMMANDS)]
        words = [w for key in asked if key in self.values for w in flag(key, self.values[key])]
        launch = ["--parallel", "--", *self.launch] if self.launch else []
        return shlex.join(["perfmodel", self.command, *words, *launch])


def _typed(value: str | bool) -> str | bool | int:
    """A whole number as such, so that YAML needs no quotes."""
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def given(
    raw: Mapping[str, Any], flags: Sequence[Flag], command: str, launch: Sequence[str]
) -> Given:
    """From the parsed command line: what was not typed is left out."""
    values: dict[str, Value] = {}
    for flag in flags:
        value = raw.get(flag.key)
        many = flag.kind in ("list", "files")
        if many and value:
            values[flag.key] = tuple(value)
        elif isinstance(value, list | tuple):
            if value and not many:
                values[flag.key] = value[-1]
        elif value is not None and not many:
            values[flag.key] = value
    return Given(values, tuple(flags), command, tuple(launch))


def repeated(raw: Mapping[str, Any], flags: Sequence[Flag]) -> list[Problem]:
    """Flags that take one value and were given several."""
    found = []
    for flag in flags:
        texts = raw.get(flag.key)
        if flag.kind == "text" and isinstance(texts, list | tuple) and len(set(texts)) > 1:
            stated = " and ".join(f"--{flag.name} {text}" for text in dict.fromkeys(texts))
            message = f"{stated} are both given; give --{flag.name} once"
            found.append(Problem("flag", message, f"--{flag.name}", str(texts[-1])))
    return found


def _read_config(path: Path, flags: Sequence[Flag]) -> Iterator[tuple[str, Value]]:
    by_name = {flag.key: flag for flag in flags}
    problems: list[Problem] = []
    for name, value in _load(path).items():
        key = key_of(str(name))
        if key not in by_name:
            problems.append(_unknown(path, str(name), [flag.name for flag in flags]))
            continue
        try:
            yield key, _value(path, by_name[key], value)
        except BadInput as error:
            problems.extend(error.problems)
    if problems:
        raise BadInput(*problems)


def _load(path: Path) -> dict[Any, Any]:
    from perfmodel.files import Unreadable, read_yaml

    try:
        loaded = read_yaml(path)
    except Unreadable as error:
        line = f"line {error.line}: " if error.line else ""
        raise BadInput(
            Problem(
                "config",
                f"--config {path} cannot be read: {line}{error}",
                field="--config",
                value=str(path),
            )
        ) from None
    if not isinstance(loaded, dict):
        raise BadInput(
            Problem(
                "config",
                f'--config {path} holds no keys; a line is like "frames: 189"',
                field="--config",
                value=str(path),
            )
        )
    return loaded


def _value(path: Path, flag: Flag, value: Any) -> Value:
    if flag.kind == "switch":
        if isinstance(value, bool):
            return value
    elif flag.kind == "list":
        if isinstance(value, dict):
            return tuple(f"{key}={_scalar(item)}" for key, item in value.items())
        if isinstance(value, list):
            return tuple(map(_scalar, value))
        return (_scalar(value),)
    elif not isinstance(value, list | dict | bool) and value is not None:
        return _scalar(value)
    want = (
        "true or false" if flag.kind == "switch" else f"one value, like {flag.example or 'a name'}"
    )
    raise BadInput(
        Problem(
            "config",
            f"{path}: {flag.name}: {value!r} is not {want}",
            field=f"{path}: {flag.name}",
            value=str(value),
        )
    )


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _unknown(path: Path, name: str, names: Sequence[str]) -> Problem:
    near = get_close_matches(name.replace("_", "-"), names, n=1, cutoff=0.5)
    hint = f'did you mean "{near[0]}"?' if near else "keys are the flags' names without dashes"
    return Problem(
        "config",
        f'{path}: unknown key "{name}"; {hint}',
        field=f"{path}: {name}",
        value=name,
        suggestions=tuple(near),
    )
