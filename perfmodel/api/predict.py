"""One configuration in full: stages, operators, memory, and measurements beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel import engines
from perfmodel.api import header
from perfmodel.api.command import command_line, further, text
from perfmodel.api.configuration import asked_configuration
from perfmodel.api.evidence import evidence
from perfmodel.api.misfit import PHASE_WORDS
from perfmodel.api.offload import settled
from perfmodel.api.records import (
    BOUND_WORDS,
    Table,
    in_flight,
    low_high_ms,
    operators,
    prediction,
    priced,
    with_commands,
)
from perfmodel.api.session import Session, open_session, refusal
from perfmodel.api.table import build_table, legality, search_space
from perfmodel.engines.legality import problems
from perfmodel.errors import BadInput, Problem
from perfmodel.memory import NO, PHASES
from perfmodel.pipeline.evaluate import STAGES
from perfmodel.pipeline.lines import Stage, plain_line
from perfmodel.report.answer import ParallelInfo, PredictAnswer, Prediction, StageRow
from perfmodel.spec.hardware import System
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Options, Workload
from perfmodel.units import GIB, MS_PER_S, PERCENT

STAGE_NAMES = {
    "text": "text_encode",
    "output": "transfer",
    "output_copy": "transfer",
    "mp4": "video_encode",
    "media": "video_encode",
    "decode": "vae_decode",
    "encode": "vae_encode",
    "diffuse": "denoise",
}

SUMS = ("pipeline_forward", "denoise_per_step")
"""What a measurement may also name: the first four stages together, denoise over its steps."""


INDISPENSABLE = ("model-not-in-engine", "missing-peak", "attention-density", "world-size")
"""Rules without which a configuration that ran cannot be predicted."""


def predict(
    workload: Workload,
    system: System | str,
    *,
    parallel: str | ParallelConfig | ParallelInfo | None = None,
    launch: Sequence[str] | None = None,
    engine: str = engines.DEFAULT_ENGINE,
    options: Options | None = None,
    measured: Mapping[str, float] | None = None,
    overrides: Mapping[str, float] | None = None,
    price_per_gpu_hour: float | None = None,
    fit: Path | None = None,
    strict: bool = False,
    ran: bool = False,
    host: str | None = None,
) -> PredictAnswer:
    """Predict one configuration.

    Args:
        workload: the request.
        system: the machine, or as ``--gpus`` takes it.
        parallel: keys, an id, a record or an answer's degrees; None is one device.
        launch: a launch command as typed, read instead of `parallel`.
        engine: ``name[@version|@date]``.
        options: fixed choices.
        measured: measured stages [ms], set beside the prediction.
        overrides: stages [ms] that replace the prediction.
        price_per_gpu_hour: turns GPU-seconds into money.
        fit: calibration file.
        strict: refuse a device without fitted products and attention.
        ran: the configuration was measured, so that only what leaves nothing to predict is refused
            (`INDISPENSABLE`); the other rules it breaks become warnings.
        host: the machine behind published runs that measured it, where it has terms of its own.

    Raises:
        Refused: the configuration is illegal; all reasons.
        BadInput, MissingData: see `perfmodel.errors`.
    """
    settings = further(locals())
    config, workload, options = asked_configuration(parallel, launch, engine, workload, options)
    session = open_session(
        workload, system, engine=engine, options=options, fit=fit, strict=strict, host=host
    )
    session = settled(session, Layouts.of([config]))
    found = _broken(session, config, ran=ran)
    table = _table(session, config, overrides or {})
    record = with_commands(table, 0, prediction(table, 0))
    in_turn_ms = float(table.evaluation.in_turn_s[0]) * MS_PER_S
    record = in_flight(record, session.workload.concurrency, in_turn_ms)
    record = priced(record, price_per_gpu_hour)
    return _answer(session, table, record, found, settings)


def _broken(session: Session, config: ParallelConfig, *, ran: bool) -> tuple[Problem, ...]:
    """What is worth saying of the rules that the configuration breaks.

    Raises:
        Refused, MissingData: it cannot run, or (where it `ran`) not be predicted.
    """
    found = problems(session.engine.rules(), session.context, config)
    if ran:
        found = tuple(
            problem if problem.rule_id in INDISPENSABLE else replace(problem, severity="warning")
            for problem in found
        )
    errors = [problem for problem in found if problem.severity == "error"]
    if errors:
        raise refusal(*errors)
    return found


def predict_all(
    workload: Workload,
    system: System | str,
    *,
    engine: str = engines.DEFAULT_ENGINE,
    options: Options | None = None,
) -> dict[str, np.ndarray]:
    """All legal configurations as numpy columns: degrees, stages [ms], latency [ms], peak [GiB]."""
    session = open_session(workload, system, engine=engine, options=options)
    session = settled(session, search_space(session))
    found = legality(session, search_space(session))
    table = build_table(session, found.layouts.take(found.legal))
    layouts = table.evaluation.layouts
    columns: dict[str, np.ndarray] = {
        name: getattr(layouts, name) for name in Layouts.__dataclass_fields__
    }
    columns["config_id"] = np.array([table.config_id(row) for row in range(len(layouts))])
    for name in STAGES:
        columns[f"{name}_ms"] = table.evaluation.stages[name].total_s * MS_PER_S
    columns["latency_ms"] = table.evaluation.latency_s * MS_PER_S
    columns["peak_memory_gib"] = table.memory.peak_bytes / GIB
    columns["fits"] = table.memory.fits
    return columns


def _table(session: Session, config: ParallelConfig, overrides: Mapping[str, float]) -> Table:
    table = build_table(session, Layouts.of([config, ParallelConfig()]))
    table = replace(table, single=1)
    if not overrides:
        return table
    stages = dict(table.evaluation.stages)
    for name, milliseconds in _stage_values(overrides, "--set").items():
        given = plain_line(
            name,
            "given",
            "host",
            np.full(1, milliseconds / MS_PER_S),
            count=1,
            bound="given",
            provenance="measured",
        )
        stages[name] = Stage(name, (given,), np.zeros(2, np.intp), 1)
    return replace(table, evaluation=replace(table.evaluation, stages=stages))


def _stage_values(values: Mapping[str, float], flag: str) -> dict[str, float]:
    """`values` by the names of the contract; unknown stages are refused."""
    known = {STAGE_NAMES.get(name, name): value for name, value in values.items()}
    bad = [
        Problem(
            "stage",
            f'no stage "{name}" in {flag}; stages: {", ".join(STAGES)}',
            field=flag,
            value=name,
            legal_values=STAGES,
        )
        for name in known
        if name not in STAGES
    ]
    if bad:
        raise BadInput(*bad)
    return known


def _answer(
    session: Session,
    table: Table,
    record: Prediction,
    found: Sequence[Problem],
    settings: dict[str, Any],
) -> PredictAnswer:
    config = table.evaluation.layouts.row(0)
    measured: Mapping[str, float] = settings.pop("measured") or {}
    command = command_line(session, "predict", _typed(table, measured, **settings))
    denoise = table.evaluation.stages["denoise"]
    case = int(denoise.index[0])
    bound_s = sum(float(line.roof_s[case]) for line in denoise.lines)
    share = record.provenance_share
    said = {problem.rule_id for problem in found}
    warnings = [
        *header.base_warnings(session),
        *(problem for problem in found if problem.severity == "warning"),
        *(() if "idle-gpus" in said else header.idle_warning(session, config)),
        *header.prior_warning(session, share),
    ]
    stages = _stage_rows(table, record, measured)
    answer = PredictAnswer(
        workload=header.workload_info(session),
        system=header.system_info(session),
        engine=header.engine_info(session),
        prediction=record,
        stages=stages,
        operators=operators(table, 0),
        denoise_lower_bound_ms=bound_s * MS_PER_S,
        largest_gap=_largest_gap(stages),
        warnings=header.unique(warnings),
        trust=header.trust_word(share),
        evidence=evidence(session, record),
        provenance=header.provenance(session),
        command=command,
        answer_id=header.answer_id(session, command),
    )
    return _fit_status(table, answer)


def _typed(
    table: Table,
    measured: Mapping[str, float],
    *,
    parallel: object,
    launch: object,
    overrides: object,
    ran: bool,
    host: object,
    **settings: object,
) -> dict[str, object]:
    """The flags that ask for this prediction; the degrees are those that were read.

    What only records of runs say (`ran`, `host`) has no flag.
    """
    return {
        "parallel": table.config_id(0),
        "measured": ",".join(f"{name}={text(value)}" for name, value in measured.items()) or None,
        "set": overrides,
        **settings,
    }


def _fit_status(table: Table, answer: PredictAnswer) -> PredictAnswer:
    if int(table.memory.fit_status[0]) != NO:
        return answer
    over = float(table.memory.required_bytes[0]) - table.memory.capacity_bytes
    live = table.memory.by_phase_bytes[:, 0] - table.memory.slack_bytes[:, 0]
    phase = PHASES[int(live.argmax())]
    message = (
        f"{table.config_id(0)} needs {float(live.max()) / GIB:,.1f} of "
        f"{table.memory.capacity_bytes / GIB:,.1f} GiB a GPU while {PHASE_WORDS[phase]}, "
        f"{over / GIB:,.1f} GiB too much; perfmodel recommend lists what would fit"
    )
    return answer.model_copy(
        update={
            "status": "does_not_fit",
            "problems": header.unique([Problem("memory", message, field="--parallel")]),
            "over_gib": over / GIB,
        }
    )


def _stage_rows(
    table: Table, record: Prediction, measured: Mapping[str, float]
) -> tuple[StageRow, ...]:
    """The stage table, with measurements where they were given, and the request below it."""
    seen = _stage_values(_by_stage(measured, table), "--measured")
    predicted, low, high = record.stages_ms, record.stages_low_ms, record.stages_high_ms
    rows = [
        _stage_row(
            name,
            getattr(predicted, name),
            (getattr(low, name), getattr(high, name)),
            seen.get(name),
            record.stages_bound.get(name),
            record.stages_basis.get(name),
        )
        for name in STAGES
    ]
    latency_s = float(table.evaluation.latency_s[0])
    ends = low_high_ms(latency_s, float(table.halfwidth_s[0]))
    request = measured.get("request")
    if request is None and len(seen) == len([r for r in rows if r.predicted_ms]):
        request = sum(seen.values())
    rows.append(_stage_row("request", latency_s * MS_PER_S, ends, request, None, None))
    return tuple(rows)


def _by_stage(measured: Mapping[str, float], table: Table) -> dict[str, float]:
    """Measured stages [ms], with what sums and rates of them imply."""
    found = {k: v for k, v in measured.items() if k not in ("request", *SUMS)}
    if "denoise_per_step" in measured:
        steps = int(table.session.job.shape.steps)
        found.setdefault("denoise", measured["denoise_per_step"] * steps)
    known = ("request", "pipeline_forward", "video_encode")
    if all(name in measured for name in known):
        rest = measured["request"] - measured["pipeline_forward"] - measured["video_encode"]
        found.setdefault("transfer", max(rest, 0.0))
    return found


def _stage_row(
    name: str,
    predicted_ms: float,
    ends_ms: tuple[float, float],
    measured_ms: float | None,
    bound: str | None,
    basis: str | None,
) -> StageRow:
    outside = None
    error = None
    if measured_ms:
        error = (predicted_ms / measured_ms - 1) * PERCENT
        outside = not ends_ms[0] <= measured_ms <= ends_ms[1]
    return StageRow(
        stage=name,
        predicted_ms=predicted_ms,
        low_ms=ends_ms[0],
        high_ms=ends_ms[1],
        measured_ms=measured_ms,
        error_pct=error,
        outside_range=outside,
        bound=BOUND_WORDS.get(bound, bound) if bound else None,
        basis=basis,
    )


def _largest_gap(stages: Sequence[StageRow]) -> str | None:
    gaps = [
        (row.measured_ms - row.predicted_ms, row)
        for row in stages
        if row.measured_ms and row.predicted_ms is not None and row.stage != "request"
    ]
    if not gaps:
        return None
    gap, row = max(gaps, key=lambda pair: abs(pair[0]))
    pin = next((k for k, v in STAGE_NAMES.items() if v == row.stage), row.stage)
    return (
        f"Largest gap: {row.stage.replace('_', ' ')}, {gap:+,.0f} ms, {row.bound or 'unknown'}: "
        f"pin it with --set {pin}={row.measured_ms:.0f}"
    )
