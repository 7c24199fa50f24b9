"""Columns of the request's time, its stages and the requests in flight."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.report import words
from perfmodel.report.answer import Prediction
from perfmodel.report.page import Column


def time_columns(rows: Sequence[Prediction], file: str = "MP4") -> list[Column]:
    """Request, range and stages in ms; `file` is what the output is written as."""
    return [
        Column("request\nms", [_total(row) for row in rows]),
        Column(
            "80 % range\nms",
            [words.span(r.latency_low_ms, r.latency_high_ms) for r in rows],
            drop=1,
        ),
        _stage("VAE enc.", "vae_encode", rows, drop=-1),
        _stage("denoise", "denoise", rows, drop=-4),
        _stage("VAE dec.", "vae_decode", rows, drop=-3),
        _stage("output", "transfer", rows, drop=3),
        _stage(file, "video_encode", rows, drop=2),
    ]


def _stage(header: str, name: str, rows: Sequence[Prediction], drop: int = 0) -> Column:
    cells = [stage_cell(row, name) for row in rows]
    gist = f"{words.stage_title(name, header == 'PNG')}{least_to_most(rows, name)}"
    return Column(f"{header}\nms", cells, drop=drop, drop_zero=True, gist=gist)


def stage_cell(row: Prediction, stage: str) -> str:
    """A stage's time, ``~`` before it where it rests on a prior."""
    value: float | None = getattr(row.stages_ms, stage)
    mark = "~" if value and row.stages_basis.get(stage) == "prior" else ""
    return mark + words.milliseconds(value, *_ends(row, stage))


def _ends(row: Prediction, stage: str) -> tuple[float | None, float | None]:
    low = getattr(row.stages_low_ms, stage, None)
    high = getattr(row.stages_high_ms, stage, None)
    return low, high


def _total(row: Prediction) -> str:
    return words.milliseconds(row.latency_ms, row.latency_low_ms, row.latency_high_ms)


def least_to_most(rows: Sequence[Prediction], stage: str) -> str:
    """`` (31 to 33)``: a stage's times in ms; empty where it takes none, or none that is known."""
    known = [row for row in rows if getattr(row.stages_ms, stage)]
    if not known:
        return ""
    known.sort(key=lambda row: float(getattr(row.stages_ms, stage)))
    low, high = stage_cell(known[0], stage), stage_cell(known[-1], stage)
    return f" ({low} to {high})" if low != high else f" ({low})"


def waiting_columns(rows: Sequence[Prediction], drop: int = -2) -> list[Column]:
    """Servers and the requests in flight, where there are several; the servers may `drop`."""
    if not any(row.in_flight_mean_ms for row in rows):
        return []
    return [
        Column("servers", [_servers(row) for row in rows], drop=drop),
        Column("mean\nms", [scaled(row, row.in_flight_mean_ms) for row in rows]),
        Column("last\nms", [scaled(row, row.in_flight_worst_ms) for row in rows], drop=-5),
    ]


def _servers(row: Prediction) -> str:
    return words.UNKNOWN if row.latency_ms is None else str(servers(row))


def servers(row: Prediction) -> int:
    """Copies of the configuration that serve the requests in flight."""
    return row.replicas * row.parallel.data_parallel_size


def scaled(best: Prediction, value_ms: float | None) -> str:
    """A multiple of the request's time, in the digits that its range supports."""
    if value_ms is None or not best.latency_ms:
        return words.UNKNOWN
    low, high = best.latency_low_ms, best.latency_high_ms
    times = value_ms / best.latency_ms
    ends = (None, None) if low is None or high is None else (low * times, high * times)
    return words.milliseconds(value_ms, *ends)
