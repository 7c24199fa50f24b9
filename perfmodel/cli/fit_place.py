"""Where the fit of a device lies when no option names a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perfmodel.spec.hardware import Device


def home_of(name: str, device: Device) -> Path:
    """Where the fit of a device belongs: the user's folder that describes it, else here."""
    from perfmodel.catalog.data import data_roots, find

    path = Path(name)
    if path.suffix not in (".yaml", ".yml"):
        item = find("hardware", device.id)
        path = item.path if item else Path()
    folder = path.resolve().parent
    if folder.name != "hardware" or folder.is_relative_to(data_roots()[0].resolve()):
        return Path()
    # Of a bare name, as typed inside the folder, ``parent.parent`` is no step up.
    home = path.parent.parent
    return home if home.resolve() == folder.parent else Path(os.path.relpath(folder.parent))


def own_fit_path(name: str, device: Device) -> Path:
    """The file that ``calibrate --device`` writes and ``validate --device`` looks for."""
    return home_of(name, device) / "calibration" / "fits" / f"{device.id}.json"
