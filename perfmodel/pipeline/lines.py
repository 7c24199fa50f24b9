"""Costed operators of a stage, and their sums: the rows behind every table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost import BOUNDS, cost
from perfmodel.cost.machine import Machine
from perfmodel.ops import (
    Attention,
    Collective,
    Conv,
    Gemm,
    HostWork,
    Ints,
    Media,
    Op,
    Pointwise,
    Transfer,
    flops,
)

Column = NDArray[np.float64]

DEVICE_KINDS = ("attention", "gemm", "conv", "pointwise", "copy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One operator of one stage on the busiest rank, for K distinct cases.

    Attributes:
        stage, name, kind: kind is attention, gemm, conv, pointwise, copy, collective, host or wait.
        count: executions in a request.
        total_s: exposed time of all of them.
        roof_s: their time at the best rates the hardware can reach.
        launches: kernel launches of all of them.
        flops, bytes: work of one execution.
        message_bytes, group_size, axis: of a collective.
        bound: what limits it.
        provenance: measured, fitted, prior or datasheet.
        extrapolated: cases whose shape lies outside the records behind the law.
        guessed: cases that are priors whatever `provenance` says; None: no case (`told_apart`).
    """

    stage: str
    name: str
    kind: str
    count: Column
    total_s: Column
    roof_s: Column
    launches: Column
    flops: Column
    bytes: Column
    message_bytes: Column
    group_size: NDArray[np.int64]
    axis: str
    bound: str
    provenance: str
    extrapolated: NDArray[np.bool_]
    guessed: NDArray[np.bool_] | None = None

    def at(self, cases: NDArray[np.intp]) -> Line:
        """The line over other cases: ``cases[i]`` is which of its own the i-th is."""
        values = ((f.name, getattr(self, f.name)) for f in fields(self))
        columns: dict[str, Any] = {n: v[cases] for n, v in values if isinstance(v, np.ndarray)}
        return replace(self, **columns)


def kind_of(op: Op) -> str:
    """The kind of an operator as tables and JSON name it."""
    if isinstance(op, Pointwise):
        if op.in_convolution:
            return "conv"
        return "copy" if op.is_copy else "pointwise"
    return next(kind for cls, kind in KINDS if isinstance(op, cls))


KINDS: tuple[tuple[type[Op], str], ...] = (
    (Attention, "attention"),
    (Gemm, "gemm"),
    (Conv, "conv"),
    (Collective, "collective"),
    (Transfer, "host"),
    (Media, "host"),
    (HostWork, "host"),
)


def cost_lines(
    ops: Sequence[Op], stage: str, size: int, machine: Machine, *, compiled: bool
) -> list[Line]:
    """Cost the operators of a stage for `size` cases, in order.

    Memory traffic is costed for many operators in one call: its law is the same for all that are
    alike in `is_copy` and `strided`.
    """
    lines: list[Line | None] = [None] * len(ops)
    alike: dict[tuple[bool, bool], list[int]] = {}
    for number, op in enumerate(ops):
        if isinstance(op, Pointwise):
            alike.setdefault((op.is_copy, op.strided), []).append(number)
        else:
            lines[number] = cost_line(op, stage, size, machine, compiled=compiled)
    for numbers in alike.values():
        chosen = [op for n in numbers if isinstance(op := ops[n], Pointwise)]
        for number, line in zip(
            numbers, _traffic_lines(chosen, stage, size, machine, compiled=compiled), strict=True
        ):
            lines[number] = line
    return [line for line in lines if line is not None]


