"""Measurements against predictions: what held, which term is off, the ranking with both."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np

from perfmodel.api import header
from perfmodel.api.command import command_line
from perfmodel.api.records import prediction, with_commands
from perfmodel.api.session import Session
from perfmodel.errors import Problem
from perfmodel.pipeline.evaluate import STAGES
from perfmodel.pipeline.uncertainty import REPEAT_FRAC
from perfmodel.plan.belief import (
    Z80,
    Matrix,
)
from perfmodel.plan.survey import settled_for, survey
from perfmodel.report.answer import Answer
from perfmodel.report.plan_answer import PlanAnswer
from perfmodel.report.verify_answer import TermShift, UpdatedRow, VerifiedRun, VerifyAnswer
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.record import RunRecord
from perfmodel.units import MS_PER_S, PERCENT
from perfmodel.verify.compared import compared, set_aside
from perfmodel.verify.learned import (
    Judgement,
    judge,
    loss_frac,
    next_runs,
    ranked,
    split_units,
    with_rows,
)
from perfmodel.verify.observe import key_stages
from perfmodel.verify.sort import Aside, refuse_strangers, sort, unanswered
from perfmodel.verify.titles import source_title

SHOWN_ROWS = 10
SHOWN_TERMS = 6
LEAST_SHIFT_FRAC = 0.01


def verify(
    session: Session,
    records: Sequence[RunRecord],
    *,
    plan: PlanAnswer | None = None,
    objective: str = "latency",
    candidates: Sequence[str | ParallelConfig] = (),
    include_doubtful: bool = False,
    study: Path | None = None,
    problems: Sequence[Problem] = (),
    source: Mapping[str, object] | None = None,
) -> VerifyAnswer | Answer:
    """Judge the records of a question and learn from them.

    Args:
        session: the question.
        records: run records, of this question or not.
        plan: the plan that they belong to, for its letters.
        objective: what the ranking is by.
        candidates: the configurations that compete; empty: the whole search space.
        include_doubtful: also learn from records that are marked doubtful.
        study: file in which what was measured is kept, and taken up again.
        problems: what was wrong with the files.
        source: where all this was read, as further arguments of the command that repeats it.

    Returns:
        The verdict; where nothing fits, the answer that `recommend` gives.

    Raises:
        BadInput: all records are of other questions.
    """
    session = settled_for(session, candidates)
    taken, aside = sort(records, session, include_doubtful)
    if study is not None:
        from perfmodel.verify.study import remembered

        taken += remembered(study, session, {one.config for one in taken})
    if not taken:
        refuse_strangers(aside, problems)
    field = survey(session, objective, candidates)
    settings = {"objective": objective, "candidates": tuple(candidates), **(source or {})}
    if isinstance(field, Answer):
        return header.identified(field, session, "verify", settings)
    field = with_rows(field, [t.config for t in taken])
    taken, misfits = split_units(field, taken)
    found = judge(field, taken)
    answer = _answer(found, [*aside, *misfits], plan, problems, settings)
    if study is not None:
        from perfmodel.verify.study import keep

        trials = keep(study, found, aside, answer.next_runs)
        answer = answer.model_copy(update={"study": str(study), "study_trials": trials})
    return answer


def _answer(
    found: Judgement,
    aside: Sequence[Aside],
    plan: PlanAnswer | None,
    problems: Sequence[Problem],
    settings: Mapping[str, object],
) -> VerifyAnswer:
    session = found.field.table.session
    order, draws = ranked(found)
    runs = (
        *(
            compared(found, one, taken.record, plan)
            for one in found.measured
            for taken in one.taken
        ),
        *(set_aside(item, plan) for item in aside),
    )
    best = order[0]
    command = command_line(session, "verify", settings)
    ids = "".join(f"{t.record.id}{t.record.measured_ms}" for m in found.measured for t in m.taken)
    record = prediction(found.field.table, best)
    return VerifyAnswer(
        workload=header.workload_info(session),
        system=header.system_info(session),
        engine=header.engine_info(session),
        objective=str(settings["objective"]),
        warnings=header.unique(
            [*header.base_warnings(session), *problems, *_plan_note(plan, runs)]
        ),
        provenance=header.provenance(session),
        command=command,
        answer_id=hashlib.sha256((header.answer_id(session, command) + ids).encode()).hexdigest()[
            :8
        ],
        plan_id=plan.answer_id if plan else None,
        runs=tuple(sorted(runs, key=lambda r: (r.status != "measured", r.letter or "~"))),
        compared_by=found.key,
        inside_range=sum(run.outside_range is False for run in runs),
        **_held(found),
        **unanswered(runs),
        terms=_terms(found, best),
        ranking=_ranking(found, order, draws),
        expected_loss_pct=loss_frac(draws) * PERCENT,
        best=with_commands(found.field.table, best, record),
        next_runs=next_runs(found, order, draws),
    )


def _plan_note(plan: PlanAnswer | None, runs: Sequence[VerifiedRun]) -> list[Problem]:
    """Planned runs without a record."""
    if plan is None:
        return []
    seen = {run.config_id for run in runs}
    missing = [run.run_id for run in plan.runs if run.config_id not in seen]
    if not missing:
        return []
    message = f"no record of {', '.join(missing)}; run_all.sh continues where it stopped"
    return [Problem("plan-open", message, severity="warning")]


def _ranking(found: Judgement, order: Sequence[int], draws: Matrix) -> tuple[UpdatedRow, ...]:
    table = found.field.table
    before = {int(row): place for place, row in enumerate(found.field.rows, start=1)}
    scores = found.latency_s * found.field.scale
    shown = list(order[:SHOWN_ROWS])
    shown += [one.row for one in found.measured if one.row not in shown and one.row in before]
    places = {row: place for place, row in enumerate(order, start=1)}
    rows = []
    for row in sorted(shown, key=lambda r: places.get(r, len(before))):
        half = REPEAT_FRAC if found.known[row] else _halfwidth_frac(found, row)
        seconds = float(found.latency_s[row])
        rows.append(
            UpdatedRow(
                rank=places.get(row, before[row]),
                rank_before=before[row],
                config_id=table.config_id(row),
                num_gpus=table.num_gpus(row),
                before_ms=float(table.evaluation.latency_s[row]) * MS_PER_S,
                latency_ms=seconds * MS_PER_S,
                latency_low_ms=seconds / (1 + half) * MS_PER_S,
                latency_high_ms=seconds * (1 + half) * MS_PER_S,
                vs_best_pct=float(scores[row] / scores[order[0]] - 1) * PERCENT,
                measured=bool(found.known[row]),
                tied_with_best=row != order[0] and _tied(row, order, draws),
            )
        )
    return tuple(rows)


def _halfwidth_frac(found: Judgement, row: int) -> float:
    """Relative 80 % half-width of a request that nobody ran, after the measurements.

    The half-width that the prediction has, by the share of its logarithmic spread that the
    measurements leave: without any it is the range that `recommend` states.
    """
    table, one = found.field.table, np.array([row])
    stated = table.halfwidth_s[row] / table.evaluation.latency_s[row]
    before = np.log1p(found.prior.take(one).halfwidth_frac()[0])
    after = np.log1p(found.belief.take(one).halfwidth_frac()[0])
    return float(np.expm1(np.log1p(stated) * after / before))


def _tied(row: int, order: Sequence[int], draws: Matrix) -> bool:
    """Whether the difference to the first place is within its 80 % half-width."""
    if row not in order:
        return False
    ratio = np.log(draws[:, order.index(row)] / draws[:, 0])
    return bool(np.abs(np.median(ratio)) <= Z80 * ratio.std())


def _held(found: Judgement) -> dict[str, object]:
    """Whether the pick held, and how many pairs are in the predicted order."""
    if found.key is None or not found.measured:
        return {}
    stages = key_stages(found.key, found.field.table.session)
    scale = found.field.scale
    predicted_s = found.prior.time_s(stages) * scale
    name = found.field.table.config_id
    guess = {one.row: float(predicted_s[one.row]) for one in found.measured}
    seen = {one.row: one.measured_ms[found.key] * scale[one.row] for one in found.measured}
    pick, best = min(guess, key=lambda r: guess[r]), min(seen, key=lambda r: seen[r])
    regret = seen[pick] / seen[best] - 1
    apart = [
        (a, b) for a, b in combinations(seen, 2) if abs(seen[a] / seen[b] - 1) > 2 * REPEAT_FRAC
    ]
    in_order = sum((guess[a] < guess[b]) == (seen[a] < seen[b]) for a, b in apart)
    return {
        "pick": name(pick),
        "best_measured": name(best),
        "pick_held": bool(regret <= 2 * REPEAT_FRAC) if len(seen) > 1 else None,
        "regret_pct": float(regret) * PERCENT,
        "pairs": len(apart),
        "pairs_in_order": in_order,
    }


def _terms(found: Judgement, row: int) -> tuple[TermShift, ...]:
    """Kinds of time that the measurements moved, by their effect on a row."""
    if not found.measured:
        return ()
    prior, belief = found.prior, found.belief
    base_s = float(prior.latency_s[row])
    rows = []
    for index, source in enumerate(belief.sources):
        shift = float(np.expm1(belief.mean[index]))
        alone = np.zeros_like(belief.mean)
        alone[index] = belief.mean[index]
        effect_s = max(
            (
                float(prior.time_s(STAGES, alone)[one.row] - prior.latency_s[one.row])
                for one in found.measured
            ),
            key=abs,
        )
        if abs(effect_s) < LEAST_SHIFT_FRAC / 2 * base_s or abs(shift) < LEAST_SHIFT_FRAC:
            continue
        after_sd = float(np.sqrt(max(belief.cov[index, index], 0.0)))
        rows.append(
            TermShift(
                source=source,
                title=source_title(source),
                shift_pct=shift * PERCENT,
                before_pct=float(np.expm1(Z80 * prior.prior_sd[index])) * PERCENT,
                after_pct=float(np.expm1(Z80 * after_sd)) * PERCENT,
                effect_ms=effect_s * MS_PER_S,
                bounded=bool(abs(belief.mean[index]) >= prior.bounds[index] * (1 - 1e-9)),
            )
        )
    rows.sort(key=lambda term: -abs(term.effect_ms))
    return tuple(rows[:SHOWN_TERMS])
