"""The page of ``validate`` on measured runs: coverage, errors, choice, groups, worst rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from perfmodel.report.page import Column, Page
from perfmodel.report.validate_answer import Errors, RecordDetail, ValidateAnswer
from perfmodel.report.words import milliseconds
from perfmodel.units import PERCENT

METRIC_TITLES = {
    "e2e": "request",
    "denoise": "denoise",
    "denoise_per_step": "denoise per step",
    "vae_decode": "VAE decode",
    "vae_encode": "VAE encode",
    "text_encode": "text encode",
    "peak_memory": "peak memory",
}
GROUP_TITLES = {"gpu": "GPU", "model": "model", "engine": "engine", "num_gpus": "GPUs"}
WORST = 8
REASONS = 6


def validate_page(answer: ValidateAnswer) -> Page:
    """Coverage first, then errors, choice, groups and the worst rows."""
    page = Page()
    page.paragraph(_coverage(answer), label="COVERAGE  ", hanging=10)
    page.blank()
    page.table(_error_columns("error of", METRIC_TITLES, answer.metrics))
    if answer.interval_coverage is not None:
        page.paragraph(
            f"The 80 % ranges held {answer.interval_coverage * PERCENT:.0f} % of the measured "
            f"values; half of them are within {answer.interval_halfwidth_median_pct:.0f} %.",
            indent=2,
        )
    page.blank()
    page.paragraph(_choice(answer), label="CHOICE    ", hanging=10)
    for label, groups in answer.by.items():
        page.blank()
        page.table(_error_columns(GROUP_TITLES.get(label, label), {k: k for k in groups}, groups))
    page.blank()
    worst = list(_worst(answer))
    page.table(_worst_columns(worst))
    reasons: dict[str, list[str]] = {}
    for number, (detail, _, _) in enumerate(worst, start=1):
        if detail.likely_reason:
            reasons.setdefault(detail.likely_reason, []).append(f"#{number}")
    for reason, numbers in reasons.items():
        page.paragraph(f"{', '.join(numbers)}, likely reason: {reason}", indent=2)
    return page


def _coverage(answer: ValidateAnswer) -> str:
    share = answer.predicted / max(answer.records, 1) * PERCENT
    reasons = Counter(_short(skipped.reason) for skipped in answer.skipped)
    text = f"{answer.predicted} of {answer.records} records predicted ({share:.1f} %); "
    text += f"{answer.scored} scored ({answer.scope})."
    if reasons:
        listed = ", ".join(f"{n} {reason}" for reason, n in reasons.most_common(REASONS))
        rest = sum(reasons.values()) - sum(n for _, n in reasons.most_common(REASONS))
        text += f" Skipped: {listed}" + (f", {rest} for other reasons." if rest else ".")
    return text


def _short(reason: str) -> str:
    return reason.split(";")[0].split(" needs ")[0][:60]


def _error_columns(
    header: str, titles: dict[str, str], groups: dict[str, Errors]
) -> tuple[Column, ...]:
    found = [(title, groups[key]) for key, title in titles.items() if key in groups]
    return (
        Column(header, [title for title, _ in found], right=False),
        Column("n", [str(e.n) for _, e in found]),
        Column("median\n%", [f"{e.median_ape:.1f}" for _, e in found]),
        Column("mean\n%", [f"{e.mape:.1f}" for _, e in found]),
        Column("9 of 10 below\n%", [f"{e.p90_ape:.1f}" for _, e in found]),
        Column("bias\n%", [f"{e.bias:+.1f}" for _, e in found]),
    )


def _choice(answer: ValidateAnswer) -> str:
    summary = answer.sweep_summary
    if not summary.n or summary.mean_top1_regret_pct is None:
        return "no sweep of three or more layouts among the records."
    worst = max(answer.sweeps, key=lambda s: s.top1_regret_pct if s.n >= 3 else -1.0)
    tau = summary.kendall_tau_pooled
    return (
        f"{summary.n} sweeps of three or more layouts: our pick cost "
        f"{summary.mean_top1_regret_pct:.1f} % over the best measured on average, at most "
        f"{summary.max_top1_regret_pct:.1f} % ({worst.sweep}); order agreement (Kendall tau) "
        f"{'unknown' if tau is None else f'{tau:.2f}'}; the best was our pick or its tie "
        f"{summary.best_or_tie} times of {summary.n}."
    )


def _worst(answer: ValidateAnswer) -> Iterator[tuple[RecordDetail, str, float]]:
    rows = [
        (detail, key, ape)
        for detail in answer.records_detail
        if not detail.doubtful
        for key, ape in detail.ape.items()
    ]
    yield from sorted(rows, key=lambda row: -row[2])[:WORST]


def _worst_columns(rows: list[tuple[RecordDetail, str, float]]) -> tuple[Column, ...]:
    return (
        Column("#", [str(number) for number, _ in enumerate(rows, start=1)]),
        Column("worst rows", [detail.id for detail, _, _ in rows], right=False),
        Column("of", [key for _, key, _ in rows], right=False),
        Column("predicted\nms", [milliseconds(d.predicted_ms[k]) for d, k, _ in rows]),
        Column("measured\nms", [milliseconds(d.measured_ms[k]) for d, k, _ in rows]),
    )
