"""Ratios of time and seconds a request of one site, device by device: the most plausible ones.

Log errors of the site's own runs are a linear function of four unknowns (`pipeline.site`) plus what
differs from run to run.  How far sites differ (the priors) and how far runs of a site scatter was
measured between published sources (`site_priors`), both in units of the 80 % half-width that a run
has without a site: so a device whose laws are lent may be further off than a measured one.

* The scatter of this site is its own: the published one counts as `NOISE_RUNS` runs beside it.
* Runs far from the others count little, and so does a prior that many runs agree against: both have
  the tails of Student's t, as the published sources do.
* Runs of one configuration count as one.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.catalog import data_roots
from perfmodel.pipeline.site import REQUEST, SITE_TERMS

FloatArray = NDArray[np.float64]

NOISE_RUNS = 4.0
"""Own configurations after which the site's scatter weighs as much as the published one."""

TAIL = 4.0
"""Degrees of freedom of the scatter and of the differences between sites."""

SCALES = 0.1
"""Share of the pull of priors at the start that they hardly hold."""

ROUNDS = 60
STILL = 1e-6
LOW, HIGH = math.log(0.25), math.log(4.0)
MOST_S = 60.0
BOUNDS = ((LOW, HIGH), (LOW, HIGH), (LOW, HIGH), (0.0, MOST_S))
"""Of the logarithms of the ratios, and of the seconds."""


@dataclass(frozen=True, slots=True)
class SitePriors:
    """How far sites differ, and runs within one (``sites`` of ``calibration/priors.json``).

    Attributes:
        device_of_width: standard deviation of the log ratio of the device over the half-width.
        vae, host: standard deviations of log ratios.
        request_s: of the seconds a request.
        within_of_width: scatter of runs of one site over the half-width.
        errors_shape: how alike the scatter of sites is (shape of an inverse gamma).
    """

    device_of_width: float
    vae: float
    host: float
    request_s: float
    within_of_width: float
    errors_shape: float

    def deviations(self, width: float) -> FloatArray:
        """Standard deviations of the four unknowns of a device whose runs have this half-width."""
        return np.array([self.device_of_width * width, self.vae, self.host, self.request_s])


def site_priors() -> SitePriors:
    """The shipped ones."""
    path = data_roots()[0] / "calibration" / "priors.json"
    found: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))["sites"]
    return SitePriors(**{name: float(found[name]["value"]) for name in SitePriors.__slots__})


@dataclass(frozen=True, slots=True)
class SiteRows:
    """Measured times of one engine on one device of a site, ``[T]`` each.

    Attributes:
        errors: log of measured over predicted without a site.
        slopes: of the log prediction by the four unknowns, ``[T, 4]``.
        widths: log 80 % half-width of the request that the time belongs to, without a site.
        questions, models: what is alike in repeats, and the model that ran.
    """

    errors: FloatArray
    slopes: FloatArray
    widths: FloatArray
    questions: tuple[str, ...]
    models: tuple[str, ...]

    def where(self, chosen: NDArray[np.bool_]) -> SiteRows:
        """Some of the times."""
        rows = np.flatnonzero(chosen)
        return SiteRows(
            self.errors[rows],
            self.slopes[rows],
            self.widths[rows],
            tuple(self.questions[n] for n in rows),
            tuple(self.models[n] for n in rows),
        )


@dataclass(frozen=True, slots=True)
class Found:
    """The most plausible unknowns and their covariance; `loss` is the negative log plausibility."""

    unknowns: FloatArray
    covariance: FloatArray
    loss: float


def solve(rows: SiteRows, priors: SitePriors) -> Found:
    """The most plausible unknowns, from several starts.

    Where runs agree on a site far from the usual one, they look like outliers from there: so the
    search also starts from their median difference, and from what they say without tails and with
    priors that hardly pull.
    """
    usual = np.zeros(len(SITE_TERMS))
    if not len(rows.errors):
        deviations = priors.deviations(1.0)
        return Found(usual, np.diag(deviations**2), 0.0)
    middle = float(np.median(rows.errors))
    free = _least_squares(rows, SCALES / priors.deviations(float(rows.widths.mean())))
    starts = (usual, np.array([middle, 0.0, middle, 0.0]), free)
    return min((_from(rows, priors, start) for start in starts), key=lambda found: found.loss)


def _least_squares(rows: SiteRows, pulls: FloatArray) -> FloatArray:
    """Unknowns of plain least squares between their bounds."""
    from scipy.optimize import lsq_linear

    matrix = np.vstack([rows.slopes / rows.widths[:, None], np.diag(pulls)])
    target = np.concatenate([rows.errors / rows.widths, np.zeros(len(pulls))])
    return np.asarray(lsq_linear(matrix, target, bounds=np.transpose(BOUNDS)).x, np.float64)


