"""Texts to numbers and choices; every refusal is one line that says what to type instead."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TypeVar

from perfmodel.cli.flags import BY_KEY
from perfmodel.cli.given import FALSE, TRUE, Given
from perfmodel.errors import BadInput, PerfmodelError, Problem

T = TypeVar("T")
SIDE = (16, 16384)
_SIZE = re.compile(r"(\d+)\s*[xX*]\s*(\d+)")


class Collector:
    """Runs readers and keeps what they refuse, so that all problems are shown at once."""

    def __init__(self) -> None:
        """Nothing refused yet."""
        self.problems: list[Problem] = []

    def __call__(self, read: Callable[[], T]) -> T | None:
        """The result of `read`; None when it refused."""
        try:
            return read()
        except PerfmodelError as error:
            self.problems.extend(error.problems)
            return None

    def finish(self) -> None:
        """Raise everything that was refused, each line once.

        Raises:
            BadInput: something was.
        """
        if self.problems:
            raise BadInput(*dict.fromkeys(self.problems))


def refuse(
    key: str, value: str, what: str, legal: str | Sequence[str] = (), try_: str | None = None
) -> BadInput:
    """``error[frames]: --frames 0 is ...; legal: ...; try --frames 189``.

    A `key` without a flag of its own is one of ``--option``.
    """
    name = BY_KEY[key].name if key in BY_KEY else key
    flag = f"--{name} " if key in BY_KEY else f"--option {key}="
    choices = tuple(filter(None, (legal,))) if isinstance(legal, str) else tuple(legal)
    example = try_ if try_ is not None else BY_KEY[key].example if key in BY_KEY else ""
    parts = [f"{flag}{value or chr(34) * 2} {what}"]
    if choices:
        parts.append(f"legal: {', '.join(choices)}")
    if example:
        parts.append(f"try {flag}{example}")
    suggestions = (f"{flag}{example}",) if example else ()
    return BadInput(
        Problem(
            name,
            "; ".join(parts),
            field=flag.rstrip(),
            value=value,
            legal_values=choices,
            suggestions=suggestions,
        )
    )


def whole(given: Given, key: str, low: int, high: int) -> int | None:
    """A whole number of a flag in [low, high]; None when it was not given."""
    text = given.text(key)
    if text is None:
        return None
    legal = f"{low:,} to {high:,}"
    cleaned = text.strip().replace("_", "").replace(",", "")
    if not re.fullmatch(r"[+-]?\d{1,30}", cleaned):
        raise refuse(key, text, "is not a whole number", legal)
    if not low <= int(cleaned) <= high:
        raise refuse(key, text, "is out of range", legal)
    return int(cleaned)


def real(given: Given, key: str, low: float, high: float, above_low: bool = False) -> float | None:
    """A finite number of a flag in [low, high]; None when it was not given."""
    text = given.text(key)
    if text is None:
        return None
    legal = f"{'above ' if above_low else ''}{low:g} to {high:,g}"
    value = number(text)
    if value is None:
        raise refuse(key, text, "is not a number", legal)
    if not (low < value <= high or (value == low and not above_low)):
        raise refuse(key, text, "is out of range", legal)
    return value


def number(text: str) -> float | None:
    """A finite number; None for anything else (nan and inf too)."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def choice(key: str, text: str, legal: Sequence[str]) -> str:
    """One of `legal`, whatever its case and dashes."""
    by_folded = {_fold(name): name for name in legal}
    if found := by_folded.get(_fold(text)):
        return found
    near = get_close_matches(_fold(text), by_folded, n=1, cutoff=0.4)
    best = by_folded[near[0]] if near else legal[0]
    raise refuse(key, text, "is unknown", legal, best)


def _fold(text: str) -> str:
    return text.strip().lower().replace("-", "_")


def switch(key: str, text: str) -> bool:
    """``on`` or ``off`` (true, false, yes, no, 1, 0)."""
    folded = _fold(text)
    if folded in TRUE or folded in FALSE:
        return folded in TRUE
    raise refuse(key, text, "is neither on nor off", ("on", "off"), "on")


def size(given: Given) -> tuple[int, int] | None:
    """Width and height of ``--size WxH``; None when it was not given."""
    text = given.text("size")
    if text is None:
        return None
    found = _SIZE.fullmatch(text.strip())
    legal = f"{SIDE[0]:,} to {SIDE[1]:,} pixels a side"
    if found is None:
        raise refuse("size", text, "is not WIDTHxHEIGHT", legal)
    width, height = (int(side[:9]) for side in found.groups())
    if not all(SIDE[0] <= side <= SIDE[1] for side in (width, height)):
        raise refuse("size", text, "is out of range", legal)
    return width, height


def pairs(given: Given, key: str) -> dict[str, str]:
    """``KEY=VALUE`` texts of a flag that may be repeated; a key has one value."""
    found: dict[str, str] = {}
    for text in given.many(key):
        name, equals, value = text.partition("=")
        if not equals or not name.strip() or not value.strip():
            raise refuse(key, text, "is not KEY=VALUE")
        if found.setdefault(name.strip(), value.strip()) != value.strip():
            twice = f"and {found[name.strip()]} are both given for {name.strip()}; give one"
            raise refuse(key, text, twice, try_="")
    return found
