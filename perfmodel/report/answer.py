"""The JSON contract of `recommend`, `predict` and `compare`; also what the Python API returns.

Units are in the names (``_ms``, ``_gib``, ``_pct``); a ``_share`` and ``efficiency`` are fractions
of one; null is unknown, never 0 or NaN.  Fields are only added within a major `schema_version`.
Classes build their validator on first use (``defer_build``), so a cold start pays for few of them.
"""

from __future__ import annotations

from typing import Literal, overload

from pydantic import Field

from perfmodel.errors import PerfmodelError
from perfmodel.report.asked import (
    SCHEMA_VERSION,
    EngineInfo,
    OptionValue,
    ParallelInfo,
    ProblemInfo,
    Record,
    Refusal,
    SystemInfo,
    WorkloadInfo,
)

__all__ = [
    "SCHEMA_VERSION",
    "Answer",
    "Choice",
    "Combinations",
    "CommandsInfo",
    "CompareAnswer",
    "CompareRow",
    "Document",
    "EngineInfo",
    "Evidence",
    "FitStatus",
    "MemoryByPhaseGib",
    "MemoryGib",
    "OperatorRow",
    "OptionValue",
    "ParallelInfo",
    "PredictAnswer",
    "Prediction",
    "ProblemInfo",
    "Record",
    "RejectedRow",
    "ScalingRow",
    "StageRow",
    "StagesMs",
    "Status",
    "SystemInfo",
    "WorkloadInfo",
    "refusal",
]

Status = Literal["ok", "illegal", "does_not_fit", "bad_input", "missing_data"]
FitStatus = Literal["fits", "tight", "no"]


class StagesMs(Record):
    """Exposed time by stage; the six sum to `latency_ms`.  0 = no such stage, null = unknown."""

    text_encode: float | None = None
    vae_encode: float | None = None
    denoise: float | None = None
    vae_decode: float | None = None
    transfer: float | None = None
    video_encode: float | None = None


class MemoryGib(Record):
    """Parts of the memory of one rank in one phase; they sum to that phase's total."""

    weights: float | None = None
    text_encoder: float | None = None
    vae: float | None = None
    activations: float | None = None
    workspace: float | None = None
    collectives: float | None = None
    runtime: float | None = None


class MemoryByPhaseGib(Record):
    """Memory of the peak rank by phase; null = the phase does not exist."""

    load: float | None = None
    text_encode: float | None = None
    vae_encode: float | None = None
    denoise: float | None = None
    vae_decode: float | None = None


class CommandsInfo(Record):
    """Commands as typed in a shell; long ones may hold backslash-newlines."""

    serve: str | None = None
    request: str | None = None
    benchmark: str | None = None
    notes: tuple[str, ...] = ()


class Prediction(Record):
    """One configuration, predicted.

    `stages_basis` is kernels, runs, prior or given (empty: no such stage); `stages_bound` says what
    limits a stage.  `vs_best_pct` is 0 for the best; `speedup` is against one GPU, null if that
    does not fit.  `speedup_loss_ms` leads from `ideal_ms` (= `one_gpu_ms` / GPUs) to `latency_ms`;
    keys that start with ``not_split_`` name stages.  `memory_parts_gib` has a phase a key.
    `in_flight_mean_ms` and `in_flight_worst_ms` are the times of the requests in flight, sent at
    once to the `replicas`, each of which serves one after another (null: one request).
    `peak_memory_gib` is what the driver shows, `required_memory_gib` without the blocks that the
    allocator gives back before it fails: what decides whether it fits.
    """

    rank: int | None = None
    config_id: str
    num_gpus: int = 1
    parallel: ParallelInfo = ParallelInfo.model_construct()
    options: dict[str, OptionValue] = Field(default_factory=dict)
    stages_ms: StagesMs
    stages_low_ms: StagesMs | None = None
    stages_high_ms: StagesMs | None = None
    stages_basis: dict[str, str] = Field(default_factory=dict)
    stages_bound: dict[str, str] = Field(default_factory=dict)
    denoise_per_step_ms: float | None = None
    latency_ms: float | None = None
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    pipeline_forward_ms: float | None = None
    in_flight_mean_ms: float | None = None
    in_flight_worst_ms: float | None = None
    first_request_ms: float | None = None
    requests_per_hour: float | None = None
    replicas: int = 1
    gpu_seconds_per_request: float | None = None
    price_per_request: float | None = None
    vs_best_pct: float | None = None
    speedup: float | None = None
    peak_memory_gib: float | None = None
    peak_memory_high_gib: float | None = None
    peak_rank: int | None = None
    peak_phase: str | None = None
    memory_gib: MemoryGib | None = None
    memory_by_phase_gib: MemoryByPhaseGib | None = None
    memory_parts_gib: dict[str, MemoryGib] = Field(default_factory=dict)
    required_memory_gib: float | None = None
    required_by_phase_gib: MemoryByPhaseGib | None = None
    reserved_gib: float | None = None
    host_memory_gib: float | None = None
    capacity_gib: float | None = None
    fits: bool | None = None
    fit_status: FitStatus | None = None
    tied_with_best: bool = False
    lossless: bool = True
    why: str | None = None
    one_gpu_ms: float | None = None
    ideal_ms: float | None = None
    speedup_loss_ms: dict[str, float] = Field(default_factory=dict)
    provenance_share: dict[str, float] = Field(default_factory=dict)
    basis_share: dict[str, float] = Field(default_factory=dict)
    extrapolated_share: float = 0.0
    commands: CommandsInfo | None = None


