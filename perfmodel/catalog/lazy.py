"""Described machines are read by a module that most calls never need."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.catalog.gpus import Overrides
    from perfmodel.spec.hardware import System


def load_system(path: str | Path, overrides: Overrides | None = None) -> System:
    """The system that a ``--system`` file describes (`perfmodel.catalog.machine`)."""
    from perfmodel.catalog.machine import load_system as load

    return load(path, overrides)
