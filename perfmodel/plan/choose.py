"""Which runs: most of the expected loss taken away per GPU-minute, one thing changed at a time.

What would be used without any run and what ties with it come first.  The loss of a set of runs in
one draw of the errors is what its fastest run takes over the fastest of all configurations; before
any run it is what the predicted best takes.  The expected loss falls with every run and never
faster than before (it is submodular), so a greedy choice is within 1 - 1/e of the best set of that
size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.pipeline.lines import Column
from perfmodel.pipeline.uncertainty import REPEAT_FRAC

Matrix = NDArray[np.float64]

DRAWS = 4000
TARGET_FRAC = 0.005
CONTAINS_FRAC = 0.95
"""No further run is proposed when the expected loss is this small, and the best configuration or a
tie of it is this likely among the runs."""

NEAR_FRAC = 0.8
"""A run that changes one thing goes before one that gains more, down to this share of its gain."""

CLOSE_FRAC = 3 * REPEAT_FRAC
"""Two runs nearer than this need repeats to be told apart."""

MARGIN_DOUBT = 0.1
"""Share of draws in which a run may be close to another one and still be measured only once."""

STOP_STEPS = (0.02, 0.03, 0.05, 0.08, 0.10, 0.15, 0.20, 0.30)


@dataclass(frozen=True)
class Choice:
    """Runs in order, and what they leave to chance.

    Attributes:
        runs: positions in the draws.
        loss_now_frac, loss_after_frac: expected loss against the true best.
        best_frac: share of draws in which each run is the best of all, ``[len(runs)]``.
        contains_frac: share of draws in which the best, or a tie of it, is among the runs.
        repeats: measured requests of each run.
        stops: (runs done, margin of the best of them) after which the rest is not needed.
    """

    runs: tuple[int, ...]
    loss_now_frac: float
    loss_after_frac: float
    best_frac: tuple[float, ...]
    contains_frac: float
    repeats: tuple[int, ...]
    stops: tuple[tuple[int, float], ...]


def losses(draws: Matrix, runs: Sequence[int]) -> Column:
    """Loss of the fastest of `runs` in each draw, relative to the best of all."""
    best: Column = draws.min(axis=1)
    chosen: Column = draws[:, list(runs)].min(axis=1)
    return chosen / best - 1


def choose(
    draws: Matrix,
    pick: int,
    gpu_minutes: Column,
    minutes: Column,
    changed: Callable[[int, Sequence[int]], int],
    *,
    max_runs: int,
    budget_minutes: float | None = None,
    repeats: int = 3,
    all_runs: bool = False,
    ties: Sequence[int] = (),
) -> Choice:
    """Choose runs: what would be used, its ties, then what gains most.

    Args:
        draws: times of N configurations drawn together, ``[D, N]``.
        pick: what would be used without any run.
        gpu_minutes: GPU-minutes of a run of each configuration, ``[N]``.
        minutes: its wall time, ``[N]``.
        changed: (candidate, runs so far) to the number of things changed against the nearest run.
        max_runs: at most so many.
        budget_minutes: of all runs, one after the other.
        repeats: measured requests where a run must be told apart from another one.
        all_runs: go on while a run gains anything.
        ties: what is predicted to tie with `pick`; no stop rule comes before them.
    """
    best = draws.min(axis=1)
    now = draws[:, pick] / best - 1
    runs = [pick, *_affordable(pick, ties, minutes, max_runs, budget_minutes)]
    tied = len(runs) - 1
    floor = draws[:, runs].min(axis=1)
    while len(runs) < min(max_runs, draws.shape[1]):
        if not all_runs and _enough(floor / best - 1):
            break
        added = _next(draws, floor, best, runs, gpu_minutes, minutes, changed, budget_minutes)
        if added is None:
            break
        runs.append(added)
        floor = np.minimum(floor, draws[:, added])
    after = losses(draws, runs)
    return Choice(
        runs=tuple(runs),
        loss_now_frac=float(now.mean()),
        loss_after_frac=float(after.mean()),
        best_frac=tuple(float((draws[:, r] <= best).mean()) for r in runs),
        contains_frac=float((after <= REPEAT_FRAC).mean()),
        repeats=tuple(_repeats(draws, runs, r, repeats) for r in runs),
        stops=_stops(draws, runs, tied),
    )


def _affordable(
    pick: int,
    ties: Sequence[int],
    minutes: Column,
    max_runs: int,
    budget_minutes: float | None,
) -> list[int]:
    """The first of the ties that the number of runs and the budget allow."""
    chosen: list[int] = []
    for tie in ties[: max_runs - 1]:
        spent = float(minutes[[pick, *chosen, tie]].sum())
        if budget_minutes is None or spent <= budget_minutes:
            chosen.append(tie)
    return chosen


def _enough(loss: Column) -> bool:
    """Whether the runs so far leave too little to chance for another one."""
    tied = float((loss <= REPEAT_FRAC).mean())
    return float(loss.mean()) <= TARGET_FRAC and tied >= CONTAINS_FRAC


def _next(
    draws: Matrix,
    floor: Column,
    best: Column,
    runs: Sequence[int],
    gpu_minutes: Column,
    minutes: Column,
    changed: Callable[[int, Sequence[int]], int],
    budget_minutes: float | None,
) -> int | None:
    """The run that takes most expected loss away per GPU-minute; None when no run takes any."""
    after = (np.minimum(floor[:, None], draws) / best[:, None]).mean(axis=0)
    gain = float((floor / best).mean()) - after
    gain[list(runs)] = 0.0
    if budget_minutes is not None:
        spent = float(minutes[list(runs)].sum())
        gain[minutes + spent > budget_minutes] = 0.0
    worth = gain / gpu_minutes
    top = int(np.argmax(worth))
    if gain[top] <= 0:
        return None
    near = np.flatnonzero(worth >= NEAR_FRAC * worth[top])
    return min((int(n) for n in near), key=lambda n: (changed(n, runs), -worth[n]))


def _repeats(draws: Matrix, runs: Sequence[int], run: int, repeats: int) -> int:
    """One request where the run is clearly apart from every other run, else `repeats`."""
    others = [other for other in runs if other != run]
    if not others:
        return repeats
    apart = np.abs(draws[:, others] / draws[:, [run]] - 1).min(axis=1)
    return repeats if float((apart < CLOSE_FRAC).mean()) > MARGIN_DOUBT else 1


def _stops(draws: Matrix, runs: Sequence[int], tied: int) -> tuple[tuple[int, float], ...]:
    """After how many runs, and by which margin, what is left is no longer worth a run.

    The first run and its `tied` ones are made in any case.
    """
    found = []
    for done in range(max(2, 1 + tied), len(runs)):
        ordered = np.sort(draws[:, list(runs[:done])], axis=1)
        margin = ordered[:, 1] / ordered[:, 0] - 1
        loss = losses(draws, runs[:done])
        for step in STOP_STEPS:
            beyond = margin > step
            # a rule that never applies is none
            if beyond.mean() < MARGIN_DOUBT:
                break
            if float(loss[beyond].mean()) <= TARGET_FRAC:
                found.append((done, step))
                break
    return tuple(found)
