"""The whole requests of a fit: their held-out errors, what was uncertain, and their ranges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.runs.fit import RunFit
from perfmodel.calibrate.runs.heldout import held_out_errors
from perfmodel.calibrate.runs.solve import FloatArray
from perfmodel.calibrate.runs.terms import ROWS_PER_TERM, engines_under
from perfmodel.calibrate.runs.widths import Errors, Widths, unseen_halfwidths, widths_of
from perfmodel.pipeline.request_width import FACTORS

FEW_SOURCES = 4
"""Fewer sources than this say more of themselves than of the next one."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How ranges found without a run's source did on it, and how wide they are (median)."""

    rows: int
    inside_frac: float
    halfwidth_frac: float


@dataclass(frozen=True)
class Requests:
    """Whole requests, and the widths of the 80 % ranges that they support."""

    errors: Errors

    @cached_property
    def enough(self) -> bool:
        """Whether the runs say anything of those of further sources."""
        return len(self.errors) >= ROWS_PER_TERM and len(set(self.errors.sources)) >= FEW_SOURCES

    @cached_property
    def widths(self) -> Widths:
        """From all runs."""
        return widths_of(self.errors)

    @cached_property
    def unseen(self) -> FloatArray:
        """Log half-width of each run, found without its source, ``[R]``."""
        return unseen_halfwidths(self.errors)

    def of(self, *, engine: str | None = None, lent: bool | None = None) -> NDArray[np.bool_]:
        """The runs of an engine, and those on devices whose kernel laws are lent or fitted."""
        chosen = np.ones(len(self.errors), bool)
        if engine is not None:
            chosen &= np.array(self.errors.engines) == engine
        if lent is not None:
            chosen &= (self.errors.features[:, list(FACTORS).index("lent")] > 0) == lent
        return chosen


def requests(fit: RunFit) -> Requests:
    """The whole requests of a fit, each under the terms of its own fold."""
    runs = fit.evaluations
    every = range(len(runs.cases))
    errors = held_out_errors(runs, every, fit.by_fold, fit.folds)
    fitted = {n: fitted_terms(fit, n) for n in every}
    known = runs.outcomes(every, fit.values, fitted)
    cases = [int(n) for n in runs.case_of[runs.whole]]
    return Requests(
        Errors(
            size=np.abs(errors[runs.whole]),
            features=np.array([known[n].uncertain for n in cases]).reshape(-1, len(FACTORS)),
            engines=tuple(runs.cases[n].file for n in cases),
            sources=tuple(runs.sources[n] for n in cases),
        )
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


def coverage(found: Requests, chosen: NDArray[np.bool_]) -> Coverage:
    """Ranges of some requests, each found without the runs of its own source.

    The half-width is that of the two ends around the prediction, ``(e^w - e^-w) / 2``.
    """
    if not chosen.any():
        return Coverage(0, float("nan"), float("nan"))
    width, size = found.unseen[chosen], found.errors.size[chosen]
    inside = float(np.mean(size <= width))
    return Coverage(int(chosen.sum()), inside, float(np.median(np.sinh(width))))
