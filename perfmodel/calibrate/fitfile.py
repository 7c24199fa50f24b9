"""The fit file: what was fitted, to what, how well; and how it is written without loss."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel.calibrate.records import Rows
from perfmodel.calibrate.run import Calibration, FittedLaw
from perfmodel.catalog.gpus import Overrides
from perfmodel.cost import fitcheck
from perfmodel.errors import BadInput, Problem

SCHEMA_VERSION = 1
ID_LENGTH = 8
DIGITS = 6


def fit_document(
    result: Calibration, prior_family: str | None = None, older: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The JSON of a fit; ``fit_id`` hashes all but the date, the software and what was excluded.

    Args:
        result: laws that were fitted.
        prior_family: family that lends the laws without records.
        older: a fit whose other laws, and the records behind them, are kept.
    """
    laws = {fitted.law.name: _law(fitted, result.host) for fitted in result.laws}
    records = [
        {"file": f.path.name, "sha256": f.sha256, "rows": f.rows} for f in result.records.files
    ]
    if older is not None:
        laws = {**older["laws"], **laws}
        records += [entry for entry in older.get("records", ()) if entry not in records]
        prior_family = prior_family or older.get("prior_family")
    body: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "device": result.device.id,
        "laws": dict(sorted(laws.items())),
        "records": sorted(records, key=lambda entry: str(entry["file"])),
        "split": {"salt": result.salt},
        "seed": result.options.seed,
    }
    if prior_family:
        body["prior_family"] = prior_family
    text = json.dumps(body, sort_keys=True)
    fit_id = hashlib.sha256(text.encode()).hexdigest()[:ID_LENGTH]
    return {
        "schema_version": SCHEMA_VERSION,
        "fit_id": fit_id,
        **body,
        **({"excluded": list(result.excluded)} if result.excluded else {}),
        "software": _software(result, older),
        "created": today(),
    }


def _law(fitted: FittedLaw, host: Overrides) -> dict[str, Any]:
    law, found = fitted.law, fitted.found
    bounds = {p.name: [p.low, p.high] for p in law.parameters}
    entry: dict[str, Any] = {
        "version": law.version,
        "parameters": {
            name: {"value": _short(value), "bounds": bounds[name]}
            for name, value in found.values.items()
        },
        "range": {
            name: [float(law.rows[name].min()), float(law.rows[name].max())] for name in law.dims
        },
        "train": fitted.train,
        "heldout": fitted.heldout,
        "kernels": {
            name: {
                **{factor: _short(value) for factor, value in factors.items()},
                **_measured_at(law.rows, name),
            }
            for name, factors in found.kernels.items()
            if name in law.kernels.own
        },
        "at_bounds": list(found.at_bounds),
        "achieved_frac": fitted.achieved_frac,
        "trials": found.trials,
    }
    if fitted.extrapolation is not None:
        entry["extrapolation"] = fitted.extrapolation
    if law.kind == "collective" and (stated := fitcheck.host_facts(host.p2p, host.sockets)):
        entry["host"] = stated
    return entry


def _measured_at(rows: Rows, kernel: str) -> dict[str, Any]:
    """Rows of a kernel, and the head widths of an attention kernel."""
    here = rows.text("kernel") == kernel
    entry: dict[str, Any] = {"rows": int(here.sum())}
    if "head_dim" in rows.columns:
        entry["head_dims"] = sorted({int(width) for width in rows["head_dim"][here]})
    return entry


def _short(value: float) -> float:
    """Six significant digits: what is stored is what is used."""
    return float(f"{value:.{DIGITS}g}")


def _software(result: Calibration, older: Mapping[str, Any] | None) -> dict[str, Any]:
    before = (older or {}).get("software", {}).get("measured_with", ())
    measured = sorted(
        {
            *before,
            *(
                str(text)
                for rows in result.records.ops.values()
                for text in np.unique(rows.text("software"))
                if text
            ),
        }
    )
    return {**tool_versions(), "measured_with": measured}


def tool_versions() -> dict[str, str]:
    """Versions of what a fit is computed with."""
    tools = {name: _version(name) for name in ("perfmodel", "numpy", "scipy", "optuna")}
    return {"python": platform.python_version(), **tools}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def today() -> str:
    """UTC date, or that of SOURCE_DATE_EPOCH for reproducible files."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    moment = datetime.fromtimestamp(int(epoch), UTC) if epoch else datetime.now(UTC)
    return moment.date().isoformat()


def write_fit(document: Mapping[str, Any], path: Path) -> Path | None:
    """Write a fit; a different fit that is already there moves to ``<name>.<its fit_id>.json``.

    Returns:
        Where the older fit went, or None.

    Raises:
        BadInput: the file there is not a fit, so it is left alone; it cannot be written.
    """
    try:
        return _write(document, path)
    except OSError as error:
        raise BadInput(_unwritable(path, error)) from None


def check_writable(path: Path) -> None:
    """Refuse a target before hours of fitting are lost on it.

    Raises:
        BadInput: its folder cannot be made or written; what is there is not a fit.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".json.part")
        partial.touch()
        partial.unlink()
    except (OSError, ValueError) as error:
        raise BadInput(_unwritable(path, error)) from None
    if path.exists():
        read_fit(path)


def read_older(path: Path, device_id: str, replaced: Collection[str]) -> dict[str, Any]:
    """The fit at `path` whose other laws a new one of this device keeps.

    Laws that are `replaced` may be of any version.

    Raises:
        BadInput: not a fit that this program reads, or one of another device.
    """
    fit = fitcheck.read_fit(path, replaced)
    if fit["device"] == device_id:
        return fit
    message = (
        f"{path} is the fit of {fit['device']}; --laws keeps the other laws of a fit of "
        f"{device_id}: choose another --out"
    )
    raise BadInput(Problem("fit-device", message, "--out", str(path)))


def _unwritable(path: Path, error: Exception) -> Problem:
    reason = getattr(error, "strerror", None) or "no file name"
    message = f"--out {path} cannot be written: {reason}; name a file in a folder of yours"
    return Problem("out", message, field="--out", value=str(path))


def _write(document: Mapping[str, Any], path: Path) -> Path | None:
    path.parent.mkdir(parents=True, exist_ok=True)
    older: Path | None = None
    if path.exists():
        old_id = _fit_id(path)
        if old_id != document["fit_id"]:
            older = path.with_name(f"{path.stem}.{old_id}.json")
            path.replace(older)
    partial = path.with_suffix(".json.part")
    partial.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    return older


def _fit_id(path: Path) -> str:
    return str(read_fit(path)["fit_id"])


def read_fit(path: Path) -> dict[str, Any]:
    """The fit at `path`.

    Raises:
        BadInput: what is there is not a fit.
    """
    try:
        found: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict) or not isinstance(found.get("fit_id"), str):
        raise BadInput(
            Problem(
                "fit-file",
                f"{path} exists and is not a fit; it is left alone, choose another --out",
                field="--out",
                value=str(path),
            )
        )
    return found
