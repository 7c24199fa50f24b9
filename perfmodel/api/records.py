"""Columns to records: one row of an evaluation as the contract's prediction."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.api.caches import CACHE_SKIP
from perfmodel.api.command import text
from perfmodel.api.session import Session
from perfmodel.memory import PARTS, PHASES, STATUS, MemoryTable
from perfmodel.pipeline.evaluate import STAGES, Evaluation
from perfmodel.pipeline.lines import Column, Line
from perfmodel.pipeline.queue import files_before, of_a_server, wave
from perfmodel.pipeline.uncertainty import halfwidth_s
from perfmodel.report.answer import (
    CommandsInfo,
    MemoryByPhaseGib,
    MemoryGib,
    OperatorRow,
    ParallelInfo,
    Prediction,
    StagesMs,
)
from perfmodel.search.explain import speedup_loss_s
from perfmodel.spec.parallel import DTYPE_SUFFIXES, ParallelConfig, config_id
from perfmodel.spec.workload import Options
from perfmodel.units import GIB, MS_PER_S, S_PER_HOUR

LOSSY_DTYPES = DTYPE_SUFFIXES
LOSSY_BACKENDS = {
    "SAGE_ATTN": "sage",
    "SAGE_ATTN_3": "sage3",
    "FASTVIDEO_VSA": "vsa",
    "RAINFUSION_ATTN": "rainfusion",
}
"""Attention backends that quantise their operands or leave blocks out, to their names in an id."""


def parallel_info(config: ParallelConfig) -> ParallelInfo:
    """Degrees by the names of the engine's arguments."""
    return ParallelInfo(**config.arguments)


def id_suffixes(options: Options, assumed: Collection[str] = ()) -> tuple[str, ...]:
    """Option parts of a config id: what changes the numbers or the placement.

    A cache whose ratio is `assumed` goes by its method, so that the id states nothing new.  Other
    numbers have all their digits, so that the id reads back as the same options.
    """
    offload = f"offload-{options.offload.replace('layerwise', 'layer')}"
    parts = [] if options.offload in ("none", "auto") else [offload]
    if options.cache_skip:
        method = options.cache_method.replace("_", "")
        parts.append(f"cache-{method if CACHE_SKIP in assumed else text(options.cache_skip)}")
    if options.attention_backend in LOSSY_BACKENDS:
        parts.append(f"attn-{LOSSY_BACKENDS[options.attention_backend]}")
    if options.attention_density < 1:
        parts.append(f"sparse-{text(options.attention_density)}")
    if options.dtype in LOSSY_DTYPES:
        parts.append(options.dtype)
    return tuple(parts)


def is_lossless(options: Options) -> bool:
    """Whether the options leave the output as the bf16 model gives it."""
    exact = options.dtype not in LOSSY_DTYPES and options.attention_backend not in LOSSY_BACKENDS
    exact = exact and options.cache_method == "none"
    return exact and options.cache_skip == 0 and options.attention_density == 1


@dataclass(frozen=True)
class Table:
    """An evaluation with its memory, ready to be read row by row.

    Attributes:
        session: the question.
        evaluation: times, ``[N]``.
        memory: bytes, ``[N]``.
        single: row of one device, None where it was not evaluated.
    """

    session: Session
    evaluation: Evaluation
    memory: MemoryTable
    single: int | None

    @cached_property
    def halfwidth_s(self) -> Column:
        """80 % half-width of the latency, ``[N]``."""
        return halfwidth_s(self.evaluation)

    @cached_property
    def stage_halfwidth_s(self) -> dict[str, Column]:
        """80 % half-width of each stage, ``[N]`` each."""
        return {name: halfwidth_s(self.evaluation, (name,)) for name in STAGES}

    def config_id(self, row: int) -> str:
        """Id of a row with its option suffixes."""
        behaviour = self.session.behaviour
        suffixes = id_suffixes(behaviour.options, behaviour.assumed)
        return config_id(self.evaluation.layouts.row(row), suffixes)

    def num_gpus(self, row: int) -> int:
        """Devices of a row."""
        return int(self.evaluation.layouts.world_size[row])


