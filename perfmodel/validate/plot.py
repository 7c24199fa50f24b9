"""Predicted against measured request times, one colour a GPU."""

from __future__ import annotations

from pathlib import Path

from perfmodel.errors import BadInput, Problem, needs
from perfmodel.report.validate_answer import RecordDetail, ValidateAnswer
from perfmodel.spec.record import END_TO_END_KEYS
from perfmodel.units import MS_PER_S

BAND = 1.2
"""Dotted lines at this factor above and below the diagonal."""


def scatter(answer: ValidateAnswer, path: Path) -> None:
    """Write a log-log scatter plot as PNG.

    Raises:
        BadInput: matplotlib is not installed, or the file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput(Problem("plot", needs("--plot", "matplotlib", "plot"))) from None
    figure = Figure(figsize=(7, 7))
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    points = [(row, key) for row in answer.records_detail if (key := _key(row))]
    for gpu in sorted({row.gpu for row, _ in points}):
        chosen = [(row, key) for row, key in points if row.gpu == gpu]
        axes.scatter(
            [row.measured_ms[key] / MS_PER_S for row, key in chosen],
            [row.predicted_ms[key] / MS_PER_S for row, key in chosen],
            s=14,
            label=gpu,
        )
    measured = [row.measured_ms[key] / MS_PER_S for row, key in points]
    ends = [min(measured, default=1.0), max(measured, default=10.0)]
    for factor, style in ((1.0, "-"), (BAND, ":"), (1 / BAND, ":")):
        axes.plot(ends, [factor * end for end in ends], style, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured request, s", ylabel="predicted, s")
    axes.legend(fontsize=7, ncols=2)
    try:
        figure.savefig(path, dpi=130, format="png")
    except OSError as error:
        raise BadInput(Problem("plot", f"{path}: cannot be written: {error}")) from None


def _key(row: RecordDetail) -> str | None:
    return next((key for key in END_TO_END_KEYS if key in row.predicted_ms), None)
