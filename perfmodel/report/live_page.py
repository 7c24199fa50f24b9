"""The page of `verify --live`: operators beside their predictions, the block, the stage."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.report import words
from perfmodel.report.header import add_cite, add_header
from perfmodel.report.live_answer import LiveAnswer, LiveRow
from perfmodel.report.page import Column, Page
from perfmodel.report.words import UNKNOWN
from perfmodel.units import PERCENT

ROWS_SHOWN = 30
LEFT_SHOWN = 5
GAPS_SHOWN = 3
LEAST_SHARE = 5e-4
DIGITS = 4


def live_page(answer: LiveAnswer, commands: int = 0, seconds: float | None = None) -> Page:
    """The whole page."""
    del commands
    page = Page()
    add_header(page, answer)
    page.paragraph(_built(answer), "BUILT  ")
    page.blank()
    page.table(_columns(answer.rows[:ROWS_SHOWN]))
    page.paragraph("block: one transformer block; ms of the slowest rank", indent=2)
    page.blank()
    page.paragraph(_block(answer), "BLOCK  ")
    page.paragraph(_stage(answer), "STAGE  ")
    page.paragraph(_left(answer), indent=7)
    page.paragraph(_gaps(answer.rows), "GAPS   ")
    page.blank()
    page.paragraph(_records(answer))
    add_cite(page, answer, seconds)
    return page


def _built(answer: LiveAnswer) -> str:
    ranks = f"{answer.ranks} rank{'s' if answer.ranks > 1 else ''}"
    over = f" over {answer.backend}" if answer.backend else ""
    size = (
        "true shapes" if answer.scale == 1 else f"sides, heads and widths reduced by {answer.scale}"
    )
    kernels = "compiled" if answer.compiled else "eager"
    return (
        f"{answer.config_id} on {ranks}{over}, {answer.device_name}; random {answer.dtype} "
        f"weights, {kernels}, {size}; {answer.software}"
    )


def _columns(rows: Sequence[LiveRow]) -> list[Column]:
    return [
        Column("operator", [row.operator for row in rows], right=False),
        Column("unit", [row.unit for row in rows], right=False, drop=2),
        Column("predicted\nms", [_ms(row.predicted_ms) for row in rows]),
        Column("measured\nms", [_ms(row.measured_ms) for row in rows]),
        Column("error\n%", [_error(row.error_pct) for row in rows]),
        Column("share\nof stage", [words.percent(row.share) for row in rows]),
        Column("basis", [row.provenance or "" for row in rows], right=False, drop=3),
    ]


def _ms(value: float | None) -> str:
    return UNKNOWN if value is None else words.significant(value, DIGITS)


def _error(value: float | None) -> str:
    return UNKNOWN if value is None else words.signed_percent(value, 0)


def _block(answer: LiveAnswer) -> str:
    if answer.block_measured_ms is None or answer.block_predicted_ms is None:
        return "not measured"
    text = (
        f"{_ms(answer.block_predicted_ms)} ms predicted, {_ms(answer.block_measured_ms)} ms "
        f"measured as a whole"
    )
    if answer.block_sum_measured_ms is not None:
        text += f" ({_ms(answer.block_sum_measured_ms)} ms operator by operator)"
    return text


def _stage(answer: LiveAnswer) -> str:
    if answer.denoise_predicted_ms is None or answer.denoise_measured_ms is None:
        return "not extrapolated"
    low, runs = words.number(answer.denoise_predicted_ms), words.number(answer.block_runs)
    measured = words.number(answer.denoise_measured_ms)
    share = words.percent(answer.covered_share)
    return (
        f"denoise {low} ms predicted, {measured} ms extrapolated from {runs} blocks; {share} of "
        "the predicted time was measured"
    )


def _gaps(rows: Sequence[LiveRow]) -> str:
    """The operators whose errors weigh most in their stage."""
    seen = [
        (row.share * (row.measured_ms / row.predicted_ms - 1), row)
        for row in rows
        if row.measured_ms is not None and row.share and row.predicted_ms > 0
    ]
    worst = sorted(seen, key=lambda pair: -abs(pair[0]))[:GAPS_SHOWN]
    named = [
        f"{row.operator} takes {words.signed_percent(weight * PERCENT)} of "
        f"{words.stage_title(row.stage)}"
        for weight, row in worst
        if abs(weight) >= LEAST_SHARE
    ]
    return f"against the prediction, {', '.join(named)}" if named else ""


def _left(answer: LiveAnswer) -> str:
    left = [
        f"{name} ({words.percent(share)})"
        for name, share in list(answer.not_built.items())[:LEFT_SHOWN]
        if share >= LEAST_SHARE
    ]
    return f"Not built here: {', '.join(left)}" if left else ""


def _records(answer: LiveAnswer) -> str:
    before = f", {answer.measured_before} from before" if answer.measured_before else ""
    return (
        f"{answer.measured_now} rows measured{before}, in {answer.records}; the same command goes "
        "on after an interruption"
    )
