"""Runs evaluated by the pipeline itself under given terms; each distinct question only once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.runs.cases import Case, Outcome, Values
from perfmodel.calibrate.runs.groups import groups_of
from perfmodel.calibrate.runs.progress import Progress
from perfmodel.spec.record import END_TO_END_KEYS

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]

Asked = tuple[int, dict[str, float], frozenset[str] | None]

PREDICTIONS = "predictions"

_CASES: list[Case] = []
"""The runs, as worker processes inherit them."""


class Evaluations:
    """The runs, what they measured, and their predictions.

    Attributes:
        cases: the runs.
        case_of: run of each target (a run may measure several), ``[T]``.
        log_measured: logarithm of measured seconds, ``[T]``.
        whole: the target is a whole request, ``[T]``.
        weight: square root of each target's weight, ``[T]``: n targets of one group weigh as
            sqrt(n), because they share what is not known of it.
        sources: source of each run.
        groups: what is held out together: sources, or kinds of run of a single source.
        progress: told of each prediction.
    """

    def __init__(
        self, cases: Sequence[Case], jobs: int = 1, progress: Progress | None = None
    ) -> None:
        """Bind the runs; `jobs` processes evaluate them."""
        self.progress = progress or Progress()
        self.cases, self.jobs = list(cases), jobs
        targets = [(n, k, s) for n, case in enumerate(cases) for k, s in case.targets.items()]
        self.case_of = np.array([n for n, _, _ in targets], np.intp)
        self.log_measured = np.log([seconds for _, _, seconds in targets])
        self.whole = np.array([k in END_TO_END_KEYS for _, k, _ in targets])
        self.sources = [case.source for case in cases]
        self.groups = groups_of(self.cases)
        labels = self.groups.labels
        of_group = Counter(labels[n] for n in self.case_of)
        self.weight = np.array([of_group[labels[n]] ** -0.25 for n in self.case_of])
        self._known: dict[object, Outcome] = {}
        self._pool: ProcessPoolExecutor | None = None

    @contextmanager
    def running(self) -> Iterator[Evaluations]:
        """Keep worker processes for the time of a ``with`` block."""
        _CASES[:] = self.cases
        try:
            if self.jobs > 1:
                self._pool = ProcessPoolExecutor(self.jobs, mp_context=get_context("fork"))
            yield self
        finally:
            if self._pool is not None:
                self._pool.shutdown()
            self._pool = None

    def targets_of(self, cases: Sequence[int]) -> IntArray:
        """Targets of some runs, in order."""
        return np.flatnonzero(np.isin(self.case_of, np.asarray(cases, np.intp)))

    def log_predicted(self, cases: Sequence[int], values: Values) -> FloatArray:
        """Logarithm of predicted seconds of the targets of some runs (ascending)."""
        found = self.outcomes(cases, values)
        return np.array([log_s for outcome in found for log_s in outcome.log_s])

    def outcomes(
        self,
        cases: Sequence[int],
        values: Values,
        fitted: Mapping[int, frozenset[str]] | None = None,
    ) -> list[Outcome]:
        """Evaluate some runs; `fitted` names the terms of each that count as fitted."""
        asked = [
            (n, self.cases[n].terms(values), None if fitted is None else fitted[n]) for n in cases
        ]
        missing = [one for one in asked if _key(one) not in self._known]
        for one, outcome in zip(missing, self._evaluate(missing), strict=True):
            self._known[_key(one)] = outcome
        return [self._known[_key(one)] for one in asked]

    def _evaluate(self, asked: list[Asked]) -> list[Outcome]:
        if self._pool is None or len(asked) < self.jobs:
            _CASES[:] = self.cases
            return list(self.progress.counted(map(_outcome, asked), PREDICTIONS))
        chunk = max(1, len(asked) // (4 * self.jobs))
        found = self._pool.map(_outcome, asked, chunksize=chunk)
        return list(self.progress.counted(found, PREDICTIONS))


def _key(asked: Asked) -> object:
    number, terms, fitted = asked
    return number, tuple(sorted(terms.items())), fitted


def _outcome(asked: Asked) -> Outcome:
    number, terms, fitted = asked
    return _CASES[number].outcome(terms, fitted)
