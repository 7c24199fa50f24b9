"""Widths of 80 % ranges of whole requests from the errors of runs that no fit saw.

A range has two parts: the errors of the kinds of time, which a fit to whole requests leaves
smaller in the sum than in the parts (``parts``), and what scales a whole run (``run``).  Both are
chosen per engine, output (image, video) and device (kernel laws fitted or lent), so that four of
five held-out runs lie inside and the ranges are as narrow as that allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.calibrate.runs.evaluations import Evaluations, IntArray
from perfmodel.calibrate.runs.fit import RunFit
from perfmodel.calibrate.runs.heldout import held_out_errors
from perfmodel.calibrate.runs.solve import FloatArray
from perfmodel.calibrate.runs.terms import ROWS_PER_TERM, engines_under, heirs
from perfmodel.pipeline.uncertainty import REPEAT_FRAC, run_class

COVERED = 0.8
FEW_SOURCES = 4
"""Fewer sources than this say more of themselves than of the next one."""
SHARES = (1.0, 0.75, 0.5, 0.25, 0.0)
DIGITS = 3


@dataclass(frozen=True, slots=True)
class Requests:
    """Whole requests with their held-out errors.

    Attributes:
        cases: number of each run, ``[R]``.
        errors: log errors, ``[R]``.
        parts_frac: relative half-width from the kinds of time alone, ``[R]``.
        folds: fold of each run, ``[R]``.
        classes: ``video.fitted`` and so on, by run.
        files: terms file of the engine, by run.
    """

    cases: tuple[int, ...]
    errors: FloatArray
    parts_frac: FloatArray
    folds: IntArray
    classes: tuple[str, ...]
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """How ranges chosen without a run's source did on it, and how wide they are (medians)."""

    rows: int
    inside_frac: float
    halfwidth_frac: float


def requests(fit: RunFit) -> Requests:
    """The whole requests of a fit."""
    runs = fit.evaluations
    every = range(len(runs.cases))
    errors = held_out_errors(runs, every, fit.by_fold, fit.folds)
    fitted = {n: fitted_terms(fit, n) for n in every}
    widths = [outcome.parts_frac for outcome in runs.outcomes(every, fit.values, fitted)]
    cases = tuple(int(n) for n in runs.case_of[runs.whole])
    return Requests(
        cases=cases,
        errors=errors[runs.whole],
        parts_frac=np.array([widths[n] for n in cases]),
        folds=fit.folds[list(cases)],
        classes=tuple(run_class(runs.cases[n].job) for n in cases),
        files=tuple(runs.cases[n].file for n in cases),
    )


def fitted_terms(fit: RunFit, number: int) -> frozenset[str]:
    """Terms that count as fitted in one run: of the files as they are, and of this fit."""
    case = fit.evaluations.cases[number]
    names = set(case.job.machine.fitted_terms)
    names -= set(fit.start.get(case.file, {}))
    cases = fit.evaluations.cases
    names |= {
        name
        for one in fit.files
        for name in one.terms
        if case.file in engines_under(one.file, name, cases)
    }
    return frozenset(names)


def spreads(found: Requests, evaluations: Evaluations, file: str) -> dict[str, float]:
    """Entries of the ``spread`` of a terms file: those of its engine's classes with enough runs."""
    table: dict[str, float] = {}
    for name in sorted(set(found.classes)):
        rows = members(found, evaluations, file, name)
        if len(rows) >= ROWS_PER_TERM:
            share, run = widths(found.errors[rows], found.parts_frac[rows])
            table |= {f"parts.{name}": share, f"run.{name}": run}
    return table


def members(found: Requests, evaluations: Evaluations, file: str, name: str) -> list[int]:
    """Requests of a class behind the widths of a file: of its engine, else also of its heirs.

    Where those come from few sources, the requests of all engines, if they are predicted better:
    one source of a model that misses would widen every other model of the engine.
    """
    alike = [n for n, kind in enumerate(found.classes) if kind == name]
    own = [n for n in alike if found.files[n] == file]
    if len(own) < ROWS_PER_TERM:
        allowed = set(heirs(file, evaluations.cases))
        own = [n for n in alike if found.cases[n] in allowed]
    sources = {evaluations.cases[found.cases[n]].source for n in own}
    if len(own) < ROWS_PER_TERM or len(sources) >= FEW_SOURCES:
        return own
    return min(own, alike, key=lambda rows: _width(found, rows))


def _width(found: Requests, rows: list[int]) -> float:
    """Median half-width of the requests of a class, from those of its `rows`."""
    known = found.parts_frac[rows]
    return float(np.median(halfwidths(known, *widths(found.errors[rows], known))))


def widths(errors: FloatArray, parts_frac: FloatArray) -> tuple[float, float]:
    """(share of the kinds' errors, error of a whole run): narrowest that holds four of five.

    With n runs the smallest half-width that holds ``ceil(0.8 (n + 1))`` of them, so that a further
    run lies inside four times of five.
    """
    wanted = min(len(errors), math.ceil(COVERED * (len(errors) + 1))) - 1
    best = (math.inf, 1.0, 0.0)
    for share in SHARES:
        known = np.sqrt((share * parts_frac) ** 2 + REPEAT_FRAC**2)
        short = np.expm1(np.abs(errors)) ** 2 - known**2
        run = math.sqrt(max(float(np.sort(short)[wanted]), 0.0))
        run = math.ceil(run * 10**DIGITS) / 10**DIGITS
        width = float(np.median(np.sqrt(known**2 + run**2)))
        if width < best[0] - 10**-DIGITS:
            best = (width, share, run)
    return best[1], best[2]


def halfwidths(parts_frac: FloatArray, share: float, run: float) -> FloatArray:
    """Relative half-widths, as `pipeline.uncertainty.halfwidth_s` has them."""
    return np.asarray(np.sqrt((share * parts_frac) ** 2 + run**2 + REPEAT_FRAC**2))


def coverage(found: Requests, evaluations: Evaluations, names: Sequence[str]) -> Coverage:
    """Ranges of the requests of some classes, each chosen without the runs of its own fold."""
    inside, wide = [], []
    for number, kind in enumerate(found.classes):
        if kind not in names:
            continue
        chain = evaluations.cases[found.cases[number]].chain
        for place in chain:
            rows = members(found, evaluations, place, kind)
            if len(rows) >= ROWS_PER_TERM:
                break
        others = [n for n in rows if found.folds[n] != found.folds[number]]
        if len(others) < 2:
            continue
        share, run = widths(found.errors[others], found.parts_frac[others])
        half = float(halfwidths(found.parts_frac[[number]], share, run)[0])
        inside.append(abs(found.errors[number]) <= math.log1p(half))
        wide.append(half)
    if not inside:
        return Coverage(0, math.nan, math.nan)
    return Coverage(len(inside), float(np.mean(inside)), float(np.median(wide)))
