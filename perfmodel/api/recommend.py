"""Which configurations are worth running, and why."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import merge
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from perfmodel import engines
from perfmodel.api import header, misfit
from perfmodel.api.all_gpus import of_all, refuse_without_all, refused_on_all, uses_all
from perfmodel.api.choices import (
    lossy_options,
    lossy_session,
    untried_dtype,
    vae_choices,
    vae_note,
)
from perfmodel.api.command import command_line, further
from perfmodel.api.evidence import evidence
from perfmodel.api.offload import settled
from perfmodel.api.records import (
    Table,
    as_replicas,
    in_flight,
    one_gpu_s,
    prediction,
    priced,
    with_commands,
)
from perfmodel.api.session import Session, open_session
from perfmodel.api.table import (
    Legality,
    build_table,
    config_warnings,
    legal_layouts,
    legality,
    search_space,
    untried_axes,
    untried_warning,
)
from perfmodel.api.worth_trying import Bar, worth_trying
from perfmodel.errors import Problem
from perfmodel.memory import FITS, STATUS
from perfmodel.pipeline.lines import Column
from perfmodel.pipeline.queue import copies_of
from perfmodel.report.answer import (
    Answer,
    Choice,
    Combinations,
    Prediction,
    RejectedRow,
    ScalingRow,
)
from perfmodel.search.explain import contrasts, why
from perfmodel.search.rank import (
    Ranking,
    best_by_world,
    longest_stay,
    rank,
    score,
)
from perfmodel.spec.hardware import System
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.workload import Options, Workload
from perfmodel.units import MS_PER_S, PERCENT, S_PER_HOUR

COMMANDS_SHOWN = 5


@dataclass(frozen=True)
class _Ranked:
    """A table with its order; several of them compete when lossy options may win.

    `by_time`: the order is by the time of a request, or by requests an hour.
    """

    table: Table
    allowed: NDArray[np.bool_]
    ranking: Ranking
    by_time: bool


@dataclass(frozen=True)
class _Wanted:
    """What the ranking is by."""

    objective: str
    use_all_gpus: bool
    max_latency_ms: float | None
    offload: bool

    def score(self, table: Table) -> Column:
        """What is minimised, of each row."""
        session = table.session
        num_gpus, requests = session.system.num_gpus, session.workload.concurrency
        return score(table.evaluation, table.memory.peak_bytes, self.objective, num_gpus, requests)

    def asked(self, table: Table) -> NDArray[np.bool_]:
        """Rows of as many devices as were asked for."""
        layouts = table.evaluation.layouts
        if not self.use_all_gpus:
            return np.ones(len(layouts), bool)
        return uses_all(table.session, layouts, self.objective)


def recommend(
    workload: Workload,
    system: System | str,
    *,
    engine: str = engines.DEFAULT_ENGINE,
    options: Options | None = None,
    objective: str = "latency",
    allow_lossy: bool = False,
    use_all_gpus: bool = False,
    top: int = 5,
    max_latency_ms: float | None = None,
    price_per_gpu_hour: float | None = None,
    fit: Path | None = None,
    strict: bool = False,
) -> Answer:
    """Rank all parallel configurations of a request on a machine.

    Args:
        workload: the request.
        system: the machine, or as ``--gpus`` takes it.
        engine: ``name[@version|@date]``.
        options: fixed choices.
        objective: latency (with several requests in flight their mean), throughput, memory or
            cost.
        allow_lossy: rank fp8, and pipelines of patches, with the rest.
        use_all_gpus: leave out configurations that, in the copies that the objective runs, leave
            devices idle.
        top: recommendations returned.
        max_latency_ms: leave out those where a request in flight takes longer.
        price_per_gpu_hour: turns GPU-seconds into money.
        fit: calibration file.
        strict: refuse a device without fitted products and attention.

    Returns:
        The answer; status ``does_not_fit`` when nothing fits.

    Raises:
        BadInput, Refused, MissingData: see `perfmodel.errors`; BadInput too where no legal
            configuration uses all devices and `use_all_gpus` asks for that.
    """
    settings = further(locals())
    session = open_session(workload, system, engine=engine, options=options, fit=fit, strict=strict)
    space = search_space(session)
    free = session.options.offload in ("none", "auto")
    wanted = _Wanted(objective, use_all_gpus, max_latency_ms, offload=free)
    session = settled(session, of_all(session, space, objective) if use_all_gpus else space)
    answer = _ranked_answer(session, wanted, settings, top=top, allow_lossy=allow_lossy)
    records = tuple(priced(record, price_per_gpu_hour) for record in answer.recommendations)
    return answer.model_copy(update={"recommendations": records})


def _ranked_answer(
    session: Session,
    wanted: _Wanted,
    settings: Mapping[str, object],
    *,
    top: int,
    allow_lossy: bool,
) -> Answer:
    """All legal layouts of the session predicted and ranked; what was asked, as `settings`."""
    found = legality(session, search_space(session))
    layouts = legal_layouts(session, found)
    if wanted.use_all_gpus:
        refuse_without_all(session, layouts, wanted.objective)
    table = build_table(session, layouts)
    ranked = _rank(table, wanted)
    answer = _answer(session, found, table, settings)
    if not ranked.allowed.any():
        all_gpus = wanted.objective if wanted.use_all_gpus else ""
        return misfit.explain(session, table, answer, all_gpus=all_gpus)
    variants = [ranked]
    lossy = lossy_session(session)
    if allow_lossy:
        tables = _lossy_tables(session, lossy, layouts)
        variants += [_rank(table, wanted) for table in tables]
    best, records = _top(variants, top, wanted.objective)
    lacking = untried_dtype(session) if allow_lossy else []
    found_best = _around_the_best(best, records[0], None if allow_lossy else lossy, lacking)
    scaling = _scaling(variants, best)
    return answer.model_copy(
        update={
            "recommendations": tuple(records),
            "worth_trying": _worth_trying(variants, best, wanted),
            "scaling": scaling,
            "throughput_best": next((row for row in scaling if row.best_throughput), None),
            **found_best,
        }
    )


def _lossy_tables(session: Session, lossy: Session | None, layouts: Layouts) -> Iterator[Table]:
    """What changes the output: the same layouts in fp8, and pipelines of patches."""
    if lossy is not None:
        yield build_table(lossy, layouts)
    found = legality(session, search_space(session, stale=True))
    if found.legal.any():
        yield build_table(session, found.layouts.take(found.legal))


def _answer(
    session: Session, found: Legality, table: Table, settings: Mapping[str, object]
) -> Answer:
    command = command_line(session, "recommend", settings)
    legal = int(found.legal.sum())
    fitting = int(table.memory.fits.sum())
    rejected = list(found.rejected)
    if fitting < legal:
        over = RejectedRow(
            rule="memory",
            count=legal - fitting,
            title="needs more memory than a GPU has",
            example=misfit.memory_example(table),
        )
        rejected.append(over)
    return Answer(
        workload=header.workload_info(session),
        system=header.system_info(session),
        engine=header.engine_info(session),
        objective=str(settings["objective"]),
        combinations=Combinations(
            total=len(found.layouts),
            legal=legal,
            fitting=fitting,
            rejected=len(found.layouts) - legal,
        ),
        rejected=(*rejected, *untried_axes(session)),
        refused_on_all_gpus=refused_on_all(session, found),
        provenance=header.provenance(session),
        command=command,
        answer_id=header.answer_id(session, command),
    )


def _rank(table: Table, wanted: _Wanted) -> _Ranked:
    evaluation, num_gpus = table.evaluation, table.session.system.num_gpus
    requests = table.session.workload.concurrency
    allowed = table.memory.fits & wanted.asked(table)
    if wanted.max_latency_ms is not None:
        # Where nothing is fast enough the fastest is shown, and the command exits with 5.
        stay = longest_stay(evaluation.layouts, num_gpus, requests)
        fast = allowed & (evaluation.latency_s * stay * MS_PER_S <= wanted.max_latency_ms)
        allowed = fast if fast.any() else allowed
    memory, scores = table.memory, wanted.score(table)
    ranking = rank(
        evaluation, allowed, scores, memory.peak_bytes, memory.tight, memory.capacity_bytes
    )
    return _Ranked(table, allowed, ranking, wanted.objective in ("latency", "throughput"))


def _top(variants: Sequence[_Ranked], top: int, objective: str) -> tuple[_Ranked, list[Prediction]]:
    """The first `top` places over all variants, as records, and the variant that won."""
    orders = [
        [(float(v.ranking.score[row]), number, place, int(row)) for place, row in enumerate(first)]
        for number, v in enumerate(variants)
        for first in [v.ranking.order[: max(top, 1)]]
    ]
    # Each variant keeps its own order, ties included; what may not fit comes last in all.
    places = list(
        merge(*orders, key=lambda p: (bool(variants[p[1]].table.memory.tight[p[3]]), p[0]))
    )
    best = variants[places[0][1]]
    best_score = places[0][0]
    records = []
    for number, (score_of_row, variant, place, row) in enumerate(places[:top], start=1):
        ranked = variants[variant]
        record = prediction(
            ranked.table,
            row,
            rank=number,
            vs_best_pct=(score_of_row / best_score - 1) * PERCENT,
            tied_with_best=number > 1 and ranked is best and bool(ranked.ranking.tied[place]),
            why=_why(ranked, row) if number == 1 else None,
        )
        record = _served(ranked.table, row, record, objective)
        shown = number <= COMMANDS_SHOWN
        records.append(with_commands(ranked.table, row, record) if shown else record)
    return best, records


def _served(table: Table, row: int, record: Prediction, objective: str) -> Prediction:
    """The record on as many copies as the objective runs, with the requests in flight."""
    session = table.session
    requests, num_gpus = session.workload.concurrency, session.system.num_gpus
    layouts = table.evaluation.layouts
    record = as_replicas(record, int(copies_of(objective, requests, num_gpus, layouts)[row]))
    return in_flight(record, requests, float(table.evaluation.in_turn_s[row]) * MS_PER_S)


def _why(ranked: _Ranked, row: int) -> str:
    layouts = ranked.table.evaluation.layouts
    return why(ranked.table.evaluation, row, contrasts(layouts, ranked.ranking.order, row))


def _worth_trying(
    variants: Sequence[_Ranked], best: _Ranked, wanted: _Wanted
) -> tuple[Choice, ...]:
    """What would be better than the first recommendation, which surely fits."""
    row = int(best.ranking.order[0])
    if wanted.objective == "memory" or best.table.memory.tight[row]:
        return ()
    bar = Bar(float(best.ranking.score[row]), wanted.score, wanted.asked, wanted.offload)
    return worth_trying([v.table for v in variants], bar)


def _scaling(variants: Sequence[_Ranked], best: _Ranked) -> tuple[ScalingRow, ...]:
    """The fastest fitting configuration of each number of devices, of all that compete.

    What may run out of memory (tight) stands where nothing else runs, and is the best of nothing
    unless all of it is.  The first recommendation stands for its number of devices.  Speed-ups are
    against one device without tiling, as those of the recommendations, if that may fit.
    """
    num_gpus = best.table.session.system.num_gpus
    named = {num_gpus, best.table.num_gpus(int(best.ranking.order[0]))}
    shown = {n: one for n, one in _by_world(variants, best).items() if _is_shown(n, named)}
    latency = {n: float(v.table.evaluation.latency_s[row]) for n, (v, row) in shown.items()}
    hourly = {n: (num_gpus // n) * S_PER_HOUR / s for n, s in latency.items()}
    fit = {n: STATUS[int(v.table.memory.fit_status[row])] for n, (v, row) in shown.items()}
    sure = [n for n in shown if fit[n] == STATUS[FITS]] or list(shown)
    base = one_gpu_s(best.table) or latency.get(1)
    return tuple(
        ScalingRow(
            num_gpus=n,
            config_id=v.table.config_id(row),
            latency_ms=latency[n] * MS_PER_S,
            speedup=None if base is None else base / latency[n],
            efficiency=None if base is None else base / latency[n] / n,
            requests_per_hour=hourly[n],
            replicas=num_gpus // n,
            fit_status=fit[n],
            best_latency=n in sure and latency[n] == min(latency[m] for m in sure),
            best_throughput=n in sure and hourly[n] == max(hourly[m] for m in sure),
        )
        for n, (v, row) in shown.items()
    )


def _by_world(variants: Sequence[_Ranked], best: _Ranked) -> dict[int, tuple[_Ranked, int]]:
    """The fastest row of each number of devices, and the table that has it."""
    rows = [
        (number, best_by_world(v.table.evaluation, v.table.memory.fits, v.table.memory.tight))
        for number, v in enumerate(variants)
    ]
    fastest = {}
    for n in sorted({n for _, found in rows for n in found}):
        of_n = [(variants[number], found[n]) for number, found in rows if n in found]
        fastest[n] = min(of_n, key=lambda one: _late_and_slow(*one))
    row = int(best.ranking.order[0])
    if best.by_time:
        fastest[best.table.num_gpus(row)] = best, row
    return fastest


def _late_and_slow(ranked: _Ranked, row: int) -> tuple[bool, float]:
    table = ranked.table
    return bool(table.memory.tight[row]), float(table.evaluation.latency_s[row])


def _is_shown(world: int, named: Collection[int]) -> bool:
    return world & (world - 1) == 0 or world in named


def _around_the_best(
    best: _Ranked, record: Prediction, lossy: Session | None, lacking: Sequence[Problem]
) -> dict[str, object]:
    """What the answer says of its first recommendation, by field; `lacking`: what is not ranked."""
    row, session = int(best.ranking.order[0]), best.table.session
    choices = vae_choices(best.table, row)
    warnings = [
        *header.base_warnings(session),
        *lacking,
        *untried_warning(session),
        *config_warnings(session, best.table, row, record.replicas),
        *header.prior_warning(session, record.provenance_share),
    ]
    return {
        "warnings": header.unique(warnings),
        "trust": header.trust_word(record.provenance_share),
        "evidence": evidence(session, record),
        "vae_choices": choices,
        "vae_note": vae_note(choices),
        "lossy_options": lossy_options(best.table, row, lossy),
    }
