"""``perfmodel explain``: any axis, stage, rule, column, option, flag or fitted term."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from perfmodel.engines.legality import Rule
    from perfmodel.report.glossary import Entry


def _complete(incomplete: str) -> list[str]:
    from perfmodel.report.glossary import glossary

    return [entry.term for entry in glossary() if entry.term.startswith(incomplete)]


def command(
    term: Annotated[
        list[str] | None, typer.Argument(help="what to explain", autocompletion=_complete)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="as JSON")] = False,
) -> None:
    """Formula, numbers and source of a term; without one, all terms.

    Example: perfmodel explain usp
    """
    from perfmodel.cli.output import page_columns, put_json
    from perfmodel.cli.streams import put
    from perfmodel.report.explain_page import explain_page, terms_page
    from perfmodel.report.tables import render_text

    entries = all_entries()
    found = _explained(" ".join(term), entries) if term else entries
    if as_json:
        put_json({"terms": [entry.as_dict() for entry in found]})
        return
    page = explain_page(found) if term else terms_page(found)
    utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    put(render_text(page, page_columns(), ascii_only=not utf8))


def _explained(term: str, entries: list[Entry]) -> list[Entry]:
    """Entries of a term; a configuration id, such as ``cfg2_usp2``, in words."""
    from perfmodel.errors import BadInput
    from perfmodel.report.glossary import Entry, explain
    from perfmodel.search.explain import describe
    from perfmodel.spec.parallel import KEYS, parse_parallel

    try:
        return explain(term, entries)
    except BadInput as unknown:
        try:
            config, options = parse_parallel(term)
        except BadInput:
            raise unknown from None
    text = describe(config) + "".join(f" Option {name}." for name in options)
    axes = ", ".join(f"{key}={n}" for key in KEYS if (n := getattr(config, key)) > 1)
    return [Entry(config.config_id, "id", text, formula=axes, unit="ranks a degree")]


def all_entries() -> list[Entry]:
    """The glossary, then rules, fitted terms and flags; a glossary entry hides a flag."""
    from perfmodel.cli.flags import ALL
    from perfmodel.report.glossary import Entry, folded, glossary, rule_entries, term_entries

    entries = glossary()
    for rules, engine in _rules():
        entries += rule_entries(rules, engine)
    entries += term_entries(_terms())
    named = {folded(name) for entry in entries for name in (entry.term, *entry.aliases)}
    entries += [
        Entry(f"--{flag.name}", "flag", flag.help, formula=flag.metavar)
        for flag in ALL
        if folded(flag.name) not in named
    ]
    return entries


def _rules() -> list[tuple[list[Rule], str]]:
    """Rules by engine; one that several engines share belongs to the first."""
    from perfmodel.engines import engine, engine_names

    found: list[tuple[list[Rule], str]] = []
    seen: set[str] = set()
    for name in engine_names():
        rules = [rule for rule in engine(name).rules() if rule.id not in seen]
        seen |= {rule.id for rule in rules}
        found.append((rules, name))
    return found


def _terms() -> dict[str, dict[str, object]]:
    from perfmodel.catalog import load_terms
    from perfmodel.engines import engine_names

    return {name: load_terms(name) for name in (*engine_names(), "memory")}
