"""What else an answer offers beside its best configuration: VAE layouts, and lossy options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.api.records import Table
from perfmodel.api.session import Session
from perfmodel.api.table import requantised_table
from perfmodel.engines.legality import problems
from perfmodel.errors import MissingData, Problem
from perfmodel.report.answer import Choice
from perfmodel.search.rank import denoise_layouts
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.units import GIB, MS_PER_S, PERCENT

LOSSY_DTYPE = "fp8"
DTYPE_RULE = "dtype-not-in-engine"


def vae_choices(table: Table, row: int) -> tuple[Choice, ...]:
    """The VAE layouts of the winner's denoise layout, fastest decode of each number of GPUs."""
    layouts = table.evaluation.layouts
    groups = denoise_layouts(layouts)
    decode_s = table.evaluation.stages["vae_decode"].total_s
    rows = [int(r) for r in np.flatnonzero(groups == groups[row])]
    rows.sort(key=lambda r: (layouts.vae_patch[r], layouts.vae_tiling[r]))
    return tuple(
        Choice(
            title=_vae_title(int(layouts.vae_patch[r]), bool(layouts.vae_tiling[r])),
            config_id=table.config_id(r),
            num_gpus=int(layouts.vae_patch[r]),
            vae_decode_ms=float(decode_s[r]) * MS_PER_S,
            latency_ms=float(table.evaluation.latency_s[r]) * MS_PER_S,
            memory_gib=float(table.memory.peak_bytes[r]) / GIB,
            chosen=r == row,
        )
        for r in rows
    )


def _vae_title(patch: int, tiling: bool) -> str:
    if patch == 1:
        return "1 GPU, tiled" if tiling else "1 GPU"
    return f"{patch} GPUs"


ALIKE = 1.01
"""Times whose ratio is below this read as the same."""


def vae_note(choices: Sequence[Choice]) -> str | None:
    """Why more GPUs can decode more slowly."""
    times = {c.title: c.vae_decode_ms or 0.0 for c in choices}
    one = times.get("1 GPU")
    tiled = times.get("1 GPU, tiled")
    slower = [title for title, ms in times.items() if one and ms > ALIKE * one and "GPUs" in title]
    if not one or not slower:
        return None
    text = f"{slower[0]} decode more slowly than 1: patches overlap and each repeats every launch"
    if tiled:
        text += f" (tiles alone cost {tiled - one:+,.0f} ms on one GPU)"
    return text + "."


def lossy_session(session: Session) -> Session | None:
    """The same question with fp8 linears; None where device, engine or asked dtype rule it out."""
    if session.behaviour.options.dtype not in ("bf16", "fp16"):
        return None
    if LOSSY_DTYPE not in session.context.peak_dtypes or not _runs_lossy(session):
        return None
    try:
        return session.with_options(session.options.model_copy(update={"dtype": LOSSY_DTYPE}))
    except MissingData:
        return None


def _runs_lossy(session: Session) -> bool:
    known = session.behaviour.dtypes
    return known is None or LOSSY_DTYPE in known


def untried_dtype(session: Session) -> list[Problem]:
    """What the engine says of fp8 linears where it is what rules them out."""
    if session.behaviour.options.dtype != "bf16" or _runs_lossy(session):
        return []
    options = session.behaviour.options.model_copy(update={"dtype": LOSSY_DTYPE})
    context = replace(session.context, behaviour=replace(session.behaviour, options=options))
    found = problems(session.engine.rules(), context, ParallelConfig())
    return [replace(one, severity="warning") for one in found if one.rule_id == DTYPE_RULE]


def lossy_options(table: Table, row: int, lossy: Session | None) -> tuple[Choice, ...]:
    """What is faster and changes the output: fp8 where the device has it, a step cache."""
    cache = Choice(
        title="step cache",
        option="cache_skip",
        why="skips whole forwards; give the ratio you measured, --cache skip=0.3",
    )
    if lossy is None:
        return (cache,)
    quantised = requantised_table(table, lossy, row)
    before = float(table.evaluation.latency_s[row])
    after = float(quantised.evaluation.latency_s[0])
    fp8 = Choice(
        title="fp8 linears",
        option=f"dtype={LOSSY_DTYPE}",
        config_id=quantised.config_id(0),
        latency_ms=after * MS_PER_S,
        latency_change_pct=(after / before - 1) * PERCENT,
        memory_gib=float(quantised.memory.peak_bytes[0]) / GIB,
        memory_change_gib=float(quantised.memory.peak_bytes[0] - table.memory.peak_bytes[row])
        / GIB,
    )
    return (fp8, cache)
