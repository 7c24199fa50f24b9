"""Configuration files of a diffusers directory, read with care: they come from anywhere.

``keys.json`` holds the constructor arguments and defaults of the classes in diffusers 0.42.1
(https://pypi.org/project/diffusers/0.42.1/, Apache-2.0).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel import files
from perfmodel.errors import BadInput, Problem

RULE = "models-import"
LARGEST_FILE = 1 << 20
LARGEST_WIDTH = 1 << 17
"""More than any width, channel or token count of a published model."""
DEEPEST = 16


def refuse(where: str, what: str, **details: Any) -> BadInput:
    """The refusal of one field or file, in one line."""
    return BadInput(Problem(RULE, f"{where}: {what}", field=where, **details))


@cache
def class_keys() -> dict[str, dict[str, Any]]:
    """Constructor arguments with defaults, by class."""
    text = (Path(__file__).parent / "keys.json").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = json.loads(text)
    return loaded


def read_json(path: Path) -> dict[str, Any]:
    """One JSON object.

    Raises:
        BadInput: missing, too large, nested too deep, not JSON or not an object.
    """
    try:
        if path.stat().st_size > LARGEST_FILE:
            raise refuse(str(path), f"a configuration is at most {LARGEST_FILE:,} bytes")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a file name"
        raise refuse(str(path), f"cannot be read: {reason}") from None
    try:
        data = files.read_json(path)
    except files.Unreadable as error:
        raise refuse(str(path), f"cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise refuse(str(path), "a JSON object is needed")
    if files.depth(data, DEEPEST) > DEEPEST:
        raise refuse(str(path), f"is nested deeper than {DEEPEST} levels")
    return data


@dataclass(frozen=True)
class Config:
    """The configuration of one component.

    Attributes:
        path: file that it was read from, for messages.
        cls: class name.
        values: what the file says over the defaults of the class.
        given: names that the file says.
    """

    path: Path
    cls: str
    values: dict[str, Any]
    given: frozenset[str]

    def number(self, name: str, *, most: int = LARGEST_WIDTH) -> int:
        """A positive whole number.

        Raises:
            BadInput: of another type, not positive or beyond `most`.
        """
        value = self.values.get(name)
        legal = f"1 to {most:,}"
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
            shown = json.dumps(value)[:40]
            what = f"{name}: {shown} is not a whole number from {legal}"
            raise refuse(str(self.path), what, value=shown, legal_values=(legal,))
        return value

    def maybe(self, name: str) -> int | None:
        """The same, or None where the file says null."""
        return None if self.values.get(name) is None else self.number(name)

    def ratio(self, name: str, *, most: float = 1e3) -> float:
        """A positive number.

        Raises:
            BadInput: of another type, not positive or beyond `most`.
        """
        value = self.values.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= most:
            shown = json.dumps(value)[:40]
            what = f"{name}: {shown} is not a number above 0 and up to {most:g}"
            raise refuse(str(self.path), what, value=shown)
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false.

        Raises:
            BadInput: of another type.
        """
        value = self.values.get(name)
        if not isinstance(value, bool):
            shown = json.dumps(value)[:40]
            raise refuse(str(self.path), f"{name}: {shown} is not true or false", value=shown)
        return value

    def flags(self, name: str) -> tuple[bool, ...]:
        """A list of true and false.

        Raises:
            BadInput: not a list, or with other entries.
        """
        value = self.values.get(name)
        if not isinstance(value, list) or not all(isinstance(x, bool) for x in value):
            shown = json.dumps(value)[:40]
            raise refuse(str(self.path), f"{name}: {shown} is not a list of true and false")
        return tuple(value)

    def numbers(self, name: str, count: int | None = None) -> tuple[int, ...]:
        """A list of positive whole numbers.

        Raises:
            BadInput: not a list, of another length, or with other entries.
        """
        value = self.values.get(name)
        whole = isinstance(value, list) and all(
            isinstance(x, int) and not isinstance(x, bool) and 0 < x <= LARGEST_WIDTH for x in value
        )
        if not whole or not value or (count is not None and len(value) != count):
            wanted = f"{count} " if count else ""
            shown = json.dumps(value)[:40]
            what = f"{name}: {shown} is not a list of {wanted}positive whole numbers"
            raise refuse(str(self.path), what, value=shown)
        return tuple(value)


def read_config(path: Path) -> Config:
    """The configuration of a transformer or VAE whose class is known.

    Raises:
        BadInput: unreadable, without a class, or with a key that the class does not have.
    """
    data = read_json(path)
    cls = data.get("_class_name")
    if not isinstance(cls, str):
        raise refuse(str(path), "_class_name is missing; it names the diffusers class")
    known = class_keys().get(cls)
    given = {key: value for key, value in data.items() if not key.startswith("_")}
    if known is None:
        return Config(path, cls, given, frozenset(given))
    for key in given:
        if key not in known:
            near = get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            what = f'unknown key "{key}" for {cls}{hint}'
            raise refuse(str(path), what, value=key, suggestions=tuple(near))
    return Config(path, cls, {**known, **given}, frozenset(given))