def _traffic_lines(
    ops: Sequence[Pointwise], stage: str, size: int, machine: Machine, *, compiled: bool
) -> list[Line]:
    """Lines of memory traffic that share a law, costed as one ``[operators, cases]`` table."""
    shape = (len(ops), size)
    count, moved = np.empty(shape, np.int64), np.empty(shape)
    kernels = [launches_of(op, compiled=compiled) for op in ops]
    # a column a case only where one of them depends on it: the table is large
    launches = np.empty((len(ops), max(map(np.size, kernels))), np.int64)
    scattered, rowwise, row_bytes = (np.zeros((len(ops), 1)) for _ in range(3))
    for number, op in enumerate(ops):
        eager = None if compiled else op.eager_bytes
        count[number] = op.count
        moved[number] = op.bytes_moved if eager is None else eager
        launches[number] = kernels[number]
        scattered[number] = op.scattered_frac
        rowwise[number], row_bytes[number] = op.rowwise_frac, op.row_bytes
    together = Pointwise(
        name=ops[0].name,
        count=count,
        bytes_moved=moved,
        launches=launches,
        is_copy=ops[0].is_copy,
        strided=ops[0].strided,
        scattered_frac=scattered,
        rowwise_frac=rowwise,
        row_bytes=row_bytes,
    )
    costed = cost(together, machine, compiled=compiled)
    time, roof = np.broadcast_to(costed.time_each_s, shape), np.broadcast_to(costed.roof_s, shape)
    codes = np.broadcast_to(costed.bound_code, shape)
    reached = np.broadcast_to(costed.bytes_each, shape)
    outside = np.broadcast_to(costed.extrapolated, shape)
    slowest = time.argmax(axis=1)
    none, alone = np.zeros(size), np.ones(size, np.int64)
    return [
        Line(
            stage=stage,
            name=op.name,
            kind=kind_of(op),
            count=count[n],
            total_s=count[n] * time[n],
            roof_s=count[n] * roof[n],
            launches=count[n] * launches[n],
            flops=none,
            bytes=reached[n],
            message_bytes=none,
            group_size=alone,
            axis="",
            bound=BOUNDS[int(codes[n, slowest[n]])],
            provenance=costed.provenance,
            extrapolated=outside[n],
        )
        for n, op in enumerate(ops)
    ]


def launches_of(op: Op, *, compiled: bool) -> Ints:
    """Kernel launches of one execution."""
    eager = None if compiled else op.eager_launches
    return op.launches if eager is None else eager


def cost_line(op: Op, stage: str, size: int, machine: Machine, *, compiled: bool) -> Line:
    """Cost one operator for `size` cases."""

    def column(value: object) -> Column:
        array = np.asarray(value, np.float64)
        return array if array.shape == (size,) else np.broadcast_to(array, (size,))

    costed = cost(op, machine, compiled=compiled)
    count = column(op.count)
    message = op if isinstance(op, Collective) else None
    ranks = np.asarray(1 if message is None else message.ranks, np.int64)
    return Line(
        stage=stage,
        name=op.name,
        kind=kind_of(op),
        count=count,
        total_s=count * column(costed.time_each_s),
        roof_s=count * column(costed.roof_s),
        launches=count * launches_of(op, compiled=compiled),
        flops=column(flops(op)),
        bytes=column(costed.bytes_each),
        message_bytes=column(0.0 if message is None else message.full_bytes),
        group_size=np.broadcast_to(ranks, (size,)),
        axis="" if message is None else message.axis,
        bound=costed.bound,
        provenance=costed.provenance,
        extrapolated=np.broadcast_to(costed.extrapolated, (size,)),
        guessed=None if costed.guessed is None else np.broadcast_to(costed.guessed, (size,)),
    )


def told_apart(lines: Iterable[Line]) -> list[Line]:
    """`lines` that take time, where only one provenance holds for all cases of each.

    A collective inside the link domain is known from records and one between hosts is not, so the
    line of cases of both kinds becomes two, each without the time of the other's cases.
    """
    return [
        part for line in lines for part in _parts(line) if np.any(part.count * part.total_s > 0)
    ]


def _parts(line: Line) -> Iterable[Line]:
    if line.guessed is None:
        return (line,)
    known, guessed = (_only(line, chosen) for chosen in (~line.guessed, line.guessed))
    return known, replace(guessed, provenance="prior")


