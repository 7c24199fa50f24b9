"""A terms file with the runs that inform it, and how each run depends on each of its terms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.calibrate.explore import from_unit, to_unit
from perfmodel.calibrate.runs.cases import Values
from perfmodel.calibrate.runs.evaluations import Evaluations
from perfmodel.calibrate.runs.solve import FloatArray, Problem
from perfmodel.calibrate.runs.terms import (
    engines_under,
    independent_rows,
    parameters,
    present,
    rows_of,
)
from perfmodel.cost.fits import Parameter

QUARTER, MATERIAL = 0.25, 0.01
"""A quarter of the range of a term must move a prediction by this share: below it a run does not
identify the term."""

DIFFERENCE = 0.02
"""Share of a range over which slopes are taken."""


@dataclass(frozen=True)
class Level:
    """One terms file and the runs that inform it.

    Attributes:
        evaluations: all runs.
        file: whose terms.
        cases: the runs of this file, ascending.
        parameters: candidates.
        slopes: change of the log time of each target over the range of each candidate, ``[T, P]``.
    """

    evaluations: Evaluations
    file: str
    cases: tuple[int, ...]
    parameters: tuple[Parameter, ...]
    slopes: FloatArray

    def identifying(self, column: int) -> list[int]:
        """Runs whose prediction a quarter of the range moves by a material share."""
        targets = self.evaluations.targets_of(self.cases)
        material = np.abs(self.slopes[:, column]) * QUARTER >= MATERIAL
        return sorted({int(n) for n in self.evaluations.case_of[targets[material]]})

    def rows_behind(self, column: int, seen: Sequence[int]) -> int:
        """Independent rows among `seen` that identify a candidate."""
        behind = set(self.identifying(column)) & set(seen)
        return independent_rows(self.evaluations.cases[n] for n in behind)

    def changed(self, values: Values, new: Mapping[str, float]) -> Values:
        """`values` with terms of this file replaced, for the engines that take them from it."""
        return changed(values, self.file, new, self.evaluations)

    def problem(self, values: Values, seen: Sequence[int], free: Sequence[int]) -> Problem:
        """The runs `seen` as a function of some candidates, around `values`."""
        chosen = [self.parameters[n] for n in free]
        now = [present(values, self.file, p) for p in chosen]
        centre = np.array([to_unit(p, value) for p, value in zip(chosen, now, strict=True)])
        targets = self.evaluations.targets_of(seen)
        place = np.searchsorted(self.evaluations.targets_of(self.cases), targets)

        def errors(point: FloatArray) -> FloatArray:
            new = {
                p.name: from_unit(p, float(x))
                for p, x, c in zip(chosen, point, centre, strict=True)
                if x != c
            }
            there = self.evaluations.log_predicted(seen, self.changed(values, new))
            return np.asarray(there - self.evaluations.log_measured[targets])

        slopes = self.slopes[place][:, np.asarray(free, np.intp)]
        return Problem(centre, slopes, self.evaluations.weight[targets], errors)


def changed(
    values: Values, file: str, new: Mapping[str, float], evaluations: Evaluations
) -> Values:
    """`values` with terms of `file` replaced, for the engines that take them from it."""
    result = {engine: dict(found) for engine, found in values.items()}
    for name, value in new.items():
        for engine in engines_under(file, name, evaluations.cases):
            result.setdefault(engine, {})[name] = value
    return result


def level_of(evaluations: Evaluations, file: str, start: Values) -> Level:
    """The level of a terms file, with slopes at `start`."""
    cases = tuple(rows_of(file, evaluations.cases))
    candidates = tuple(parameters(file).values())
    slopes = slopes_at(evaluations, file, cases, candidates, start)
    return Level(evaluations, file, cases, candidates, slopes)


def slopes_at(
    evaluations: Evaluations,
    file: str,
    cases: Sequence[int],
    candidates: Sequence[Parameter],
    values: Values,
) -> FloatArray:
    """Numeric derivatives of log times, ``[T, P]``."""
    base = evaluations.log_predicted(cases, values)
    slopes = np.zeros((len(base), len(candidates)))
    for column, parameter in enumerate(candidates):
        at = to_unit(parameter, present(values, file, parameter))
        there = at + DIFFERENCE if at + DIFFERENCE <= 1.0 else at - DIFFERENCE
        moved = changed(values, file, {parameter.name: from_unit(parameter, there)}, evaluations)
        slopes[:, column] = (evaluations.log_predicted(cases, moved) - base) / (there - at)
    return slopes
