"""What `perfmodel explain` knows: the glossary, rules, fitted terms and flags, with numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

from perfmodel.errors import BadInput, Problem

NEAREST = 3


@dataclass(frozen=True, slots=True)
class Entry:
    """One explained term.

    Attributes:
        term: its name; aliases: other names of the same thing.
        kind: axis, stage, column, option, rule, warning, error, engine term, flag, word or id.
        text: what it means; formula, unit, source: where there are any.
        values: numbers in use with their bounds and provenance, by engine or law.
    """

    term: str
    kind: str
    text: str
    aliases: tuple[str, ...] = ()
    formula: str = ""
    unit: str = ""
    source: str = ""
    values: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def folded(term: str) -> str:
    """A term without case, dashes, underscores and spaces, for comparing."""
    return "".join(sign for sign in term.lower() if sign.isalnum() or sign == "%")


def glossary() -> list[Entry]:
    """The entries of the glossary file, and of the file of refusals."""
    refused = [{"kind": "error", **item} for item in _read("refusals.yaml")]
    return [
        Entry(**{**item, "aliases": tuple(item.get("aliases", ()))})
        for item in (*_read("glossary.yaml"), *refused)
    ]


def _read(name: str) -> list[dict[str, Any]]:
    import yaml

    text = files("perfmodel.report").joinpath(name).read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = yaml.load(text, Loader=yaml.CSafeLoader)
    return [{"term": term, **item} for term, item in loaded.items()]


def term_entries(documents: Mapping[str, Mapping[str, Any]]) -> list[Entry]:
    """Entries of fitted terms.

    Args:
        documents: a name (an engine, ``memory``) -> its terms document with a ``terms`` mapping
            of value, low, high, unit, provenance, meaning or what, evidence or source.
    """
    return [
        Entry(
            term=name,
            kind=f"term of {owner}",
            text=_sentence(str(item.get("meaning") or item.get("what") or name)),
            unit=str(item.get("unit", "")),
            source=str(item.get("evidence") or item.get("source") or ""),
            values={owner: _value_text(item)},
        )
        for owner, document in documents.items()
        for name, item in document.get("terms", {}).items()
    ]


def _value_text(item: Mapping[str, Any]) -> str:
    bounds = f", between {item['low']:g} and {item['high']:g}" if "low" in item else ""
    return f"{item.get('value')!s}{bounds} ({item.get('provenance', 'unknown')})"


def rule_entries(rules: Iterable[Any], engine: str) -> list[Entry]:
    """Entries of legality rules (`id`, `title`, `source`, `severity`)."""
    return [
        Entry(rule.id, f"{rule.severity} rule of {engine}", rule.title, source=rule.source)
        for rule in rules
    ]


def explain(term: str, entries: Iterable[Entry]) -> list[Entry]:
    """Entries whose name or alias is `term`; names come before aliases.

    Raises:
        BadInput: nothing is called so; the nearest names are given.
    """
    known = list(entries)
    wanted = folded(term)
    exact = [entry for entry in known if folded(entry.term) == wanted]
    alias = [entry for entry in known if wanted in map(folded, entry.aliases)]
    found = exact + [entry for entry in alias if entry not in exact]
    if wanted and found:
        return found
    names = {folded(name): name for e in known for name in (*e.aliases, e.term)}
    near = [names[key] for key in get_close_matches(wanted, names, n=NEAREST, cutoff=0.5)]
    hint = f"nearest: {', '.join(near)}" if near else "perfmodel explain lists all terms"
    raise BadInput(
        Problem(
            "term",
            f'nothing is called "{term}"; {hint}',
            field="TERM",
            value=term,
            suggestions=tuple(near),
        )
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:].rstrip(".") + "."
