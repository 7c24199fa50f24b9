"""What is believed about the times of all configurations, before and after measurements.

A request's time is a sum over sources of error (kinds of time that are wrong together, see
`pipeline.uncertainty`), each times the exponential of an unknown log-multiplier ``x``.  Beyond
them every parallel axis has a log-multiplier of the stage that it splits, once per doubling: the
laws share most of their error between layouts, and what they do not share shows by axis.  What no
kind of time explains multiplies all stages (``run``), what a step cache skips the denoise time
(``cache``).  The encoders and the VAE share their kinds of time with the denoise loop, which tells
most about those; what is wrong with such a stage alone multiplies that stage (``stage.NAME``).

The multipliers are Gaussian in the logarithm.  A measured stage (or sum of stages) updates them by
iterated linearisation, so that configurations which nobody ran move with those that were run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import log

import numpy as np
from numpy.typing import NDArray

from perfmodel.pipeline.evaluate import STAGES, Evaluation
from perfmodel.pipeline.lines import Column
from perfmodel.pipeline.uncertainty import REPEAT_FRAC, parts_s, whole_halfwidths
from perfmodel.spec.parallel import Layouts

Matrix = NDArray[np.float64]

Z80 = 1.2815515594457831
"""Standard deviations of an 80 % half-width."""

T_FREEDOM = 5
T80_FACTOR = Z80 / 1.4758840488
"""Draws have the tails of Student's t with five degrees of freedom, and the 80 % half-width that is
stated (its 90 % quantile is 1.476): predictions are sometimes much further off than usual, and a
plan hedges against that."""

AXIS_HALFWIDTH = {
    "cfg": 0.02,
    "ulysses": 0.03,
    "ring": 0.05,
    "allgather": 0.05,
    "tp": 0.03,
    "pp": 0.05,
    "hsdp": 0.06,
    "vae_patch": 0.12,
    "vae_tiling": 0.12,
}
"""Relative 80 % half-width of a stage per doubling of an axis: priors; ``axis.NAME`` in the spread
of an engine's terms file takes their place."""

STAGE_FRAC = 0.05
"""Relative 80 % half-width of what one stage has for itself beside its kinds of time: a prior."""

OWN_STAGES = ("text_encode", "vae_encode", "vae_decode")
"""Stages whose operators are of the kinds that the denoise loop has too."""

OWN_FRAC = 0.01
"""Relative 80 % half-width of what a single configuration shares with no other."""

FIT_FRAC = 0.02
"""Relative 80 % half-width of the form of the model itself: no measured stage is fitted closer."""

BOUND_SD = 2.5
"""A measurement moves no multiplier further than this many of its own standard deviations; what
one stage has for itself moves as far as its runs agree (another decoder, another setting)."""

HUBER_SD = 2.5
"""A measurement further than this from what all of them together say counts as if it were this far
(Huber's loss): one run of another state of the code does not bend every term."""

STEPS = 20
"""Linearisations of an update; the exponentials converge in three or four, the weights in ten."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One measured time.

    Attributes:
        row: configuration.
        stages: stages that the time covers.
        seconds: measured.
        noise_frac: relative 80 % half-width of the measurement.
    """

    row: int
    stages: tuple[str, ...]
    seconds: float
    noise_frac: float = REPEAT_FRAC


