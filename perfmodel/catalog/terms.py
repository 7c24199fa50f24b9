"""Engine terms, what they inherit, and hosts whose terms differ from their engine's."""

from __future__ import annotations

from typing import Any

from perfmodel.catalog.data import json_file


def load_terms(engine: str) -> dict[str, Any]:
    """The terms of an engine (``calibration/engines/<engine>.json``), empty if there are none.

    A file that ``inherits`` takes terms and spreads that it does not state from another engine.
    What is taken over is a prior here, and has the value that it had before the other engine's runs
    were fitted, unless runs of this engine were among them (``engines`` of the term).
    """
    own = own_terms(engine)
    terms: dict[str, Any] = {}
    spread: dict[str, float] = {}
    for file in reversed(terms_chain(engine)):
        data = own_terms(file)
        terms |= {
            name: term if engine in (file, *term.get("engines", ())) else _as_prior(term)
            for name, term in data.get("terms", {}).items()
        }
        stated = data.get("spread", {})
        kept = {k: v for k, v in spread.items() if not any(k.startswith(f"{n}.") for n in stated)}
        spread = {**kept, **stated}
    return {**own, "terms": terms, "spread": spread} if "inherits" in own else own


def _as_prior(term: dict[str, Any]) -> dict[str, Any]:
    """A term for an engine that it was not fitted to."""
    before = {"value": term["prior"]} if "prior" in term else {}
    return {**term, **before, "provenance": "prior"}


def terms_chain(engine: str) -> tuple[str, ...]:
    """A terms file and those that it inherits from, nearest first."""
    base = own_terms(engine).get("inherits")
    return (engine,) if base is None else (engine, *terms_chain(base))


def own_terms(engine: str) -> dict[str, Any]:
    """What an engine's terms file itself states, empty if there is none."""
    return json_file("calibration/engines", engine) or {}


def host_of(engine: str, source: str | None, gpu: str | None) -> str | None:
    """Name of the host that `source` measured `engine` on, if it has terms of its own."""
    for name, host in own_terms(engine).get("hosts", {}).items():
        if host["source"] == source and host["gpu"] == gpu:
            return str(name)
    return None


def site_of(engine: str, device: str) -> dict[str, Any]:
    """What the user's own runs of an engine say of their machine with `device`; empty if none."""
    found: dict[str, Any] = own_terms(engine).get("sites", {}).get(device, {})
    return found


def host_terms(engine: str, host: str) -> dict[str, dict[str, Any]]:
    """Entries of a host's terms by name: they win over the engine's.

    Raises:
        KeyError: the engine has no host of this name.
    """
    found: dict[str, dict[str, Any]] = own_terms(engine)["hosts"][host]["terms"]
    return found
