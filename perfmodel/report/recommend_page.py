"""The page of `recommend`: what was asked, the answer, why, choices, commands, trust."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.report import words
from perfmodel.report.answer import Answer, Choice, Prediction, RejectedRow, ScalingRow
from perfmodel.report.header import add_cite, add_header, add_trust, is_image
from perfmodel.report.memory_page import add_no_fit
from perfmodel.report.page import LEFT_OUT, Column, Page, unbroken
from perfmodel.report.stage_columns import (
    least_to_most,
    scaled,
    servers,
    time_columns,
    waiting_columns,
)

SHOWN_REASONS = 4
LONGEST_REASON = 36
MEMORY_RULE = "memory"
TIMED_SERVER = "vllm-omni"
"""The engine whose responses tell their time in a header."""


def recommend_page(
    answer: Answer,
    commands: int | None = None,
    rejected: bool = False,
    seconds: float | None = None,
) -> Page:
    """The whole page; `rejected` lists all rules.

    `commands` configurations get their serve, request and benchmark commands; None is the serve
    command of the first.
    """
    page = Page()
    add_header(page, answer)
    if answer.status == "does_not_fit":
        add_no_fit(page, answer)
    elif answer.recommendations:
        _add_answer(page, answer)
        _add_ranking(page, answer)
        _add_choices(page, answer)
    _add_combinations(page, answer)
    if rejected:
        _add_rejected(page, answer)
    for prediction in answer.recommendations[: 1 if commands is None else max(commands, 0)]:
        _add_commands(page, prediction, serve_only=commands is None)
    page.blank()
    add_trust(page, answer, next(iter(answer.recommendations), None))
    add_cite(page, answer, seconds)
    return page


def headline(best: Prediction, interval_level: float) -> str:
    """``cfg2_usp2   33,290 ms a request (80 % range ...), 44.0 of 268.6 GiB, fits``."""
    low, high = best.latency_low_ms, best.latency_high_ms
    time = f"{words.milliseconds(best.latency_ms, low, high)} ms a request"
    if low is not None and high is not None:
        ends = words.span(low, high).replace("-", " to ")
        time += f" ({words.percent(interval_level)} range {ends})"
    return f"{best.config_id}   {time}, {_memory(best)}".replace("   ", "\u00a0\u00a0\u00a0")


def waiting(best: Prediction, requests: int) -> str:
    """How long the requests in flight take, where there are several."""
    if best.in_flight_mean_ms is None:
        return ""
    count = servers(best)
    if best.in_flight_worst_ms == best.latency_ms:
        return f"Each of the {requests} requests in flight has a server of its own."
    where = f"{count} servers, each" if count > 1 else "1 server,"
    return (
        f"{requests} requests sent at once to {where} one after another: "
        f"{scaled(best, best.in_flight_mean_ms)} ms on average, the last after "
        f"{scaled(best, best.in_flight_worst_ms)} ms."
    )


def _memory(best: Prediction) -> str:
    """What the driver shows of the device's memory; where that decides, what is needed of it."""
    have, needed = words.gib(best.capacity_gib), words.gib(best.required_memory_gib)
    if best.fit_status == "no":
        return f"needs {needed} of {have} GiB, does not fit"
    shown = f"{words.gib(best.peak_memory_gib)} of {have} GiB"
    least = f" (runs in {needed})" if best.fit_status == "tight" else ""
    return ", ".join(filter(None, (shown, best.fit_status))) + least


def _add_answer(page: Page, answer: Answer) -> None:
    best = answer.recommendations[0]
    page.blank()
    if fewer := _fewer_gpus(answer):
        page.paragraph(fewer, "REPLICAS    " if best.replicas > 1 else "FEWER GPUS  ")
    page.paragraph(headline(best, answer.interval_level), "BEST  ")
    if answer.workload and (waits := waiting(best, answer.workload.concurrency)):
        page.paragraph(waits, indent=6)
    page.paragraph(" ".join(filter(None, (_standing(best), _ties(answer)))), indent=6)
    for choice in answer.worth_trying:
        page.paragraph(_worth_trying(choice, answer.objective), "TRY   ")
    if best.why:
        page.paragraph(best.why, "WHY   ")


