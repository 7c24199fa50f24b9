"""What ``explain --json`` prints."""

from __future__ import annotations

from pydantic import Field

from perfmodel.report.asked import Record, Versioned


class TermInfo(Record):
    """One explained term; `values` are numbers in use, by engine or law."""

    term: str
    kind: str
    text: str
    aliases: tuple[str, ...] = ()
    formula: str = ""
    unit: str = ""
    source: str = ""
    values: dict[str, str] = Field(default_factory=dict)


class TermsAnswer(Versioned):
    """What a word means; all words where none is asked for."""

    terms: tuple[TermInfo, ...]