@dataclass(frozen=True)
class Belief:
    """Log-multipliers of S sources of error, and what they act on in N configurations.

    Attributes:
        sources: names; ``axis.NAME`` for an axis, ``stage.NAME``, ``run`` and ``cache`` for whole
            stages.
        prior_sd: standard deviation of each log-multiplier before any measurement, ``[S]``.
        mean, cov: what is believed now, ``[S]`` and ``[S, S]``.
        seconds: predicted time of each source by stage, ``[S, N]``.
        powers: how often each source multiplies a whole stage, ``[S, N]`` by stage.
    """

    sources: tuple[str, ...]
    prior_sd: Column
    mean: Column
    cov: Matrix
    seconds: Mapping[str, Matrix]
    powers: Mapping[str, Matrix]

    @property
    def count(self) -> int:
        """Configurations."""
        return int(next(iter(self.seconds.values())).shape[1])

    @cached_property
    def latency_s(self) -> Column:
        """Request time of each configuration at the mean, ``[N]``."""
        return self.time_s(STAGES)

    def time_s(self, stages: Iterable[str], at: Column | None = None) -> Column:
        """Time of some stages at log-multipliers `at` (default: the mean), ``[N]``."""
        x = self.mean if at is None else at
        zero = np.zeros(self.count)
        return sum((self._stage_s(name, x) for name in stages), zero)

    @property
    def own(self) -> NDArray[np.bool_]:
        """Which sources are what one stage has for itself, ``[S]``."""
        return np.array([name.startswith(("stage.", "axis.vae_")) for name in self.sources])

    @property
    def bounds(self) -> Column:
        """How far measurements may move each log-multiplier either way, ``[S]``."""
        return np.where(self.own, np.inf, BOUND_SD * self.prior_sd)

    def widened(self, x: Column) -> Matrix:
        """The covariance that weighs log-multipliers at `x`, ``[S, S]``.

        What one stage has for itself is Gaussian up to its half-width; beyond, its prior is nearly
        flat: it is another decoder or another setting, whatever its size, rather than several
        errors of kinds which other stages do not show.
        """
        tail = np.abs(x - self.mean) / (Z80 * self.prior_sd)
        scale = np.where(self.own, np.maximum(tail, 1.0) ** 2, 1.0)
        return np.asarray(self.cov * np.outer(scale, scale))

    def take(self, rows: NDArray[np.intp]) -> Belief:
        """The same over some of the configurations."""
        return replace(
            self,
            seconds={name: table[:, rows] for name, table in self.seconds.items()},
            powers={name: table[:, rows] for name, table in self.powers.items()},
        )

    def _stage_s(self, name: str, x: Column) -> Column:
        """``[S] -> [N]`` or ``[D, S] -> [D, N]``."""
        times: Column = np.exp(x) @ self.seconds[name]
        if name in self.powers:
            times = times * np.exp(x @ self.powers[name])
        return times

    def slope(self, row: int, stages: Sequence[str], x: Column) -> tuple[float, Column]:
        """Logarithm of the time of some stages in one row, and its gradient, ``[S]``."""
        whole, gradient = 0.0, np.zeros(len(self.sources))
        for name in stages:
            parts = np.exp(x) * self.seconds[name][:, row]
            power = self.powers[name][:, row] if name in self.powers else np.zeros_like(x)
            scale = float(np.exp(x @ power))
            whole += scale * float(parts.sum())
            gradient += scale * (parts + power * float(parts.sum()))
        return log(whole), gradient / whole

    def draws_s(self, count: int, seed: int = 0, stages: Sequence[str] = STAGES) -> Matrix:
        """`count` times of every configuration, errors drawn together, ``[count, N]``."""
        random = np.random.default_rng(seed)
        root = _root(self.cov)
        # one factor a draw: where a prediction is far off, it is so in several ways at once
        wide = T80_FACTOR / np.sqrt(random.chisquare(T_FREEDOM, (count, 1)) / T_FREEDOM)
        x = self.mean + wide * random.standard_normal((count, len(self.sources))) @ root.T
        times = sum((self._stage_s(name, x) for name in stages), np.zeros((count, self.count)))
        own = random.standard_normal(times.shape) * log_sd(OWN_FRAC)
        return np.asarray(times * np.exp(own))

    def halfwidth_frac(self) -> Column:
        """Relative 80 % half-width of each request time, ``[N]``."""
        slopes = np.stack([self.slope(row, STAGES, self.mean)[1] for row in range(self.count)])
        variance = np.einsum("ns,st,nt->n", slopes, self.cov, slopes) + log_sd(OWN_FRAC) ** 2
        return np.asarray(np.expm1(Z80 * np.sqrt(variance)))


def log_sd(halfwidth_frac: float) -> float:
    """Standard deviation of a logarithm from a relative 80 % half-width."""
    return float(np.log1p(halfwidth_frac) / Z80)


