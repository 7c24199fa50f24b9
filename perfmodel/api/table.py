"""From a session and layouts to a table of times and memory; legality of layouts."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.api.records import Table
from perfmodel.api.session import Session, refusal
from perfmodel.engines.legality import problems, violations
from perfmodel.errors import Problem
from perfmodel.memory import MemoryTable, memory, vae_memory
from perfmodel.pipeline.evaluate import evaluate, evaluate_again
from perfmodel.report.answer import RejectedRow
from perfmodel.search.enumerate import (
    COMPUTE_AXES,
    MOST_ROWS,
    MOST_WORLD,
    candidates,
    left_out,
)
from perfmodel.spec.parallel import Layouts, parse_parallel
from perfmodel.stages.guardrails import device_bytes

SHOWN_SIZES = 3


@dataclass(frozen=True, slots=True)
class Legality:
    """Which layouts an engine takes.

    Attributes:
        layouts: all candidates.
        legal: those that break no rule, ``[N]``.
        rejected: rules by how many candidates they rejected first.
    """

    layouts: Layouts
    legal: NDArray[np.bool_]
    rejected: tuple[RejectedRow, ...]


def search_space(session: Session, *, stale: bool = False) -> Layouts:
    """Candidates for the searched axes of the engine and the requested tiling.

    `stale`: only those of a pipeline whose patches see keys of the step before (`pp` of xDiT).
    """
    useful = session.engine.searched_axes(session.behaviour)
    if stale:
        patches = session.behaviour.has_pp and session.behaviour.patch_warmup_steps is not None
        layouts = _space(session, (*useful, "pp")) if patches else Layouts.of([])
        return layouts.take(layouts.pp > 1)
    return _space(session, useful)


def _space(session: Session, useful: tuple[str, ...]) -> Layouts:
    both = (0, 1) if session.behaviour.has_vae_tiling else (0,)
    tilings = {"auto": both, "on": (1,), "off": (0,)}[session.options.vae_tiling]
    layouts = candidates(
        session.system.num_gpus,
        axes=_axes(useful),
        tilings=tilings,
        weight_sharding="hsdp" in useful,
    )
    return layouts if "vae_patch" in useful else layouts.take(layouts.vae_patch == 1)


def _axes(useful: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis for axis in COMPUTE_AXES if axis in useful)


def untried_axes(session: Session) -> tuple[RejectedRow, ...]:
    """Axes that no candidate has because the engine refuses them for the model, with its words."""
    if session.system.num_gpus == 1:
        return ()
    searched = session.engine.searched_axes(session.behaviour)
    rows = []
    for axis in (*COMPUTE_AXES, "hsdp", "vae_patch"):
        if axis not in searched:
            one = parse_parallel(f"{axis}=2")[0]
            found = problems(session.engine.rules(), session.context, one)
            broken = next((p for p in found if p.severity == "error"), None)
            if broken is not None:
                title = f"{axis} is not searched"
                rows.append(
                    RejectedRow(rule=broken.rule_id, count=0, example=broken.message, title=title)
                )
    return tuple(rows)


def untried_sizes(session: Session) -> tuple[int, ...]:
    """Numbers of devices that no candidate has because the machine is so large."""
    useful = session.engine.searched_axes(session.behaviour)
    return left_out(session.system.num_gpus, len(_axes(useful)))


def untried_warning(session: Session) -> list[Problem]:
    """A line when the machine is so large that numbers of its devices are not tried."""
    sizes = untried_sizes(session)
    if not sizes:
        return []
    shown = ", ".join(f"{n:,}" for n in sizes[-SHOWN_SIZES:])
    others = len(sizes) - SHOWN_SIZES
    more = f" and {others} other numbers of" if others > 0 else ""
    message = (
        f"a request is not tried on {shown}{more} GPUs: at most {MOST_WORLD:,}, and "
        f"{MOST_ROWS:,} combinations; perfmodel predict --parallel answers any of them"
    )
    return [Problem("search-bound", message, "--gpus", str(sizes[-1]), severity="warning")]


def legal_layouts(session: Session, found: Legality) -> Layouts:
    """The legal ones of `found`.

    Raises:
        Refused, MissingData: none is; what the first candidate breaks.
    """
    if not found.legal.any():
        broken = problems(session.engine.rules(), session.context, found.layouts.row(0))
        raise refusal(*(problem for problem in broken if problem.severity == "error"))
    return found.layouts.take(found.legal)


def legality(session: Session, layouts: Layouts) -> Legality:
    """Split candidates into legal ones and rejections by the first rule that they break."""
    rules = session.engine.rules()
    broken = violations(rules, session.context, layouts)
    open_rows = np.ones(len(layouts), bool)
    rejected = []
    titles = {rule.id: rule for rule in rules}
    for rule_id, column in broken.items():
        first = column & open_rows
        open_rows &= ~column
        if first.any():
            example = layouts.row(int(np.flatnonzero(first)[0]))
            problem = titles[rule_id].problem(session.context, example)
            rejected.append(
                RejectedRow(
                    rule=rule_id,
                    count=int(first.sum()),
                    example=problem.message,
                    title=titles[rule_id].title,
                )
            )
    rejected.sort(key=lambda row: -row.count)
    return Legality(layouts, open_rows, tuple(rejected))


def memory_of(session: Session, layouts: Layouts) -> MemoryTable:
    """Memory of `layouts` under the session's options."""
    job = session.job
    return memory(
        job.family.components(job.model),
        job.family.denoise(job.model, job.shape, job.behaviour.traits),
        job.shape,
        layouts,
        vae=vae_memory(session.model, session.behaviour.traits, session.behaviour.vae_encode_mode),
        behaviour=session.behaviour,
        system=session.system,
        text_ops=job.family.text_encode(job.model, job.shape, job.behaviour.traits),
        branches_together=job.branches_together,
        beside_bytes=device_bytes(job.shape) if job.behaviour.checks_frames else 0.0,
    )


def build_table(session: Session, layouts: Layouts) -> Table:
    """Times and memory of `layouts`; the row of one device is found if it is there."""
    alone = layouts.world_size == 1
    plain = layouts.vae_tiling == layouts.vae_tiling[alone].min(initial=1)
    single = np.flatnonzero(alone & plain)
    return Table(
        session=session,
        evaluation=evaluate(session.job, layouts),
        memory=memory_of(session, layouts),
        single=int(single[0]) if single.size else None,
    )


def requantised_table(table: Table, session: Session, row: int) -> Table:
    """One row of `table` under a session that differs in the dtype of the linears only."""
    rows = np.array([row])
    evaluation = evaluate_again(table.evaluation, session.job, rows)
    return Table(session, evaluation, memory_of(session, evaluation.layouts), None)


def config_warnings(session: Session, table: Table, row: int, replicas: int = 1) -> list[Problem]:
    """Warnings of the engine about one configuration, or about copies of it."""
    config = table.evaluation.layouts.row(row)
    config = replace(config, dp=config.dp * replicas)
    found = problems(session.engine.rules(), session.context, config)
    return [problem for problem in found if problem.severity == "warning"]
