"""Reads files that come from anywhere: whatever is wrong with one is a reason in a few words.

JSON and YAML parsers give up in their own ways on deep nesting and on numbers of thousands of
digits, and a path may be longer than the file system takes.  Here each of these is one exception.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import Any

DEEPEST = 64
"""Levels of nesting; no format here needs a dozen."""
MOST_DIGITS = 300
"""Digits of one number; a double ends at 309."""

_LONG_NUMBER = re.compile(
    rf"(?<![0-9A-Za-z])(?:\d[\d_]{{{MOST_DIGITS},}}|0[xb][\dA-Fa-f_]{{250,}})"
)
_BRACKET = re.compile(r"[\[\]{}]")
_DEEP_BLOCK = re.compile(rf"^ *(?:[-?] +){{{DEEPEST},}}|^ {{1000}}", re.M)


class Unreadable(Exception):
    """Why a text cannot be read, in a few words; `line` counts from 1 where it is known."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        """Keep the reason."""
        super().__init__(reason)
        self.line = line


def as_word(path: Path) -> str:
    """`path` as one word of a shell command: quoted where needed, never taken for a flag."""
    text = str(path)
    return quote(f"./{text}" if text.startswith("-") else text)


def is_file(path: Path) -> bool:
    """Whether `path` is a file; a name that no file can have is none."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_dir(path: Path) -> bool:
    """Whether `path` is a folder; a name that no folder can have is none."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def read_text(path: Path, errors: str = "strict") -> str:
    """UTF-8 text of a file.

    Raises:
        Unreadable: no such file, no permission, an impossible name, another encoding.
    """
    try:
        return path.read_text(encoding="utf-8", errors=errors)
    except UnicodeDecodeError:
        raise Unreadable("not UTF-8 text") from None
    except OSError as error:
        raise Unreadable(error.strerror or "cannot be opened") from None
    except ValueError:
        raise Unreadable("not a file name") from None


def whole_lines(path: Path) -> str:
    """Text of a file that is appended to; an interrupted last line is cut off in the file too."""
    if not path.exists():
        return ""
    text = path.read_text(encoding="utf-8")
    if text and not text.endswith("\n"):
        text = text[: text.rfind("\n") + 1]
        path.write_text(text, encoding="utf-8")
    return text


def parse_json(text: str) -> Any:
    """JSON of a text.

    Raises:
        Unreadable: broken, nested too deep, or with a number of hundreds of digits.
    """
    _refuse_long_numbers(text)
    try:
        data = json.loads(text)
    except RecursionError:
        raise Unreadable(f"nested deeper than {DEEPEST} levels") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno} column {error.colno}"
        raise Unreadable(f"no JSON: {error.msg.lower()} at {where}", error.lineno) from None
    except ValueError as error:
        raise Unreadable(f"no JSON: {str(error)[:80]}") from None
    if text.count("[") + text.count("{") > DEEPEST and depth(data) > DEEPEST:
        raise Unreadable(f"nested deeper than {DEEPEST} levels")
    return data


def read_json(path: Path) -> Any:
    """JSON of a file.

    Raises:
        Unreadable: what `read_text` and `parse_json` refuse.
    """
    return parse_json(read_text(path))


def read_yaml(path: Path, loader: Any = None) -> Any:
    """YAML of a file, by `loader` (PyYAML's safe one in C unless given).

    Raises:
        Unreadable: what `read_text` refuses, broken YAML, deep nesting, endless numbers.
    """
    import yaml

    text = read_text(path)
    _refuse_long_numbers(text)
    if _DEEP_BLOCK.search(text) or max(_flow_depths(text), default=0) > DEEPEST:
        raise Unreadable(f"nested deeper than {DEEPEST} levels")
    try:
        return yaml.load(text, loader or yaml.CSafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or "broken YAML"
        raise Unreadable(what, mark.line + 1 if mark else None) from None
    except RecursionError:
        raise Unreadable(f"nested deeper than {DEEPEST} levels") from None
    except (ValueError, OverflowError, TypeError) as error:
        raise Unreadable(f"a value that YAML cannot read: {str(error)[:80]}") from None


def _refuse_long_numbers(text: str) -> None:
    if found := _LONG_NUMBER.search(text):
        line = text.count("\n", 0, found.start()) + 1
        shown = f"{found[0][:12]}..."
        raise Unreadable(f"the number {shown} has more than {MOST_DIGITS} digits", line)


def _flow_depths(text: str) -> Iterator[int]:
    open_ = 0
    for bracket in _BRACKET.findall(text):
        open_ = open_ + 1 if bracket in "[{" else max(0, open_ - 1)
        yield open_


def depth(data: Any, most: int = DEEPEST) -> int:
    """Levels of nesting of parsed data; counting ends above `most`."""
    levels, level = 0, [data]
    while level and levels <= most:
        levels += 1
        inside = [x for x in level if isinstance(x, (dict, list))]
        level = [y for x in inside for y in (x.values() if isinstance(x, dict) else x)]
    return levels
