"""VAE encode and decode: the busiest rank's tiles against its host, then the gather and blend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.machine import Machine
from perfmodel.ops import Op
from perfmodel.pipeline.lines import (
    DEVICE_KINDS,
    Column,
    Line,
    Stage,
    cost_line,
    plain_line,
    total_s,
)
from perfmodel.placement import vae

MapOps = Callable[[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]], tuple[Op, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class VaeKind:
    """One direction of one VAE.

    Attributes:
        stage: vae_encode or vae_decode.
        ops: operators of a map of (frames, height, width).
        piece_bytes: output bytes of one map of (frames, height, width).
        overlap: rows of the output that neighbouring tiles share.
        everywhere: the result is broadcast to all ranks.
        fused: pointwise chains are fused (fast path).
    """

    stage: str
    ops: MapOps
    piece_bytes: Callable[[int, int, int], float]
    overlap: int
    everywhere: bool
    fused: bool


def vae_stage(
    kind: VaeKind, cases: Sequence[vae.MapCase], index: NDArray[np.intp], machine: Machine
) -> Stage:
    """Cost one VAE stage for its distinct cases.

    The rank with the most work decides: ``max(kernels, launches x host time)`` over its tiles.
    """
    dealings = [case.dealing() for case in cases]
    shapes, counts = _tile_matrix(cases, dealings)
    ops = kind.ops(shapes[:, 0], shapes[:, 1], shapes[:, 2])
    per_tile = [cost_line(op, kind.stage, len(shapes), machine, compiled=kind.fused) for op in ops]
    host_each_s = machine.term("launch_vae_fused_s" if kind.fused else "launch_vae_s")
    weights = _busiest_rank(per_tile, counts, host_each_s)
    lines = [_over_cases(line, weights) for line in per_tile]
    lines.append(_host_gap(kind, lines, host_each_s, machine))
    for number, (case, dealing) in enumerate(zip(cases, dealings, strict=True)):
        for op in _around(kind, case, dealing, ops):
            lines.append(_one_case(op, kind, number, len(cases), machine))
    kept = tuple(line for line in merge(lines) if np.any(line.total_s > 0))
    return Stage(kind.stage, kept, index, len(cases))


def _tile_matrix(
    cases: Sequence[vae.MapCase], dealings: Sequence[object]
) -> tuple[NDArray[np.int64], list[NDArray[np.int64]]]:
    """Distinct (frames, height, width), and for each case the tiles of each on each rank."""
    keys: dict[tuple[int, int, int], int] = {}
    for case, dealing in zip(cases, dealings, strict=True):
        for height, width in zip(dealing.heights, dealing.widths, strict=True):  # type: ignore[attr-defined]
            keys.setdefault((case.frames, int(height), int(width)), len(keys))
    counts = []
    for case, dealing in zip(cases, dealings, strict=True):
        dealt = dealing.counts  # type: ignore[attr-defined]
        matrix = np.zeros((dealt.shape[0], len(keys)), np.int64)
        for column, (height, width) in enumerate(
            zip(dealing.heights, dealing.widths, strict=True)  # type: ignore[attr-defined]
        ):
            matrix[:, keys[(case.frames, int(height), int(width))]] = dealt[:, column]
        counts.append(matrix)
    return np.array(list(keys), np.int64), counts


def _busiest_rank(
    per_tile: list[Line], counts: list[NDArray[np.int64]], host_each_s: float
) -> NDArray[np.int64]:
    """Tiles of each shape on the slowest rank, ``[cases, shapes]``."""
    size = len(per_tile[0].total_s)
    device_s = total_s((line for line in per_tile if line.kind in DEVICE_KINDS), size)
    launches = np.zeros(size)
    for line in per_tile:
        launches = launches + line.launches
    rows = []
    for matrix in counts:
        rank_s = np.maximum(matrix @ device_s, matrix @ launches * host_each_s)
        rows.append(matrix[int(np.argmax(rank_s))])
    return np.array(rows, np.int64)


def _over_cases(line: Line, weights: NDArray[np.int64]) -> Line:
    """A line over tile shapes as one over cases; work of one execution is the weighted mean."""
    count = weights @ line.count
    safe = np.maximum(count, 1e-300)
    return Line(
        stage=line.stage,
        name=line.name,
        kind=line.kind,
        count=count,
        total_s=weights @ line.total_s,
        roof_s=weights @ line.roof_s,
        launches=weights @ line.launches,
        flops=weights @ (line.count * line.flops) / safe,
        bytes=weights @ (line.count * line.bytes) / safe,
        message_bytes=np.zeros_like(count),
        group_size=np.ones(count.shape, np.int64),
        axis="",
        bound=line.bound,
        provenance=line.provenance,
    )


def _host_gap(kind: VaeKind, lines: list[Line], host_each_s: float, machine: Machine) -> Line:
    size = len(lines[0].total_s)
    launches = np.zeros(size)
    for line in lines:
        launches = launches + line.launches
    gap_s = np.maximum(launches * host_each_s - total_s(lines, size), 0.0)
    return plain_line(
        kind.stage,
        "host gaps",
        "host",
        gap_s,
        count=1,
        bound="host",
        provenance=machine.term_provenance("launch_vae_s"),
    )


def _around(kind: VaeKind, case: vae.MapCase, dealing: object, ops: tuple[Op, ...]) -> list[Op]:
    """Messages and blend of one case."""
    height, width = int(dealing.heights.max()), int(dealing.widths.max())  # type: ignore[attr-defined]
    tile_bytes = kind.piece_bytes(case.frames, height, width)
    around: list[Op] = [
        *vae.gather(case, dealing, tile_bytes),  # type: ignore[arg-type]
        *vae.blend(case, dealing, kind.overlap, tile_bytes),  # type: ignore[arg-type]
    ]
    if kind.everywhere:
        around += vae.broadcast(case, kind.piece_bytes(case.frames, case.height, case.width))
    if case.band_axis:
        around += vae.band_messages(ops, case)
    return around


def _one_case(op: Op, kind: VaeKind, number: int, size: int, machine: Machine) -> Line:
    """A line that only case `number` has."""
    single = cost_line(op, kind.stage, 1, machine, compiled=False)

    def spread(values: Column) -> Column:
        column = np.zeros(size)
        column[number] = values[0]
        return column

    group = np.ones(size, np.int64)
    group[number] = single.group_size[0]
    host_s = single.launches[0] * machine.term("launch_vae_s")
    return Line(
        stage=single.stage,
        name=single.name,
        kind=single.kind,
        count=spread(single.count),
        total_s=spread(np.maximum(single.total_s, host_s)),
        roof_s=spread(single.roof_s),
        launches=spread(single.launches),
        flops=spread(single.flops),
        bytes=spread(single.bytes),
        message_bytes=spread(single.message_bytes),
        group_size=group,
        axis=single.axis,
        bound=single.bound,
        provenance=single.provenance,
    )


def merge(lines: Sequence[Line]) -> list[Line]:
    """Lines of the same name as one (each case has at most one of them)."""
    merged: dict[tuple[str, str], Line] = {}
    for line in lines:
        key = (line.name, line.provenance)
        before = merged.get(key)
        merged[key] = line if before is None else _joined(before, line)
    return list(merged.values())


def _joined(a: Line, b: Line) -> Line:
    """Two lines of the same name, disjoint in their cases."""
    return Line(
        stage=a.stage,
        name=a.name,
        kind=a.kind,
        count=a.count + b.count,
        total_s=a.total_s + b.total_s,
        roof_s=a.roof_s + b.roof_s,
        launches=a.launches + b.launches,
        flops=np.maximum(a.flops, b.flops),
        bytes=np.maximum(a.bytes, b.bytes),
        message_bytes=np.maximum(a.message_bytes, b.message_bytes),
        group_size=np.maximum(a.group_size, b.group_size),
        axis=a.axis,
        bound=a.bound,
        provenance=a.provenance,
    )
