"""The page of `predict`: stages, operators, where the speed-up goes, memory by phase."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.report import words
from perfmodel.report.answer import OperatorRow, PredictAnswer, Prediction, StageRow
from perfmodel.report.header import add_cite, add_header, add_trust, is_image
from perfmodel.report.memory_page import add_memory, add_miss, add_would_fit
from perfmodel.report.page import Column, Page, unbroken
from perfmodel.report.recommend_page import headline, waiting

COLLECTIVE = "collective"
NOT_SPLIT = "not_split_"
WHOLE_STAGE = 0.9
BASIS_NOTE = (
    "basis: kernels, runs = fitted to microbenchmarks of this GPU, to end-to-end runs; "
    "prior = neither"
)


def predict_page(
    answer: PredictAnswer, operators: int = 10, commands: int = 0, seconds: float | None = None
) -> Page:
    """The whole page, the `operators` most expensive operators."""
    page = Page()
    add_header(page, answer)
    predicted = answer.prediction
    if predicted is not None:
        page.blank()
        page.paragraph(headline(predicted, answer.interval_level), "RESULT  ")
        if answer.workload and (waits := waiting(predicted, answer.workload.concurrency)):
            page.paragraph(waits, indent=8)
        if predicted.why:
            page.paragraph(predicted.why, "WHY     ")
        _add_stages(page, answer)
        _add_operators(page, answer, operators)
        _add_losses(page, predicted, is_image(answer))
        page.blank()
        if predicted.fit_status == "no":
            add_miss(page, answer, predicted)
            add_would_fit(page, answer)
        else:
            add_memory(page, predicted)
        if commands and predicted.commands:
            page.blank()
            page.paragraph("", "SERVE")
            page.code(predicted.commands.serve)
            page.code(predicted.commands.request)
            page.code(predicted.commands.benchmark)
    page.blank()
    add_trust(page, answer, predicted)
    add_cite(page, answer, seconds)
    return page


def stage_rows(answer: PredictAnswer) -> tuple[StageRow, ...]:
    """The stage table's rows; without `stages` they are read off the prediction."""
    predicted = answer.prediction
    if answer.stages or predicted is None:
        return answer.stages
    rows = [
        StageRow(
            stage=stage,
            predicted_ms=getattr(predicted.stages_ms, stage),
            low_ms=getattr(predicted.stages_low_ms, stage, None),
            high_ms=getattr(predicted.stages_high_ms, stage, None),
            bound=predicted.stages_bound.get(stage),
            basis=predicted.stages_basis.get(stage),
        )
        for stage in words.STAGES
    ]
    total = StageRow(
        stage="request",
        predicted_ms=predicted.latency_ms,
        low_ms=predicted.latency_low_ms,
        high_ms=predicted.latency_high_ms,
        bound="x-inference-time-s",
    )
    return (*rows, total)


def _add_stages(page: Page, answer: PredictAnswer) -> None:
    rows, image = stage_rows(answer), is_image(answer)
    page.blank()
    page.table(
        [
            Column("stage", [words.stage_title(row.stage, image) for row in rows], right=False),
            Column("predicted\nms", [_predicted(row) for row in rows]),
            Column("80 % range\nms", [words.span(row.low_ms, row.high_ms) for row in rows]),
            Column(
                "measured\nms",
                [words.number(row.measured_ms) for row in rows],
                drop_zero=True,
            ),
            Column("error", [_error(row) for row in rows], drop_zero=True),
            Column(
                "limited by", [words.bound_title(row.bound) for row in rows], right=False, drop=3
            ),
            Column(
                "basis", [row.basis or words.UNKNOWN for row in rows], right=False, drop_zero=True
            ),
        ]
    )
    page.paragraph(BASIS_NOTE, indent=2)
    if any(row.outside_range for row in rows):
        gap = f" {answer.largest_gap}" if answer.largest_gap else ""
        page.paragraph("! outside the range." + gap, indent=2)


def _predicted(row: StageRow) -> str:
    mark = "~" if row.predicted_ms and row.basis == "prior" else ""
    return mark + words.milliseconds(row.predicted_ms, row.low_ms, row.high_ms)


