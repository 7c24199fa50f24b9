"""Is a set of rows, or a fit, physically possible?  Refusals name the reason."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.laws_fit import FitLaw
from perfmodel.calibrate.links import ROOF
from perfmodel.calibrate.records import MOST_SHOWN, Records
from perfmodel.catalog.data import find
from perfmodel.cost import conv
from perfmodel.cost.backends import KERNEL_PARTS, stands_behind_a_backend
from perfmodel.cost.machine import Rates
from perfmodel.errors import MissingData, Problem
from perfmodel.spec.hardware import Device
from perfmodel.units import KILO, MIB, PERCENT

LARGEST = 10
TOO_FAST_FRAC = 1.3
TOO_SLOW_FRAC = 0.03
SLOW_KERNEL_FRAC = TOO_FAST_FRAC / KILO
"""What the fastest possible kernel becomes with ns taken for us; plain ones are faster."""
TOO_SLOW_S = 1e-3
"""Shorter kernels may be launches alone, far from any rate; in ns as us none is shorter."""
OFF_BY = 10.0
"""How far a row has to lie from the law to be suspected of another unit."""
PLAIN_KERNEL = "math"
"""How the attention ends that keeps its scores in memory, which no engine names."""
COMPUTED = ("gemm", "attention", "conv")
FEWEST_ROWS = 8
LARGE_MESSAGE_BYTES, SLOW_GROUP = 32 * MIB, 1.5
WORST_TRAIN_MEDIAN_APE = 40.0


def rate_fracs(law: FitLaw, rates: Rates) -> NDArray[np.float64] | None:
    """Achieved over datasheet rate of each row: matrix units, link or memory; None if unknown."""
    rows, time = law.rows, law.rows["latency_s"]
    if law.kind in COMPUTED:
        return law.work / time / rates.peak(_multiplied_in(law, rates))
    if law.kind == "collective":
        passes = np.where(rows.text("collective") == "all_reduce", 2.0, 1.0)
        sent = law.work * passes * (1.0 - 1.0 / rows["num_ranks"])
        return sent / time / rows[ROOF] if rows[ROOF].all() else None
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


def unknown_kernels(records: Records) -> list[Problem]:
    """A warning on attention kernels by whose name predictions know no backend.

    A fit of them alone makes every backend a prior: a factor on the fastest of them.
    """
    if (rows := records.ops.get("attention")) is None:
        return []
    names, counts = np.unique(rows.text("kernel"), return_counts=True)
    unknown = [
        f'"{name}" ({count} rows)'
        for name, count in zip(names.tolist(), counts.tolist(), strict=True)
        if not name.endswith(PLAIN_KERNEL) and not stands_behind_a_backend(name)
    ]
    if not unknown:
        return []
    more = f" and {len(unknown) - MOST_SHOWN} more" if len(unknown) > MOST_SHOWN else ""
    message = (
        "attention kernels that no backend is known by, so that they leave it a prior: "
        f"{', '.join(unknown[:MOST_SHOWN])}{more}; known names hold one of "
        f"{', '.join(KERNEL_PARTS)}"
    )
    return [Problem("records-kernel", message, "--records", severity="warning")]


def _multiplied_in(law: FitLaw, rates: Rates) -> str:
    """Type that the matrix units take."""
    dtype = str(law.rows.text("dtype")[0])
    return conv.multiplied_in(dtype, rates) if law.kind == "conv" else dtype


def no_peak(law: FitLaw, rates: Rates) -> str | None:
    """Why rows of a dtype cannot be predicted; None where the device has its peak rate."""
    if law.kind not in COMPUTED:
        return None
    try:
        rates.peak(_multiplied_in(law, rates))
    except MissingData as error:
        return error.problems[0].message.rpartition(";")[0]
    return None


class NoFit(Exception):
    """A law that is not fitted, and why; the others are."""

    def __init__(self, problem: Problem) -> None:
        """Carry the reason."""
        super().__init__(problem.message)
        self.problem = problem


def usable(law: FitLaw, rates: Rates, records: Records) -> tuple[FitLaw, list[Problem]]:
    """`law` without the rows that another unit explains, and a warning for each reason.

    Left out are, in this order: a kernel of a file, then a file, whose ten largest rows imply an
    impossible rate, and single products, attentions and convolutions above the peak.  The
    operations of a ring share parameters: where nothing is left of one, there is no fit.

    Raises:
        NoFit: too few rows, one shape, a dtype without a peak; nothing is left.
    """
    _check_enough(law, records)
    if (reason := no_peak(law, rates)) is not None:
        raise NoFit(_refusal(law, reason, records, 0))
    fracs = rate_fracs(law, rates)
    if fracs is None:
        return law, []
    keep = np.ones(len(fracs), bool)
    said: list[Problem] = []
    for name, inside, least in _parts(law, records):
        found = _slip(law, fracs, inside & keep, least)
        if found is None:
            continue
        reason, worst = found
        left = keep & ~inside
        if not left.any() or _operations(law, left) < _operations(law, keep):
            raise NoFit(_refusal(law, reason, records, worst))
        count = int((inside & keep).sum())
        reason = f"{law.name} is fitted without the {count} rows of {name}: {reason}"
        said.append(_problem(law, "records-rate", reason, records, worst))
        keep = left
    if law.kind in COMPUTED:
        single = keep & (fracs > TOO_FAST_FRAC)
        said += _too_fast(law, fracs, single, int(keep.sum()), records)
        keep &= ~single
    if not keep.all():
        law = law.take(keep)
        _check_enough(law, records)
    return law, said


def _check_enough(law: FitLaw, records: Records) -> None:
    """Raise NoFit where the rows are few or alike."""
    if len(law.rows) < FEWEST_ROWS:
        reason = f"{len(law.rows)} rows, a fit needs {FEWEST_ROWS}"
        raise NoFit(_refusal(law, reason, records, 0))
    if all((law.rows.columns[name] == law.rows.columns[name][0]).all() for name in law.key):
        raise NoFit(_refusal(law, "all its rows have one shape", records, 0))


def _operations(law: FitLaw, keep: NDArray[np.bool_]) -> int:
    """How many different collectives are among rows."""
    return len(set(law.rows.text("collective")[keep])) if law.kind == "collective" else 1


Part = tuple[str, NDArray[np.bool_], float]
"""What rows have in common, which they are, and the least share of the datasheet rate."""


def _parts(law: FitLaw, records: Records) -> Iterator[Part]:
    """Rows of each kernel (or operation) in a file, then those of the file.

    A kernel may be honest below the limit of a table.  Bytes beat their peak in caches, so that
    kernels of bytes are not told apart.
    """
    index = law.rows.origin[:, 0]
    column = {"collective": "collective"}.get(law.kind, "kernel" * (law.kind in COMPUTED))
    names = law.rows.text(column) if column else np.full(len(index), "")
    least = SLOW_KERNEL_FRAC if law.kind in COMPUTED else TOO_SLOW_FRAC
    files = [(str(records.files[int(file)].path), index == file) for file in np.unique(index)]
    for path, inside in files:
        for name in np.unique(names[inside]):
            yield f'{column} "{name}" of {path}', inside & (names == name), least
    for path, inside in files:
        yield path, inside, TOO_SLOW_FRAC


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
    through_host = " (or do the devices copy through host memory: --no-p2p?)"
    reason = (
        f"its ten largest rows imply {typical * PERCENT:.3g} % of the datasheet rate "
        f"(expected {least * PERCENT:.2g} to {TOO_FAST_FRAC * PERCENT:g} %); "
        f"is latency_us in microseconds?{through_host * (slow and law.kind == 'collective')}"
    )
    return reason, worst


def _too_fast(
    law: FitLaw,
    fracs: NDArray[np.float64],
    single: NDArray[np.bool_],
    rows: int,
    records: Records,
) -> list[Problem]:
    """A warning about rows that are left out one by one."""
    if not single.any():
        return []
    first = int(np.flatnonzero(single)[0])
    reason = (
        f"{int(single.sum())} of {rows} rows of {law.name} are faster than the peak allows "
        f"({fracs[first] * PERCENT:.3g} % of it here), which other units explain; left out"
    )
    return [_problem(law, "records-rate", reason, records, first)]


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


def check_fit(law: FitLaw, train_median_ape: float, records: Records) -> None:
    """Refuse a law that does not describe its own rows (the median: some rows may be broken).

    Raises:
        NoFit: it misses them.
    """
    if train_median_ape <= WORST_TRAIN_MEDIAN_APE:
        return
    reason = (
        f"the law misses half of the rows it was fitted to by more than {train_median_ape:.0f} % "
        f"(limit {WORST_TRAIN_MEDIAN_APE:g} %)"
    )
    raise NoFit(_refusal(law, reason, records, 0))


def _refusal(law: FitLaw, reason: str, records: Records, row: int) -> Problem:
    return _problem(law, "fit-refused", f"{law.name} is not fitted: {reason}", records, row)


def _problem(law: FitLaw, rule: str, reason: str, records: Records, row: int) -> Problem:
    place = records.where(law.rows.origin[row])
    return Problem(rule, f"{place}: {reason}", "--records", law.name, severity="warning")