def _worth_trying(choice: Choice, objective: str | None) -> str:
    """``cfg2_tiling first, 23,750 ms a request (-43.8 %): tight, ...``."""
    better = words.signed_percent(choice.latency_change_pct)
    by = "" if objective in (None, "latency") else f" by {objective}"
    time = f"{words.milliseconds(choice.latency_ms)} ms a request ({better}{by})"
    if choice.option is None:
        return f"{choice.config_id} first, {time}: tight, {choice.why}; where it runs out, #1."
    flag = unbroken(f"--{choice.option.replace('=', ' ')}")
    memory = f"{words.gib(choice.memory_gib)} GiB a GPU"
    return f"{flag}: {choice.config_id}, {time}, {memory}, {choice.needs}."


def _fewer_gpus(answer: Answer) -> str:
    best, total = answer.recommendations[0], answer.system.num_gpus if answer.system else 0
    if best.replicas > 1:
        used = best.replicas * best.num_gpus
        what = f"fill the {total} GPUs" if used == total else f"use {used} of {total} GPUs"
        return (
            f"{best.replicas} servers of {best.config_id} {what}: "
            f"{words.significant(best.requests_per_hour, 4)} requests an hour."
        )
    if best.num_gpus < total:
        standing = (
            "is the best that surely fits" if _tight_is_better(answer) else "is the best of all"
        )
        return (
            f"{best.config_id} on {best.num_gpus} of {total} GPUs {standing}{_none_on_all(answer)}."
        )
    for other in answer.recommendations[1:]:
        if other.tied_with_best and other.num_gpus < best.num_gpus:
            return f"{other.config_id} on {other.num_gpus} of {total} GPUs ties with the best."
    return ""


def _none_on_all(answer: Answer) -> str:
    """Why no configuration of all GPUs competes."""
    rule = answer.refused_on_all_gpus
    if rule is None:
        return ""
    return f"; of all GPUs none is legal, most for {rule.rule}: {(rule.title or '').rstrip('.')}"


def _tight_is_better(answer: Answer) -> bool:
    """Whether a configuration that may run out of memory would be better than the best."""
    return any(
        row.vs_best_pct is not None and row.vs_best_pct < 0 and row.fit_status == "tight"
        for row in answer.recommendations[1:]
    )


def _standing(best: Prediction) -> str:
    speed = f"{best.speedup:.2f}x one GPU" if best.speedup and best.num_gpus > 1 else ""
    kind = "lossless" if best.lossless else "LOSSY: the output changes, check quality"
    return "; ".join(filter(None, (speed, kind))) + "."


def _ties(answer: Answer) -> str:
    tied = [row.config_id for row in answer.recommendations[1:] if row.tied_with_best]
    if not tied:
        return ""
    if answer.objective == "memory":
        return f"TIE with {words.join_words(tied)}: the same memory."
    return (
        f"TIE with {words.join_words(tied)}: {unbroken('`perfmodel plan`')} tells which runs "
        f"decide it.{_gave_way(answer)}"
    )


def _gave_way(answer: Answer) -> str:
    """The faster tie that needs more memory than the best, if there is one."""
    best, *others = answer.recommendations
    if answer.objective not in (None, "latency") or best.latency_ms is None:
        return ""
    if best.in_flight_mean_ms is not None:
        return ""
    faster = [
        row
        for row in others
        if row.tied_with_best and row.latency_ms and row.latency_ms < best.latency_ms
    ]
    if not faster:
        return ""
    other = min(faster, key=lambda row: row.latency_ms or 0.0)
    return (
        f" {other.config_id} may be {words.milliseconds(best.latency_ms - (other.latency_ms or 0))}"
        f" ms faster and needs {words.gib(other.peak_memory_gib)} GiB."
    )


