"""Step caches that are named without what they skip: a stated prior, and the error it brings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from perfmodel.cost.machine import Machine
from perfmodel.engines.base import Behaviour
from perfmodel.errors import Problem

CACHE_SPREAD = "cache"
"""Key of a job's spread: relative 80 % half-width of the denoise time by what a cache skips."""

CACHE_SKIP = "cache_skip"
"""The option that a prior fills in, and the name under which that is marked as assumed."""


@dataclass(frozen=True, slots=True)
class CachePrior:
    """What a step cache skips, of the forwards: a value and its bounds."""

    skip: float
    low: float
    high: float

    @property
    def halfwidth_frac(self) -> float:
        """Relative half-width of the time that is left, ``(high - low) / 2 / (1 - skip)``."""
        return (self.high - self.low) / 2 / (1 - self.skip)


def cache_prior(machine: Machine, method: str) -> CachePrior:
    """The named prior ``cache_skip.METHOD``, or that of all methods."""
    found = machine.named.get(f"cache_skip.{method}") or machine.named["cache_skip.other"]
    return CachePrior(found.value, found.low, found.high)


def with_cache(
    behaviour: Behaviour, machine: Machine, spread: Mapping[str, float]
) -> tuple[Behaviour, Mapping[str, float]]:
    """Behaviour and spread with the prior of a cache that is named without a ratio."""
    options = behaviour.options
    spread = {name: value for name, value in spread.items() if name != CACHE_SPREAD}
    if options.cache_method == "none" or options.cache_skip > 0:
        return behaviour, spread
    prior = cache_prior(machine, options.cache_method)
    known = options.model_copy(update={CACHE_SKIP: prior.skip})
    return (
        replace(behaviour, options=known, assumed=(*behaviour.assumed, CACHE_SKIP)),
        {**spread, CACHE_SPREAD: prior.halfwidth_frac},
    )


def cache_warning(behaviour: Behaviour, machine: Machine) -> list[Problem]:
    """A line when the ratio of a step cache is a prior."""
    if CACHE_SKIP not in behaviour.assumed:
        return []
    method = behaviour.options.cache_method
    prior = cache_prior(machine, method)
    typed = "--cache skip=0.3"
    return [
        Problem(
            "cache-ratio",
            f"{method} does not say what it skips: {prior.skip:.0%} of the forwards is taken, a "
            f"prior ({prior.low:.0%} to {prior.high:.0%}); give what you measured: {typed}",
            field="--cache",
            value=method,
            suggestions=(typed,),
            severity="warning",
        )
    ]
