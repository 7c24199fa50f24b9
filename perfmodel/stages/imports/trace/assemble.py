"""Several traces of one call as one list of operators whose sizes are polynomials."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from perfmodel.ops import Rows
from perfmodel.spec.forms import Terms, added, written
from perfmodel.spec.traced import AnyOp, TracedAttention, TracedConv, TracedGemm, TracedMoves
from perfmodel.stages.imports.trace.fit import Fitter
from perfmodel.stages.imports.trace.record import COPIES, Event, Sizes, Static
from perfmodel.stages.traced_ops import rows_of

Runs = list[tuple[Sizes, int]]
"""Sizes of an operator as it is met again and again, with the times in a row."""


class Irregular(Exception):
    """Operators that are no polynomials of the request."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """One operator with the polynomials of its sizes."""

    static: Static
    sizes: tuple[Terms, ...]
    count: Terms
    whole: bool = False


def operators(traces: Sequence[Sequence[Event]], fitter: Fitter) -> list[AnyOp]:
    """One list for all traces.

    Memory kernels that depend on the batch in another way (a loop over the outputs) are taken at
    the batch that decides, and grow with it.

    Raises:
        Irregular: an operator that not all traces run, or whose sizes follow no polynomial.
    """
    try:
        products = _fitted([_table(events, moves=False) for events in traces], fitter)
    except Irregular:
        # A loop over the outputs of a batch: the place of an operator in it says nothing.
        traces = [[_anywhere(event) for event in events] for events in traces]
        products = _fitted([_table(events, moves=False) for events in traces], fitter)
    tables = [_table(events, moves=True) for events in traces]
    try:
        moves = _fitted(tables, fitter)
    except Irregular:
        same = fitter.deciding
        alone = Fitter([fitter.points[index] for index in same], fitter.basis)
        moves = _fitted([tables[index] for index in same], alone)
    order = {event.static: index for index, event in reversed(list(enumerate(traces[0])))}
    start = _first_of_blocks(traces[0])
    found = sorted((*products, *moves), key=lambda item: order[item.static])
    before = (replace(item, whole=order[item.static] < start) for item in found)
    return [op for item in _merged(before) for op in _operator(item)]


def _fitted(tables: Sequence[dict[Static, Runs]], fitter: Fitter) -> list[Fitted]:
    names = set(tables[0])
    for table in tables[1:]:
        if set(table) != names:
            odd = sorted(map(_place, names ^ set(table)))[0]
            raise Irregular(f"{odd} runs other operators at other shapes")
    fitted: list[Fitted] = []
    for static, runs in tables[0].items():
        groups = [table[static] for table in tables]
        if len({len(group) for group in groups}) > 1:
            raise Irregular(f"{_place(static)} runs in another order at other shapes")
        for index in range(len(runs)):
            counts = fitter.form(group[index][1] for group in groups)
            sizes = tuple(
                fitter.form(group[index][0][axis] for group in groups)
                for axis in range(len(runs[index][0]))
            )
            if counts is None or None in sizes:
                raise Irregular(f"{_place(static)} has sizes that no polynomial gives")
            fitted.append(Fitted(static, sizes, counts))  # type: ignore[arg-type]
    return fitted


def _anywhere(event: Event) -> Event:
    """An operator without its place among those of its module."""
    if event.static[0] == "moves":
        return event
    return replace(event, static=(*event.static[:2], 0, *event.static[3:]))


def _table(events: Sequence[Event], *, moves: bool) -> dict[Static, Runs]:
    found: dict[Static, list[Sizes]] = {}
    for event in events:
        if (event.static[0] == "moves") == moves:
            found.setdefault(event.static, []).append(event.sizes)
    return {
        static: [(sizes, len(list(same))) for sizes, same in groupby(calls)]
        for static, calls in found.items()
    }


def _place(static: Static) -> str:
    """The module of an operator, ``*`` for the number of a block."""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", str(static[1])) or "the class itself"


def _first_of_blocks(events: Sequence[Event]) -> int:
    """Where the repeated blocks begin: those of the attention that does most."""
    attentions = [event for event in events if event.static[0] == "attention"]
    if not attentions:
        return 0
    largest = max(attentions, key=lambda event: event.sizes[0] * event.sizes[2] * event.sizes[3])
    block, star, _ = _place(largest.static).partition("*")
    inside = block + star
    return next(i for i, event in enumerate(events) if _place(event.static).startswith(inside))


def _merged(fitted: Iterable[Fitted]) -> list[Fitted]:
    """Operators of equal sizes in the same module of several blocks are one with a higher count."""
    found: dict[Any, Fitted] = {}
    for item in fitted:
        key = (
            item.static[0],
            _place(item.static),
            item.static[2:],
            tuple(tuple(sorted(terms.items())) for terms in item.sizes),
        )
        seen = found.get(key)
        count = item.count if seen is None else added((seen.count, item.count))
        found[key] = Fitted(item.static, item.sizes, count, item.whole)
    return list(found.values())


def _operator(item: Fitted) -> list[AnyOp]:
    kind = item.static[0]
    if kind == "moves":
        return _moves(item)
    count = written(item.count)
    sizes = [written(terms) for terms in item.sizes]
    name = _place(item.static)
    if kind == "gemm":
        _, _, _, dtype, weight = item.static
        batch, m, n, k = sizes
        return [
            TracedGemm(
                kind="gemm",
                name=name,
                count=count,
                whole=item.whole,
                batch=batch,
                m=m,
                n=n,
                k=k,
                dtype=dtype,
                weight=weight,
            )
        ]
    if kind == "attention":
        return [_attention(item, name, count, sizes)]
    _, _, _, channels, kernel, stride, dtype, bias = item.static
    return [
        TracedConv(
            kind="conv",
            name=name,
            count=count,
            whole=item.whole,
            batch=sizes[0],
            in_channels=channels[0],
            out_channels=channels[1],
            kernel=kernel,
            stride=stride,
            out=(sizes[1], sizes[2], sizes[3]),
            bias=bias,
            dtype=dtype,
        )
    ]


def _attention(
    item: Fitted, name: str, count: int | str, sizes: list[int | str]
) -> TracedAttention:
    _, _, _, kv_heads, head_dim, causal, masked = item.static
    batch, heads, queries, keys = sizes
    if not isinstance(heads, int):
        raise Irregular(f"{name} has another number of heads at other shapes")
    return TracedAttention(
        kind="attention",
        name=name,
        count=count,
        whole=item.whole,
        batch=batch,
        queries=queries,
        keys=keys,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        causal=causal,
        masked=masked,
    )


SUFFIX = {Rows.TOKENS: "", Rows.TEXT: " (text)", Rows.NONE: " (vectors)"}


def _moves(item: Fitted) -> list[AnyOp]:
    """Kernels of a run, apart by what their sizes count."""
    _, _, names, widths, outside = item.static
    inside = item.sizes[: len(item.sizes) - outside]
    kernels: list[Terms] = []
    for width in widths:
        kernels.append(added(inside[:width]))
        inside = inside[width:]
    rows = [rows_of(terms) for terms in kernels]
    leaving = item.sizes[len(item.sizes) - outside :]
    found: list[AnyOp] = []
    for kind, suffix in SUFFIX.items():
        chosen = [terms for terms, row in zip(kernels, rows, strict=True) if row is kind]
        if not chosen:
            continue
        eager = added(chosen)
        fused = added(terms for terms in leaving if rows_of(terms) is kind)
        found.append(
            TracedMoves(
                kind="moves",
                name=_place(item.static) + suffix,
                count=written(item.count),
                whole=item.whole,
                eager=written(eager),
                fused=written(fused),
                kernels=len(chosen),
                copy_only=all(name in COPIES for name in names),
            )
        )
    return found
