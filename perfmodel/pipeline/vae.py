"""VAE encode and decode: the busiest rank's tiles against its host, then the gather and blend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.machine import Machine
from perfmodel.ops import Floats, Ints, Op, Pointwise
from perfmodel.pipeline.lines import (
    DEVICE_KINDS,
    Column,
    Line,
    Stage,
    cost_lines,
    plain_line,
    told_apart,
    total_s,
)
from perfmodel.placement import vae

Ints64 = NDArray[np.int64]

MAPS_AT_ONCE = 128
"""Maps whose columns are summed together: about a quarter of a megabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VaeKind:
    """One direction of one VAE.

    Attributes:
        stage: vae_encode or vae_decode.
        ops: operators of maps of (frames, height, width).
        piece_bytes: output bytes of maps of (frames, height, width).
        overlap: rows of the output that neighbouring tiles share.
        everywhere: the result is broadcast to all ranks.
        fused: pointwise chains are fused (fast path).
        outputs: maps of one request, one after the other.
    """

    stage: str
    ops: Callable[[Ints64, Ints64, Ints64], tuple[Op, ...]]
    piece_bytes: Callable[[Ints64, Ints64, Ints64], Floats]
    overlap: int
    everywhere: bool
    fused: bool
    outputs: Ints

    @property
    def launch_term(self) -> str:
        """Engine term of the host time per kernel."""
        return "launch_vae_fused_s" if self.fused else "launch_vae_s"


def vae_stage(kind: VaeKind, maps: vae.Maps, index: NDArray[np.intp], machine: Machine) -> Stage:
    """Cost one VAE stage for its distinct maps.

    The rank with the most work decides: ``max(kernels, launches x host time)`` over its pieces.
    """
    dealt = vae.deal_maps(maps)
    ops = [_strided(op, kind) for op in kind.ops(*dealt.shapes.T)]
    size = len(dealt.shapes)
    pieces = cost_lines(ops, kind.stage, size, machine, compiled=kind.fused)
    host_each_s = [_launch_s(op, kind, machine) for op in ops]
    busiest = _busiest_rank(pieces, dealt, host_each_s)
    lines = _over_maps(pieces, dealt, busiest)
    lines.append(_host_gap(kind, lines, host_each_s, machine))
    around = cost_lines(_around(kind, maps, dealt), kind.stage, len(maps), machine, compiled=False)
    lines += [_at_least_host(line, machine.term("launch_eager_s")) for line in around]
    kept = [_repeated(line, kind.outputs) for line in told_apart(lines)]
    return Stage(kind.stage, tuple(kept), index, len(maps))


def _strided(op: Op, kind: VaeKind) -> Op:
    """Eager channels-first kernels stride through memory; so do conversions of the layout."""
    if not isinstance(op, Pointwise):
        return op
    return replace(op, strided=op.in_convolution or not kind.fused)


def _launch_s(op: Op, kind: VaeKind, machine: Machine) -> float:
    """Host time of a launch of `op`: conversions are launched inside the call of a convolution."""
    inside = isinstance(op, Pointwise) and op.in_convolution
    return machine.term("launch_in_call_s" if inside else kind.launch_term)


def _host_s(lines: list[Line], host_each_s: Sequence[float]) -> Column:
    return sum(
        (line.launches * each_s for line, each_s in zip(lines, host_each_s, strict=True)),
        np.zeros_like(lines[0].total_s),
    )


def _busiest_rank(pieces: list[Line], dealt: vae.Dealt, host_each_s: Sequence[float]) -> Ints64:
    """Pieces of each shape on the slowest rank, ``[C, J]``."""
    size = len(dealt.shapes)
    device_s = total_s((line for line in pieces if line.kind in DEVICE_KINDS), size)
    host_s = _host_s(pieces, host_each_s)
    rank_s = np.maximum(
        np.einsum("crj,cj->cr", dealt.counts, device_s[dealt.kind]),
        np.einsum("crj,cj->cr", dealt.counts, host_s[dealt.kind]),
    )
    slowest = rank_s.argmax(axis=1)
    return np.asarray(dealt.counts[np.arange(len(slowest)), slowest], np.int64)


def _over_maps(pieces: list[Line], dealt: vae.Dealt, busiest: Ints64) -> list[Line]:
    """Lines over pieces as lines over maps; work of one execution is the weighted mean.

    All columns of all lines are gathered at once, piece by piece of a map, for so few maps at a
    time that they stay in the cache of the processor.
    """
    maps = len(busiest)
    columns = [
        column
        for line in pieces
        for column in (
            line.count,
            line.total_s,
            line.roof_s,
            line.launches,
            line.count * line.flops,
            line.count * line.bytes,
        )
    ]
    table = np.stack(columns, axis=1)
    sums = np.empty((table.shape[1], maps))
    places = np.flatnonzero(busiest.any(axis=0))
    for start in range(0, maps, MAPS_AT_ONCE):
        few = slice(start, start + MAPS_AT_ONCE)
        whole = np.zeros((len(busiest[few]), table.shape[1]))
        for place in places:
            each = table[dealt.kind[few, place]]
            each *= busiest[few, place, None]
            whole += each
        sums[:, few] = whole.T
    none, alone = np.zeros(maps), np.ones(maps, np.int64)
    used = busiest > 0
    return [
        replace(
            line,
            count=count,
            total_s=seconds,
            roof_s=roof_s,
            launches=launches,
            flops=flops / np.maximum(count, np.finfo(float).tiny),
            bytes=moved / np.maximum(count, np.finfo(float).tiny),
            message_bytes=none,
            group_size=alone,
            extrapolated=np.any(used & line.extrapolated[dealt.kind], axis=1),
        )
        for line, (count, seconds, roof_s, launches, flops, moved) in zip(
            pieces, sums.reshape(len(pieces), -1, maps), strict=True
        )
    ]


def _host_gap(
    kind: VaeKind, lines: list[Line], host_each_s: Sequence[float], machine: Machine
) -> Line:
    busy_s = total_s(lines, len(lines[0].total_s))
    host_s = _host_s(lines, host_each_s)
    return plain_line(
        kind.stage,
        "host gaps",
        "host",
        np.maximum(host_s - busy_s, 0.0),
        count=1,
        bound="host",
        provenance=machine.term_provenance(kind.launch_term),
    )


def _around(kind: VaeKind, maps: vae.Maps, dealt: vae.Dealt) -> list[Op]:
    """Messages and blend of all maps."""
    piece_bytes = kind.piece_bytes(maps.frames, dealt.largest[:, 0], dealt.largest[:, 1])
    around: list[Op] = [
        *vae.gather(maps, dealt, piece_bytes),
        *vae.blend(dealt, maps.tiling, kind.overlap, piece_bytes),
    ]
    if kind.everywhere:
        result_bytes = kind.piece_bytes(maps.frames, maps.height, maps.width)
        around.append(vae.broadcast(maps, result_bytes))
    if maps.band_axis:
        around += vae.band_messages(kind.ops, maps, joins=not kind.fused)
    return around


def _at_least_host(line: Line, launch_s: float) -> Line:
    """Kernels that run alone take at least their launches."""
    return replace(line, total_s=np.maximum(line.total_s, line.launches * launch_s))


def _repeated(line: Line, outputs: Ints) -> Line:
    """A line of one output as that of all outputs of a request."""
    return replace(
        line,
        count=line.count * outputs,
        total_s=line.total_s * outputs,
        roof_s=line.roof_s * outputs,
        launches=line.launches * outputs,
    )
