"""How far the cost laws are from microbenchmark records; nothing is fitted here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.checks import far_off, no_peak, other_devices
from perfmodel.calibrate.laws_fit import KINDS, FitLaw, fit_laws
from perfmodel.calibrate.metrics import error_summary, grouped, size_classes
from perfmodel.calibrate.records import MOST_SHOWN, Records, read_records
from perfmodel.catalog import Overrides, load_fit
from perfmodel.cost.fitcheck import host_of
from perfmodel.cost.fits import LINKS_OF, Law, load_laws, values_of
from perfmodel.cost.machine import Rates
from perfmodel.errors import MissingData, Problem
from perfmodel.spec.hardware import Device

FloatArray = NDArray[np.float64]
SCHEMA_VERSION = "1.0"
GROUPS = ("dtype", "kernel", "collective", "num_ranks")


@dataclass(frozen=True, slots=True)
class Scored:
    """Rows of one law with their predictions."""

    law: FitLaw
    predicted: FloatArray
    provenance: str

    @property
    def measured(self) -> FloatArray:
        """Measured seconds."""
        return self.law.rows["latency_s"]


def validate_microbench(
    sources: Iterable[Path], device: Device, fit: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Predict every row with `fit` (else the shipped fit, else priors) and score it.

    Returns:
        The JSON of ``perfmodel validate`` on microbenchmarks: records, predicted, skipped,
        warnings, metrics by operator, and by dtype, kernel, collective, num_ranks, law and size
        class.

    Raises:
        BadInput: no usable row.
        MissingData: rows, but none that a law predicts.
    """
    records = read_records(sources)
    fit = fit or load_fit(device.id)
    laws, _ = load_laws(device.id, device.family, fit, same_links=device.link.same_as)
    rates = Rates.of(device)
    host = Overrides(**(host_of(fit) if fit else {}))
    warned = other_devices(records, device) + _not_unseen(records, fit)
    scored, skipped = [], [{"id": p.rule_id, "reason": p.message} for p in records.problems]
    for kind in sorted(set(records.ops) - set(KINDS)):
        reason = f"{kind}: {len(records.ops[kind])} rows, and no law predicts them"
        skipped.append({"id": kind, "reason": reason})
    for law in fit_laws(records, device, host=host):
        if (missing := no_peak(law, rates)) is not None:
            skipped.append({"id": law.name, "reason": f"{law.name}: {missing}"})
            continue
        part = _predict(law, laws.get(law.name), rates)
        scored.append(part)
        warned += far_off(law, part.predicted, records)
    if not scored:
        raise MissingData(*warned, *(_nothing(s["reason"]) for s in skipped[:MOST_SHOWN]))
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "ok",
        "device": device.id,
        "fit_id": _fit_id(laws),
        "collectives_of": _collectives_of(laws),
        "records": records.seen,
        "predicted": sum(len(part.predicted) for part in scored),
        "skipped": skipped,
        "warnings": [problem.message for problem in warned],
        "metrics": _metrics(scored),
        "by": _by(scored),
        "provenance": {part.law.name: part.provenance for part in scored},
        "files": _files(records),
    }


def _nothing(reason: str) -> Problem:
    return Problem("records-unpredicted", reason, "RECORDS")


def _not_unseen(records: Records, fit: Mapping[str, Any] | None) -> list[Problem]:
    """A warning where the fit was made from some of these very files."""
    fitted = {entry.get("sha256") for entry in (fit or {}).get("records", ())}
    names = [f.path.name for f in records.files if f.sha256 in fitted]
    if not names:
        return []
    message = (
        f"{', '.join(names)}: the fit was made from these rows, so their errors are not those of "
        "unseen ones, which calibrate states as held out"
    )
    return [Problem("records-fitted", message, "RECORDS", severity="warning")]


