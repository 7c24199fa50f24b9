"""A page as plain text: wrapping, aligned tables (rich), colour, ASCII."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence

from rich.box import Box
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from perfmodel.report.page import NBSP, Blank, Code, Column, Page, Paragraph, TablePart

UNWRAPPED = 100_000
MAX_WIDTH = 100
NARROW = 80
INDENT = 2
RULE = Box("    \n    \n ── \n    \n    \n    \n    \n    \n")
BEST = "bold"
DIM = "dim"
LABEL = "bold blue"


def total_width(columns: Sequence[Column]) -> int:
    """Characters of a table row: the indent, then two spaces between columns."""
    return INDENT + sum(column.width for column in columns) + 2 * (len(columns) - 1)


def fit_columns(columns: Sequence[Column], width: int) -> list[Column]:
    """Leave out optional columns until the table fits; below 80 columns levels 2 and 3 always."""
    kept = list(columns)
    for level in (4, 3, 2, 1):
        if (width < NARROW and level in (2, 3)) or total_width(kept) > width:
            kept = [column for column in kept if column.drop != level]
    return kept


def render_text(
    page: Page, width: int = MAX_WIDTH, color: bool = False, ascii_only: bool = False
) -> str:
    """The page as one string that ends with a newline; at most 100 columns, except commands."""
    width = min(width, MAX_WIDTH)
    out = io.StringIO()
    console = Console(
        file=out,
        width=UNWRAPPED,
        force_terminal=color,
        color_system="standard" if color else None,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    for part in page.parts:
        match part:
            case Paragraph():
                for line in _paragraph(part, width):
                    console.print(line, soft_wrap=True)
            case TablePart():
                console.print(Padding.indent(_table(part, width), INDENT))
            case Code():
                console.print(Text(part.text), soft_wrap=True)
            case Blank():
                console.print()
    lines = [line.rstrip() for line in out.getvalue().split("\n")]
    result = "\n".join(lines).strip("\n") + "\n"
    return to_ascii(result) if ascii_only else result


def _paragraph(part: Paragraph, width: int) -> list[Text]:
    wrapped = textwrap.wrap(
        part.label.replace(" ", NBSP) + part.text,
        width,
        initial_indent=" " * part.indent,
        subsequent_indent=" " * (part.indent + part.hanging),
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [Text(line.replace(NBSP, " ")) for line in wrapped]
    if lines and part.label.strip():
        lines[0].stylize(LABEL, part.indent, part.indent + len(part.label.rstrip()))
    for line in lines:
        line.highlight_regex(r"\S+\*(?=[\s,;)]|$)", DIM)
    return lines


def _table(part: TablePart, width: int) -> Table:
    kept = fit_columns(part.columns, width)
    result = Table(box=RULE, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="")
    lines = max(column.header.count("\n") for column in kept)
    for column in kept:
        header = column.header + "\n" * (lines - column.header.count("\n"))
        justify = "right" if column.right else "left"
        result.add_column(Text(header), justify=justify, no_wrap=True)  # type: ignore[arg-type]
    for index, cells in enumerate(zip(*(column.cells for column in kept), strict=True)):
        result.add_row(*map(Text, cells), style=BEST if index == part.highlight else "")
    return result


def to_ascii(text: str) -> str:
    """Rules become ``-``, any other sign ``?``."""
    return text.replace("─", "-").encode("ascii", "replace").decode("ascii")
