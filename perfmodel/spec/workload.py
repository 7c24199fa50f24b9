"""What is asked for: the request, and the options that are fixed for all candidates."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]


GATHERED = "layerwise-gather"
LAYERWISE = ("layerwise", GATHERED)
"""Offload modes that stream the denoiser's blocks from the host."""


WEIGHT_ONLY = ("fp8wo", "int8wo", "fp6wo", "nf4", "fp8cast")
"""Weights are stored in fewer bits and widened to bf16 before, or in, each product."""


class Frozen(BaseModel):
    """Base of everything people write: frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Workload(Frozen):
    """A request as the user states it; None takes the model's default for the task (marked ``*``).

    Bounds keep the arithmetic meaningful: a side up to 16384 px, up to 10,000 frames and steps.
    """

    model: str = "cosmos3-nano"
    task: str | None = None
    width: Annotated[int, Field(ge=16, le=16384)] | None = None
    height: Annotated[int, Field(ge=16, le=16384)] | None = None
    frames: Annotated[int, Field(ge=1, le=10_000)] | None = None
    seconds: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] | None = None
    fps: Annotated[float, Field(gt=0, le=240, allow_inf_nan=False)] | None = None
    steps: Annotated[int, Field(ge=1, le=10_000)] | None = None
    guidance: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    forwards: Annotated[int, Field(ge=1, le=40_000)] | None = None
    """Transformer forwards over all branches, where they are not steps x branches."""
    batch: Annotated[int, Field(ge=1, le=256)] = 1
    concurrency: Annotated[int, Field(ge=1, le=4096)] = 1
    input_images: Annotated[int, Field(ge=0, le=64)] | None = None
    sound: bool = False
    text_tokens: Annotated[int, Field(ge=1, le=65_536)] | None = None


class Options(Frozen):
    """Choices that hold for every candidate; None takes the engine's default."""

    dtype: Literal[
        "bf16",
        "fp16",
        "fp8",
        "fp8_block",
        "int8",
        "nvfp4",
        "fp8wo",
        "int8wo",
        "fp6wo",
        "nf4",
        "fp8cast",
    ] = "bf16"
    attention_backend: str | None = None
    compile: bool | None = None
    vae_tiling: Literal["auto", "on", "off"] = "auto"
    vae_mode: Literal["tile", "spatial_shard_height", "spatial_shard_width"] = "tile"
    vae_fast_path: Literal["off", "lossless", "channels_last"] | None = None
    offload: Literal["none", "auto", "text-encoder", "model", "layerwise-gather", "layerwise"] = (
        "none"
    )
    cache_method: Literal[
        "none",
        "tea_cache",
        "cache_dit",
        "fb_cache",
        "mag_cache",
        "sea_cache",
        "step_cache",
    ] = "none"
    cache_skip: Annotated[float, Field(ge=0, le=0.99, allow_inf_nan=False)] = 0.0
    attention_density: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 1.0
    """Share of the query-key products of latent tokens that a sparse attention computes."""
    ulysses_mode: Literal["strict", "advanced_uaa"] = "strict"
    guardrails: bool = False