def _add_ranking(page: Page, answer: Answer) -> None:
    page.blank()
    file = "PNG" if is_image(answer) else "MP4"
    rows = answer.recommendations
    encode = least_to_most(rows, "text_encode")
    first = f"text encode{encode} + " if encode else ""
    note = f"request = {first}{LEFT_OUT}these stages = {_clock(answer)}, after a warm-up"
    page.table(ranking_columns(rows, answer.objective, file), highlight=0, note=note)


def _clock(answer: Answer) -> str:
    """What shows the time of a request."""
    served = answer.engine is not None and answer.engine.name == TIMED_SERVER
    return "the server's x-inference-time-s" if served else "one request from start to file"


def ranking_columns(
    rows: Sequence[Prediction], objective: str | None = None, file: str = "MP4"
) -> list[Column]:
    """Columns of a ranked table; empty ones are left out by the page."""
    several = len({row.num_gpus for row in rows}) > 1
    lossy = any(not row.lossless for row in rows)
    return [
        Column("#", [str(row.rank or index) for index, row in enumerate(rows, 1)]),
        Column("configuration", [row.config_id for row in rows], right=False),
        Column("GPUs", [str(row.num_gpus) if several else "" for row in rows], drop_zero=True),
        Column("vs best", [_versus(row, not index) for index, row in enumerate(rows)]),
        *time_columns(rows, file),
        *waiting_columns(rows),
        *_objective_columns(rows, objective),
        Column(
            "price", [words.significant(row.price_per_request, 3) for row in rows], drop_zero=True
        ),
        Column("peak\nGiB", [words.gib(row.peak_memory_gib) for row in rows]),
        Column(
            "fit",
            [row.fit_status if row.fit_status == "tight" else "" for row in rows],
            right=False,
            drop_zero=True,
        ),
        Column(
            "quality",
            ["" if row.lossless or not lossy else "lossy" for row in rows],
            right=False,
            drop_zero=True,
            drop=-6,
        ),
    ]


def _objective_columns(rows: Sequence[Prediction], objective: str | None) -> list[Column]:
    """What was asked for, where that is not the time of a request."""
    if objective == "cost":
        return [Column("GPU-s", [words.number(r.gpu_seconds_per_request, 0.1) for r in rows])]
    if objective == "throughput":
        cells = [words.significant(row.requests_per_hour, 4) for row in rows]
        return [Column("requests/h", cells)]
    return []


def _versus(row: Prediction, first: bool) -> str:
    if first:
        return "best"
    tie = "tie " if row.tied_with_best else ""
    return tie + words.signed_percent(row.vs_best_pct)


def _add_choices(page: Page, answer: Answer) -> None:
    vae = ", ".join(_vae_choice(choice) for choice in answer.vae_choices)
    if vae or answer.vae_note:
        page.blank()
        text = f"VAE decode of #1: {vae}." if vae else ""
        page.paragraph(" ".join(filter(None, (text, answer.vae_note))), indent=2)
    if len(answer.scaling) > 1:
        page.blank()
        most = answer.system.num_gpus if answer.system else answer.scaling[-1].num_gpus
        page.table(_scaling_columns(answer.scaling, most))
    if answer.lossy_options:
        page.blank()
        page.paragraph(
            f"Not counted above because the output changes ({_ranked_too(answer)}check quality):",
            indent=2,
        )
        for choice in answer.lossy_options:
            page.paragraph(_lossy(choice), indent=4)


def _ranked_too(answer: Answer) -> str:
    """What --allow-lossy ranks of the list: what has a prediction."""
    known = [choice.title for choice in answer.lossy_options if choice.latency_ms is not None]
    return f"--allow-lossy ranks {words.join_words(known)}; " if known else ""


def _vae_choice(choice: Choice) -> str:
    return unbroken(f"{choice.title} {words.milliseconds(choice.vae_decode_ms)} ms")


