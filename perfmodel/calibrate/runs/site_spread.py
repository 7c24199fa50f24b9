"""How far published sources differ, and runs of one source: ``sites`` of the priors.

``python -m perfmodel.calibrate.runs.site_spread`` rewrites that part of ``calibration/priors.json``
from the public runs.  A source's log errors r on one device (engine by engine) are multivariate t:

    r = X b + e,  b ~ N(0, diag((device w)^2, vae^2, host^2, request^2)),  e ~ N(0, (within w)^2)

with a common chi-square scale for tails, w the 80 % half-width of each run.  The five numbers are
those of the highest likelihood; what few runs tell (VAE, host) is held by a wide log-normal.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from perfmodel.calibrate.runs.cases import Case, cases_of
from perfmodel.calibrate.runs.site import TAIL, FloatArray, SitePriors, SiteRows, means, unseen
from perfmodel.calibrate.runs.sites import rows_of
from perfmodel.catalog import data_roots
from perfmodel.spec.record import read_records

RUNS = "calibration/runs/public.jsonl"
START = (0.5, 0.2, 0.4, 0.3, 0.5)
"""Of the search: device, vae, host, request, within."""
WIDE = 1.0
"""Standard deviation of the logarithms of vae, host and request around `START`."""
DIGITS = 3


def sources_of(cases: Sequence[Case]) -> list[SiteRows]:
    """Runs by source, engine and device."""
    groups: dict[tuple[str, str, str], list[Case]] = defaultdict(list)
    for case in cases:
        groups[case.source, case.file, case.device].append(case)
    return [rows_of(groups[key], {}, {}) for key in sorted(groups)]


def spread_of(sources: Sequence[SiteRows]) -> SitePriors:
    """The differences between sources, and within them, of the highest likelihood."""
    from scipy.optimize import minimize

    start = np.log(START)

    def loss(point: FloatArray) -> float:
        device, vae, host, request, within = np.exp(point)
        priors = SitePriors(device, vae, host, request, within, 1.0)
        away = (point - start)[1:4] / WIDE
        return sum(_unlikely(rows, priors) for rows in sources) + 0.5 * float(away @ away)

    options = {"maxiter": 3000, "xatol": 1e-3, "fatol": 1e-3}
    found = np.exp(minimize(loss, start, method="Nelder-Mead", options=options).x)
    device, vae, host, request, within = (float(f"{x:.{DIGITS}g}") for x in found)
    priors = SitePriors(device, vae, host, request, within, 1.0)
    return replace(priors, errors_shape=_shape(sources, priors))


def _unlikely(rows: SiteRows, priors: SitePriors) -> float:
    """Negative log likelihood of a source, up to a constant."""
    deviations = priors.deviations(float(rows.widths.mean()))
    spread = rows.slopes * deviations
    covariance = np.diag((priors.within_of_width * rows.widths) ** 2) + spread @ spread.T
    root = np.linalg.cholesky(covariance)
    scaled = np.linalg.solve(root, rows.errors)
    tail = 0.5 * (TAIL + len(scaled)) * np.log1p(scaled @ scaled / TAIL)
    return float(np.log(np.diag(root)).sum() + tail)


def _shape(sources: Sequence[SiteRows], priors: SitePriors) -> float:
    """How alike the scatter of sources is: shape of the inverse gamma (`site.width_ratio`)."""
    from scipy.optimize import minimize_scalar
    from scipy.special import gammaln

    over = [
        means(rows.questions, unseen(rows, rows.questions, priors) / rows.widths)
        for rows in sources
    ]

    def loss(log_shape: float) -> float:
        shape = float(np.exp(log_shape))
        scale = 1.0 / (5.0 ** (1.0 / shape) - 1.0)
        likely = 0.0
        for errors in over:
            after = shape + len(errors)
            likely += gammaln(after) - gammaln(shape) + shape * np.log(scale)
            likely -= after * np.log(scale + errors.sum())
        return -float(likely)

    found = minimize_scalar(loss, bounds=(np.log(0.5), np.log(50.0)), method="bounded")
    return float(f"{np.exp(found.x):.{DIGITS}g}")


MEANINGS = {
    "device_of_width": "standard deviation between sources of the log time on a device, over the "
    "80 % half-width of a request there",
    "vae": "standard deviation between sources of the log time of the VAE beyond the device's",
    "host": "standard deviation between sources of the log time of host work",
    "request_s": "standard deviation between sources of the seconds a request",
    "within_of_width": "scatter of the log times of one source over the half-width",
    "errors_shape": "shape of the inverse gamma that the scatter of sources follows",
}


def main() -> None:
    """Rewrite the ``sites`` of the shipped priors."""
    root = Path(data_roots()[0])
    sources = sources_of(cases_of(read_records([root / RUNS])[0]))
    found, target = spread_of(sources), root / "calibration" / "priors.json"
    rows = sum(len(set(one.questions)) for one in sources)
    source = f"calibration/runs/public.jsonl: {rows} configurations in {len(sources)} groups of "
    source += "one source, engine and device; python -m perfmodel.calibrate.runs.site_spread"
    data = json.loads(target.read_text(encoding="utf-8"))
    data["sites"] = {
        name: {"value": value, "meaning": MEANINGS[name], "source": source}
        for name, value in asdict(found).items()
    }
    target.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
