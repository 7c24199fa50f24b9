"""What a fit of engine terms prints: held-out errors, terms, what kept its prior, ranges."""

from __future__ import annotations

from collections.abc import Iterator

from perfmodel.calibrate.runs.fit import FittedFile, RunFit
from perfmodel.calibrate.runs.heldout import HeldOut, held_out
from perfmodel.calibrate.runs.spreads import Coverage, Requests, coverage
from perfmodel.units import PERCENT


def report_lines(fit: RunFit, found: Requests, *, of_a_site: bool = False) -> Iterator[str]:
    """Plain text, at most 100 columns; the ranges of a site are told with it (`sites`)."""
    runs = fit.evaluations
    sources = len(set(runs.sources))
    unseen, evidence = runs.groups.unseen, runs.groups.evidence
    of = "one source" if sources == 1 else f"{sources} sources"
    yield f"{len(runs.cases)} runs of {of}; errors are those of unseen {unseen}"
    if evidence:
        yield f"evidence: {evidence}"
    yield ""
    yield from _engines(fit)
    for one in fit.files:
        yield ""
        yield from _file(one, "source" if evidence is None else "group")
    if not of_a_site:
        yield ""
        yield from _ranges(found)


def _engines(fit: RunFit) -> Iterator[str]:
    """Held-out errors of whole requests by engine, before and after."""
    runs = fit.evaluations
    yield f"  {'engine':<24}{'runs':>6}{'sources':>9}{'median %':>20}{'mean %':>20}{'bias %':>20}"
    for engine in sorted({case.file for case in runs.cases}):
        rows = [n for n, case in enumerate(runs.cases) if case.file == engine]
        if not runs.whole[runs.targets_of(rows)].any():
            continue
        before = held_out(runs, rows, [fit.start] * len(fit.by_fold), fit.folds)
        after = held_out(runs, rows, fit.by_fold, fit.folds)
        cells = "".join(
            f"{f'{getattr(before, name) * PERCENT:{sign}.1f} to ':>14}"
            f"{getattr(after, name) * PERCENT:{sign}6.1f}"
            for name, sign in (("median_frac", ""), ("mean_frac", ""), ("bias_frac", "+"))
        )
        yield f"  {engine:<24}{after.rows:>6}{len({runs.sources[n] for n in rows}):>9}{cells}"


def _file(one: FittedFile, by: str) -> Iterator[str]:
    """The terms of one file, and why others keep their prior."""
    head = f"{one.file}: {one.rows} runs, {one.independent} independent, "
    head += "one source" if one.sources == 1 else f"{one.sources} sources"
    yield head + _weighted(one.before, one.after, by)
    for name, term in one.terms.items():
        at = ", at its bound" if term.at_bound else ""
        prior = term.parameter.default
        yield f"  {name:<28}{prior:>12.4g} to {term.value:<12.4g}{len(term.cases):>4} runs{at}"
    if "" in one.kept:
        yield f"  all terms keep their priors: {one.kept['']}"
    reasons: dict[str, list[str]] = {}
    for name, reason in one.kept.items():
        if name:
            reasons.setdefault(reason, []).append(name)
    for reason, names in sorted(reasons.items()):
        yield f"  kept, {reason}: {', '.join(names)}"


def _weighted(before: HeldOut | None, after: HeldOut | None, by: str) -> str:
    if before is None or after is None:
        return ""
    left, right = before.weighted * PERCENT, after.weighted * PERCENT
    return f"; mean held-out error by {by} {left:.1f} to {right:.1f} %"


def _ranges(found: Requests) -> Iterator[str]:
    """How the 80 % ranges did on sources that they were not chosen from."""
    if not found.enough:
        yield "80 % ranges keep their widths: too few runs or sources"
        return
    for title, lent in (("fitted kernel laws", False), ("lent kernel laws", True)):
        one = coverage(found, found.of(lent=lent))
        if one.rows:
            yield f"80 % ranges on devices with {title}: held {_held(one)}"
    for engine in sorted(set(found.errors.engines)):
        yield f"  {engine:<24}{_held(coverage(found, found.of(engine=engine)))}"
    factors = {k: v for k, v in found.widths.table("").items() if k != "run"}
    told = ", ".join(f"{name.removeprefix('run.')} {x:.3g}" for name, x in factors.items())
    yield f"  factors: {told}; engines apart {found.widths.apart:g}"


def _held(one: Coverage) -> str:
    return (
        f"{one.inside_frac * PERCENT:.0f} % of {one.rows} unseen requests, half-width "
        f"{one.halfwidth_frac * PERCENT:.0f} % (median)"
    )
