"""A site's own runs by engine and device, and the runs under what they say of the site."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from perfmodel.calibrate.fitfile import DIGITS
from perfmodel.calibrate.runs.cases import Case, Values
from perfmodel.calibrate.runs.site import SiteFit, SitePriors, SiteRows, fit_site, site_priors
from perfmodel.catalog.scored import all_scored_runs
from perfmodel.pipeline.request_width import FACTORS, request_frac
from perfmodel.pipeline.site import REQUEST, SITE_TERMS
from perfmodel.units import MS_PER_S, PERCENT

SHIFT = 0.05
"""Change of a log ratio, and seconds, over which slopes are taken."""

CHANGES = 3
"""Slopes are taken again where the runs put the site, this often: sums of stages are not linear."""

SAME = 1e-3
"""Times of a record that was published differ by less, whoever rounded them."""

USUAL = {name: 0.0 if name == REQUEST else 1.0 for name in SITE_TERMS}

Sites = Mapping[tuple[str, str], SiteFit]
"""By terms file and device."""


def own_cases(cases: Sequence[Case]) -> list[Case]:
    """Runs of the site itself: all, where one source measured them; else those not published."""
    if len({case.source for case in cases}) == 1:
        return list(cases)
    published = {run.id: run.measured_ms for run in all_scored_runs()}
    sources = {run.source for run in all_scored_runs()}
    return [case for case in cases if not _published(case, published, sources)]


def _published(case: Case, measured_ms: Mapping[str, float], sources: set[str]) -> bool:
    told = measured_ms.get(case.record.id)
    if told is None:
        return case.source in sources
    return any(abs(s * MS_PER_S / told - 1.0) < SAME for s in case.targets.values())


def fit_sites(cases: Sequence[Case], values: Values) -> dict[tuple[str, str], SiteFit]:
    """The site of each engine and device of some runs, under engine terms `values`."""
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.file, case.device].append(case)
    priors = site_priors()
    return {key: _fit(groups[key], values, priors) for key in sorted(groups)}


def _fit(cases: Sequence[Case], values: Values, priors: SitePriors) -> SiteFit:
    at: Mapping[str, float] = {}
    for _ in range(CHANGES):
        found = fit_site(rows_of(cases, values, at), priors)
        at = found.values
    return found


def rows_of(cases: Sequence[Case], values: Values, at: Mapping[str, float]) -> SiteRows:
    """Errors of runs without a site, and their slopes around the site `at`.

    Errors are those that the linear form has at no site, so that it is exact at `at`.
    """
    errors, slopes, widths = [], [], []
    for case in cases:
        error, slope, width = _row(case, values, at)
        errors.append(error)
        slopes.append(slope)
        widths.append(np.full(len(error), width))
    which = [case for case, error in zip(cases, errors, strict=True) for _ in error]
    return SiteRows(
        np.concatenate(errors),
        np.vstack(slopes),
        np.concatenate(widths),
        tuple(case.question for case in which),
        tuple(case.job.model.slug for case in which),
    )


def _row(
    case: Case, values: Values, at: Mapping[str, float]
) -> tuple[np.ndarray, np.ndarray, float]:
    there = placed(case, at)
    plain = placed(case, {}).outcome(placed(case, {}).terms(values), case.job.machine.fitted_terms)
    base = np.array(there.outcome(there.terms(values)).log_s)
    slopes = np.empty((len(base), len(SITE_TERMS)))
    for column, name in enumerate(SITE_TERMS):
        step = SHIFT if name == REQUEST else there.site_terms[name] * (np.exp(SHIFT) - 1.0)
        moved = placed(case, {**there.site_terms, name: there.site_terms[name] + step})
        slopes[:, column] = (np.array(moved.outcome(moved.terms(values)).log_s) - base) / SHIFT
    unknowns = [x if n == REQUEST else np.log(x) for n, x in there.site_terms.items()]
    errors = np.log(list(case.targets.values())) - base + slopes @ np.array(unknowns)
    features = {k: np.array([x]) for k, x in zip(FACTORS, plain.uncertain, strict=True)}
    table = {k: v for k, v in case.job.spread.items() if k != "run.site"}
    return errors, slopes, float(np.log1p(request_frac(features, table))[0])


def placed(case: Case, site: Mapping[str, float]) -> Case:
    """A run as a site runs it; without values, as the usual one does."""
    return replace(case, site_terms={**USUAL, **site})


def under(cases: Iterable[Case], sites: Sites) -> list[Case]:
    """Runs under the sites of their engine and device; the others under none."""
    return [
        placed(case, found.values if (found := sites.get((case.file, case.device))) else {})
        for case in cases
    ]


MEANINGS = {
    "site_device_time_frac": "time of everything on the device over that of the usual machine",
    "site_vae_time_frac": "time of the VAE over the usual one, beyond the device's ratio",
    "site_host_time_frac": "time of host work over that of the usual machine",
    "site_request_s": "what the site's server adds to a request",
}


def sites_document(file: str, sites: Sites) -> dict[str, Any]:
    """The ``sites`` of a terms file, by device."""
    return {
        device: {
            "terms": {name: _term(found, name) for name in SITE_TERMS},
            "models": list(found.models),
            "rows": found.runs,
            "held_out": {"before": _short(found.before), "after": _short(found.after)},
            "width_ratio": _short(found.width_ratio),
            "other_width_ratio": _short(found.other_width_ratio),
        }
        for (engine, device), found in sites.items()
        if engine == file
    }


def _term(found: SiteFit, name: str) -> dict[str, Any]:
    seconds = name == REQUEST
    return {
        "value": _short(found.values[name]),
        "low": 0.0 if seconds else 0.25,
        "high": 60.0 if seconds else 4.0,
        "unit": "s" if seconds else "fraction",
        "provenance": "fitted",
        "meaning": MEANINGS[name],
        "prior": 0.0 if seconds else 1.0,
        "deviation": _short(found.deviations[name]),
    }


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def site_lines(sites: Sites) -> Iterator[str]:
    """What a site's runs say, as text."""
    for (file, device), found in sites.items():
        runs = "1 configuration" if found.runs == 1 else f"{found.runs} configurations"
        yield (
            f"site, {file} on {device}: {runs}; each without its like "
            f"{found.before * PERCENT:.1f} to {found.after * PERCENT:.1f} % off"
        )
        yield "  " + ", ".join(_said(found, name) for name in SITE_TERMS)
        yield (
            f"  80 % ranges {found.width_ratio:.2f} times as wide for the models that ran, "
            f"{found.other_width_ratio:.2f} times for others"
        )


def _said(found: SiteFit, name: str) -> str:
    value, deviation = found.values[name], found.deviations[name]
    if name == REQUEST:
        return f"{value:.2f} s more a request (±{deviation:.2f})"
    title = name.removeprefix("site_").removesuffix("_time_frac")
    return f"{title} x{value:.3g} (±{np.expm1(deviation) * PERCENT:.0f} %)"
