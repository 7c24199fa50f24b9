"""What ``models list``, ``models show`` and ``models import`` print with ``--json``."""

from __future__ import annotations

from typing import Literal

from perfmodel.report.asked import SCHEMA_VERSION, Record, Versioned
from perfmodel.spec.model import ModelSpec


class ModelRow(Record):
    """A model with the defaults of its first task."""

    slug: str
    title: str
    hf_id: str | None = None
    family: str
    tasks: tuple[str, ...]
    distilled: bool
    params: int
    size: str
    frames: int
    steps: int
    guidance: float | None = None
    aliases: tuple[str, ...] = ()


class ModelsAnswer(Versioned):
    """All models that are known."""

    models: tuple[ModelRow, ...]


class ComponentInfo(Record):
    """Weights that live together; `when` names the stages that need them."""

    name: str
    kind: str
    params: int
    bytes: int
    blocks: int
    block_params: int
    tp_params: int
    when: tuple[str, ...]


class ShapeInfo(Record):
    """A request in the model's own units, as `shapes.Shape` describes it."""

    task: str
    batch: int
    width: int
    height: int
    frames: int
    fps: float
    steps: int
    guidance: float
    branches: int
    forwards: int
    latent_frames: int
    latent_height: int
    latent_width: int
    video_tokens: int
    extra_tokens: int
    text_tokens: int
    condition_frames: int


class ModelAnswer(ModelSpec):
    """A model file with its weights, and its shape and work at one request.

    Attributes:
        components: weights by module.
        shape: of the request.
        assumed: fields of the request that nobody gave.
        shape_notes: what was rounded, padded or traced.
        flops: FLOP of a request by stage and kind.
        written, template, taken_over: of an import: the file, the shipped model that gave what no
            file says, and what that is.
    """

    schema_version: str = SCHEMA_VERSION
    status: Literal["ok"] = "ok"
    components: tuple[ComponentInfo, ...]
    shape: ShapeInfo
    assumed: tuple[str, ...]
    shape_notes: tuple[str, ...]
    flops: dict[str, dict[str, float]]
    written: str | None = None
    template: str | None = None
    taken_over: tuple[str, ...] = ()
