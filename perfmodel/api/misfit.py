"""When nothing fits: the nearest miss, and what would fit, least change first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel import engines
from perfmodel.api import header
from perfmodel.api.all_gpus import FLAG, table_of_all
from perfmodel.api.offload import host_needs
from perfmodel.api.records import Table, prediction
from perfmodel.api.session import Session, open_session
from perfmodel.api.table import build_table, legality, memory_of, search_space
from perfmodel.errors import Problem
from perfmodel.memory import NO, STATUS, MemoryTable, Remedy, nearest_miss, remedies
from perfmodel.report.answer import Answer, Choice
from perfmodel.report.memory_page import POOLING_NOTE
from perfmodel.spec.workload import GATHERED, Options
from perfmodel.units import GIB, MS_PER_S

PHASE_WORDS = {
    "load": "loading",
    "text_encode": "text encoding",
    "vae_encode": "VAE encoding",
    "denoise": "denoising",
    "vae_decode": "VAE decoding",
}
MORE_GPUS = (2, 4, 8)
TIGHT = "tight"


def memory_example(table: Table) -> str:
    """One configuration that does not fit, in the words of a refusal."""
    row = int(np.flatnonzero(table.memory.fit_status == NO)[0])
    capacity = table.memory.capacity_bytes / GIB
    need = float(table.memory.required_bytes[row]) / GIB
    return f"{table.config_id(row)} needs {need:,.1f} of {capacity:,.1f} GiB"


def explain(session: Session, table: Table, answer: Answer, *, all_gpus: str = "") -> Answer:
    """`answer` with the nearest miss and what would fit.

    `all_gpus`: the objective under which those of fewer devices in `table` were not asked for, ""
    where they were; where one fits it is offered.
    """
    fewer = _by_fewer(table) if all_gpus else ()
    table = table_of_all(table, all_gpus) if all_gpus else table
    miss = nearest_miss(table.memory, table.evaluation.layouts)
    record = prediction(table, miss.index)
    notes = [
        f"{record.config_id} needs {miss.required_bytes / GIB:,.1f} GiB while "
        f"{PHASE_WORDS[miss.phase]}, {miss.over_bytes / GIB:,.1f} GiB too much; the largest part "
        f"is {miss.part.replace('_', ' ')} with {miss.part_bytes / GIB:,.1f} GiB.",
        POOLING_NOTE,
    ]
    if miss.weights_alone:
        image = int(session.job.shape.frames) == 1
        smaller = "A smaller image" if image else "A smaller or shorter video"
        notes.append(f"{smaller} does not help: the weights alone do not fit.")
    whole = f" of all {session.system.num_gpus:,} GPUs" if all_gpus else ""
    message = (
        f"none of {len(table.evaluation.layouts)} legal configurations{whole} fits in "
        f"{table.memory.capacity_bytes / GIB:,.1f} GiB a GPU; {notes[0]}"
    )
    changes = (*fewer, *_by_option(session, table), *(() if fewer else _by_gpus(session)))
    changes = tuple(sorted(changes, key=lambda change: change.fit_status == TIGHT))
    if not changes:
        engine = engines.TITLES.get(session.engine.name, session.engine.name)
        notes.append(
            f"No offload that {engine} has and no number of these GPUs up to {MORE_GPUS[-1]} makes "
            "it fit; --engine any asks the other engines that have the model."
        )
    problem = Problem("memory", message, field="--gpus", suggestions=_to_type(changes))
    return answer.model_copy(
        update={
            "status": "does_not_fit",
            "problems": header.unique([problem]),
            "nearest_miss": record,
            "over_gib": miss.over_bytes / GIB,
            "would_fit": changes,
            "fit_notes": tuple(notes),
            "warnings": header.unique(header.base_warnings(session)),
            "trust": header.trust_word(record.provenance_share),
        }
    )


def typed(change: str) -> tuple[str, ...]:
    """``vae_tiling=on offload=model`` as flags with their values."""
    pairs = (part.partition("=") for part in change.split())
    return tuple(f"--{name.replace('_', '-')} {value}" for name, _, value in pairs)


def _to_type(changes: Sequence[Choice]) -> tuple[str, ...]:
    """The flags of each change; no axis, because every legal degree was tried."""
    found = (" ".join(typed(c.option)) if c.option else c.needs for c in changes)
    return tuple(text for text in found if text)


def _by_option(session: Session, table: Table) -> tuple[Choice, ...]:
    """Option changes that make a legal layout fit."""
    layouts = table.evaluation.layouts

    def estimate(options: Options) -> MemoryTable:
        return memory_of(session.with_options(options), layouts)

    def legal(options: Options) -> NDArray[np.bool_]:
        alone = layouts.sequence_parallel * layouts.dp == 1
        gathers_alone = (options.offload == GATHERED) & alone
        allowed = legality(session.with_options(options), layouts).legal
        return np.asarray(allowed & ~gathers_alone)

    found = remedies(estimate, layouts, session.behaviour.options, legal)
    choices = [_choice(session, table, remedy) for remedy in found]
    # A later change that ends in the same time and memory adds nothing.
    different = {(one.latency_ms, one.memory_gib): one for one in reversed(choices)}
    return tuple(different.values())[::-1]


def _choice(session: Session, table: Table, remedy: Remedy) -> Choice:
    changed = session.with_options(remedy.options)
    one = build_table(changed, table.evaluation.layouts.take(np.array([remedy.index])))
    host = remedy.host_bytes
    return Choice(
        title=" ".join(typed(remedy.change)),
        config_id=one.config_id(0),
        option=remedy.change,
        num_gpus=one.num_gpus(0),
        latency_ms=float(one.evaluation.latency_s[0]) * MS_PER_S,
        memory_gib=remedy.peak_bytes / GIB,
        fit_status=remedy.status,
        host_memory_gib=None if host is None else host / GIB,
        needs=None if host is None else host_needs(session.system, host),
    )


def _by_gpus(session: Session) -> tuple[Choice, ...]:
    """The smallest larger number of the same devices on which something fits.

    Smaller ones on which something may fit come before it.
    """
    found: list[Choice] = []
    for count in MORE_GPUS:
        if count <= session.system.num_gpus:
            continue
        system = replace(
            session.system, num_gpus=count, gpus_per_node=count, nodes=1, warnings=(), named={}
        )
        larger = open_session(
            session.workload,
            system,
            engine=f"{session.engine.name}@{session.version.date}",
            options=session.options,
        )
        legal = legality(larger, search_space(larger))
        table = build_table(larger, legal.layouts.take(legal.legal))
        row = _fastest_that_fits(table)
        if row is not None:
            title = f"more GPUs: {count}x {system.device.title}"
            more = _as_it_is(table, row, title, f"--gpus {count}x{system.device.id}")
            found.append(more.model_copy(update={"num_gpus": count}))
            if not table.memory.tight[row]:
                break
    return tuple(found)


def _by_fewer(table: Table) -> tuple[Choice, ...]:
    """The fastest that fits, whatever number of devices it uses."""
    row = _fastest_that_fits(table)
    if row is None:
        return ()
    return (_as_it_is(table, row, f"without {FLAG}", None),)


def _fastest_that_fits(table: Table) -> int | None:
    """Its row, what is surely enough first; None where nothing fits."""
    memory, seconds = table.memory, table.evaluation.latency_s
    rows = np.flatnonzero(memory.fits)
    return int(rows[np.lexsort((seconds[rows], memory.tight[rows]))[0]]) if rows.size else None


def _as_it_is(table: Table, row: int, title: str, needs: str | None) -> Choice:
    """A configuration of `table`, under its options."""
    return Choice(
        title=title,
        config_id=table.config_id(row),
        num_gpus=table.num_gpus(row),
        latency_ms=float(table.evaluation.latency_s[row]) * MS_PER_S,
        memory_gib=float(table.memory.peak_bytes[row]) / GIB,
        fit_status=STATUS[int(table.memory.fit_status[row])],
        needs=needs,
    )
