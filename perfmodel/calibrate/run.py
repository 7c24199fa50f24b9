"""From records to a fit: read, check, split, search each law, measure its error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.checks import (
    NoFit,
    check_fit,
    far_off,
    other_devices,
    rate_fracs,
    slow_groups,
    unknown_kernels,
    usable,
)
from perfmodel.calibrate.exclude import exclude
from perfmodel.calibrate.explore import Options
from perfmodel.calibrate.laws_fit import USUAL_HOST, FitLaw, fit_laws, with_known
from perfmodel.calibrate.metrics import by_kernel, error_summary, grouped, size_classes
from perfmodel.calibrate.records import Records, Rows, read_records
from perfmodel.calibrate.split import SALT, held_out, top_work
from perfmodel.calibrate.study import Found, Objective, search
from perfmodel.catalog.gpus import Overrides
from perfmodel.cost.machine import Rates
from perfmodel.errors import BadInput, Problem
from perfmodel.spec.hardware import Device
from perfmodel.units import PERCENT

FloatArray = NDArray[np.float64]
WORST_SHAPES = 5


@dataclass(frozen=True, slots=True)
class FittedLaw:
    """One law, its parameters and how well they do on both halves.

    Attributes:
        law: rows and formula.
        found: parameters.
        train, heldout: error summaries, held out also by class and kernel.
        extrapolation: error on the top tenth of work of a fit that did not see it.
        achieved_frac: median achieved over datasheet rate of the ten largest rows.
        worst: the held-out rows that are predicted worst: (place, shape, error in percent).
    """

    law: FitLaw
    found: Found
    train: dict[str, object]
    heldout: dict[str, object]
    extrapolation: dict[str, float | int] | None
    achieved_frac: float | None
    worst: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True, slots=True)
class Calibration:
    """All laws of a device from one set of records, less the rows that `excluded` names.

    `host` says where the host differs from the usual one of the device.
    """

    device: Device
    records: Records
    laws: tuple[FittedLaw, ...]
    refused: tuple[Problem, ...]
    options: Options
    salt: str
    excluded: tuple[str, ...] = ()
    host: Overrides = USUAL_HOST


def calibrate(
    sources: Iterable[Path],
    device: Device,
    options: Options,
    *,
    only: tuple[str, ...] = (),
    excluded: tuple[str, ...] = (),
    host: Overrides = USUAL_HOST,
    salt: str = SALT,
    extrapolation: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Fit every law that the records of `sources` allow.

    Args:
        sources: folders and files.
        device: that they were measured on.
        options: of the studies.
        only: laws or kinds of laws; empty fits all.
        excluded: rows to leave out (`perfmodel.calibrate.exclude`).
        host: where the host differs from the usual one: peer access, sockets.
        salt: of the split.
        extrapolation: fit once more without the top tenth of work.
        progress: is told the law that is next.

    Raises:
        BadInput: no usable records, or no law left after the checks.
    """
    records = read_records(sources)
    exclude(records, excluded)
    rates = Rates.of(device)
    kinds = {name.split("/")[0] for name in only}
    if kinds:
        records.problems = [p for p in records.problems if p.value in {*kinds, ""}]
    if not kinds or "collective" in kinds:
        records.problems += slow_groups(records, rates)
    records.problems += other_devices(records, device)
    if not kinds or "attention" in kinds:
        records.problems += unknown_kernels(records)
    laws: list[FittedLaw] = []
    refused: list[Problem] = []
    for law in _asked(records, device, only, host):
        try:
            law, left_out = usable(with_known(law, device, host), rates, records)
            records.problems += left_out
            progress(law.name)
            laws.append(_checked(law, device, records, options, salt, extrapolation))
        except NoFit as error:
            refused.append(error.problem)
    if not laws:
        nothing = Problem("fit-empty", "no law can be fitted to these records", field="--records")
        raise BadInput(*records.problems, *refused, nothing)
    return Calibration(device, records, tuple(laws), tuple(refused), options, salt, excluded, host)


