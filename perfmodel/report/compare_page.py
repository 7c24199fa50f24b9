"""The page of `compare`: cases side by side, a row a case."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.report import words
from perfmodel.report.answer import CompareAnswer, CompareRow, Prediction, ProblemInfo, StagesMs
from perfmodel.report.header import add_cite, add_header, is_image
from perfmodel.report.page import Column, Page
from perfmodel.report.stage_columns import time_columns, waiting_columns

LENGTHS = ("model", "task", "frames", "seconds")
"""Flags that tell images from videos."""

NOTHING = Prediction(config_id=words.UNKNOWN, stages_ms=StagesMs())


def compare_page(answer: CompareAnswer, seconds: float | None = None) -> Page:
    """Header of what is common, then the table; refused cases keep their row."""
    page = Page()
    add_header(page, answer)
    page.blank()
    page.table(compare_columns(answer.rows, _file(answer)))
    if tuple(answer.varied) == ("engine",):
        page.paragraph(
            "recommend --engine NAME tells why, the alternatives and the commands of one", indent=2
        )
    for row in answer.rows:
        case = ", ".join(f"{key}={value}" for key, value in row.values.items())
        for problem in row.problems:
            fits = f" Try {problem.suggestions[0]}." if _misses(row, problem) else ""
            page.paragraph(f"{case}: {problem.line()}{fits}", indent=2)
    page.blank()
    add_cite(page, answer, seconds)
    return page


def _misses(row: CompareRow, problem: ProblemInfo) -> bool:
    """Whether memory is what is missing, and something would fit."""
    return row.status == "does_not_fit" and bool(problem.suggestions)


def compare_columns(rows: Sequence[CompareRow], file: str = "MP4") -> list[Column]:
    """Varied flags, then the best configuration of each case."""
    keys = list(dict.fromkeys(key for row in rows for key in row.values))
    best = [row.prediction or NOTHING for row in rows]
    several = len({row.num_gpus for row in best}) > 1
    return [
        *(Column(key, [row.values.get(key, "") for row in rows], right=False) for key in keys),
        Column("configuration", [_configuration(row) for row in rows], right=False),
        Column(
            "GPUs", [str(row.num_gpus) if several else "" for row in best], drop_zero=True, drop=4
        ),
        Column("vs first", [_versus(row, not index) for index, row in enumerate(rows)]),
        *time_columns(best, file),
        *waiting_columns(best, drop=1),
        Column(
            "requests/h",
            [words.significant(row.requests_per_hour, 4) for row in best],
            drop=2,
            drop_zero=True,
        ),
        Column("peak\nGiB", [words.gib(row.peak_memory_gib) for row in best], drop=-6),
        Column(
            "fit",
            [row.fit_status or "" for row in best],
            right=False,
            drop_zero=True,
            drop=int(all(row.fit_status in (None, "fits") for row in best)),
        ),
        Column(
            "quality",
            ["" if row.lossless else "lossy" for row in best],
            right=False,
            drop_zero=True,
            drop=-1,
        ),
        Column("trust", [row.trust or "" for row in rows], right=False, drop=4, drop_zero=True),
    ]


def _file(answer: CompareAnswer) -> str:
    """What the outputs are written as; without a name where images and videos may be mixed."""
    if any(key in LENGTHS for key in answer.varied):
        return "file"
    return "PNG" if is_image(answer) else "MP4"


def _configuration(row: CompareRow) -> str:
    if row.prediction is None:
        return row.status.replace("_", " ")
    return row.prediction.config_id


def _versus(row: CompareRow, first: bool) -> str:
    return "first" if first and row.prediction else words.signed_percent(row.vs_first_pct)
