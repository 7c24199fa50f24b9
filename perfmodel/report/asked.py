"""The parts of an answer that repeat the question: request, machine, engine, problems."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from perfmodel.errors import Problem as ProblemRecord

SCHEMA_VERSION = "1.0"
"""Fields are only added within a major version."""

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


class Versioned(Record):
    """Base of answers that look something up."""

    schema_version: str = SCHEMA_VERSION
    status: Literal["ok"] = "ok"


class Refusal(Record):
    """What any command prints with ``--json`` in the place of its answer, when it refuses."""

    schema_version: str = SCHEMA_VERSION
    status: Literal["illegal", "bad_input", "missing_data"]
    problems: tuple[ProblemInfo, ...] = Field(min_length=1)


class WorkloadInfo(Record):
    """The request as it runs; `assumed` names the fields that the user did not give.

    `steps` is what the request states, `run_steps` what runs over all chunks of the clip.
    """

    model: str
    title: str | None = None
    task: str
    width: int
    height: int
    frames: int
    fps: float | None = None
    seconds: float | None = None
    steps: int
    run_steps: int | None = None
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
