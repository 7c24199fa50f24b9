"""Terms of single hosts: a machine behind one source that differs from the engine's others.

A host is stated by hand in its engine's terms file, with the one term in which it differs and the
evidence.  Its value is fitted to the runs of that source; what it is worth is measured on runs of
the source that the value was not fitted to (no other source can say anything about it).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from perfmodel import catalog
from perfmodel.calibrate.runs.cases import Case, Values
from perfmodel.calibrate.runs.solve import LOG_ERROR
from perfmodel.calibrate.runs.terms import ROWS_PER_TERM, independent_rows
from perfmodel.units import PERCENT

FOLDS = 5
DIGITS = 4


@dataclass(frozen=True, slots=True)
class HostFit:
    """The term of one host.

    Attributes:
        host, term: which.
        value: as fitted; the engine's where too few runs identify it.
        rows: independent runs.
        before, after: mean absolute log error of held-out runs with the engine's value and with
            values fitted to the others.
    """

    host: str
    term: str
    value: float
    rows: int
    before: float
    after: float


def fit_hosts(file: str, cases: Sequence[Case], values: Values) -> tuple[HostFit, ...]:
    """Fit the hosts of a terms file that measured some of the runs, under the engine's `values`.

    The others stay as stated: runs from elsewhere say nothing of them.
    """
    by_host = {host: [case for case in cases if case.host == host] for host in _hosts(cases)}
    return tuple(
        _fit(host, name, entry, by_host[host], values)
        for host, stated in catalog.own_terms(file).get("hosts", {}).items()
        if host in by_host
        for name, entry in stated["terms"].items()
    )


def _hosts(cases: Sequence[Case]) -> set[str]:
    return {case.host for case in cases if case.host is not None}


def _fit(
    host: str, name: str, entry: Mapping[str, Any], cases: Sequence[Case], values: Values
) -> HostFit:
    rows = independent_rows(cases)
    usual = _errors(cases, values, name, float(entry["prior"]))
    if rows < ROWS_PER_TERM:
        error = float(np.abs(usual).mean()) if len(usual) else 0.0
        return HostFit(host, name, float(entry["prior"]), rows, error, error)
    held = [
        _errors(cases[k::FOLDS], values, name, _best([*_without(cases, k)], values, name, entry))
        for k in range(FOLDS)
    ]
    after = float(np.abs(np.concatenate(held)).mean())
    value = _best(cases, values, name, entry)
    return HostFit(host, name, value, rows, float(np.abs(usual).mean()), after)


def _without(cases: Sequence[Case], fold: int) -> list[Case]:
    return [case for n, case in enumerate(cases) if n % FOLDS != fold]


def _best(cases: Sequence[Case], values: Values, name: str, entry: Mapping[str, Any]) -> float:
    """The value of least soft-l1 log error between the bounds of the entry."""
    from scipy.optimize import minimize_scalar

    def loss(log_value: float) -> float:
        scaled = _errors(cases, values, name, math.exp(log_value)) / LOG_ERROR
        return float((np.sqrt(1.0 + scaled**2) - 1.0).sum())

    bounds = math.log(entry["low"]), math.log(entry["high"])
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 1e-3})
    return float(f"{math.exp(found.x):.{DIGITS}g}")


def _errors(cases: Sequence[Case], values: Values, name: str, value: float) -> np.ndarray:
    """Log errors of all targets of `cases` with a term of their host replaced."""
    errors: list[float] = []
    for case in cases:
        moved = replace(case, host_terms={**case.host_terms, name: value})
        outcome = moved.outcome(moved.terms(values))
        measured = np.log(list(case.targets.values()))
        errors += (np.array(outcome.log_s) - measured).tolist()
    return np.array(errors)


def with_hosts(stated: Mapping[str, Any], found: Sequence[HostFit]) -> dict[str, Any]:
    """The ``hosts`` of a terms file with fitted values and their errors."""
    hosts = {name: {**host, "terms": dict(host["terms"])} for name, host in stated.items()}
    for one in found:
        hosts[one.host]["terms"][one.term] = {
            **hosts[one.host]["terms"][one.term],
            "value": one.value,
            "provenance": "fitted" if one.rows >= ROWS_PER_TERM else "prior",
            "rows": one.rows,
            "held_out": {
                "before": float(f"{one.before:.{DIGITS}g}"),
                "after": float(f"{one.after:.{DIGITS}g}"),
            },
        }
    return hosts


def host_line(one: HostFit) -> str:
    """One line of the report."""
    return (
        f"  {one.term} of {one.host}: {one.value:.4g}, {one.rows} runs; "
        f"unseen runs of it {one.before * PERCENT:.1f} to {one.after * PERCENT:.1f} %"
    )
