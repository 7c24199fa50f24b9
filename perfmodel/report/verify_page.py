"""The page of `verify`: did the pick hold, which term is off, the ranking with what was learnt."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.report import words
from perfmodel.report.answer import StageRow
from perfmodel.report.header import add_cite, add_header
from perfmodel.report.page import Column, Page
from perfmodel.report.verify_answer import TermShift, UpdatedRow, VerifiedRun, VerifyAnswer

STAGES = ("denoise", "vae_encode", "vae_decode", "transfer", "video_encode", "text_encode")
KEY_TITLES = {
    "server": "the server's own time",
    "e2e": "the total time",
    "client": "the client's time",
    "stage_gen": "the request without MP4",
    "pipeline_forward": "the pipeline's forward",
    "generation": "the generation",
    "denoise": "denoise",
    "denoise_per_step": "denoise a step",
}


def verify_page(answer: VerifyAnswer, commands: int = 0, seconds: float | None = None) -> Page:
    """The whole page."""
    page = Page()
    add_header(page, answer)
    page.blank()
    page.paragraph(verdict(answer), "VERDICT  ")
    measured = [run for run in answer.runs if run.status == "measured"]
    if measured:
        page.blank()
        page.table(run_columns(measured))
        page.paragraph(_inside(answer), indent=2)
        notes: dict[str, list[str]] = {}
        for run in measured:
            for note in run.notes:
                notes.setdefault(note, []).append(_name(run))
        for note, names in notes.items():
            who = "all" if len(names) == len(measured) > 1 else ", ".join(dict.fromkeys(names))
            page.paragraph(f"{who}: {note}", indent=2, hanging=2)
    _add_aside(page, [run for run in answer.runs if run.status != "measured"])
    if answer.terms:
        page.blank()
        page.table(_term_columns(answer.terms))
        if any(term.bounded for term in answer.terms):
            page.paragraph(
                "! as far as one study moves a term; more runs, or perfmodel bench, tell more",
                indent=2,
            )
    if answer.ranking:
        page.blank()
        page.table(_ranking_columns(answer.ranking), highlight=0)
        page.paragraph("measured values replace predictions; others move with the terms", indent=2)
        page.paragraph(_alone(answer), indent=2, hanging=2)
    page.paragraph(_left(answer), indent=2, hanging=2)
    if commands and answer.best and answer.best.commands:
        page.blank()
        page.paragraph(f"  {answer.best.config_id}", "SERVE ")
        page.code(answer.best.commands.serve)
    page.blank()
    add_cite(page, answer, seconds)
    return page


def verdict(answer: VerifyAnswer) -> str:
    """Did the pick hold, in two sentences."""
    if answer.pick is None:
        return "Nothing was measured that answers this question."
    by = _compared_by(answer)
    count = sum(run.status == "measured" for run in answer.runs)
    if answer.pick_held is None:
        text = f"{answer.pick} alone was measured, compared by {by}: the ranking is open."
    elif answer.pick == answer.best_measured:
        text = f"The pick {answer.pick} held: the fastest of {count} by {by}."
    elif answer.pick_held:
        text = (
            f"The pick {answer.pick} held: {answer.best_measured} is faster by "
            f"{answer.regret_pct:.1f} % of {by}, no more than repeats differ."
        )
    else:
        text = (
            f"The pick {answer.pick} did not hold: {answer.best_measured} is faster by "
            f"{answer.regret_pct:.1f} % of {by}."
        )
    if answer.pairs:
        text += f" {answer.pairs_in_order} of {answer.pairs} pairs are in the predicted order."
    return text


def _compared_by(answer: VerifyAnswer) -> str:
    """The measured time, and what is made of it to rank by."""
    by = KEY_TITLES.get(answer.compared_by or "", answer.compared_by or "")
    if answer.objective not in (None, "latency"):
        return f"GPU-time a request, from {by}"
    requests = answer.workload.concurrency if answer.workload else 1
    return by if requests == 1 else f"the mean of {requests} in flight, from {by}"


def _name(run: VerifiedRun) -> str:
    return " ".join(filter(None, (run.letter, run.config_id or run.record_id)))


def run_columns(runs: Sequence[VerifiedRun]) -> list[Column]:
    """Predicted and measured by stage; ``!`` outside the 80 % range."""
    lines: list[tuple[VerifiedRun, StageRow]] = []
    for run in runs:
        seen = {row.stage: row for row in run.stages}
        named = [seen[name] for name in STAGES if name in seen]
        lines += [(run, row) for row in named if row.measured_ms]
        lines += [(run, seen["request"])] if "request" in seen else []
    first = {id(run): index for index, (run, _) in reversed(list(enumerate(lines)))}
    shown = [(run, row, first[id(run)] == i) for i, (run, row) in enumerate(lines)]
    return [
        Column("run", [run.letter or "" if top else "" for run, _, top in shown], False, 0, True),
        Column(
            "configuration",
            [(run.config_id or "") if top else "" for run, _, top in shown],
            right=False,
        ),
        Column("stage", [words.stage_title(row.stage) for _, row, _ in shown], right=False),
        Column(
            "predicted\nms",
            [words.milliseconds(r.predicted_ms, r.low_ms, r.high_ms) for _, r, _ in shown],
        ),
        Column("80 % range\nms", [words.span(r.low_ms, r.high_ms) for _, r, _ in shown], drop=2),
        Column("measured\nms", [words.milliseconds(r.measured_ms) for _, r, _ in shown]),
        Column("error", [_error(row) for _, row, _ in shown]),
        Column("", ["!" if row.outside_range else "" for _, row, _ in shown], right=False),
    ]


def _error(row: StageRow) -> str:
    return words.signed_percent(row.error_pct, 0)


def _inside(answer: VerifyAnswer) -> str:
    judged = [run for run in answer.runs if run.outside_range is not None]
    if not judged:
        return ""
    return (
        f"{answer.inside_range} of {len(judged)} inside the 80 % range; error = predicted against "
        "measured; ! outside the range"
    )


LONGEST = 60
MOST_ASIDE = 12
"""Runs that are set aside and shown; a file may hold those of many other jobs."""


def _add_aside(page: Page, runs: Sequence[VerifiedRun]) -> None:
    if not runs:
        return
    page.blank()
    failed_first = sorted(runs, key=lambda run: run.status == "set aside")
    shown = failed_first[:MOST_ASIDE]
    page.table(
        [
            Column("not used", [_name(run) for run in shown], right=False),
            Column("status", [run.status for run in shown], right=False),
            Column("why", [_short(run.reason) for run in shown], right=False),
        ]
    )
    if len(runs) > len(shown):
        more = len(runs) - len(shown)
        page.paragraph(f"and {more} more; the JSON lists all with reasons", indent=2)


def _short(text: str | None) -> str:
    """One line of a reason; the whole is in the JSON."""
    line = " ".join((text or "").split())
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def _term_columns(terms: Sequence[TermShift]) -> list[Column]:
    return [
        Column("which term is off", [term.title for term in terms], right=False),
        Column("moved by", [words.signed_percent(term.shift_pct) for term in terms]),
        Column("", ["!" if term.bounded else "" for term in terms], right=False, drop_zero=True),
        Column("known to", [f"+-{term.before_pct:.0f} %" for term in terms]),
        Column("now to", [f"+-{term.after_pct:.0f} %" for term in terms], drop=1),
        Column("a request\nms", [f"{term.effect_ms:+,.0f}" for term in terms]),
    ]


def _ranking_columns(rows: Sequence[UpdatedRow]) -> list[Column]:
    several = len({row.num_gpus for row in rows}) > 1
    return [
        Column("#", [str(row.rank) for row in rows]),
        Column("was", [str(row.rank_before) for row in rows]),
        Column("configuration", [row.config_id for row in rows], right=False),
        Column("GPUs", [str(row.num_gpus) if several else "" for row in rows], drop_zero=True),
        Column("vs best", [_versus(row) for row in rows]),
        Column("before\nms", [words.milliseconds(row.before_ms) for row in rows]),
        Column(
            "now\nms",
            [words.milliseconds(r.latency_ms, r.latency_low_ms, r.latency_high_ms) for r in rows],
        ),
        Column("80 % range\nms", [words.span(r.latency_low_ms, r.latency_high_ms) for r in rows]),
        Column("", ["measured" if row.measured else "" for row in rows], right=False),
    ]


def _alone(answer: VerifyAnswer) -> str:
    """What the times are of, where several requests in flight are asked for."""
    if answer.workload is None or answer.workload.concurrency == 1:
        return ""
    text = "all times are of one request alone"
    if answer.objective in (None, "latency"):
        text += (
            f"; the order and vs best are by the mean of the {answer.workload.concurrency} in "
            "flight, on copies that fill the machine"
        )
    return text


def _versus(row: UpdatedRow) -> str:
    if row.vs_best_pct is None or row.rank == 1:
        return "best"
    tie = "tie " if row.tied_with_best else ""
    return tie + words.signed_percent(row.vs_best_pct)


def _left(answer: VerifyAnswer) -> str:
    parts = []
    if answer.expected_loss_pct is not None and answer.ranking:
        first = answer.ranking[0].config_id
        parts.append(
            f"Expected loss of {first} against the true best: {answer.expected_loss_pct:.1f} %."
        )
    if answer.next_runs:
        parts.append(f"Runs that could still change it: {', '.join(answer.next_runs)}.")
    if answer.study:
        parts.append(f"Kept in {answer.study} ({answer.study_trials} trials).")
    return " ".join(parts)