def _predict(law: FitLaw, parameters: Law | None, rates: Rates) -> Scored:
    """Rows of a kernel that the fit does not hold take what predictions take.

    That is the fastest kernel of an attention law, the reference (factor 1) of any other.
    """
    values = values_of(law.parameters, parameters)
    names = law.rows.text("kernel")
    known = dict(parameters.kernels) if parameters else {}
    exps = dict(parameters.kernel_exps) if parameters else {}
    best = max(known, key=lambda name: known[name], default="") if law.kind == "attention" else ""
    factors = {
        "rate": np.array([known.get(n, known.get(best, 1.0)) for n in names.tolist()]),
        "exp_rate": np.array([exps.get(n, exps.get(best, 1.0)) for n in names.tolist()]),
    }
    predicted = law.predict(values, rates, law.rows, factors)
    return Scored(law, predicted, parameters.provenance if parameters else "prior")


def _fit_id(laws: Mapping[str, Law]) -> str | None:
    fitted = [law.origin for law in laws.values() if law.provenance == "fitted"]
    return fitted[0] if fitted else None


def _collectives_of(laws: Mapping[str, Law]) -> str | None:
    """The device with the same links whose fitted collectives hold; None where none lends them."""
    origins = (law.origin for law in laws.values() if law.origin.startswith(LINKS_OF))
    return next((origin.removeprefix(LINKS_OF) for origin in origins), None)


def _metrics(scored: list[Scored]) -> dict[str, Any]:
    """Errors by operator."""
    kinds = sorted({part.law.kind for part in scored})
    return {
        kind: error_summary(
            np.concatenate([p.predicted for p in scored if p.law.kind == kind]),
            np.concatenate([p.measured for p in scored if p.law.kind == kind]),
        )
        for kind in kinds
    }


def _by(scored: list[Scored]) -> dict[str, Any]:
    """Errors by column value, by law and by size class."""
    by: dict[str, Any] = {}
    for column in GROUPS:
        parts = [part for part in scored if column in part.law.rows.columns]
        if not parts:
            continue
        text = np.concatenate([p.law.rows.columns[column].astype(str) for p in parts])
        by[column] = grouped(
            np.concatenate([p.predicted for p in parts]),
            np.concatenate([p.measured for p in parts]),
            {str(value): text == value for value in np.unique(text)},
        )
    by["law"] = {part.law.name: error_summary(part.predicted, part.measured) for part in scored}
    by["size"] = {
        part.law.name: grouped(part.predicted, part.measured, size_classes(part.law, part.law.rows))
        for part in scored
    }
    return by


def _files(records: Records) -> list[dict[str, Any]]:
    return [{"file": f.path.name, "sha256": f.sha256, "rows": f.rows} for f in records.files]


def table_lines(answer: Mapping[str, Any]) -> list[str]:
    """The answer as text of at most 100 columns."""
    fit, lender = answer["fit_id"] or "no fit: priors of the family", answer["collectives_of"]
    lent = [f"  collectives as fitted to {lender}, which has the same links"] if lender else []
    lines = [
        f"{answer['device']}  fit {fit}  {answer['predicted']:,} of {answer['records']:,} rows "
        "predicted",
        *lent,
        "",
        f"  {'error of':<34}{'n':>8}{'mean':>9}{'median':>9}{'9 of 10':>10}{'bias':>8}",
        f"  {'':<34}{'':>8}{'%':>9}{'%':>9}{'% below':>10}{'%':>8}",
    ]
    lines += [_row(name, error) for name, error in answer["metrics"].items()]
    for law, error in answer["by"]["law"].items():
        lines += ["", _row(f"{law} ({answer['provenance'][law]})", error)]
        lines += [_row(f"  {size}", e) for size, e in answer["by"]["size"][law].items()]
    return lines


def _row(name: str, error: Mapping[str, Any]) -> str:
    return (
        f"  {name:<34}{error['n']:>8,}{error['mape']:>9.1f}{error['median_ape']:>9.1f}"
        f"{error['p90_ape']:>10.1f}{error['bias']:>+8.1f}"
    )