def _only(line: Line, chosen: NDArray[np.bool_]) -> Line:
    """`line` in the chosen cases, and nothing in the others."""
    kept = {
        name: getattr(line, name) * chosen for name in ("count", "total_s", "roof_s", "launches")
    }
    return replace(line, guessed=None, **kept)


def plain_line(
    stage: str, name: str, kind: str, total_s: Column, *, count: object, bound: str, provenance: str
) -> Line:
    """A line that is no kernel: host gaps, waiting."""
    zero = np.zeros_like(total_s)
    return Line(
        stage=stage,
        name=name,
        kind=kind,
        count=np.broadcast_to(np.asarray(count, np.float64), total_s.shape),
        total_s=total_s,
        roof_s=zero,
        launches=zero,
        flops=zero,
        bytes=zero,
        message_bytes=zero,
        group_size=np.ones(total_s.shape, np.int64),
        axis="",
        bound=bound,
        provenance=provenance,
        extrapolated=np.zeros(total_s.shape, bool),
    )


def total_s(lines: Iterable[Line], size: int) -> Column:
    """Sum of exposed time, ``[size]``."""
    result = np.zeros(size)
    for line in lines:
        result = result + line.total_s
    return result


def expose(line: Line, partner_s: Column, overlap_frac: float) -> Line:
    """`line` beside `partner_s` of compute: the pair costs ``max + (1 - overlap) * min``."""
    shorter = np.minimum(line.total_s, partner_s)
    pair_s = np.maximum(line.total_s, partner_s) + (1 - overlap_frac) * shorter
    return replace(line, total_s=pair_s - partner_s)


@dataclass(frozen=True)
class Stage:
    """One stage of many configurations: K distinct cases, and the case of each configuration.

    Attributes:
        name: text_encode, vae_encode, denoise, vae_decode, transfer or video_encode.
        lines: operators over the K cases.
        index: case of each of the N configurations.
        cases: K.
    """

    name: str
    lines: tuple[Line, ...]
    index: NDArray[np.intp]
    cases: int

    @cached_property
    def total_s(self) -> Column:
        """Exposed time of each configuration, ``[N]``."""
        return self.by_case(total_s(self.lines, self.cases))

    def by_case(self, values: Column) -> Column:
        """Expand a column over cases to one over configurations."""
        return values[self.index]

    def part_s(self, kinds: Sequence[str], axis: str | None = None) -> Column:
        """Exposed time of some kinds (of one communication axis, if given), ``[N]``."""
        chosen = [line for line in self.lines if line.kind in kinds and axis in (None, line.axis)]
        return self.by_case(total_s(chosen, self.cases))


def with_lines(stage: Stage, extra: Stage) -> Stage:
    """`stage` with the lines of `extra`, whose single case holds for all configurations."""
    if not extra.lines:
        return stage
    if extra.cases != 1:
        raise ValueError("only a stage that is the same everywhere can be added to another")
    spread = tuple(line.at(np.zeros(stage.cases, np.intp)) for line in extra.lines)
    return replace(stage, lines=(*stage.lines, *spread))


def distinct(*columns: object, size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Distinct rows of some columns: (a row index of each case, the case of each row)."""
    key, span = np.zeros(size, np.int64), 1
    for values in columns:
        if np.ndim(values) == 0:  # type: ignore[arg-type]
            continue
        codes, kinds = _codes(np.asarray(values))
        if span * kinds > MOST_KEYS:
            _, key = np.unique(key, return_inverse=True)
            span = int(key.max()) + 1
        key = key * kinds + codes
        span *= kinds
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    return first, index


MOST_KEYS = 2**62
"""Keys of `distinct` stay below this, so that they fit 64 bits."""


def _codes(values: NDArray[np.generic]) -> tuple[NDArray[np.int64], int]:
    """Small whole numbers that tell the values apart, and how many there may be."""
    if values.dtype.kind in "biu" and values.size:
        low = int(values.min())
        return values.astype(np.int64) - low, int(values.max()) - low + 1
    found, codes = np.unique(values, return_inverse=True)
    return codes.astype(np.int64), len(found)
