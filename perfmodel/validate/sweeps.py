"""Ranking quality: records that differ only in their parallel configuration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfmodel.pipeline.evaluate import evaluate
from perfmodel.pipeline.uncertainty import difference_halfwidth_s
from perfmodel.report.validate_answer import SweepRow, SweepSummary
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.record import END_TO_END_KEYS
from perfmodel.units import PERCENT
from perfmodel.validate.predicted import Predicted
from perfmodel.validate.scores import order_agreement, regret

STAGE_KEYS = ("denoise", "denoise_per_step", "transformer_forward", "vae_decode")
LAYOUTS_OF_A_CHOICE = 3


def sweep_rows(predicted: Sequence[Predicted]) -> tuple[list[SweepRow], SweepSummary]:
    """Every sweep with at least two predicted records, and the summary."""
    groups: dict[str, list[Predicted]] = {}
    for one in predicted:
        if one.record.sweep:
            groups.setdefault(one.record.sweep, []).append(one)
    rows: list[SweepRow] = []
    agree = total = 0
    for name, members in sorted(groups.items()):
        key = _common_key(members)
        if key is None or len(members) < 2:
            continue
        guesses = [one.predicted_ms[key] for one in members]
        measured = [one.record.measured_ms[key] for one in members]
        pairs = order_agreement(guesses, measured)
        agree, total = agree + pairs[0], total + pairs[1]
        rows.append(_row(name, key, members, guesses, measured, pairs))
    return rows, _summary(rows, agree, total)


def _common_key(members: Sequence[Predicted]) -> str | None:
    """What all members measured: the sweep's own stage, else end to end, else denoise."""
    about = members[0].record.sweep_of
    keys = (about,) if about else (*END_TO_END_KEYS, *STAGE_KEYS)
    return next((k for k in keys if all(k in one.predicted_ms for one in members)), None)


def _row(
    name: str,
    key: str,
    members: Sequence[Predicted],
    guesses: Sequence[float],
    measured: Sequence[float],
    pairs: tuple[int, int],
) -> SweepRow:
    pick, loss = regret(guesses, measured)
    best = int(np.argmin(measured))
    return SweepRow(
        sweep=name,
        n=len(members),
        key=key,
        kendall_tau=pairs[0] / pairs[1] if pairs[1] else None,
        top1_regret_pct=loss * PERCENT,
        best_measured=members[best].answer.config_id,
        picked=members[pick].answer.config_id,
        tied=best == pick or _tied(members[pick], members[best]),
    )


def _tied(pick: Predicted, best: Predicted) -> bool:
    """Whether the model calls the two configurations a tie."""
    asked = pick.question
    session = asked.session()
    both = evaluate(session.job, Layouts.of([pick.question.parallel, best.question.parallel]))
    margin = difference_halfwidth_s(both, np.array([1]), np.array([0]))[0, 0]
    return bool(abs(both.latency_s[1] - both.latency_s[0]) <= margin)


def _summary(rows: Sequence[SweepRow], agree: int, total: int) -> SweepSummary:
    choices = [row for row in rows if row.n >= LAYOUTS_OF_A_CHOICE]
    losses = [row.top1_regret_pct for row in choices]
    return SweepSummary(
        n=len(choices),
        mean_top1_regret_pct=float(np.mean(losses)) if losses else None,
        max_top1_regret_pct=max(losses) if losses else None,
        kendall_tau_pooled=agree / total if total else None,
        best_or_tie=sum(row.tied for row in choices),
    )
