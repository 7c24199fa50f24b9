"""The terms file of an engine after a fit: values, rows behind them, errors, and what made it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from perfmodel import catalog
from perfmodel.calibrate.fitfile import DIGITS, ID_LENGTH, today, tool_versions
from perfmodel.calibrate.runs.fit import FittedFile, FittedTerm, RunFit
from perfmodel.calibrate.runs.hosts import HostFit, with_hosts
from perfmodel.calibrate.runs.sites import Sites, sites_document
from perfmodel.calibrate.runs.spreads import Requests, coverage
from perfmodel.calibrate.runs.terms import engines_under, entry
from perfmodel.errors import BadInput, Problem

OF_A_FIT = ("prior", "records", "rows", "sources", "site", "engines", "at_bound")
SPREADS_OF_RUNS = ("run", "parts")
"""Spreads of whole requests (``parts`` of fits before they had factors)."""


def document(
    fit: RunFit,
    one: FittedFile,
    found: Requests,
    paths: Sequence[Path],
    hosts: Sequence[HostFit] = (),
    sites: Sites | None = None,
) -> dict[str, Any]:
    """The JSON of an engine's terms: what was there, with this fit in place of an older one."""
    old = catalog.own_terms(one.file)
    terms = {
        name: _unfitted(item, fit.start.get(one.file, {}).get(name))
        for name, item in old.get("terms", {}).items()
    }
    found_sites = sites_document(one.file, sites or {})
    terms |= {name: _fitted(fit, one.file, name, term) for name, term in one.terms.items()}
    return {
        **{k: v for k, v in old.items() if k not in ("fit", "sites")},
        "terms": terms,
        **({"hosts": with_hosts(old["hosts"], hosts)} if "hosts" in old else {}),
        **({"sites": found_sites} if found_sites else {}),
        "spread": _spread(old.get("spread", {}), one.file, found, of_a_site=bool(found_sites)),
        "fit": _about(fit, one, paths) | ({} if found_sites else _ranges(found, one.file)),
    }


def _spread(
    old: Mapping[str, float], file: str, found: Requests, *, of_a_site: bool
) -> dict[str, float]:
    """Widths of kinds as they were, those of whole requests as the runs say.

    What runs of a site say of them is a ratio to the published widths (``sites``), which stay.
    """
    if of_a_site or not found.enough:
        return dict(old)
    kinds = {k: v for k, v in old.items() if k.partition(".")[0] not in SPREADS_OF_RUNS}
    return {**kinds, **found.widths.table(file)}


def _ranges(found: Requests, file: str) -> dict[str, Any]:
    """What the widths of whole requests rest on, and how they did on sources they did not see."""
    if not found.enough:
        return {}
    chosen = found.of(engine=file)
    about: dict[str, Any] = {
        "rows": len(found.errors),
        "sources": len(set(found.errors.sources)),
        "engines_apart": found.widths.apart,
    }
    for name, rows in (("unseen", found.of()), ("unseen_of_engine", chosen)):
        one = coverage(found, rows)
        if one.rows:
            about[name] = {k: float(f"{v:.{DIGITS}g}") for k, v in asdict(one).items()}
    return {"ranges": about}


def _unfitted(item: Mapping[str, Any], prior: float | None) -> dict[str, Any]:
    """An entry as it is, or as it was before an older fit to these runs."""
    if prior is None:
        return dict(item)
    rest = {k: v for k, v in item.items() if k not in OF_A_FIT}
    return {**rest, "value": prior, "provenance": "prior"}


def _fitted(fit: RunFit, file: str, name: str, term: FittedTerm) -> dict[str, Any]:
    cases = [fit.evaluations.cases[n] for n in term.cases]
    rest = {k: v for k, v in entry(name, file).items() if k not in OF_A_FIT}
    site = fit.evaluations.groups.site
    return {
        **rest,
        "value": term.value,
        "provenance": "fitted",
        "prior": term.parameter.default,
        "at_bound": term.at_bound,
        "rows": len(cases),
        "sources": len({case.source for case in cases}),
        **({} if site is None else {"site": site}),
        "engines": engines_under(file, name, fit.evaluations.cases),
        "records": sorted(case.record.id for case in cases),
    }


def _about(fit: RunFit, one: FittedFile, paths: Sequence[Path]) -> dict[str, Any]:
    """What the fit rests on, and its errors on sources that it did not see."""
    cases = [case for case in fit.evaluations.cases if case.file == one.file]
    dates = sorted(case.record.source_date for case in cases if case.record.source_date)
    evidence = fit.evaluations.groups.evidence
    versions = {case.record.engine_version for case in cases if case.record.engine_version}
    return {
        "records": [{"file": path.name, "sha256": _sha256(path)} for path in paths],
        "rows": one.rows,
        "independent_rows": one.independent,
        "sources": one.sources,
        **({} if evidence is None else {"evidence": evidence}),
        "engine_versions": sorted(versions),
        "source_dates": [dates[0], dates[-1]] if dates else [],
        "held_out": {
            name: {k: float(f"{v:.{DIGITS}g}") for k, v in asdict(error).items()}
            for name, error in (("before", one.before), ("after", one.after))
            if error is not None
        },
        "kept": dict(one.kept),
        "software": tool_versions(),
        "created": today(),
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_terms(content: Mapping[str, Any], folder: Path) -> tuple[Path, Path | None]:
    """Write a terms file, one entry a line; a different fit that is there keeps another name.

    Returns:
        The file, and where an older fit went.

    Raises:
        BadInput: it cannot be written.
    """
    path, text, older = folder / f"{content['engine']}.json", text_of(content), None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        old = path.read_bytes() if path.exists() else b""
        if old and old != text.encode() and "fit" in json.loads(old):
            mark = hashlib.sha256(old).hexdigest()[:ID_LENGTH]
            older = path.with_name(f"{path.stem}.{mark}.json")
            path.replace(older)
        partial = path.with_suffix(".json.part")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "what is there is no JSON"
        message = f"--out {folder} cannot be written: {reason}; name a folder of yours"
        raise BadInput(Problem("out", message, field="--out", value=str(folder))) from None
    return path, older


def text_of(content: Mapping[str, Any]) -> str:
    """JSON whose tables have one entry a line."""
    parts = []
    for key, value in content.items():
        body = json.dumps(value)
        if isinstance(value, dict) and value:
            rows = [f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items()]
            body = "{\n" + ",\n".join(rows) + "\n  }"
        parts.append(f"  {json.dumps(key)}: {body}")
    return "{\n" + ",\n".join(parts) + "\n}\n"