def believe(evaluation: Evaluation) -> Belief:
    """The belief that the predictions and their stated half-widths amount to."""
    halfwidths: dict[str, float] = {}
    pieces: dict[tuple[str, str], Column] = {}
    for stage in STAGES:
        for source, seconds, halfwidth in parts_s(evaluation.stages[stage], evaluation.job.spread):
            halfwidths[source] = halfwidth
            pieces[source, stage] = pieces.get((source, stage), 0.0) + seconds
    exponents = axis_powers(evaluation.layouts)
    for axis in {axis for axes in exponents.values() for axis in axes}:
        name = f"axis.{axis}"
        halfwidths[name] = evaluation.job.spread.get(name, AXIS_HALFWIDTH[axis])
    timed = [s for s in OWN_STAGES if evaluation.stages[s].total_s.any()]
    halfwidths.update({f"stage.{stage}": STAGE_FRAC for stage in timed})
    halfwidths.update({n: half for n, half in whole_halfwidths(evaluation).items() if half})
    names = tuple(sorted(halfwidths))
    empty, once = np.zeros(len(evaluation.layouts)), np.ones(len(evaluation.layouts))
    times = {s: np.stack([pieces.get((n, s), empty) for n in names]) for s in STAGES}
    powers = {}
    for stage in STAGES:
        own = {f"axis.{axis}": power for axis, power in exponents.get(stage, {}).items()}
        own["run"] = once
        own["cache"] = once if stage == "denoise" else empty
        own[f"stage.{stage}"] = once
        powers[stage] = np.stack([own.get(name, empty) for name in names])
    sd = np.array([log_sd(halfwidths[name]) for name in names])
    return Belief(names, sd, np.zeros(len(names)), np.diag(sd**2), times, powers)


def axis_powers(layouts: Layouts) -> dict[str, dict[str, Column]]:
    """Doublings of each axis by the stage that it splits."""
    split = ("cfg", "ulysses", "ring", "allgather", "tp", "pp")
    denoise = {axis: np.log2(getattr(layouts, axis)) for axis in split}
    denoise["hsdp"] = (layouts.hsdp > 1).astype(float)
    patch = np.log2(layouts.vae_patch)
    tiling = ((layouts.vae_tiling > 0) & (layouts.vae_patch == 1)).astype(float)
    vae = {"vae_patch": patch, "vae_tiling": tiling}
    found = {"denoise": denoise, "vae_encode": vae, "vae_decode": vae}
    used = {stage: {a: p for a, p in axes.items() if p.any()} for stage, axes in found.items()}
    return {stage: axes for stage, axes in used.items() if axes}


def learn(belief: Belief, observations: Sequence[Observation]) -> Belief:
    """The belief after some measurements, from the belief before them.

    Gauss-Newton on the Gaussian posterior of the log-multipliers; each ends within its bound.

    Raises:
        ValueError: a time that is not positive, or no predicted time to compare it with.
    """
    if not observations:
        return belief
    target = np.log([seen.seconds for seen in observations])
    variance = np.array([_variance(seen) for seen in observations])
    x = belief.mean + _start(belief, observations)
    for _ in range(STEPS):
        pairs = [belief.slope(seen.row, seen.stages, x) for seen in observations]
        value = np.array([pair[0] for pair in pairs])
        slope = np.stack([pair[1] for pair in pairs])
        far = np.abs(target - value) / (HUBER_SD * np.sqrt(variance))
        wide = belief.widened(x)
        spread = slope @ wide @ slope.T + np.diag(variance * np.maximum(far, 1.0))
        gain = np.linalg.solve(spread, slope @ wide).T
        x = belief.mean + gain @ (target - value - slope @ (belief.mean - x))
        x = np.clip(x, -belief.bounds, belief.bounds)
    cov = wide - gain @ slope @ wide
    return replace(belief, mean=x, cov=(cov + cov.T) / 2)


def _start(belief: Belief, observations: Sequence[Observation]) -> Column:
    """Where an update begins, ``[S]``: a stage's own error at the median of what it shows alone."""
    start = np.zeros(len(belief.sources))
    for index in np.flatnonzero(belief.own):
        stage = belief.sources[index].removeprefix("stage.")
        far = [
            log(seen.seconds) - belief.slope(seen.row, seen.stages, belief.mean)[0]
            for seen in observations
            if seen.stages == (stage,)
        ]
        start[index] = np.median(far) if far else 0.0
    return start


def distance_sd(belief: Belief, seen: Observation) -> float:
    """How far a measurement is from a belief, in standard deviations of the measurement."""
    value, _ = belief.slope(seen.row, seen.stages, belief.mean)
    return float((log(seen.seconds) - value) / np.sqrt(_variance(seen)))


def _variance(seen: Observation) -> float:
    return log_sd(seen.noise_frac) ** 2 + log_sd(OWN_FRAC) ** 2 + log_sd(FIT_FRAC) ** 2


def _root(cov: Matrix) -> Matrix:
    """A matrix whose square is `cov`, also where it is singular."""
    values, vectors = np.linalg.eigh(cov)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))
