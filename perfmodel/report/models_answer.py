"""What ``models show --json`` and ``models import --json`` print: a model at one shape."""

from __future__ import annotations

from perfmodel.report.asked import Record
from perfmodel.spec.model import ModelSpec


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

    components: tuple[ComponentInfo, ...]
    shape: ShapeInfo
    assumed: tuple[str, ...]
    shape_notes: tuple[str, ...]
    flops: dict[str, dict[str, float]]
    written: str | None = None
    template: str | None = None
    taken_over: tuple[str, ...] = ()