def _lossy(choice: Choice) -> str:
    change = choice.latency_change_pct
    slower = "slower here, " if change is not None and round(change) > 0 else ""
    parts = [
        f"{slower}{words.signed_percent(change, 0)} request" if change is not None else "",
        f"{choice.memory_change_gib:+.1f} GiB" if choice.memory_change_gib is not None else "",
        choice.why or "",
    ]
    return f"{choice.title}: " + ", ".join(filter(None, parts))


def _scaling_columns(rows: Sequence[ScalingRow], most: int) -> list[Column]:
    return [
        Column("GPUs", [str(row.num_gpus) for row in rows]),
        Column("best configuration", [row.config_id for row in rows], right=False),
        Column("request\nms", [words.milliseconds(row.latency_ms) for row in rows]),
        Column(
            "speed-up",
            [f"{row.speedup:.2f}x" if row.speedup else words.UNKNOWN for row in rows],
            drop=-2,
            drop_zero=True,
        ),
        Column(
            "efficiency", [words.percent(row.efficiency) for row in rows], drop=-1, drop_zero=True
        ),
        Column(f"{most} GPUs as replicas\nrequests/h", [_replicas(row) for row in rows]),
        Column("", [_marks(row) for row in rows], right=False, drop=1, drop_zero=True),
    ]


def _replicas(row: ScalingRow) -> str:
    if row.requests_per_hour is None:
        return words.UNKNOWN
    copies = f"  ({row.replicas} x {row.num_gpus})" if row.replicas else ""
    return words.significant(row.requests_per_hour, 4) + copies


def _marks(row: ScalingRow) -> str:
    marks = (
        "tight" * (row.fit_status == "tight"),
        "best latency" * row.best_latency,
        "best throughput" * row.best_throughput,
    )
    return ", ".join(filter(None, marks))


def _add_combinations(page: Page, answer: Answer) -> None:
    counted = answer.combinations
    if counted is None:
        return
    fitting = counted.fitting
    fit = "" if fitting is None else f", {'all' if fitting == counted.legal else fitting} fit"
    # what does not fit is legal, and counted before
    rules = [row for row in answer.rejected if row.rule != MEMORY_RULE and row.count]
    top = sorted(rules, key=lambda row: -row.count)[:SHOWN_REASONS]
    reasons = ", ".join(unbroken(f"{row.count:,} {_reason(row)}") for row in top)
    more = ", ..." if len(rules) > len(top) else ""
    page.paragraph(
        f"{counted.total:,} combinations: {counted.legal:,} legal{fit}; {counted.rejected:,} "
        "rejected (--rejected lists them)" + (f": {reasons}{more}" if reasons else ""),
        indent=2,
        hanging=2,
    )


def _reason(row: RejectedRow) -> str:
    """A short title, else the rule's id as words."""
    title = (row.title or "").rstrip(".")
    return title if title and len(title) <= LONGEST_REASON else row.rule.replace("-", " ")


def _add_rejected(page: Page, answer: Answer) -> None:
    page.blank()
    rows = sorted(answer.rejected, key=lambda row: -row.count)
    width = max((len(row.rule) for row in rows), default=0)
    for row in rows:
        count = f"{row.count:,}" if row.count else "none tried"
        label = f"{count:>10}  {row.rule:<{width}}  "
        page.paragraph(row.example or row.title or "", label)


def _add_commands(page: Page, prediction: Prediction, serve_only: bool) -> None:
    commands = prediction.commands
    if commands is None or not commands.serve:
        return
    rank = prediction.rank or 1
    page.blank()
    hint = (
        "(--commands 1-5 prints serve, request and benchmark of each; --commands DIR writes files)"
    )
    page.paragraph("  " + hint if serve_only else f"  {prediction.config_id}", f"SERVE #{rank} ")
    page.code(commands.serve)
    if not serve_only:
        page.code(commands.request)
        page.code(commands.benchmark)
    for note in commands.notes:
        page.paragraph(note, indent=2)