class OperatorRow(Record):
    """One operator of a stage on one rank; `time_ms` is the total of all `count` executions."""

    stage: str
    name: str
    kind: str
    count: float
    time_ms: float
    time_each_ms: float | None = None
    time_share: float | None = None
    flops: float | None = None
    bytes: float | None = None
    message_bytes: float | None = None
    group_size: int | None = None
    link: str | None = None
    bound: str | None = None
    roof_fraction: float | None = None
    provenance: str | None = None
    basis: str | None = None


class StageRow(Record):
    """One line of the stage table of `predict`; `stage` may also be ``request``."""

    stage: str
    predicted_ms: float | None = None
    low_ms: float | None = None
    high_ms: float | None = None
    measured_ms: float | None = None
    error_pct: float | None = None
    outside_range: bool | None = None
    bound: str | None = None
    basis: str | None = None


class ScalingRow(Record):
    """The best configuration of a number of GPUs; requests/h when the machine runs replicas."""

    num_gpus: int
    config_id: str
    latency_ms: float | None = None
    speedup: float | None = None
    efficiency: float | None = None
    requests_per_hour: float | None = None
    replicas: int | None = None
    fit_status: FitStatus | None = None
    best_latency: bool = False
    best_throughput: bool = False


class RejectedRow(Record):
    """How many combinations a rule rejected, with an example; none: no candidate had the axis."""

    rule: str
    count: int
    example: str | None = None
    title: str | None = None


class Choice(Record):
    """An alternative: a lossy option, a VAE choice, or a change after which it would fit."""

    title: str
    config_id: str | None = None
    option: str | None = None
    num_gpus: int | None = None
    latency_ms: float | None = None
    latency_change_pct: float | None = None
    vae_decode_ms: float | None = None
    memory_gib: float | None = None
    memory_change_gib: float | None = None
    fit_status: FitStatus | None = None
    host_memory_gib: float | None = None
    needs: str | None = None
    chosen: bool = False
    why: str | None = None


class Evidence(Record):
    """Why to believe it: errors on held-out kernels, on measured runs, or the nearest of these."""

    kind: Literal["holdout", "runs", "nearest"]
    text: str
    measured_ms: float | None = None
    predicted_ms: float | None = None
    median_ape: float | None = None
    records: int | None = None
    in_fit: bool | None = None
    url: str | None = None


class Combinations(Record):
    """How many configurations were looked at."""

    total: int
    legal: int
    fitting: int | None = None
    rejected: int


