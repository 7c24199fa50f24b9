"""Would the plan have found the best?  Measured sweeps played back, run by run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.api.session import Session, open_session
from perfmodel.engines.legality import legal
from perfmodel.errors import PerfmodelError
from perfmodel.plan.survey import Field, choose_runs, survey
from perfmodel.report.answer import Answer
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.record import RunRecord
from perfmodel.validate.questions import Question, Skip, question
from perfmodel.verify.asked import key_of
from perfmodel.verify.learned import DRAWS, Judgement, judge, surely_less
from perfmodel.verify.observe import COMPARED_KEYS, key_stages
from perfmodel.verify.sort import Taken

LEAST_LAYOUTS = 3
STAGE_KEYS = ("vae_decode", "vae_encode")


@dataclass(frozen=True, slots=True)
class Replay:
    """One sweep played back.

    Attributes:
        sweep: its name.
        key: what is compared.
        layouts: configurations in it.
        planned: the runs that the plan chose, in order.
        best: the best measured.
        first: what would have been used without any run; final: what is used after the runs.
        planned_loss_frac: what the best of the planned runs costs over the best.
        first_loss_frac, final_loss_frac: the same of the pick before and after the runs.
    """

    sweep: str
    key: str
    layouts: int
    planned: tuple[str, ...]
    best: str
    first: str
    final: str
    planned_loss_frac: float
    first_loss_frac: float
    final_loss_frac: float


def sweeps(
    records: Sequence[RunRecord], include_doubtful: bool = False
) -> Iterator[tuple[str, str, dict[ParallelConfig, RunRecord], Question]]:
    """(name, compared key, records by layout, question) of everything with enough layouts."""
    groups: dict[object, list[tuple[RunRecord, Question]]] = {}
    for record in records:
        if (record.doubtful and not include_doubtful) or record.error:
            continue
        try:
            asked = question(record)
        except Skip:
            continue
        key = record.sweep or (record.source, record.engine_version, key_of(record, asked))
        groups.setdefault(key, []).append((record, asked))
    for name, members in groups.items():
        found = _widest(members)
        if found is not None and len(found[1]) >= LEAST_LAYOUTS:
            largest = max((asked for _, asked in members), key=lambda q: q.system.num_gpus)
            label = name if isinstance(name, str) else members[0][0].id
            yield label, *found, largest


def _widest(
    members: Sequence[tuple[RunRecord, Question]],
) -> tuple[str, dict[ParallelConfig, RunRecord]] | None:
    """The key that most layouts have, and a record of each; the first record of a layout counts."""
    about = members[0][0].sweep_of
    best: tuple[str, dict[ParallelConfig, RunRecord]] | None = None
    for key in (about,) if about else (*COMPARED_KEYS, *STAGE_KEYS):
        rows: dict[ParallelConfig, RunRecord] = {}
        for record, asked in members:
            if record.measured_ms.get(key):
                rows.setdefault(asked.parallel, record)
        if best is None or len(rows) > len(best[1]):
            best = key, rows
    return best


def replay(records: Sequence[RunRecord], max_runs: int = 2) -> list[Replay]:
    """Play back every sweep: plan among its layouts, take in the planned runs, pick."""
    found = []
    for name, key, rows, asked in sweeps(records):
        try:
            session = open_session(
                asked.workload, asked.system, engine=asked.engine, options=asked.options
            )
            played = _play(name, key, rows, session, max_runs)
        except PerfmodelError:
            continue
        if played is not None:
            found.append(played)
    return found


def _play(
    name: str,
    key: str,
    rows: dict[ParallelConfig, RunRecord],
    session: Session,
    max_runs: int,
) -> Replay | None:
    configs = list(rows)
    allowed = legal(session.engine.rules(), session.context, Layouts.of(configs))
    configs = [c for c, ok in zip(configs, allowed, strict=True) if ok]
    stages = key_stages(key, session)
    if len(configs) < LEAST_LAYOUTS or not stages:
        return None
    field = survey(session, candidates=configs, fitting=False)
    if isinstance(field, Answer):
        return None
    measured = np.array([rows[_config(field, i)].measured_ms[key] for i in range(len(configs))])
    choice = choose_runs(field, max_runs=max_runs, stages=stages, all_runs=True)
    runs = [int(field.contenders[position]) for position in choice.runs]
    after = judge(field, [Taken(rows[_config(field, r)], _config(field, r)) for r in runs])
    first = int(np.argmin(field.belief.time_s(stages)))
    final = _final(after, stages, runs, measured)
    best = float(measured.min())
    ids = [c.config_id for c in configs]
    return Replay(
        sweep=name,
        key=key,
        layouts=len(configs),
        planned=tuple(ids[r] for r in runs),
        best=ids[int(np.argmin(measured))],
        first=ids[first],
        final=ids[final],
        planned_loss_frac=float(measured[runs].min()) / best - 1,
        first_loss_frac=float(measured[first]) / best - 1,
        final_loss_frac=float(measured[final]) / best - 1,
    )


def _final(
    after: Judgement, stages: Sequence[str], runs: Sequence[int], measured: NDArray[np.float64]
) -> int:
    """The best of the runs, unless a configuration that nobody ran is faster beyond doubt."""
    best = min(runs, key=lambda row: measured[row])
    draws = after.belief.draws_s(DRAWS, stages=stages)
    # the scale of what was measured: what the belief makes of the best run, against its time
    draws = draws / draws[:, [best]].mean()
    draws[:, best] = 1.0
    others = [row for row in range(len(measured)) if row not in runs]
    sure = [row for row in others if surely_less(draws[:, row], draws[:, best])]
    return min(sure, key=lambda row: float(np.median(draws[:, row])), default=best)


def _config(field: Field, row: int) -> ParallelConfig:
    return field.table.evaluation.layouts.row(row)
