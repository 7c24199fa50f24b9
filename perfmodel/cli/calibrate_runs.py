"""`perfmodel calibrate --runs`: engine terms from measured whole runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from perfmodel.cli.streams import warn
from perfmodel.errors import BadInput, Problem

if TYPE_CHECKING:
    from perfmodel.calibrate.explore import Options
    from perfmodel.calibrate.runs.cases import Case
    from perfmodel.calibrate.runs.progress import Progress


def fit_engines(paths: list[Path], engines: list[str], options: Options, out: Path) -> None:
    """Fit, write ``<engine>.json`` files into `out` and report."""
    from perfmodel.calibrate.runs.document import document, write_terms
    from perfmodel.calibrate.runs.evaluations import Evaluations
    from perfmodel.calibrate.runs.fit import fit_runs
    from perfmodel.calibrate.runs.hosts import fit_hosts, host_line
    from perfmodel.calibrate.runs.progress import Progress
    from perfmodel.calibrate.runs.report import report_lines
    from perfmodel.calibrate.runs.sites import fit_sites, own_cases, site_lines, under
    from perfmodel.calibrate.runs.spreads import requests

    if out.exists() and not out.is_dir():
        message = f"--out {out} is a file; --runs writes a file an engine, so name a folder"
        raise BadInput(Problem("out", message, "--out", str(out)))
    progress = Progress(_say)
    cases = _cases(paths, progress)
    _check_engines(engines, cases)
    mine = {case.record.id for case in own_cases(cases)}
    progress.task("the site's own runs")
    sites = fit_sites([case for case in cases if case.record.id in mine], {})
    alone = len(mine) == len(cases)
    cases = under(cases, sites if alone else {})
    evaluations = Evaluations(cases, options.jobs, progress)
    # Processes share the work of one trial; trials follow one another and are repeatable.
    one_by_one = replace(options, jobs=1)
    with evaluations.running():
        fit = fit_runs(evaluations, one_by_one, engines)
        progress.task("ranges of whole requests")
        found = requests(fit)
    sites = fit_sites([case for case in cases if case.record.id in mine], fit.values)
    for line in [*site_lines(sites), *report_lines(fit, found, of_a_site=alone)]:
        typer.echo(line)
    for one in fit.files:
        hosts = fit_hosts(one.file, cases, fit.values)
        for host in hosts:
            typer.echo(host_line(host))
        path, older = write_terms(document(fit, one, found, paths, hosts, sites), out)
        if older is not None:
            _say(f"the fit that was there is kept as {older}")
        _say(f"wrote {path}")


def _cases(paths: list[Path], progress: Progress) -> list[Case]:
    from perfmodel.calibrate.runs.cases import cases_of
    from perfmodel.spec.record import read_records

    records, bad = read_records(paths)
    progress.quick(f"reading {len(records)} runs")
    skipped: list[tuple[str, str]] = []
    found = cases_of(progress.counted(records, "runs"), lambda run, why: skipped.append((run, why)))
    bad += [*_left_out(skipped, len(records)), *_other_engines(found)]
    progress.quick(f"predicting {len(found)} runs")
    cases, slips = _in_milliseconds(progress.counted(found, "runs"))
    bad += slips
    if not cases:
        names = ", ".join(str(path) for path in paths)
        message = f"{names}: no run that can be predicted; perfmodel validate says why"
        raise BadInput(*bad, Problem("fit-empty", message, field="--runs", value=names))
    warn(bad)
    return cases


MOST_NAMED = 3


def _left_out(skipped: Sequence[tuple[str, str]], records: int) -> list[Problem]:
    """One warning of the runs that nothing is fitted to, by reason, most frequent first."""
    if not skipped:
        return []
    by_reason: dict[str, list[str]] = {}
    for run, why in skipped:
        by_reason.setdefault(why, []).append(run)
    reasons = sorted(by_reason.items(), key=lambda item: -len(item[1]))
    said = "; ".join(f"{len(runs)} {why} ({runs[0]})" for why, runs in reasons[:MOST_NAMED])
    more = f"; {len(reasons) - MOST_NAMED} other reasons" if len(reasons) > MOST_NAMED else ""
    message = f"{len(skipped)} of {records} runs are left out: {said}{more}; validate lists all"
    return [Problem("runs-left-out", message, field="--runs", severity="warning")]


def _other_engines(cases: Sequence[Case]) -> list[Problem]:
    """A warning for each engine that is not modelled, whose runs fit another one's terms."""
    from perfmodel.engines import engine_names

    counts = Counter(case.record.engine for case in cases)
    return [
        Problem(
            "runs-engine",
            f'{count} runs of "{name}", which is no engine that is modelled, are read as diffusers '
            "and fit its terms; if a name is misspelt, correct it",
            field="--runs",
            value=name,
            severity="warning",
        )
        for name, count in counts.items()
        if name not in engine_names()
    ]


def _in_milliseconds(cases: Iterable[Case]) -> tuple[list[Case], list[Problem]]:
    """Runs without those whose times seem to be in seconds or microseconds, and warnings of them.

    No term moves a prediction that far, so they would only bend the others.
    """
    from perfmodel.units import MS_PER_S
    from perfmodel.validate.scores import likely_unit

    kept, slips = [], []
    for case in cases:
        logs = replace(case, stages={}).outcome(case.terms({})).log_s
        found = {
            key: unit
            for (key, measured_s), log_s in zip(case.targets.items(), logs, strict=True)
            if (unit := likely_unit(math.exp(log_s) * MS_PER_S, measured_s * MS_PER_S))
        }
        if not found:
            kept.append(case)
            continue
        said = ", ".join(f"{key} looks like {unit}, not ms" for key, unit in found.items())
        message = f"{case.record.id}: {said}; run left out"
        slips.append(Problem("record-units", message, severity="warning"))
    return kept, slips


def _check_engines(engines: Sequence[str], cases: Sequence[Case]) -> None:
    have = sorted({file for case in cases for file in case.chain})
    unknown = [name for name in engines if name not in have]
    if unknown:
        raise BadInput(*(_unknown(name, have) for name in unknown))


def _unknown(name: str, have: list[str]) -> Problem:
    near = get_close_matches(name, have, 1)
    hint = f"; nearest: {near[0]}" if near else ""
    message = f'--engine "{name}" has no run in these records{hint}; they have: {", ".join(have)}'
    return Problem("engine", message, field="--engine", value=name, legal_values=tuple(have))


def _say(text: str) -> None:
    typer.echo(text, err=True)
