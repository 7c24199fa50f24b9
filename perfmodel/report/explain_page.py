"""Pages of `explain`: one term, or the list of all."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.report.glossary import Entry
from perfmodel.report.page import Page, unbroken

LABEL_WIDTH = 9


def explain_page(entries: Sequence[Entry]) -> Page:
    """Meaning, formula, numbers and source of each entry."""
    page = Page()
    for entry in entries:
        page.blank()
        page.paragraph(f"({entry.kind})", f"{entry.term}  ")
        page.paragraph(entry.text, indent=2)
        rows = {
            "formula": entry.formula,
            "unit": entry.unit,
            "also": ", ".join(map(unbroken, entry.aliases)),
            **{f"in {owner}": text for owner, text in entry.values.items()},
            "source": entry.source,
        }
        width = max([LABEL_WIDTH, *(len(label) + 2 for label, text in rows.items() if text)])
        for label, text in rows.items():
            if text:
                page.paragraph(text, label.ljust(width), indent=2)
    return page


def terms_page(entries: Sequence[Entry]) -> Page:
    """All terms by kind."""
    page = Page()
    for kind in dict.fromkeys(entry.kind for entry in entries):
        names = sorted({entry.term for entry in entries if entry.kind == kind}, key=str.lower)
        page.paragraph(", ".join(map(unbroken, names)), f"{kind}: ", hanging=2)
    return page
