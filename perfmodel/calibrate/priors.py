"""Family medians for devices without records: ``python -m perfmodel.calibrate.priors``.

Collectives of a mesh are left out: they hold for devices with the same links (``link.same_as`` of
their files), and those of a family differ in them.

Reads every fit of ``calibration/fits`` and rewrites the ``families`` part of
``calibration/priors.json``; the named priors there are edited by hand and kept.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from perfmodel.catalog import data_roots, load_device
from perfmodel.cost.fits import COLLECTIVE

DIGITS = 4


def family_medians(fits: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Median of each parameter and kernel factor over the devices of a family, by law."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for fit in fits:
        device = load_device(fit["device"])
        family, mesh = device.family, device.link.topology == "mesh"
        for name, law in fit["laws"].items():
            if mesh and name.startswith(COLLECTIVE):
                continue
            found.setdefault(family, {}).setdefault(name, []).append(law)
    return {
        family: {name: _median(laws) for name, laws in sorted(by_law.items())}
        for family, by_law in sorted(found.items())
    }


def _median(laws: list[dict[str, Any]]) -> dict[str, Any]:
    names = laws[0]["parameters"]
    values = {
        name: _short(median(law["parameters"][name]["value"] for law in laws)) for name in names
    }
    kernels: dict[str, list[dict[str, Any]]] = {}
    for law in laws:
        for kernel, entry in law["kernels"].items():
            kernels.setdefault(kernel, []).append(entry)
    return {
        "parameters": values,
        "kernels": {kernel: _kernel(entries) for kernel, entries in sorted(kernels.items())},
        "devices": len(laws),
    }


def _kernel(entries: list[dict[str, Any]]) -> dict[str, Any]:
    factors = {
        factor: _short(median(entry[factor] for entry in entries))
        for factor in ("rate", "exp_rate")
    }
    dims = sorted({dim for entry in entries for dim in entry.get("head_dims", ())})
    return {**factors, "head_dims": dims} if dims else factors


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def main() -> None:
    """Rewrite the families of the shipped priors."""
    root = Path(data_roots()[0]) / "calibration"
    fits = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted((root / "fits").glob("*.json"))
        if path.name.count(".") == 1
    ]
    target = root / "priors.json"
    priors = json.loads(target.read_text(encoding="utf-8"))
    priors["families"] = family_medians(fits)
    target.write_text(json.dumps(priors, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
