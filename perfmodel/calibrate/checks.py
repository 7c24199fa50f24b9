"""Is a set of rows, or a fit, physically possible?  Refusals name the reason."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.laws_fit import FitLaw
from perfmodel.calibrate.records import Records
from perfmodel.cost.machine import Rates
from perfmodel.errors import Problem
from perfmodel.units import MIB, PERCENT

LARGEST = 10
TOO_FAST_FRAC = 1.3
TOO_SLOW_FRAC = 0.03
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


def check_rows(law: FitLaw, rates: Rates, records: Records) -> Problem | None:
    """Refuse rows whose ten largest imply an impossible rate: usually ms or ns as microseconds.

    Checked per file, so that one wrong file does not hide among others.
    """
    if len(law.rows) < FEWEST_ROWS:
        return _refusal(law, f"{len(law.rows)} rows, a fit needs {FEWEST_ROWS}", records, 0)
    fracs = rate_fracs(law, rates)
    if fracs is None:
        return None
    for file in np.unique(law.rows.origin[:, 0]):
        inside = np.flatnonzero(law.rows.origin[:, 0] == file)
        largest = inside[np.argsort(law.work[inside], kind="stable")[-LARGEST:]]
        typical = float(np.median(fracs[largest]))
        if not TOO_SLOW_FRAC <= typical <= TOO_FAST_FRAC:
            worst = int(largest[np.argmax(np.abs(np.log(fracs[largest])))])
            reason = (
                f"its ten largest rows imply {typical * PERCENT:.3g} % of the datasheet rate "
                f"(expected {TOO_SLOW_FRAC * PERCENT:g} to {TOO_FAST_FRAC * PERCENT:g} %); "
                "is latency_us in microseconds?"
            )
            return _refusal(law, reason, records, worst)
    return None


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
    place = records.where(law.rows.origin[row])
    return Problem(
        "fit-refused",
        f"{place}: {law.name} is not fitted: {reason}",
        field="--records",
        value=law.name,
        severity="warning",
    )