class Document(Record):
    """Common part of all answers.

    `provenance` names what the numbers rest on; its keys perfmodel, fit, rules and terms are
    shown under a table, further keys (file hashes) only in JSON.  `command` is the command line
    that gives the same numbers again, the request's defaults written out.
    """

    schema_version: str = SCHEMA_VERSION
    status: Status = "ok"
    problems: tuple[ProblemInfo, ...] = ()
    workload: WorkloadInfo | None = None
    system: SystemInfo | None = None
    engine: EngineInfo | None = None
    objective: str | None = None
    interval_level: float = 0.8
    trust: Literal["calibrated", "partly calibrated", "rough"] | None = None
    warnings: tuple[ProblemInfo, ...] = ()
    evidence: tuple[Evidence, ...] = ()
    provenance: dict[str, str] = Field(default_factory=dict)
    command: str | None = None
    answer_id: str | None = None

    @property
    def exit_code(self) -> int:
        """Process exit code that belongs to `status`."""
        return {"ok": 0, "does_not_fit": 3, "missing_data": 4}.get(self.status, 2)

    @property
    def has_page(self) -> bool:
        """Whether a screen shows more than the problems."""
        return self.status in ("ok", "does_not_fit")


class Answer(Document):
    """What `recommend` answers; with ``does_not_fit``, the fields from `nearest_miss` on say why.

    `worth_trying`: better than the first, but tight or offloaded.  `refused_on_all_gpus`: the rule
    that most combinations of all GPUs break, where none of them is legal.
    """

    recommendations: tuple[Prediction, ...] = ()
    worth_trying: tuple[Choice, ...] = ()
    scaling: tuple[ScalingRow, ...] = ()
    throughput_best: ScalingRow | None = None
    combinations: Combinations | None = None
    rejected: tuple[RejectedRow, ...] = ()
    refused_on_all_gpus: RejectedRow | None = None
    lossy_options: tuple[Choice, ...] = ()
    vae_choices: tuple[Choice, ...] = ()
    vae_note: str | None = None
    nearest_miss: Prediction | None = None
    over_gib: float | None = None
    would_fit: tuple[Choice, ...] = ()
    fit_notes: tuple[str, ...] = ()


class PredictAnswer(Document):
    """What `predict` answers: one configuration, by stage and by operator.

    `denoise_lower_bound_ms` is the denoise stage at datasheet rates, nothing lost.
    """

    prediction: Prediction | None = None
    stages: tuple[StageRow, ...] = ()
    operators: tuple[OperatorRow, ...] = ()
    denoise_lower_bound_ms: float | None = None
    largest_gap: str | None = None
    over_gib: float | None = None
    would_fit: tuple[Choice, ...] = ()
    fit_notes: tuple[str, ...] = ()

    @property
    def config_id(self) -> str:
        """The configuration's id (`prediction.config_id`)."""
        return self._predicted.config_id

    @property
    def latency_ms(self) -> float | None:
        """Time of a request (`prediction.latency_ms`)."""
        return self._predicted.latency_ms

    @property
    def stages_ms(self) -> StagesMs:
        """Time by stage (`prediction.stages_ms`)."""
        return self._predicted.stages_ms

    @property
    def fit_status(self) -> FitStatus | None:
        """``fits``, ``tight`` or ``no`` (`prediction.fit_status`)."""
        return self._predicted.fit_status

    @property
    def peak_phase(self) -> str | None:
        """The phase with the highest memory (`prediction.peak_phase`)."""
        return self._predicted.peak_phase

    @property
    def _predicted(self) -> Prediction:
        if self.prediction is None:
            raise AttributeError(f"status {self.status}: there is no prediction")
        return self.prediction


class CompareRow(Record):
    """One case of a comparison: `values` are the varied flags, `prediction` its best or only one.

    `vs_first_pct` compares `in_flight_mean_ms`, or `latency_ms` where one request runs alone, with
    the first case that has one.
    """

    values: dict[str, str]
    status: Status = "ok"
    prediction: Prediction | None = None
    vs_first_pct: float | None = None
    trust: str | None = None
    answer_id: str | None = None
    problems: tuple[ProblemInfo, ...] = ()


class CompareAnswer(Document):
    """What `compare` answers: a row a case, in the order given."""

    varied: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    rows: tuple[CompareRow, ...] = ()


@overload
def refusal(error: PerfmodelError) -> Document: ...
@overload
def refusal(error: PerfmodelError, kind: type[Document] | None) -> Document | Refusal: ...


def refusal(error: PerfmodelError, kind: type[Document] | None = Answer) -> Document | Refusal:
    """The document of a refusal: its status and problems, and nothing else."""
    problems = tuple(map(ProblemInfo.of, error.problems))
    return (kind or Refusal).model_validate({"status": error.status, "problems": problems})
