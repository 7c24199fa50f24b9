"""A page as Markdown, ready for a pull request; it ends with the command that makes it again."""

from __future__ import annotations

from perfmodel.report.page import NBSP, Blank, Code, Page, Paragraph, TablePart


def render_markdown(page: Page, command: str | None = None) -> str:
    """Paragraphs, pipe tables with all columns, commands in fences."""
    blocks = [block for part in page.parts if (block := _block(part))]
    if command:
        blocks.append("Made by:\n" + _fence(command))
    return "\n\n".join(blocks) + "\n"


def _block(part: Paragraph | TablePart | Code | Blank) -> str:
    match part:
        case Paragraph():
            label = part.label.strip()
            text = " ".join(part.text.replace(NBSP, " ").split(" ")).strip()
            return f"**{label}** {_escape(text)}".strip() if label else _escape(text)
        case TablePart():
            return _table(part)
        case Code():
            return _fence(part.text)
        case Blank():
            return ""


def _table(part: TablePart) -> str:
    headers = [column.header.replace("\n", " ").strip() for column in part.columns]
    marks = ["---:" if column.right else ":---" for column in part.columns]
    rows = [
        [f"**{cell}**" if index == part.highlight and cell else cell for cell in cells]
        for index, cells in enumerate(zip(*(c.cells for c in part.columns), strict=True))
    ]
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in [headers, marks, *rows]]
    note = ["", _escape(part.note_on(part.columns))] if part.note else []
    return "\n".join([*lines, *note])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("~", "\\~")


def _escape(text: str) -> str:
    # a star marks an assumption, a tilde a prior: neither may start emphasis
    return text.replace("*", "\\*").replace("~", "\\~")


def _fence(text: str) -> str:
    return f"```sh\n{text}\n```"
