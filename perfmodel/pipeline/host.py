"""Stages that every rank (or the host) runs the same way: text encoding, transfer, media."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np

from perfmodel.cost.machine import Machine
from perfmodel.ops import Op
from perfmodel.pipeline.lines import Stage, cost_lines, distinct, plain_line, told_apart, total_s
from perfmodel.spec.parallel import Layouts


def plain_stage(name: str, ops: tuple[Op, ...], layouts: Layouts, machine: Machine) -> Stage:
    """Cost a stage that does not depend on the layout, eager, with its host floor.

    ``max(kernels, launches x host time)``; an empty list of operators is a stage of time 0.
    """
    sizes = [np.asarray(value) for op in ops for value in (op.count,) if np.ndim(value)]
    sizes += [np.asarray(v) for op in ops if (v := getattr(op, "pixels", None)) is not None]
    sizes += [np.asarray(v) for op in ops if (v := getattr(op, "bytes_moved", None)) is not None]
    first, index = distinct(*(s for s in sizes if s.ndim), size=len(layouts))
    picked = [_take(op, first) for op in ops]
    lines = cost_lines(picked, name, len(first), machine, compiled=False)
    kernels = sum((line.launches for line in lines if line.kind != "host"), np.zeros(len(first)))
    gap_s = np.maximum(kernels * machine.term("launch_eager_s") - total_s(lines, len(first)), 0.0)
    if np.any(gap_s > 0):
        provenance = machine.term_provenance("launch_eager_s")
        lines.append(
            plain_line(
                name, "host gaps", "host", gap_s, count=1, bound="host", provenance=provenance
            )
        )
    return Stage(name, tuple(told_apart(lines)), index, len(first))


def _take(op: Op, first: np.ndarray) -> Op:
    picked = {
        f.name: value[first]
        for f in fields(op)
        if isinstance(value := getattr(op, f.name), np.ndarray) and value.ndim
    }
    return replace(op, **picked)
