"""A page as plain text: wrapping, aligned tables, ASCII; rich adds the colour.

Plain text needs no rich, which keeps a command in a pipe or a script quick to start.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfmodel.report.page import (
    NBSP,
    Blank,
    Code,
    Column,
    Page,
    Paragraph,
    TablePart,
    is_wide,
    places,
)

MAX_WIDTH = 100
NARROW = 80
INDENT = 2
LONGEST_HEAD = 40
GAP = "  "
RULE = "─"
FILL = "\ue000"
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
    text = part.label.replace(" ", NBSP) + part.text
    wrapped = textwrap.wrap(
        text if text.isascii() else _filled(text),
        width,
        initial_indent=" " * part.indent,
        subsequent_indent=" " * (part.indent + part.hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for index, line in enumerate(wrapped):
        label = 0 if index or not part.label.strip() else part.indent + len(part.label.rstrip())
        yield Line(line.replace(NBSP, " ").replace(FILL, ""), label=label, prose=True)


def _filled(text: str) -> str:
    """`text` with a sign after each wide one, so that a line has as many signs as places."""
    return "".join(sign + FILL if is_wide(sign) else sign for sign in text)


def _table(part: TablePart, width: int) -> Iterator[Line]:
    columns = part.columns
    heads: dict[int, str] = {}
    if total_width(columns) > width:
        columns, heads = _short_head(columns)
    kept = fit_columns(columns, width)
    headers = [column.header.split("\n") for column in kept]
    depth = max(map(len, headers))
    for level in range(depth):
        yield Line(_row(kept, [h[level] if level < len(h) else "" for h in headers]))
    yield Line(" " * INDENT + RULE * (total_width(kept) - INDENT))
    for index, cells in enumerate(zip(*(column.cells for column in kept), strict=True)):
        style = BEST if index == part.highlight else ""
        if index in heads:
            yield Line(" " * INDENT + heads[index], style=style)
        yield Line(_row(kept, cells), style=style)
    if part.note:
        yield from _paragraph(Paragraph(part.note_on(kept), indent=INDENT), width)


def _short_head(columns: tuple[Column, ...]) -> tuple[tuple[Column, ...], dict[int, str]]:
    """The columns without the long names of the first, and these by row.

    A long name stands on a line above its row, so that it makes no other row wider.
    """
    first, *rest = columns
    if first.right or first.drop:
        return columns, {}
    heads = {i: cell for i, cell in enumerate(first.cells) if places(cell) > LONGEST_HEAD}
    cells = ["" if i in heads else cell for i, cell in enumerate(first.cells)]
    return (replace(first, cells=cells), *rest), heads


def _row(columns: Sequence[Column], cells: Sequence[str]) -> str:
    padded = (
        _padded(cell, column.width, right=column.right)
        for column, cell in zip(columns, cells, strict=True)
    )
    return " " * INDENT + GAP.join(padded)


def _padded(cell: str, width: int, *, right: bool) -> str:
    blank = " " * (width - places(cell))
    return blank + cell if right else cell + blank


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