def low_high_ms(seconds: float, halfwidth: float) -> tuple[float, float]:
    """Ends of an interval that is symmetric in the logarithm, in milliseconds."""
    if seconds <= 0:
        return 0.0, 0.0
    ratio = 1 + halfwidth / seconds
    return seconds / ratio * MS_PER_S, seconds * ratio * MS_PER_S


def _stages_at(table: Table, row: int, end: Literal["low", "mid", "high"]) -> StagesMs:
    values = {}
    for name in STAGES:
        seconds = float(table.evaluation.stages[name].total_s[row])
        low, high = low_high_ms(seconds, float(table.stage_halfwidth_s[name][row]))
        values[name] = {"low": low, "mid": seconds * MS_PER_S, "high": high}[end]
    return StagesMs(**values)


def stage_line_sums(table: Table, name: str, row: int) -> list[tuple[Line, float]]:
    """Lines of a stage with their exposed time in one row, largest first."""
    stage = table.evaluation.stages[name]
    case = int(stage.index[row])
    pairs = [(line, float(line.total_s[case])) for line in stage.lines]
    return sorted((p for p in pairs if p[1] > 0), key=lambda pair: -pair[1])


def basis_of(line: Line) -> str:
    """Where a line's time comes from, in one word of the tables."""
    if line.provenance == "fitted":
        return "kernels" if line.kind not in ("host", "wait") else "runs"
    return line.provenance


