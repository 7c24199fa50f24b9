"""The JSON contract of `recommend`, `predict` and `compare`; also what the Python API returns.

Units are in the names (``_ms``, ``_gib``, ``_pct``); a ``_share`` and ``efficiency`` are fractions
of one; null is unknown, never 0 or NaN.  Fields are only added within a major `schema_version`.
Classes build their validator on first use (``defer_build``), so a cold start pays for few of them.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from perfmodel.errors import PerfmodelError
from perfmodel.errors import Problem as ProblemRecord

SCHEMA_VERSION = "1.0"

Status = Literal["ok", "illegal", "does_not_fit", "bad_input", "missing_data"]
FitStatus = Literal["fits", "tight", "no"]
OptionValue = str | bool | int | float | None


class Record(BaseModel):
    """Base of all records of an answer: frozen, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False)


class ProblemInfo(Record):
    """One problem or warning, in the fields of a line on stderr."""

    rule_id: str
    message: str
    field: str | None = None
    value: str | None = None
    legal_values: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    severity: Literal["error", "warning"] = "error"

    @classmethod
    def of(cls, problem: ProblemRecord) -> ProblemInfo:
        """From the library's own record."""
        return cls(
            rule_id=problem.rule_id,
            message=problem.message,
            field=problem.field,
            value=problem.value,
            legal_values=problem.legal_values,
            suggestions=problem.suggestions,
            severity=problem.severity,
        )

    def line(self) -> str:
        """``error[rule-id]: message``, one physical line."""
        return f"{self.severity}[{self.rule_id}]: {' '.join(self.message.split())}"


class WorkloadInfo(Record):
    """The request as it runs; `assumed` names the fields that the user did not give."""

    model: str
    title: str | None = None
    task: str
    width: int
    height: int
    frames: int
    fps: float | None = None
    seconds: float | None = None
    steps: int
    guidance: float | None = None
    batch: int = 1
    concurrency: int = 1
    input_images: int | None = None
    sound: bool = False
    latent_frames: int | None = None
    latent_height: int | None = None
    latent_width: int | None = None
    video_tokens: int | None = None
    extra_tokens: int = 0
    text_tokens: int | None = None
    guidance_branches: int | None = None
    forwards: int | None = None
    assumed: tuple[str, ...] = ()


class SystemInfo(Record):
    """The machine; `spec` is what ``--gpus`` takes to mean it again, `label` what people read."""

    device: str
    title: str | None = None
    label: str | None = None
    spec: str | None = None
    num_gpus: int
    nodes: int = 1
    gpus_per_node: int | None = None
    link: str | None = None
    p2p: bool | None = None
    sockets: int | None = None
    usable_gib: float | None = None
    host_ram_gib: float | None = None
    assumed: tuple[str, ...] = ()


class EngineInfo(Record):
    """The engine whose rules and terms apply; `assumed` may name ``version`` and option keys."""

    name: str
    title: str | None = None
    version: str | None = None
    options: dict[str, OptionValue] = {}
    assumed: tuple[str, ...] = ()


class ParallelInfo(Record):
    """Degrees by the names of the engine's arguments; 1 is off."""

    cfg_parallel_size: int = 1
    ulysses_degree: int = 1
    ring_degree: int = 1
    allgather_degree: int = 1
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    hsdp_shard_size: int = 1
    hsdp_replicate_size: int = 1
    vae_patch_parallel_size: int = 1
    text_encoder_tp_size: int = 1


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
    """

    rank: int | None = None
    config_id: str
    num_gpus: int = 1
    parallel: ParallelInfo = ParallelInfo.model_construct()
    options: dict[str, OptionValue] = {}
    stages_ms: StagesMs
    stages_low_ms: StagesMs | None = None
    stages_high_ms: StagesMs | None = None
    stages_basis: dict[str, str] = {}
    stages_bound: dict[str, str] = {}
    denoise_per_step_ms: float | None = None
    latency_ms: float | None = None
    latency_low_ms: float | None = None
    latency_high_ms: float | None = None
    pipeline_forward_ms: float | None = None
    first_request_ms: float | None = None
    requests_per_hour: float | None = None
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
    memory_parts_gib: dict[str, MemoryGib] = {}
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
    speedup_loss_ms: dict[str, float] = {}
    provenance_share: dict[str, float] = {}
    basis_share: dict[str, float] = {}
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
    best_latency: bool = False
    best_throughput: bool = False


class RejectedRow(Record):
    """How many combinations a rule rejected, with one example in the words of its refusal."""

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
    host_memory_gib: float | None = None
    needs: str | None = None
    chosen: bool = False
    why: str | None = None


class Evidence(Record):
    """Why to believe it: held-out accuracy, the nearest measured run, or a note."""

    kind: Literal["holdout", "nearest", "note"]
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
    that gives the same bytes again, every default written out.
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
    provenance: dict[str, str] = {}
    command: str | None = None
    answer_id: str | None = None

    @property
    def exit_code(self) -> int:
        """Process exit code that belongs to `status`."""
        return {"ok": 0, "does_not_fit": 3, "missing_data": 4}.get(self.status, 2)


class Answer(Document):
    """What `recommend` answers.

    With status ``does_not_fit``, `recommendations` is empty and `nearest_miss`, `over_gib`,
    `would_fit` and `fit_notes` say how much is missing and what would help.
    """

    recommendations: tuple[Prediction, ...] = ()
    scaling: tuple[ScalingRow, ...] = ()
    throughput_best: ScalingRow | None = None
    combinations: Combinations | None = None
    rejected: tuple[RejectedRow, ...] = ()
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

    `vs_first_pct` compares `latency_ms` with the first case that has one.
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

    varied: dict[str, tuple[str, ...]] = {}
    rows: tuple[CompareRow, ...] = ()


def refusal(error: PerfmodelError, kind: type[Document] = Answer) -> Document:
    """The document of a refusal: its status and problems, and nothing else."""
    status: Status = error.status  # type: ignore[assignment]
    return kind(status=status, problems=tuple(map(ProblemInfo.of, error.problems)))
