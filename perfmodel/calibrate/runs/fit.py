"""Engine terms file by file: candidates, cross-validation by source, a study, a verdict.

A term is freed only where enough independent runs depend on it, and stays freed only where runs of
sources that the fit never saw are predicted better than by the priors.  Runs of one source only
are held out by what they ran (`groups`), and what is fitted to them holds for their site.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.calibrate.explore import Options, explore, from_unit, to_unit
from perfmodel.calibrate.runs.cases import Values
from perfmodel.calibrate.runs.choose import choose
from perfmodel.calibrate.runs.evaluations import Evaluations, IntArray
from perfmodel.calibrate.runs.folds import folds_of
from perfmodel.calibrate.runs.heldout import HeldOut, held_out
from perfmodel.calibrate.runs.levels import Level, level_of, slopes_at
from perfmodel.calibrate.runs.solve import FloatArray, Problem, step, walk
from perfmodel.calibrate.runs.terms import (
    ROWS_PER_TERM,
    before_the_fit,
    files_of,
    independent_rows,
    present,
)
from perfmodel.cost.fits import Parameter

EDGE = 2e-3
"""Share of a range at either end that counts as its bound."""

DIGITS = 4

STEPS = 2
"""Steps of a fit to one half; the second starts where the pipeline says the first went."""

Mutable = dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class FittedTerm:
    """One accepted term.

    Attributes:
        parameter: its bounds; `default` is the prior.
        value: as fitted.
        cases: runs that identify it.
        at_bound: the value lies at a bound.
    """

    parameter: Parameter
    value: float
    cases: tuple[int, ...]
    at_bound: bool


@dataclass(frozen=True, slots=True)
class FittedFile:
    """What became of one terms file.

    Attributes:
        rows, independent, sources: runs, distinct configurations of distinct sources, sources.
        terms: accepted terms by name.
        kept: why other candidates keep their prior, by name; "" for all of the file.
        before, after: held-out errors under the priors and under the fit.
    """

    file: str
    rows: int
    independent: int
    sources: int
    terms: Mapping[str, FittedTerm]
    kept: Mapping[str, str]
    before: HeldOut | None = None
    after: HeldOut | None = None


@dataclass(frozen=True)
class RunFit:
    """All files.

    Attributes:
        start, values: terms before and after, by file and name.
        by_fold: terms of the fit that did not see a fold.
        folds: fold of each run.
    """

    evaluations: Evaluations
    files: tuple[FittedFile, ...]
    start: Values
    values: Values
    by_fold: tuple[Values, ...]
    folds: IntArray


def fit_runs(
    evaluations: Evaluations,
    options: Options,
    engines: Iterable[str] = (),
) -> RunFit:
    """Fit the terms files of `engines` (all, if none is named), a base before its heirs."""
    cases = evaluations.cases
    every = files_of(cases)
    start = before_the_fit(every, frozenset(case.record.id for case in cases))
    folds = folds_of(evaluations.groups.labels, [case.file for case in cases])
    values: Mutable = {file: dict(start[file]) for file in every}
    by_fold: list[Mutable] = [
        {file: dict(start[file]) for file in every} for _ in range(int(folds.max()) + 1)
    ]
    done = []
    for file in every:
        if not engines or file in set(engines):
            evaluations.progress.task(f"fitting {file}")
            level = level_of(evaluations, file, start)
            done.append(_fit_file(level, values, by_fold, folds, options))
    return RunFit(evaluations, tuple(done), start, values, tuple(by_fold), folds)


def _fit_file(
    level: Level,
    values: Mutable,
    by_fold: list[Mutable],
    folds: IntArray,
    options: Options,
) -> FittedFile:
    """Cross-validate the whole procedure, then fit all runs; changes `values` when it helps."""
    file, cases = level.file, [level.evaluations.cases[n] for n in level.cases]
    groups = level.evaluations.groups
    sources = len({case.source for case in cases})
    result = FittedFile(file, len(cases), independent_rows(cases), sources, {}, {})
    if result.independent < ROWS_PER_TERM:
        return replace(result, kept={"": f"{result.independent} independent rows"})
    if len({groups.labels[n] for n in level.cases}) < 2:
        alone = "one source" if groups.site is None else "one shape, GPU count and layout"
        return replace(result, kept={"": f"{alone}: nothing can be held out"})
    trial = []
    for fold, terms in enumerate(by_fold):
        seen = [n for n in level.cases if folds[n] != fold]
        free = _chosen(level, terms, seen)
        trial.append(level.changed(terms, _stepped(level, terms, seen, free)))
    before = held_out(level.evaluations, level.cases, by_fold, folds)
    after = held_out(level.evaluations, level.cases, trial, folds)
    result = replace(result, before=before, after=after)
    if after.weighted >= before.weighted:
        return replace(result, kept={"": f"no set of terms helps runs of unseen {groups.unseen}"})
    free = _chosen(level, values, level.cases)
    found = _studied(level, values, free, options)
    result = replace(result, terms=_accepted(level, values, found), kept=_kept(level, found))
    for terms, new in zip([*by_fold, values], [*trial, level.changed(values, found)], strict=True):
        terms.update({engine: dict(found) for engine, found in new.items()})
    return result


def _chosen(level: Level, values: Values, seen: Sequence[int]) -> list[int]:
    """Candidates that the runs `seen` support, at most one for ten independent rows."""
    cases, labels = level.evaluations.cases, level.evaluations.groups.labels
    able = [n for n in range(len(level.parameters)) if level.rows_behind(n, seen) >= ROWS_PER_TERM]
    problem = level.problem(values, seen, able)
    most = independent_rows(cases[n] for n in seen) // ROWS_PER_TERM
    targets = level.evaluations.targets_of(seen)
    folds = folds_of([labels[n] for n in level.evaluations.case_of[targets]])
    return [able[n] for n in choose(problem, problem.centre, folds, most)]


def _stepped(
    level: Level, values: Values, seen: Sequence[int], free: Sequence[int]
) -> dict[str, float]:
    """Terms of two steps with the slopes at the priors: what each half of a split is fitted by."""
    if not free:
        return {}
    problem = level.problem(values, seen, free)
    point = problem.centre
    for _ in range(STEPS):
        point = step(problem, point, problem.errors(point))
    return _named(level, free, point)


def _studied(
    level: Level, values: Values, free: Sequence[int], options: Options
) -> dict[str, float]:
    """Terms fitted to all runs: a study, then steps with exact errors and fresh slopes."""
    if not free:
        return {}
    problem = level.problem(values, level.cases, free)
    centre = problem.centre
    chosen = [
        replace(level.parameters[n], default=from_unit(level.parameters[n], float(c)))
        for n, c in zip(free, centre, strict=True)
    ]
    trials = explore(chosen, problem.loss, options, _study_name(level.file, chosen, problem))
    start = step(problem, centre, problem.errors(centre))
    best = min([centre, start, *trials[:1]], key=problem.loss)
    if options.polish:
        there = level.changed(values, _named(level, free, best))
        slopes = slopes_at(level.evaluations, level.file, level.cases, chosen, there)
        best = walk(replace(problem, slopes=slopes), best)
    return _named(level, free, best)


def _study_name(file: str, chosen: Sequence[Parameter], problem: Problem) -> str:
    """A study is resumed only for the very same terms, runs and predictions."""
    state = hashlib.sha256(repr(chosen).encode())
    state.update(np.round(problem.errors(problem.centre), 9).tobytes())
    return f"{file}:{state.hexdigest()[:12]}"


def _named(level: Level, free: Sequence[int], point: FloatArray) -> dict[str, float]:
    """Values of a point, rounded: what is stored is what is used."""
    found = {}
    for n, x in zip(free, point, strict=True):
        value = from_unit(level.parameters[n], float(x))
        found[level.parameters[n].name] = float(f"{value:.{DIGITS}g}")
    return found


def _accepted(level: Level, values: Values, found: Mapping[str, float]) -> dict[str, FittedTerm]:
    terms = {}
    for column, parameter in enumerate(level.parameters):
        if parameter.name in found:
            value = found[parameter.name]
            prior = replace(parameter, default=present(values, level.file, parameter))
            edge = not EDGE < to_unit(parameter, value) < 1.0 - EDGE
            behind = tuple(level.identifying(column))
            terms[parameter.name] = FittedTerm(prior, value, behind, edge)
    return terms


def _kept(level: Level, found: Mapping[str, float]) -> dict[str, str]:
    """Why the other candidates keep their prior."""
    kept = {}
    for column, parameter in enumerate(level.parameters):
        if parameter.name not in found:
            rows = level.rows_behind(column, level.cases)
            few = f"{rows} independent rows depend on it"
            unseen = f"no gain on unseen {level.evaluations.groups.unseen}"
            kept[parameter.name] = few if rows < ROWS_PER_TERM else unseen
    return kept
