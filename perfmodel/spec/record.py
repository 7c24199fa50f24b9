"""A measured run, as people publish or record it: one JSON object a line.

Field names and units are those of the public format (milliseconds, MiB); unknown keys are kept by
whoever wrote them and ignored here.  ``None`` is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
)

from perfmodel.errors import BadInput, Problem
from perfmodel.files import Unreadable, parse_json, read_text
from perfmodel.units import GIGA

END_TO_END_KEYS = ("e2e", "client", "server", "stage_gen", "pipeline_forward", "generation")
"""What ``e2e`` is scored on: the first that a record has."""

MOST_MS = GIGA
Milliseconds = Annotated[float, Field(gt=0, le=MOST_MS)]
"""A duration: above zero, and at most eleven days."""
MOST_REQUESTS, MOST_IMAGES = 4096, 64
"""Requests in flight, and input images of one: as a question may ask for."""
MOST_SHOWN = 60
"""Characters of a value that a message repeats."""


def _images(value: Any) -> Any:
    """A count of images in its range; some formats list the images instead."""
    if isinstance(value, int | float) and not 0 <= value <= MOST_IMAGES:
        raise ValueError(f"input images should be 0 to {MOST_IMAGES}")
    return value


class RunRecord(BaseModel):
    """One measurement of one configuration.

    Attributes:
        parallel: degrees by engine argument name; left out = 1 or off, None = unknown.
        measured_ms: milliseconds by what was measured (``e2e``, ``denoise``, ``vae_decode``...).
        peak_memory_mib: per GPU; `memory_kind` reserved (torch) or driver.
        sweep: records that differ only in `parallel` share it; `sweep_of` the stage to compare.
        latency_of: the mean or the last of the requests in flight, sent at once; None = unknown,
            or a new request for each that is done.
        forwards: transformer forwards of the request, where not steps x branches.
        cache_skip: share of the forwards that a step cache skipped.
        attention_density: share of the query-key products that a sparse attention computed.
        ref_images: input images of a request, or ``input_images``.
        guardrails: the safety checks of the engine ran.
        doubtful: something was assumed by whoever read the source.
        error: why a run gave no measurement; `http_status` of its last request.
        plan, run: the plan and the run of it that this measures.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    id: str
    source: str | None = None
    source_date: str | None = None
    engine: str
    engine_version: str | None = None
    model: str
    task: str | None = None
    gpu: str | None = None
    num_gpus: int | None = Field(default=None, ge=1)
    nodes: int | None = None
    interconnect: str | None = None
    sockets: int | None = Field(default=None, ge=1, le=8)
    height: int | None = None
    width: int | None = None
    frames: int | None = None
    fps: float | None = None
    steps: int | None = None
    batch: int | None = None
    guidance_scale: float | None = None
    cfg: bool | None = None
    num_outputs: int | None = None
    concurrency: int | None = Field(default=None, ge=1, le=MOST_REQUESTS)
    latency_of: Literal["mean", "last"] | None = None
    dtype: str | None = None
    attention_backend: str | None = None
    compile: bool | None = None
    cache: Any = None
    offload: str | None = None
    vae_tiling: bool | None = None
    vae_fast_path: Literal["off", "lossless", "channels_last"] | None = None
    parallel: dict[str, int | None] = {}
    measured_ms: dict[str, Milliseconds] = {}
    peak_memory_mib: float | None = None
    memory_kind: str | None = None
    kernels: dict[str, Any] | None = None
    forwards: int | None = None
    ref_images: Annotated[Any, AfterValidator(_images)] = Field(
        default=None, validation_alias=AliasChoices("ref_images", "input_images")
    )
    sparse_attention: bool | None = None
    guardrails: bool | None = None
    cache_skip: float | None = Field(default=None, ge=0, le=0.99)
    attention_density: float | None = Field(default=None, gt=0, le=1)
    sweep: str | None = None
    sweep_of: str | None = None
    doubtful: bool = False
    note: str | None = None
    repeats: Any = None
    error: str | None = None
    http_status: int | None = None
    plan: str | None = None
    run: str | None = None


def read_records(paths: Iterable[Path]) -> tuple[list[RunRecord], list[Problem]]:
    """Records of some JSONL files; bad rows become problems by file and line.

    Raises:
        BadInput: a file that cannot be read.
    """
    records: list[RunRecord] = []
    bad: list[Problem] = []
    for path in paths:
        for number, line in _lines(path):
            try:
                records.append(RunRecord.model_validate(parse_json(line)))
            except ValidationError as error:
                bad += [_problem(path, number, _message(item)) for item in error.errors()]
            except Unreadable as error:
                bad.append(_problem(path, number, f"no JSON object: {error}"))
    return records, bad


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        text = read_text(path)
    except Unreadable as error:
        raise BadInput(
            Problem("record-file", f"{path} cannot be read: {error}", value=str(path))
        ) from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield number, line


def _message(item: Any) -> str:
    where = ".".join(str(part) for part in item["loc"])
    return f"{where}: {item['msg'].lower()}, got {repr(item.get('input'))[:MOST_SHOWN]}"


def _problem(path: Path, number: int, message: str) -> Problem:
    return Problem(
        "record",
        f"{path.name}:{number}: {message[:300]}",
        field=f"{path}:{number}",
        severity="warning",
    )