def _asked(
    records: Records, device: Device, only: tuple[str, ...], host: Overrides
) -> list[FitLaw]:
    """The laws of the records that are asked for.

    Raises:
        BadInput: asked for by a name that no row has.
    """
    laws = fit_laws(records, device, host=host)
    names = {name: {law.name for law in laws if name in (law.name, law.kind)} for name in only}
    unknown = [name for name, found in names.items() if not found]
    if unknown:
        have = tuple(law.name for law in laws)
        message = f"--laws {', '.join(unknown)}: no row is of it; these records have: "
        raise BadInput(Problem("option", message + ", ".join(have), "--laws", None, have))
    return [law for law in laws if not only or any(law.name in found for found in names.values())]


def _checked(
    law: FitLaw,
    device: Device,
    records: Records,
    options: Options,
    salt: str,
    extrapolation: bool,
) -> FittedLaw:
    """One law, fitted and checked."""
    rates = Rates.of(device)
    fitted = _fit(law, rates, records, options, salt, device.id)
    if extrapolation:
        fitted = _with_extrapolation(fitted, rates, options, device.id)
    check_fit(law, float(str(fitted.train["median_ape"])), records)
    every = np.arange(len(law.rows))
    records.problems += far_off(law, predict(law, rates, fitted.found, every), records)
    return fitted


def _fit(
    law: FitLaw, rates: Rates, records: Records, options: Options, salt: str, device_id: str
) -> FittedLaw:
    away = held_out(law, salt)
    train, test = np.flatnonzero(~away), np.flatnonzero(away)
    found = search(law, rates, train, options, f"{device_id}:{law.name}:{law.version}:{salt}")
    test_rows = law.rows.take(test)
    predicted = predict(law, rates, found, test)
    measured = test_rows["latency_s"]
    heldout: dict[str, object] = dict(error_summary(predicted, measured))
    heldout["by"] = {
        "size": grouped(predicted, measured, size_classes(law, test_rows)),
        "kernel": grouped(predicted, measured, by_kernel(test_rows)),
    }
    train_error = error_summary(predict(law, rates, found, train), law.rows["latency_s"][train])
    return FittedLaw(
        law,
        found,
        dict(train_error),
        heldout,
        None,
        _achieved(law, rates),
        _worst(law, test_rows, predicted, records),
    )


def predict(law: FitLaw, rates: Rates, found: Found, index: NDArray[np.intp]) -> FloatArray:
    """Seconds of the rows `index` with the parameters found."""
    problem = Objective(law, rates, index)
    error = problem.log_error(problem.space.encode(found.values, found.kernels))
    return np.asarray(problem.measured * np.exp(error))


def _with_extrapolation(
    fitted: FittedLaw, rates: Rates, options: Options, device_id: str
) -> FittedLaw:
    """Fit again without the top tenth of work and measure the error there."""
    law, top = fitted.law, top_work(fitted.law)
    if not top.any():
        return fitted
    found = search(
        law, rates, np.flatnonzero(~top), options, f"{device_id}:{law.name}:{law.version}:top"
    )
    index = np.flatnonzero(top)
    error = error_summary(predict(law, rates, found, index), law.rows["latency_s"][index])
    return FittedLaw(
        law,
        fitted.found,
        fitted.train,
        fitted.heldout,
        error,
        fitted.achieved_frac,
        fitted.worst,
    )


def _achieved(law: FitLaw, rates: Rates) -> float | None:
    fracs = rate_fracs(law, rates)
    if fracs is None:
        return None
    return round(float(np.median(fracs[np.argsort(law.work, kind="stable")[-10:]])), 4)


def _worst(
    law: FitLaw, rows: Rows, predicted: FloatArray, records: Records
) -> tuple[tuple[str, str, float], ...]:
    error = predicted / rows["latency_s"] - 1.0
    order = np.argsort(-np.abs(error), kind="stable")[:WORST_SHAPES]
    return tuple(
        (
            records.where(rows.origin[i]),
            " ".join(f"{name}={rows.columns[name][i]}" for name in law.dims),
            round(float(error[i]) * PERCENT, 1),
        )
        for i in order
    )
