"""The denoise stage: per-rank kernels, messages, host gaps and waiting for the slowest rank."""

from __future__ import annotations

import numpy as np

from perfmodel.cost.machine import Machine
from perfmodel.ops import Collective
from perfmodel.pipeline.lines import (
    DEVICE_KINDS,
    Column,
    Line,
    Stage,
    cost_lines,
    distinct,
    expose,
    plain_line,
    told_apart,
    total_s,
)
from perfmodel.pipeline.skew import skew_share
from perfmodel.placement.columns import take_shape
from perfmodel.placement.denoise import EngineTable, PlacedDenoise, place_denoise
from perfmodel.shapes import Shape
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.workload import Options
from perfmodel.stages.base import DenoiseWork

STAGE = "denoise"


def denoise_stage(
    work_of: object,
    shape: Shape,
    layouts: Layouts,
    table: EngineTable,
    options: Options,
    machine: Machine,
    *,
    compiled: bool,
) -> Stage:
    """Cost the denoise stage once per distinct layout (and shape).

    Args:
        work_of: function of a shape that gives the unsharded work.
        shape: the request; numbers are scalars or columns as long as `layouts`.
        layouts: N configurations.
        table: engine behaviour.
        options: dtype, cache skip ratio.
        machine: device, links, laws and engine terms.
        compiled: pointwise chains are fused and launched by the compiler.
    """
    size = len(layouts)
    axes = (
        layouts.cfg,
        layouts.ulysses,
        layouts.ring,
        layouts.allgather,
        layouts.tp,
        layouts.pp,
        layouts.dp,
        layouts.hsdp,
        layouts.hsdp_replicate,
    )
    sizes = (shape.tokens, shape.text_tokens, shape.batch, shape.steps, shape.forwards)
    first, index = distinct(*axes, *sizes, size=size)
    cases, case_shape = layouts.take(first), take_shape(shape, first)
    work: DenoiseWork = work_of(case_shape)  # type: ignore[operator]
    placed = place_denoise(work, case_shape, cases, table, options)
    lines = _lines(placed, cases, machine, compiled=compiled)
    return Stage(STAGE, tuple(lines), index, len(cases))


def _lines(
    placed: PlacedDenoise, cases: Layouts, machine: Machine, *, compiled: bool
) -> list[Line]:
    size = len(cases)
    raw = cost_lines(placed.ops, STAGE, size, machine, compiled=compiled)
    device_s = total_s((line for line in raw if line.kind in DEVICE_KINDS), size)
    lines = [
        expose(line, _partner_s(op.overlaps, raw, device_s, size), _overlap_frac(op, machine))
        if isinstance(op, Collective) and op.overlaps
        else line
        for op, line in zip(placed.ops, raw, strict=True)
    ]
    busy_s = total_s(lines, size)
    lines.append(_host_gap(lines, placed, busy_s, machine, compiled=compiled))
    lines.append(_skew(device_s, cases, placed, machine))
    return told_apart(lines)


def _partner_s(overlaps: str, raw: list[Line], device_s: Column, size: int) -> Column:
    if overlaps == "denoise compute":
        return device_s
    return total_s((line for line in raw if line.name.startswith(overlaps)), size)


def _overlap_frac(op: Collective, machine: Machine) -> float:
    return machine.term(f"{op.axis}_overlap_frac")


def _host_gap(
    lines: list[Line], placed: PlacedDenoise, busy_s: Column, machine: Machine, *, compiled: bool
) -> Line:
    """Time the device idles because the host launches more slowly than kernels run."""
    launches = np.zeros_like(busy_s)
    for line in lines:
        launches = launches + line.launches
    each_s = machine.term("launch_compiled_s" if compiled else "launch_eager_s")
    host_s = launches * each_s + placed.forwards * machine.term("forward_host_s")
    return plain_line(
        STAGE,
        "host gaps",
        "host",
        np.maximum(host_s - busy_s, 0.0),
        count=placed.forwards,
        bound="host",
        provenance=machine.term_provenance("launch_compiled_s"),
    )


def _skew(device_s: Column, cases: Layouts, placed: PlacedDenoise, machine: Machine) -> Line:
    """Waiting inside collectives for the slowest rank: a share of the compute between them."""
    together = skew_share(cases.world_size // cases.dp)
    return plain_line(
        STAGE,
        "waiting for the slowest rank",
        "wait",
        device_s * together * machine.term("rank_skew_frac"),
        count=placed.forwards,
        bound="rank skew",
        provenance=machine.term_provenance("rank_skew_frac"),
    )
