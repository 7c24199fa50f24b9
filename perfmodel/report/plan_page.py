"""The page of `plan`: the runs, what each tells, when to stop, what is left out."""

from __future__ import annotations

from perfmodel.report import words
from perfmodel.report.header import add_cite, add_header
from perfmodel.report.page import Column, Page, unbroken
from perfmodel.report.plan_answer import LeftOut, PlanAnswer, PlanRun
from perfmodel.units import S_PER_HOUR, S_PER_MINUTE

LONG_MINUTES = 100.0
TIGHT = "tight"
WIDEST, GAP = 100, 2
"""Columns of a page, and those between two columns of a table."""


def plan_page(answer: PlanAnswer, commands: int = 0, seconds: float | None = None) -> Page:
    """The whole page; `commands` runs get their commands."""
    page = Page()
    add_header(page, answer)
    page.blank()
    page.paragraph(_size(answer))
    page.paragraph(_loss(answer))
    page.blank()
    columns = run_columns(answer.runs)
    page.table(columns)
    kept = (column for column in columns if column.drop <= 1 and not column.says_nothing)
    if sum(column.width + GAP for column in kept) > WIDEST:
        # no room for the questions beside the runs
        asked = (unbroken(f"{run.letter}: {run.question}") for run in answer.runs)
        page.paragraph("questions: " + "  ".join(asked), indent=2, hanging=2)
    page.paragraph(_each(answer), indent=2, hanging=2)
    page.paragraph(_alone(answer), indent=2, hanging=2)
    page.paragraph(_tight(answer), indent=2, hanging=2)
    stop = "; ".join(rule.text for rule in answer.stop_rules)
    page.paragraph(f"Stop {stop}." if stop else "", indent=2, hanging=2)
    left = ", ".join(unbroken(f"{item.what} ({_reason(item)})") for item in answer.left_out)
    page.paragraph(f"Left out: {left}" if left else "", indent=2, hanging=2)
    for run in answer.runs[:commands]:
        if run.prediction.commands:
            page.blank()
            page.paragraph(run.run_id)
            page.code(run.prediction.commands.serve)
            page.code(run.prediction.commands.request)
            page.code(run.prediction.commands.benchmark)
    page.blank()
    add_cite(page, answer, seconds)
    return page


def _size(answer: PlanAnswer) -> str:
    count = len(answer.runs)
    runs = f"{count} run{'s' if count != 1 else ''}"
    text = f"{runs}, {duration(answer.minutes)}, {words.number(answer.gpu_minutes)} GPU-minutes"
    if answer.full_sweep_runs is not None and answer.full_sweep_runs > count:
        full = f"{answer.full_sweep_runs:,}"
        text += f"; the full sweep of {full} would take {duration(answer.full_sweep_minutes)}"
    return text + "."


def _loss(answer: PlanAnswer) -> str:
    now, after = answer.expected_loss_now_pct, answer.expected_loss_after_pct
    if now is None or after is None:
        return ""
    text = (
        f"Expected loss of the final pick against the true best: {now:.1f} % now, "
        f"{after:.1f} % after {'these runs' if len(answer.runs) > 1 else 'this run'}"
    )
    if answer.contains_best_share is not None:
        share = words.percent(answer.contains_best_share)
        text += f"; the best or a tie of it is among them in {share} of draws"
    return text + "."


def duration(minutes: float | None) -> str:
    """``16 minutes``, ``18.5 hours``."""
    if minutes is None:
        return words.UNKNOWN
    if minutes >= LONG_MINUTES:
        return f"{minutes * S_PER_MINUTE / S_PER_HOUR:,.1f} hours"
    return f"{minutes:.0f} minutes"


def run_columns(runs: tuple[PlanRun, ...]) -> list[Column]:
    """A row a run."""
    predicted = [run.prediction for run in runs]
    several = len({row.num_gpus for row in predicted}) > 1
    return [
        Column("run", [run.letter for run in runs], right=False),
        Column("configuration", [run.config_id for run in runs], right=False),
        Column("GPUs", [str(row.num_gpus) if several else "" for row in predicted], drop_zero=True),
        Column(_changes_title(runs), [run.changes for run in runs], right=False),
        Column("question", [run.question for run in runs], right=False, drop=1),
        Column(
            "predicted\nms",
            [
                words.milliseconds(r.latency_ms, r.latency_low_ms, r.latency_high_ms)
                for r in predicted
            ],
        ),
        Column("peak\nGiB", [words.gib(row.peak_memory_gib) for row in predicted], drop=4),
        Column("minutes", [words.number(run.minutes, 0.1) for run in runs]),
        Column(
            "fit",
            [row.fit_status if row.fit_status == TIGHT else "" for row in predicted],
            right=False,
            drop_zero=True,
        ),
    ]


def _changes_title(runs: tuple[PlanRun, ...]) -> str:
    return "changes one thing" if all(run.changed <= 1 for run in runs) else "changes"


def _tight(answer: PlanAnswer) -> str:
    """What the runs that may run out of memory are for."""
    tight = [run.letter for run in answer.runs if run.prediction.fit_status == TIGHT]
    if not tight:
        return ""
    what = f"run{'s' if len(tight) > 1 else ''} {words.join_words(tight)}"
    return f"tight: {what} may run out of memory, and would then be out of the question"


def _each(answer: PlanAnswer) -> str:
    if not answer.runs:
        return ""
    start = words.number(answer.start_minutes)
    order = ", ".join(run.letter for run in answer.runs)
    repeats = {run.repeats for run in answer.runs}
    if len(repeats) == 1:
        asked = _requests(repeats.pop())
    else:
        parts = (
            f"{', '.join(run.letter for run in answer.runs if run.repeats == n)}: {_requests(n)}"
            for n in sorted(repeats, reverse=True)
        )
        asked = "; ".join(parts) + " (clearly apart from the others)"
    return f"each: {start} min start, {answer.runs[0].warmups} warm-up, {asked}; order {order}"


def _alone(answer: PlanAnswer) -> str:
    """What the runs measure, where several requests in flight are asked for."""
    if answer.workload is None or answer.workload.concurrency == 1 or not answer.runs:
        return ""
    asked, each = answer.workload.concurrency, [run.in_flight for run in answer.runs]
    if max(each) == 1:
        text = "each run sends one request at a time"
    elif min(each) == max(each):
        text = f"each repeat sends {max(each)} requests to the server at once"
    else:
        sent = ", ".join(f"{run.letter} {run.in_flight}" for run in answer.runs)
        text = f"each repeat sends to its server what it gets of {asked} in flight ({sent})"
    text += ", and predicted is of one alone"
    if answer.objective in (None, "latency"):
        text += (
            f"; they are chosen by the mean of the {asked} in flight, on copies that fill the "
            "machine"
        )
    return text


def _requests(count: int) -> str:
    return f"{count} measured request{'s' if count != 1 else ''}"


def _reason(item: LeftOut) -> str:
    return item.reason.replace("; ", ", ")
