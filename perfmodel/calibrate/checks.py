"""Is a set of rows, or a fit, physically possible?  Refusals name the reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.laws_fit import FitLaw, kernel_factors
from perfmodel.calibrate.records import Records
from perfmodel.catalog.data import find
from perfmodel.cost.machine import Rates
from perfmodel.errors import MissingData, Problem
from perfmodel.spec.hardware import Device
from perfmodel.units import MIB, PERCENT

LARGEST = 10
TOO_FAST_FRAC = 1.3
TOO_SLOW_FRAC = 0.03
TOO_SLOW_S = 1e-3
"""Shorter kernels may be launches alone, far from any rate; in ns as us none is shorter."""
OFF_BY = 10.0
"""How far a row has to lie from the law to be suspected of another unit."""
COMPUTED = ("gemm", "attention", "conv")
FEWEST_ROWS = 8
LARGE_MESSAGE_BYTES, SLOW_GROUP = 32 * MIB, 1.5
WORST_TRAIN_MEDIAN_APE = 40.0


def rate_fracs(law: FitLaw, rates: Rates) -> NDArray[np.float64] | None:
    """Achieved over datasheet rate of each row: matrix units, link or memory; None if unknown."""
    rows, time = law.rows, law.rows["latency_s"]
    if law.kind in ("gemm", "attention", "conv"):
        return law.work / time / rates.peak(str(rows.text("dtype")[0]))
    if law.kind == "collective":
        passes = np.where(rows.text("collective") == "all_reduce", 2.0, 1.0)
        sent = law.work * passes * (1.0 - 1.0 / rows["num_ranks"])
        return sent / time / rates.link_bytes_per_s if rates.link_bytes_per_s else None
    if law.kind == "quantize":
        return 2.0 * law.work / time / rates.memory_bytes_per_s
    if law.kind == "pointwise":
        return law.work / time / rates.memory_bytes_per_s
    if law.kind == "transfer":
        return law.work / time / rates.host_link_bytes_per_s
    return None


def slow_groups(records: Records, rates: Rates) -> list[Problem]:
    """One warning where larger groups get far less of the link than a smaller one: broken peers.

    Compared are the medians of large messages of one operation.  A mesh or a package gives two
    ranks less than more of them, so only a fall with ranks counts.
    """
    rows = records.ops.get("collective")
    if rows is None or not rates.link_bytes_per_s:
        return []
    ops, ranks = rows.text("collective"), rows["num_ranks"]
    passes = np.where(ops == "all_reduce", 2.0, 1.0)
    rate = passes * rows["message_bytes"] * (1.0 - 1.0 / ranks) / rows["latency_s"]
    large = rows["message_bytes"] >= LARGE_MESSAGE_BYTES
    found: dict[int, float] = {}
    for op in np.unique(ops):
        best = 0.0
        for n in np.unique(ranks[large & (ops == op)]):
            here = float(np.median(rate[large & (ops == op) & (ranks == n)]))
            if 0.0 < here * SLOW_GROUP < best:
                found[int(n)] = max(found.get(int(n), 0.0), best / here)
            best = max(best, here)
    if not found:
        return []
    which = ",".join(str(n) for n in sorted(found))
    message = (
        f"groups of {which.replace(',', ', ')} ranks get up to {max(found.values()):.1f} times "
        "less of the link than smaller ones: if peer access of the host was broken, leave them "
        f"out: --exclude collective:num_ranks={which}"
    )
    return [Problem("records-groups", message, "--records", "collective", severity="warning")]


def other_devices(records: Records, device: Device) -> list[Problem]:
    """Warnings where the rows name several devices, or another one of the catalogue."""
    counts: dict[str, int] = {}
    for rows in records.ops.values():
        for name, count in zip(*np.unique(rows.text("device"), return_counts=True), strict=True):
            counts[str(name)] = counts.get(str(name), 0) + int(count)
    counts.pop("", None)
    known = {device.title, *device.names, *device.aliases}
    other = [
        name
        for name in counts
        if name not in known and (item := find("hardware", name)) and item.id != device.id
    ]
    if len(counts) < 2 and not other:
        return []
    listed = ", ".join(f"{name} ({count})" for name, count in counts.items())
    message = (
        f"the rows of {device.id} are of {listed}; a fit describes one device: "
        'leave others out, e.g. --exclude "gemm:device=NAME", or name the right --device'
    )
    return [Problem("records-device", message, "--records", severity="warning")]


def no_peak(law: FitLaw, rates: Rates) -> str | None:
    """Why rows of a dtype cannot be predicted; None where the device has its peak rate."""
    if law.kind not in COMPUTED:
        return None
    try:
        rates.peak(str(law.rows.text("dtype")[0]))
    except MissingData as error:
        return error.problems[0].message.rpartition(";")[0]
    return None


def check_rows(law: FitLaw, rates: Rates, records: Records) -> Problem | None:
    """Refuse rows whose ten largest imply an impossible rate: usually ms or ns as microseconds.

    Checked per file, so that one wrong file does not hide among others; too fast also per kernel
    or operation, which differ in their rates but not by more than the peak.
    """
    if len(law.rows) < FEWEST_ROWS:
        return _refusal(law, f"{len(law.rows)} rows, a fit needs {FEWEST_ROWS}", records, 0)
    if all((law.rows.columns[name] == law.rows.columns[name][0]).all() for name in law.key):
        return _refusal(law, "all its rows have one shape", records, 0)
    if (reason := no_peak(law, rates)) is not None:
        return _refusal(law, reason, records, 0)
    fracs = rate_fracs(law, rates)
    if fracs is None:
        return None
    files = law.rows.origin[:, 0].astype(str)
    for file in np.unique(files):
        found = _slip(law, fracs, files == file, TOO_SLOW_FRAC)
        for part in _parts(law):
            found = found or _slip(law, fracs, (files == file) & part, 0.0)
        if found is not None:
            return _refusal(law, found[0], records, found[1])
    return None


def _parts(law: FitLaw) -> list[NDArray[np.bool_]]:
    """Rows of each kernel or collective; caches make plain bytes faster than their peak."""
    column = "kernel" if law.kind in COMPUTED else law.kind
    if column not in law.rows.columns:
        return []
    names = law.rows.text(column)
    return [names == name for name in np.unique(names)]


def _slip(
    law: FitLaw, fracs: NDArray[np.float64], inside: NDArray[np.bool_], least: float
) -> tuple[str, int] | None:
    """Why the largest of some rows are impossible, and the worst of them."""
    index = np.flatnonzero(inside)
    if not len(index):
        return None
    largest = index[np.argsort(law.work[index], kind="stable")[-LARGEST:]]
    typical = float(np.median(fracs[largest]))
    slow = typical < least and float(np.median(law.rows["latency_s"][largest])) > TOO_SLOW_S
    if typical <= TOO_FAST_FRAC and not slow:
        return None
    worst = int(largest[np.argmax(np.abs(np.log(fracs[largest])))])
    reason = (
        f"its ten largest rows imply {typical * PERCENT:.3g} % of the datasheet rate "
        f"(expected {TOO_SLOW_FRAC * PERCENT:g} to {TOO_FAST_FRAC * PERCENT:g} %); "
        "is latency_us in microseconds?"
    )
    return reason, worst


def possible(law: FitLaw, rates: Rates, records: Records) -> tuple[FitLaw, list[Problem]]:
    """The law without rows that are faster than the peak, and a warning about them."""
    fracs = rate_fracs(law, rates)
    if fracs is None or law.kind not in COMPUTED or (fracs <= TOO_FAST_FRAC).all():
        return law, []
    keep = fracs <= TOO_FAST_FRAC
    first = int(np.flatnonzero(~keep)[0])
    reason = (
        f"{int((~keep).sum())} of {len(keep)} rows of {law.name} are faster than the peak allows "
        f"({fracs[first] * PERCENT:.3g} % of it here), which other units explain; left out"
    )
    rows = law.rows.take(keep)
    found = replace(law, rows=rows, work=law.work[keep], factors=kernel_factors(rows))
    return found, [_problem(law, "records-rate", reason, records, first)]


def far_off(law: FitLaw, predicted: NDArray[np.float64], records: Records) -> list[Problem]:
    """A warning where rows lie so far from their law that they may be in another unit."""
    ratio = law.rows["latency_s"] / predicted
    far = np.flatnonzero(np.abs(np.log(ratio)) > np.log(OFF_BY))
    if not len(far):
        return []
    reason = (
        f"{len(far)} of {len(ratio)} rows of {law.name} take more than {OFF_BY:g} times as long "
        f"or as short as the law says ({ratio[far[0]]:.3g} times here): are they in microseconds?"
    )
    return [_problem(law, "records-outlier", reason, records, int(far[0]))]


def check_fit(law: FitLaw, train_median_ape: float, records: Records) -> Problem | None:
    """Refuse a law that does not describe its own rows (the median: some rows may be broken)."""
    if train_median_ape <= WORST_TRAIN_MEDIAN_APE:
        return None
    reason = (
        f"the law misses half of the rows it was fitted to by more than {train_median_ape:.0f} % "
        f"(limit {WORST_TRAIN_MEDIAN_APE:g} %)"
    )
    return _refusal(law, reason, records, 0)


def _refusal(law: FitLaw, reason: str, records: Records, row: int) -> Problem:
    return _problem(law, "fit-refused", f"{law.name} is not fitted: {reason}", records, row)


def _problem(law: FitLaw, rule: str, reason: str, records: Records, row: int) -> Problem:
    place = records.where(law.rows.origin[row])
    return Problem(rule, f"{place}: {reason}", "--records", law.name, severity="warning")
