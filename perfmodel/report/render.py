"""An answer as text, JSON, CSV or Markdown."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from importlib import import_module
from typing import Literal

from perfmodel.report.answer import (
    Answer,
    CompareAnswer,
    CompareRow,
    Document,
    PredictAnswer,
    Prediction,
)
from perfmodel.report.words import STAGES

Format = Literal["table", "json", "csv", "md"]
FORMATS: tuple[Format, ...] = ("table", "json", "csv", "md")

_COLUMNS = (
    "rank",
    "config_id",
    "num_gpus",
    "latency_ms",
    "latency_low_ms",
    "latency_high_ms",
)
_LATER_COLUMNS = (
    "denoise_per_step_ms",
    "pipeline_forward_ms",
    "first_request_ms",
    "replicas",
    "in_flight_mean_ms",
    "in_flight_worst_ms",
    "requests_per_hour",
    "vs_best_pct",
    "speedup",
    "peak_memory_gib",
    "required_memory_gib",
    "peak_phase",
    "reserved_gib",
    "host_memory_gib",
    "capacity_gib",
    "fit_status",
    "tied_with_best",
    "lossless",
)


LATER_PAGES = {
    "PlanAnswer": "perfmodel.report.plan_page:plan_page",
    "VerifyAnswer": "perfmodel.report.verify_page:verify_page",
    "LiveAnswer": "perfmodel.report.live_page:live_page",
}
"""Pages of answers that `recommend` need not load."""


@dataclass(frozen=True, slots=True)
class Look:
    """How a table is to look: columns of the terminal, colour, ASCII only, lengths of sections.

    `commands` configurations show all their commands; None is the serve command of a best one.
    """

    width: int = 100
    color: bool = False
    ascii_only: bool = False
    rejected: bool = False
    commands: int | None = None
    operators: int = 10
    seconds: float | None = None


def render(answer: Document, form: Format = "table", look: Look | None = None) -> str:
    """The answer in one format; ends with a newline.

    JSON is `answer.model_dump_json()` as it is, so the Python API and ``--json`` give the same
    bytes.
    """
    if form == "json":
        return answer.model_dump_json() + "\n"
    if form == "csv":
        return render_csv(answer)
    return _page(answer, form, look or Look())


def _page(answer: Document, form: Format, look: Look) -> str:
    from perfmodel.report.markdown import render_markdown
    from perfmodel.report.tables import render_text

    # Markdown is reproducible, so it does not say how long it took
    seconds = look.seconds if form == "table" else None
    if isinstance(answer, Answer):
        from perfmodel.report.recommend_page import recommend_page

        page = recommend_page(answer, look.commands, look.rejected, seconds)
    elif isinstance(answer, PredictAnswer):
        from perfmodel.report.predict_page import predict_page

        page = predict_page(answer, look.operators, look.commands or 0, seconds)
    elif isinstance(answer, CompareAnswer):
        from perfmodel.report.compare_page import compare_page

        page = compare_page(answer, seconds)
    elif (home := LATER_PAGES.get(type(answer).__name__)) is not None:
        module, _, function = home.partition(":")
        page = getattr(import_module(module), function)(answer, look.commands or 0, seconds)
    else:
        raise TypeError(f"no page for {type(answer).__name__}")
    if form == "md":
        return render_markdown(page, answer.command)
    return render_text(page, look.width, look.color, look.ascii_only)


def render_csv(answer: Document) -> str:
    """A header line, then a line a configuration; an unknown is an empty field."""
    cases = _csv_cases(answer)
    keys = list(dict.fromkeys(key for case, _ in cases for key in case))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    stage_names = [f"{stage}_ms" for stage in STAGES]
    writer.writerow([*keys, *_COLUMNS, *stage_names, *_LATER_COLUMNS])
    for case, row in cases:
        writer.writerow([*(case.get(key, "") for key in keys), *_csv_cells(row)])
    return out.getvalue()


def _csv_cases(answer: Document) -> list[tuple[dict[str, str], Prediction | None]]:
    if isinstance(answer, Answer):
        return [({}, row) for row in answer.recommendations]
    if isinstance(answer, PredictAnswer):
        return [({}, answer.prediction)] if answer.prediction else []
    cases: list[tuple[dict[str, str], Prediction | None]] | None = getattr(answer, "cases", None)
    if cases is not None:
        return cases
    rows: tuple[CompareRow, ...] = answer.rows if isinstance(answer, CompareAnswer) else ()
    return [({**row.values, "status": row.status}, row.prediction) for row in rows]


def _csv_cells(row: Prediction | None) -> list[object]:
    if row is None:
        return [""] * (len(_COLUMNS) + len(STAGES) + len(_LATER_COLUMNS))
    values = [
        *(getattr(row, name) for name in _COLUMNS),
        *(getattr(row.stages_ms, stage) for stage in STAGES),
        *(getattr(row, name) for name in _LATER_COLUMNS),
    ]
    return ["" if value is None else value for value in values]
