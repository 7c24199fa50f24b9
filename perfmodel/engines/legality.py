"""Legality rules: what one is, and which of them a configuration breaks.

A `Rule` is a vectorised predicate over configurations, and a message that is formatted only for the
configurations that are reported.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.engines.base import Context
from perfmodel.errors import Problem, Severity
from perfmodel.spec.parallel import Layouts, ParallelConfig

BoolColumn = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One legality rule.

    Attributes:
        id: stable id, printed in ``error[id]``.
        title: one sentence for ``perfmodel explain``.
        violated: True for each configuration that breaks the rule.
        problem: the line for one configuration that does.
        severity: a ``warning`` informs and never removes a configuration.
        source: where the rule was read.
        per_layout: False for rules that no other configuration can satisfy (model, dtype).
        gate: what it refuses leaves nothing for the other rules of the engine to say.
    """

    id: str
    title: str
    violated: Callable[[Context, Layouts], BoolColumn]
    problem: Callable[[Context, ParallelConfig], Problem]
    severity: Severity = "error"
    source: str = ""
    per_layout: bool = True
    gate: bool = False


def mask(condition: object) -> BoolColumn:
    """A condition on columns as a plain bool column."""
    return np.asarray(condition, np.bool_)


def violations(
    rules: Sequence[Rule], ctx: Context, layouts: Layouts, severity: Severity = "error"
) -> dict[str, BoolColumn]:
    """For each rule of `severity`, which configurations break it."""
    return {rule.id: rule.violated(ctx, layouts) for rule in rules if rule.severity == severity}


def legal(rules: Sequence[Rule], ctx: Context, layouts: Layouts) -> BoolColumn:
    """True for each configuration that breaks no error rule."""
    broken = np.zeros(len(layouts), bool)
    for column in violations(rules, ctx, layouts).values():
        broken |= column
    return ~broken


OF_ANY_ENGINE = frozenset({"world-size", "missing-peak"})
"""Rules about the machine alone."""


def problems(rules: Sequence[Rule], ctx: Context, config: ParallelConfig) -> tuple[Problem, ...]:
    """All problems of one configuration, errors before warnings; behind a gate few others."""
    broken = [rule for rule in rules if rule.violated(ctx, Layouts.of([config]))[0]]
    if any(rule.gate for rule in broken):
        broken = [rule for rule in broken if rule.gate or rule.id in OF_ANY_ENGINE]
    found = [rule.problem(ctx, config) for rule in broken]
    return tuple(sorted(found, key=lambda problem: problem.severity != "error"))
