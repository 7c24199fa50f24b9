"""A page as plain text: wrapping, aligned tables, ASCII; rich adds the colour.

Plain text needs no rich, which keeps a command in a pipe or a script quick to start.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfmodel.report.page import NBSP, Blank, Code, Column, Page, Paragraph, TablePart

MAX_WIDTH = 100
NARROW = 80
INDENT = 2
GAP = "  "
RULE = "─"
BEST = "bold"
DIM = "dim"
LABEL = "bold blue"
ASSUMED = re.compile(r"\S+\*(?=[\s,;)]|$)")


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `style` holds for all of it, `label` styles its first characters."""

    text: str
    style: str = ""
    label: int = 0
    prose: bool = False


def total_width(columns: Sequence[Column]) -> int:
    """Characters of a table row: the indent, then two spaces between columns."""
    return INDENT + sum(column.width for column in columns) + len(GAP) * (len(columns) - 1)


def fit_columns(columns: Sequence[Column], width: int) -> list[Column]:
    """Leave out optional columns until the table fits; below 80 columns levels 2 and 3 always."""
    kept = list(columns)
    for level in sorted({column.drop for column in columns if column.drop}, reverse=True):
        if (width < NARROW and level in (2, 3)) or total_width(kept) > width:
            kept = [column for column in kept if column.drop != level]
    return kept


def render_text(
    page: Page, width: int = MAX_WIDTH, color: bool = False, ascii_only: bool = False
) -> str:
    """The page as one string that ends with a newline; at most 100 columns, except commands."""
    lines = list(_lines(page, min(width, MAX_WIDTH)))
    text = _colored(lines) if color else "\n".join(line.text.rstrip() for line in lines)
    result = text.strip("\n") + "\n"
    return to_ascii(result) if ascii_only else result


def _lines(page: Page, width: int) -> Iterator[Line]:
    for part in page.parts:
        match part:
            case Paragraph():
                yield from _paragraph(part, width)
            case TablePart():
                yield from _table(part, width)
            case Code():
                yield from map(Line, part.text.split("\n"))
            case Blank():
                yield Line("")


def _paragraph(part: Paragraph, width: int) -> Iterator[Line]:
    wrapped = textwrap.wrap(
        part.label.replace(" ", NBSP) + part.text,
        width,
        initial_indent=" " * part.indent,
        subsequent_indent=" " * (part.indent + part.hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for index, line in enumerate(wrapped):
        label = 0 if index or not part.label.strip() else part.indent + len(part.label.rstrip())
        yield Line(line.replace(NBSP, " "), label=label, prose=True)


def _table(part: TablePart, width: int) -> Iterator[Line]:
    kept = fit_columns(part.columns, width)
    headers = [column.header.split("\n") for column in kept]
    depth = max(map(len, headers))
    for level in range(depth):
        yield Line(_row(kept, [h[level] if level < len(h) else "" for h in headers]))
    yield Line(" " * INDENT + RULE * (total_width(kept) - INDENT))
    for index, cells in enumerate(zip(*(column.cells for column in kept), strict=True)):
        yield Line(_row(kept, cells), style=BEST if index == part.highlight else "")
    if part.note:
        yield from _paragraph(Paragraph(part.note_on(kept), indent=INDENT), width)


def _row(columns: Sequence[Column], cells: Sequence[str]) -> str:
    padded = (
        cell.rjust(column.width) if column.right else cell.ljust(column.width)
        for column, cell in zip(columns, cells, strict=True)
    )
    return " " * INDENT + GAP.join(padded)


def _colored(lines: Sequence[Line]) -> str:
    from rich.console import Console
    from rich.text import Text

    out = io.StringIO()
    console = Console(
        file=out,
        force_terminal=True,
        color_system="standard",
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    for line in lines:
        text = Text(line.text.rstrip(), style=line.style)
        if line.label:
            text.stylize(LABEL, 0, line.label)
        if line.prose:
            text.highlight_regex(ASSUMED, DIM)
        console.print(text, soft_wrap=True)
    return out.getvalue()


def to_ascii(text: str) -> str:
    """Rules become ``-``, any other sign ``?``."""
    return text.replace(RULE, "-").encode("ascii", "replace").decode("ascii")
