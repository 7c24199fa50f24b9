"""A page before it is rendered: paragraphs, tables and commands, in order."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from perfmodel.report.words import UNKNOWN

NBSP = "\u00a0"
LEFT_OUT = "{left out}"
ZERO_CELLS = frozenset({"0", "0.0", "0 %", UNKNOWN, ""})


def places(text: str) -> int:
    """Places that `text` takes on a terminal: wide signs two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(sign) else 2 if is_wide(sign) else 1 for sign in text)


def is_wide(sign: str) -> bool:
    """Whether a sign takes two places, as ideographs do."""
    return unicodedata.east_asian_width(sign) in ("W", "F")


@dataclass(frozen=True, slots=True)
class Column:
    """One column: header lines, cells, alignment, and whether it may go.

    `drop`: 0 stays; others are left out while the table is too wide, highest first (2 and 3 always
    below 80 columns), those below 0 only where nothing else is left.  `drop_zero`: left out when
    all its cells are zero or unknown.  `gist`: what a note under the table says of a column that
    was left out for its width.
    """

    header: str
    cells: Sequence[str]
    right: bool = True
    drop: int = 0
    drop_zero: bool = False
    gist: str = ""

    @property
    def width(self) -> int:
        """Characters of the widest line."""
        return max(map(places, [*self.header.split("\n"), *self.cells]))

    @property
    def says_nothing(self) -> bool:
        """Whether the column may be left out because all cells are zero or unknown."""
        return self.drop_zero and all(cell in ZERO_CELLS for cell in self.cells)


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Text that wraps; `label` opens it, later lines are indented by `hanging` more."""

    text: str
    label: str = ""
    indent: int = 0
    hanging: int = 0


@dataclass(frozen=True, slots=True)
class TablePart:
    """A table; the row `highlight` is the pick.

    `note` stands under it; `LEFT_OUT` in it becomes the gists of the columns that do not fit.
    """

    columns: tuple[Column, ...]
    highlight: int | None = None
    note: str = ""

    def note_on(self, kept: Sequence[Column]) -> str:
        """The note where only the columns `kept` are shown."""
        gists = [column.gist for column in self.columns if column not in kept and column.gist]
        return self.note.replace(LEFT_OUT, "".join(f"{gist} + " for gist in gists))


@dataclass(frozen=True, slots=True)
class Code:
    """Lines to paste into a shell, never wrapped."""

    text: str


@dataclass(frozen=True, slots=True)
class Blank:
    """An empty line."""


Part = Paragraph | TablePart | Code | Blank


@dataclass(slots=True)
class Page:
    """A page that grows from top to bottom."""

    parts: list[Part] = field(default_factory=list)

    def blank(self) -> None:
        """An empty line, unless the page begins or already has one."""
        if self.parts and not isinstance(self.parts[-1], Blank):
            self.parts.append(Blank())

    def paragraph(
        self, text: str, label: str = "", indent: int = 0, hanging: int | None = None
    ) -> None:
        """Wrapped text, if there is any; later lines hang under the text after the label."""
        if text or label:
            hang = len(label) if hanging is None else hanging
            self.parts.append(Paragraph(text, label, indent, hang))

    def items(
        self, items: Iterable[str], label: str = "", indent: int = 0, separator: str = ", "
    ) -> None:
        """Items broken only between items."""
        kept = [unbroken(item) for item in items if item]
        self.paragraph(separator.join(kept), label, indent, hanging=2)

    def table(
        self, columns: Iterable[Column], highlight: int | None = None, note: str = ""
    ) -> None:
        """A table without the columns that say nothing; none at all without rows."""
        kept = tuple(column for column in columns if not column.says_nothing)
        if kept and kept[0].cells:
            self.parts.append(TablePart(kept, highlight, note))

    def code(self, text: str | None) -> None:
        """A command as typed."""
        if text:
            self.parts.append(Code(text.rstrip("\n")))


def unbroken(text: str) -> str:
    """`text` with spaces at which no line may break."""
    return text.replace(" ", NBSP)
