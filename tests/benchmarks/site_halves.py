"""Half of the configurations of each published source fitted as a site, the other half predicted.

``python tests/benchmarks/site_halves.py`` prints mean absolute log errors of times in percent
without and with the site, and how the 80 % ranges of both did.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from perfmodel.calibrate.runs.cases import cases_of
from perfmodel.calibrate.runs.site import fit_site, site_priors, solve
from perfmodel.calibrate.runs.site_spread import RUNS, sources_of
from perfmodel.calibrate.runs.widths import score_of
from perfmodel.catalog import data_roots
from perfmodel.spec.record import read_records

FEWEST, DRAWS = 6, 4
"""Configurations of a source, and halves drawn of each."""


def main() -> None:
    """Print a line a source, then all."""
    random, priors = np.random.default_rng(0), site_priors()
    means, before, after, widths, narrower = [], [], [], [], []
    for rows in sources_of(cases_of(read_records([Path(data_roots()[0]) / RUNS])[0])):
        asked = np.array(rows.questions)
        names = np.unique(asked)
        if len(names) < FEWEST:
            continue
        first = len(before)
        for _ in range(DRAWS):
            seen = np.isin(asked, random.permutation(names)[: len(names) // 2])
            half, rest = rows.where(seen), rows.where(~seen)
            found, ratios = solve(half, priors).unknowns, fit_site(half, priors)
            models = np.isin(rest.models, ratios.models)
            ratio = np.where(models, ratios.width_ratio, ratios.other_width_ratio)
            before += np.abs(rest.errors).tolist()
            after += np.abs(rest.errors - rest.slopes @ found).tolist()
            widths += rest.widths.tolist()
            narrower += (rest.widths * ratio).tolist()
        means.append((np.mean(before[first:]), np.mean(after[first:])))
        print(f"{len(names):4} configurations {means[-1][0]:8.1%} to {means[-1][1]:6.1%}")
    table = np.array(means)
    print(f"{len(table)} sources: {table[:, 0].mean():.1%} to {table[:, 1].mean():.1%},", end=" ")
    worse = table[:, 1] - table[:, 0]
    print(f"{int((worse > 0).sum())} worse, by {worse.max():.1%} at most")
    for name, size, width in (("without", before, widths), ("with", after, narrower)):
        errors, half = np.array(size), np.array(width)
        print(f"{name} a site: {np.mean(errors <= half):.0%} inside, {score_of(half, errors):.3f}")


if __name__ == "__main__":
    main()