def _from(rows: SiteRows, priors: SitePriors, start: FloatArray) -> Found:
    """Reweighted bounded least squares; the scatter is found beside the unknowns."""
    from scipy.optimize import lsq_linear

    count = Counter(rows.questions)
    share = np.array([1.0 / count[name] for name in rows.questions])
    unit = priors.within_of_width * rows.widths
    deviations = priors.deviations(float(np.average(rows.widths, weights=share)))
    lows, highs = np.transpose(BOUNDS)
    at, noise = start, 1.0
    for _ in range(ROUNDS):
        left = (rows.errors - rows.slopes @ at) / unit
        weight = share * (TAIL + 1.0) / (TAIL + (left / noise) ** 2)
        noise = _noise(left, weight, share)
        scale = np.sqrt(weight) / (unit * noise)
        pulls = np.diag(np.sqrt((TAIL + 1.0) / (TAIL + (at / deviations) ** 2)) / deviations)
        matrix = np.vstack([rows.slopes * scale[:, None], pulls])
        target = np.concatenate([rows.errors * scale, np.zeros(len(at))])
        point = lsq_linear(matrix, target, bounds=(lows, highs)).x
        moved, at = float(np.abs(point - at).max()), point
        if moved < STILL:
            break
    left = (rows.errors - rows.slopes @ at) / unit
    loss = float((share * (_tail(left / noise) + math.log(noise))).sum())
    loss += float(_tail(at / deviations).sum())
    loss += 0.5 * NOISE_RUNS * (noise**-2 + 2.0 * math.log(noise))
    return Found(at, np.asarray(np.linalg.inv(matrix.T @ matrix), np.float64), loss)


def _tail(scaled: FloatArray) -> FloatArray:
    """Negative log plausibility of Student's t, up to a constant."""
    return np.asarray(0.5 * (TAIL + 1.0) * np.log1p(scaled**2 / TAIL))


def _noise(left: FloatArray, weight: FloatArray, share: FloatArray) -> float:
    """Scatter of the runs over the published one."""
    square = NOISE_RUNS + float((weight * left**2).sum())
    return math.sqrt(square / (NOISE_RUNS + float(share.sum())))


@dataclass(frozen=True, slots=True)
class SiteFit:
    """What a site's runs of one engine on one device say.

    Attributes:
        values: the terms of `SITE_TERMS`.
        deviations: their standard deviations: of the logarithms of ratios, and in seconds.
        runs: measured configurations.
        models: that they ran.
        before, after: mean absolute log error of each run without a site, and under the site that
            the other runs say.
        width_ratio: 80 % half-width of a request of these models over that without a site.
        other_width_ratio: the same for other models.
    """

    values: Mapping[str, float]
    deviations: Mapping[str, float]
    runs: int
    models: tuple[str, ...]
    before: float
    after: float
    width_ratio: float
    other_width_ratio: float


def fit_site(rows: SiteRows, priors: SitePriors) -> SiteFit:
    """Unknowns of all runs; errors and widths from runs that were left out."""
    found = solve(rows, priors)
    deviations = np.sqrt(np.diag(found.covariance))
    after = unseen(rows, rows.questions, priors)
    over = after / rows.widths
    seen = width_ratio(means(rows.questions, over), priors)
    other = max(seen, 1.0)
    if len(set(rows.models)) > 1:
        apart = unseen(rows, rows.models, priors) / rows.widths
        other = max(seen, width_ratio(means(rows.models, apart), priors))
    values = np.where(np.array(SITE_TERMS) == REQUEST, found.unknowns, np.exp(found.unknowns))
    return SiteFit(
        values={name: float(x) for name, x in zip(SITE_TERMS, values, strict=True)},
        deviations={name: float(x) for name, x in zip(SITE_TERMS, deviations, strict=True)},
        runs=len(set(rows.questions)),
        models=tuple(sorted(set(rows.models))),
        before=float(means(rows.questions, np.abs(rows.errors)).mean()),
        after=float(means(rows.questions, after).mean()),
        width_ratio=seen,
        other_width_ratio=other,
    )


def unseen(rows: SiteRows, labels: Sequence[str], priors: SitePriors) -> FloatArray:
    """Absolute log error of each time under the site that rows of other labels say, ``[T]``."""
    named, errors = np.array(labels), np.empty(len(labels))
    for label in np.unique(named):
        out = named == label
        found = solve(rows.where(~out), priors)
        errors[out] = np.abs(rows.errors[out] - rows.slopes[out] @ found.unknowns)
    return errors


def means(labels: Sequence[str], values: FloatArray) -> FloatArray:
    """Mean of the values of each label."""
    named = np.array(labels)
    return np.array([values[named == label].mean() for label in np.unique(named)])


def width_ratio(over: FloatArray, priors: SitePriors) -> float:
    """80 % half-width of a further request over that without a site.

    Errors y (in half-widths) are exponential, their scale over sites inverse gamma with shape a and
    a scale b under which a site without runs keeps its width; n errors of a site make the next one
    Lomax, whose 80 % quantile is ``(b + sum y) (5^(1/(a + n)) - 1)``.
    """
    shape = priors.errors_shape
    before = 1.0 / (5.0 ** (1.0 / shape) - 1.0)
    after = 5.0 ** (1.0 / (shape + len(over))) - 1.0
    return float((before + over.sum()) * after)
