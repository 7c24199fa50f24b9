"""Hosts whose terms differ from their engine's: machines behind published runs."""

from __future__ import annotations

from typing import Any

from perfmodel.catalog.data import own_terms


def host_of(engine: str, source: str | None, gpu: str | None) -> str | None:
    """Name of the host that `source` measured `engine` on, if it has terms of its own."""
    for name, host in own_terms(engine).get("hosts", {}).items():
        if host["source"] == source and host["gpu"] == gpu:
            return str(name)
    return None


def host_terms(engine: str, host: str) -> dict[str, dict[str, Any]]:
    """Entries of a host's terms by name: they win over the engine's.

    Raises:
        KeyError: the engine has no host of this name.
    """
    found: dict[str, dict[str, Any]] = own_terms(engine)["hosts"][host]["terms"]
    return found