def _weights(pairs: list[tuple[Line, float]], label: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for line, seconds in pairs:
        key = basis_of(line) if label == "basis" else getattr(line, label)
        sums[key] = sums.get(key, 0.0) + seconds
    return sums


def _dominant(pairs: list[tuple[Line, float]], label: str) -> str:
    sums = _weights(pairs, label)
    return max(sums, key=lambda key: sums[key])


BOUND_WORDS = {
    "matrix": "matrix units",
    "exp": "exponentials",
    "memory": "device memory",
    "link": "links",
    "latency": "latency",
    "host": "host",
    "rank skew": "slowest rank",
}


def _shares(table: Table, row: int, label: str) -> dict[str, float]:
    sums: dict[str, float] = {}
    for name in STAGES:
        for key, seconds in _weights(stage_line_sums(table, name, row), label).items():
            sums[key] = sums.get(key, 0.0) + seconds
    whole = sum(sums.values()) or 1.0
    return {key: sums[key] / whole for key in sorted(sums)}


def _extrapolated_share(table: Table, row: int) -> float:
    """Share of the time whose shapes lie outside the records behind their laws."""
    whole = outside = 0.0
    for name in STAGES:
        case = int(table.evaluation.stages[name].index[row])
        for line, seconds in stage_line_sums(table, name, row):
            whole += seconds
            outside += seconds * bool(line.extrapolated[case])
    return outside / (whole or 1.0)


def _memory_gib(parts: Mapping[str, float]) -> MemoryGib:
    return MemoryGib(**{name: value / GIB for name, value in parts.items()})


def memory_fields(table: Table, row: int) -> dict[str, object]:
    """The memory part of a prediction."""
    memory = table.memory
    parts = {
        phase: {part: float(memory.parts_bytes[p, q, row]) for q, part in enumerate(PARTS)}
        for p, phase in enumerate(PHASES)
    }
    totals = {phase: sum(values.values()) for phase, values in parts.items()}
    peak = PHASES[int(memory.peak_phase[row])]
    exists = {phase: total for phase, total in totals.items() if total > 0}
    status = STATUS[int(memory.fit_status[row])]
    required = {
        phase: (totals[phase] - float(memory.slack_bytes[p, row])) / GIB
        for p, phase in enumerate(PHASES)
        if phase in exists
    }
    return {
        "peak_memory_gib": float(memory.peak_bytes[row]) / GIB,
        "peak_memory_high_gib": float(memory.upper_bytes[row]) / GIB,
        "peak_rank": int(memory.peak_rank[row]),
        "peak_phase": peak,
        "memory_gib": _memory_gib(parts[peak]),
        "memory_parts_gib": {phase: _memory_gib(parts[phase]) for phase in exists},
        "memory_by_phase_gib": MemoryByPhaseGib(**{p: t / GIB for p, t in exists.items()}),
        "required_memory_gib": float(memory.required_bytes[row]) / GIB,
        "required_by_phase_gib": MemoryByPhaseGib(**required),
        "reserved_gib": float(memory.reserved_bytes[row]) / GIB,
        "host_memory_gib": float(memory.host_bytes[row]) / GIB,
        "capacity_gib": table.session.system.usable_bytes / GIB,
        "fits": status != "no",
        "fit_status": status,
    }


def prediction(table: Table, row: int, **extra: object) -> Prediction:
    """One row as the contract's prediction; `extra` overrides or adds fields."""
    evaluation, session = table.evaluation, table.session
    config = evaluation.layouts.row(row)
    latency_s = float(evaluation.latency_s[row])
    low_ms, high_ms = low_high_ms(latency_s, float(table.halfwidth_s[row]))
    lines = {name: stage_line_sums(table, name, row) for name in STAGES}
    world = table.num_gpus(row)
    fields: dict[str, object] = {
        "config_id": table.config_id(row),
        "num_gpus": world,
        "parallel": parallel_info(config),
        "options": option_values(session.behaviour.options, config),
        "stages_ms": _stages_at(table, row, "mid"),
        "stages_low_ms": _stages_at(table, row, "low"),
        "stages_high_ms": _stages_at(table, row, "high"),
        "stages_basis": {n: _dominant(p, "basis") for n, p in lines.items() if p},
        "stages_bound": {
            n: BOUND_WORDS.get(b := _dominant(p, "bound"), b) for n, p in lines.items() if p
        },
        "denoise_per_step_ms": float(evaluation.stages["denoise"].total_s[row])
        * MS_PER_S
        / int(session.job.shape.steps),
        "latency_ms": sum(
            float(evaluation.stages[name].total_s[row]) * MS_PER_S for name in STAGES
        ),
        "latency_low_ms": low_ms,
        "latency_high_ms": high_ms,
        "pipeline_forward_ms": float(evaluation.forward_s[row]) * MS_PER_S,
        "first_request_ms": (latency_s + session.job.machine.term("first_request_s")) * MS_PER_S,
        "requests_per_hour": config.dp * S_PER_HOUR / latency_s,
        "gpu_seconds_per_request": world * latency_s / config.dp,
        "lossless": is_lossless(session.behaviour.options)
        and (config.pp == 1 or session.behaviour.patch_warmup_steps is None),
        "provenance_share": _shares(table, row, "provenance"),
        "basis_share": _shares(table, row, "basis"),
        "extrapolated_share": _extrapolated_share(table, row),
        **memory_fields(table, row),
        **_against_one(table, row),
    }
    return Prediction.model_validate({**fields, **extra})


def one_gpu_s(table: Table) -> float | None:
    """Time [s] of a request on one device without tiling; None: not evaluated, or does not fit."""
    if table.single is None or STATUS[int(table.memory.fit_status[table.single])] == "no":
        return None
    return float(table.evaluation.latency_s[table.single])


def _against_one(table: Table, row: int) -> dict[str, object]:
    if table.single is None:
        return {}
    alone_s = float(table.evaluation.latency_s[table.single])
    runs_s = one_gpu_s(table)
    losses = speedup_loss_s(table.evaluation, row, table.single)
    return {
        "one_gpu_ms": alone_s * MS_PER_S,
        "ideal_ms": alone_s / table.num_gpus(row) * MS_PER_S,
        "speedup": None if runs_s is None else runs_s / float(table.evaluation.latency_s[row]),
        "speedup_loss_ms": {name: value * MS_PER_S for name, value in losses.items()},
    }


def option_values(options: Options, config: ParallelConfig) -> dict[str, object]:
    """The options as they hold for one configuration."""
    values = options.model_dump()
    values["vae_tiling"] = "on" if config.vae_tiling or config.vae_patch > 1 else "off"
    return values


def as_replicas(record: Prediction, copies: int) -> Prediction:
    """`record` on a machine that runs `copies` of it."""
    hourly = None if record.requests_per_hour is None else record.requests_per_hour * copies
    return record.model_copy(update={"replicas": copies, "requests_per_hour": hourly})


def priced(record: Prediction, price_per_gpu_hour: float | None) -> Prediction:
    """The record with the price of a request, where that of a GPU-hour is known."""
    if price_per_gpu_hour is None or record.gpu_seconds_per_request is None:
        return record
    price = record.gpu_seconds_per_request / S_PER_HOUR * price_per_gpu_hour
    return record.model_copy(update={"price_per_request": price})


def in_flight(record: Prediction, requests: int, in_turn_ms: float) -> Prediction:
    """`record` with the times of `requests` that are sent to its servers at once.

    `in_turn_ms`: what a server's data-parallel replicas wait for one after another.
    """
    if requests == 1 or record.latency_ms is None:
        return record
    each = record.parallel.data_parallel_size
    mean, worst = wave(requests, record.replicas * each)
    of_one = -(-requests // record.replicas)
    before, before_last = files_before(of_one, each)
    return record.model_copy(
        update={
            "in_flight_mean_ms": record.latency_ms * float(mean) + before * in_turn_ms,
            "in_flight_worst_ms": record.latency_ms * float(worst) + before_last * in_turn_ms,
        }
    )


def sent_together(table: Table) -> NDArray[np.int64]:
    """Requests that the benchmark of each configuration sends to its server at once."""
    session, layouts = table.session, table.evaluation.layouts
    if not session.engine.sends_together:
        return np.ones(len(layouts), np.int64)
    return of_a_server(session.workload.concurrency, session.system.num_gpus, layouts)


def with_commands(table: Table, row: int, record: Prediction) -> Prediction:
    """`record` with serve, request and benchmark commands, one server a replica."""
    config, session = table.evaluation.layouts.row(row), table.session
    commands = session.engine.commands(
        replace(session.context, in_flight=int(sent_together(table)[row])),
        replace(config, dp=config.dp * record.replicas),
        float(table.evaluation.latency_s[row]),
    )
    info = CommandsInfo(
        serve=commands.serve, request=commands.request, benchmark=commands.benchmark
    )
    return record.model_copy(update={"commands": info})


def operators(table: Table, row: int) -> tuple[OperatorRow, ...]:
    """Operators of all stages by falling time within their stage."""
    rows: list[OperatorRow] = []
    for name in STAGES:
        pairs = stage_line_sums(table, name, row)
        case = int(table.evaluation.stages[name].index[row])
        whole = sum(seconds for _, seconds in pairs) or 1.0
        rows += [_operator(table, line, seconds, case, seconds / whole) for line, seconds in pairs]
    return tuple(rows)


def _operator(table: Table, line: Line, seconds: float, case: int, share: float) -> OperatorRow:
    count = float(line.count[case])
    message = float(line.message_bytes[case])
    collective = line.kind == "collective"
    roof = float(line.roof_s[case])
    return OperatorRow(
        stage=line.stage,
        name=line.name,
        kind=line.kind,
        count=count,
        time_ms=seconds * MS_PER_S,
        time_each_ms=seconds / count * MS_PER_S if count else None,
        time_share=share,
        flops=float(line.flops[case]),
        bytes=float(line.bytes[case]),
        message_bytes=message if collective else None,
        group_size=int(line.group_size[case]) if collective else None,
        link=table.session.system.link_label if collective else None,
        bound=BOUND_WORDS.get(line.bound, line.bound),
        roof_fraction=min(roof / seconds, 1.0) if roof > 0 and np.isfinite(roof) else None,
        provenance=line.provenance,
        basis=basis_of(line),
    )