def _error(row: StageRow) -> str:
    if row.error_pct is None:
        return words.UNKNOWN
    return words.signed_percent(row.error_pct, 0) + (" !" if row.outside_range else "  ")


def _add_operators(page: Page, answer: PredictAnswer, most: int) -> None:
    rows = sorted(answer.operators, key=lambda row: -row.time_ms)[: max(most, 0)]
    for stage in dict.fromkeys(row.stage for row in rows):
        of_stage = [row for row in rows if row.stage == stage]
        # a stage that is one operator is in the stage table already
        if len(of_stage) > 1 or (of_stage[0].time_share or 0.0) < WHOLE_STAGE:
            page.blank()
            page.table(operator_columns(of_stage))
            if stage == "denoise":
                _add_denoise_total(page, answer)


def _add_denoise_total(page: Page, answer: PredictAnswer) -> None:
    predicted, work = answer.prediction, answer.workload
    if predicted and predicted.denoise_per_step_ms is not None and work:
        lower = words.milliseconds(answer.denoise_lower_bound_ms)
        page.paragraph(
            f"denoise = {work.run_steps or work.steps} steps x "
            f"{words.milliseconds(predicted.denoise_per_step_ms)} ms"
            f" = {words.milliseconds(predicted.stages_ms.denoise)} ms; "
            f"lower bound at datasheet peak {lower} ms",
            indent=2,
        )


def operator_columns(rows: Sequence[OperatorRow]) -> list[Column]:
    """Columns of the operator table of one stage, already in the order to show."""
    stage = words.stage_title(rows[0].stage)
    return [
        Column(f"{stage} on one GPU", [row.name.replace("_", " ") for row in rows], right=False),
        Column("calls", [words.number(row.count) for row in rows]),
        Column("ms each", [words.significant(row.time_each_ms, 4) for row in rows]),
        Column("total ms", [words.milliseconds(row.time_ms) for row in rows]),
        Column("share", [words.percent(row.time_share) for row in rows], drop_zero=True),
        Column(
            "of peak",
            [words.percent(row.roof_fraction) for row in rows],
            drop=-1,
            drop_zero=True,
        ),
        Column(
            "limited by",
            [words.bound_title(row.bound) for row in rows],
            right=False,
            drop=2,
            drop_zero=True,
        ),
        Column(
            "basis",
            [row.basis or row.provenance or "-" for row in rows],
            right=False,
            drop_zero=True,
        ),
        Column("", [_message(row) for row in rows], right=False, drop=1, drop_zero=True),
    ]


def _message(row: OperatorRow) -> str:
    if row.kind != COLLECTIVE or not row.group_size:
        return ""
    parts = [f"{row.group_size} GPUs", words.megabytes(row.message_bytes)]
    return ", ".join(part for part in parts if part != words.UNKNOWN)


def _loss(name: str) -> str:
    return name.replace("_", " ").replace("vae", "VAE")


def _add_losses(page: Page, predicted: Prediction, image: bool) -> None:
    losses, alone, ideal = predicted.speedup_loss_ms, predicted.one_gpu_ms, predicted.ideal_ms
    if not losses or alone is None or ideal is None:
        return
    whole = [
        f"{words.stage_title(name.removeprefix(NOT_SPLIT), image)} {words.milliseconds(time)}"
        for name, time in losses.items()
        if name.startswith(NOT_SPLIT)
    ]
    rest = [
        f"{'+' if time >= 0 else '-'} {_loss(name)} {words.milliseconds(abs(time))}"
        for name, time in losses.items()
        if not name.startswith(NOT_SPLIT)
    ]
    stages = f"+ stages not split: {', '.join(map(unbroken, whole))}" if whole else ""
    start = (
        f"Where the speed-up goes, ms: {words.milliseconds(alone)} on 1 GPU / "
        f"{predicted.num_gpus} = {words.milliseconds(ideal)}"
    )
    end = f"= {words.milliseconds(predicted.latency_ms)}"
    page.blank()
    page.paragraph("; ".join(filter(None, (start, stages, *map(unbroken, rest), end))), indent=2)
