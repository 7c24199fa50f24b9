"""From a question to a plan: the few runs that most likely contain the best configuration."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import numpy as np

from perfmodel import engines
from perfmodel.api import header
from perfmodel.api.command import command_line, further
from perfmodel.api.records import prediction, sent_together, with_commands
from perfmodel.api.session import Session, open_session
from perfmodel.engines.records import run_record
from perfmodel.errors import Problem
from perfmodel.plan.belief import Matrix
from perfmodel.plan.changes import changes, things, words
from perfmodel.plan.choose import Choice
from perfmodel.plan.left_out import left_out
from perfmodel.plan.survey import START_S, WARMUPS, Field, choose_runs, settled_for, survey
from perfmodel.report.answer import Answer, Prediction
from perfmodel.report.plan_answer import PlanAnswer, PlanRun, StopRule
from perfmodel.spec.hardware import System
from perfmodel.spec.parallel import ParallelConfig, parse_parallel
from perfmodel.spec.workload import Options, Workload
from perfmodel.units import PERCENT, S_PER_MINUTE

MAX_RUNS = 6


def plan(
    workload: Workload,
    system: System | str,
    *,
    engine: str = engines.DEFAULT_ENGINE,
    options: Options | None = None,
    objective: str = "latency",
    max_runs: int = MAX_RUNS,
    budget_minutes: float | None = None,
    candidates: Sequence[str | ParallelConfig] = (),
    use_all_gpus: bool = False,
    fit: Path | None = None,
    strict: bool = False,
) -> PlanAnswer | Answer:
    """The few runs that decide which configuration to use.

    Args:
        workload: the request.
        system: the machine, or as ``--gpus`` takes it.
        engine: ``name[@version|@date]``.
        options: fixed choices.
        objective: latency, throughput or cost.
        max_runs: at most so many runs.
        budget_minutes: wall time of all runs, one after the other.
        candidates: only these configurations (ids or records); empty: the whole search space.
        use_all_gpus: leave out configurations of fewer devices.
        fit: calibration file.
        strict: refuse priors.

    Returns:
        The plan; where nothing fits, the answer that `recommend` gives.

    Raises:
        BadInput, Refused, MissingData: see `perfmodel.errors`.
    """
    settings = further(locals())
    session = open_session(workload, system, engine=engine, options=options, fit=fit, strict=strict)
    session = settled_for(session, candidates, objective if use_all_gpus else "")
    found = survey(session, objective, candidates, use_all_gpus=use_all_gpus)
    if not isinstance(found, Field):
        return header.identified(found, session, "plan", settings)
    draws = found.draws()
    choice = choose_runs(found, draws, max_runs=max_runs, budget_minutes=budget_minutes)
    return _answer(found, draws, choice, settings)


def _answer(
    field: Field,
    draws: Matrix,
    choice: Choice,
    settings: dict[str, Any],
) -> PlanAnswer:
    session = field.table.session
    runs = _runs(field, choice)
    command = command_line(session, "plan", settings)
    share = runs[0].prediction.provenance_share
    fitting = field.rows
    return PlanAnswer(
        workload=header.workload_info(session),
        system=header.system_info(session),
        engine=header.engine_info(session),
        objective=settings["objective"],
        trust=header.trust_word(share),
        warnings=header.unique(
            [
                *header.base_warnings(session),
                *header.prior_warning(session, share),
                *_over_budget(runs, settings["budget_minutes"]),
            ]
        ),
        provenance=header.provenance(session),
        command=command,
        answer_id=header.answer_id(session, command),
        runs=runs,
        minutes=sum(run.minutes for run in runs),
        gpu_minutes=sum(run.gpu_minutes for run in runs),
        start_minutes=START_S / S_PER_MINUTE,
        full_sweep_runs=len(fitting),
        full_sweep_minutes=float(field.minutes()[fitting].sum()),
        expected_loss_now_pct=choice.loss_now_frac * PERCENT,
        expected_loss_after_pct=choice.loss_after_frac * PERCENT,
        contains_best_share=choice.contains_frac,
        stop_rules=_stop_rules(choice),
        left_out=left_out(field.table, field.contenders, draws, choice.runs),
    )


def _over_budget(runs: Sequence[PlanRun], budget_minutes: float | None) -> list[Problem]:
    spent = sum(run.minutes for run in runs)
    if budget_minutes is None or spent <= budget_minutes:
        return []
    message = (
        f"--budget {budget_minutes:g}m is less than one run: {runs[0].config_id} takes "
        f"{spent:.1f} minutes; try --budget {np.ceil(spent):.0f}m"
    )
    return [Problem("budget", message, "--budget", f"{budget_minutes:g}m", severity="warning")]


def letter_of(index: int) -> str:
    """``A`` to ``Z``, then ``AA``, ``AB``, ..."""
    first, last = divmod(index, len(ascii_uppercase))
    return (ascii_uppercase[first - 1] if first else "") + ascii_uppercase[last]


def _runs(field: Field, choice: Choice) -> tuple[PlanRun, ...]:
    rows = [int(field.contenders[position]) for position in choice.runs]
    configs = [field.table.evaluation.layouts.row(row) for row in rows]
    made: list[PlanRun] = []
    for index, row in enumerate(rows):
        record = with_commands(field.table, row, prediction(field.table, row))
        repeats = choice.repeats[index]
        minutes = float(field.minutes(repeats)[row])
        reference, text, question, changed = _compared(configs, index)
        letter = letter_of(index)
        if changed > 1 or question in {run.question for run in made}:
            question = f"{reference} or {letter}?"
        made.append(
            PlanRun(
                letter=letter,
                run_id=f"{letter}_{record.config_id}",
                config_id=record.config_id,
                reference=reference,
                changes=text,
                changed=changed,
                question=question,
                prediction=_against_first(record, made),
                minutes=minutes,
                gpu_minutes=minutes * record.num_gpus,
                warmups=WARMUPS,
                repeats=repeats,
                in_flight=int(sent_together(field.table)[row]),
                best_share=choice.best_frac[index],
            )
        )
    return tuple(made)


def _against_first(record: Prediction, made: Sequence[PlanRun]) -> Prediction:
    first_ms = made[0].prediction.latency_ms if made else record.latency_ms
    if not first_ms or record.latency_ms is None:
        return record
    change = (record.latency_ms / first_ms - 1) * PERCENT
    return record.model_copy(update={"vs_best_pct": change})


def _compared(configs: Sequence[ParallelConfig], index: int) -> tuple[str | None, str, str, int]:
    """(reference, what changes, question, things changed) against the nearest earlier run."""
    if index == 0:
        return None, "reference", "does the prediction hold?", 0
    pairs = [(changes(configs[i], configs[index]), i) for i in range(index)]
    found, nearest = min(pairs, key=lambda pair: (things(pair[0]), pair[1]))
    text, question = words(found)
    reference = letter_of(nearest)
    return reference, f"{reference}, {text}", question, things(found)


def _stop_rules(choice: Choice) -> tuple[StopRule, ...]:
    """When to stop early, and when in any case."""
    rules = []
    for done, margin in choice.stops:
        letters = [letter_of(i) for i in range(done)]
        percent = margin * PERCENT
        who = (
            f"{letters[0]} and {letters[1]} differ"
            if done == 2
            else f"the best of {letters[0]} to {letters[-1]} leads"
        )
        text = f"after {letters[-1]} if {who} by more than {percent:.0f} %"
        rules.append(StopRule(after=letters[-1], margin_pct=percent, text=text))
    last = letter_of(len(choice.runs) - 1)
    return (*rules, StopRule(after=last, text=f"after {last} in any case"))


def run_records(session: Session, answer: PlanAnswer) -> list[dict[str, object]]:
    """What each run of a plan asks for, in the run-record format, without measurements."""
    found = []
    if session.options.offload == "auto" and answer.engine:
        offload = {"offload": answer.engine.options["offload"]}
        session = session.with_options(session.options.model_copy(update=offload))
    for run in answer.runs:
        config = parse_parallel(run.config_id)[0]
        record = run_record(session.context, config)
        found.append({**record, "id": f"{answer.answer_id}-{run.run_id}"})
    return found
