"""What a VAE is: dimensions of its layers and its tiling (the ``vae`` part of a model file)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from perfmodel.spec.traced import TracedVae
from perfmodel.spec.workload import Frozen

Positive = Annotated[int, Field(strict=True, ge=1)]
Count = Annotated[int, Field(strict=True, ge=0)]
"""A number in a model file: true is none, nor is the text "8"."""
Layers = tuple[Annotated[int, Field(strict=True, ge=0, le=64)], ...]
Resampling = Literal["spatial", "temporal", "spatiotemporal"]

READ_BY: dict[str, frozenset[str]] = {
    "resnets": frozenset(
        {"wan", "qwen_image", "kl2d", "flux2", "hunyuanvideo", "hunyuanvideo15", "cogvideox"}
    ),
    "residual": frozenset({"wan"}),
    "pixel_patch": frozenset({"wan", "ltx", "ltx2"}),
    "temporal": frozenset({"wan", "qwen_image", "hunyuanvideo", "hunyuanvideo15", "cogvideox"}),
    "quant_convs": frozenset({"kl2d"}),
    "decoder_multipliers": frozenset({"ltx", "ltx2"}),
    "layers": frozenset({"ltx", "ltx2", "mochi", "dcae"}),
    "decoder_layers": frozenset({"ltx", "ltx2", "dcae"}),
    "down": frozenset({"ltx", "ltx2"}),
    "up": frozenset({"ltx2"}),
    "temporal_steps": frozenset({"mochi"}),
    "attention_levels": frozenset({"mochi", "dcae"}),
    "tile_frames": frozenset({"hunyuanvideo"}),
    "tile_stride_frames": frozenset({"hunyuanvideo"}),
    "traced": frozenset({"traced"}),
}
"""Kinds that read a field; others may not set it."""


class VaeSpec(Frozen):
    """Dimensions of a VAE, and its tiling.

    Attributes:
        kind: the class of layers (a module of ``stages/vae/``): ``wan`` (causal, chunked),
            ``qwen_image`` (the same network without its fast path), ``kl2d`` (AutoencoderKL),
            ``flux2``, ``hunyuanvideo``, ``hunyuanvideo15``, ``cogvideox``, ``ltx``, ``ltx2``,
            ``mochi``, ``minimax_h3`` (decoded by a transformer), ``dcae`` (AutoencoderDC),
            ``traced`` (operators of an unknown class).
        z_channels: latent channels.
        encoder_width, decoder_width: channels of the level with multiplier 1.
        multipliers: channel multipliers of the levels, pixels first.
        decoder_multipliers: those of the decoder where they differ.
        resnets: residual blocks of an encoder level (a decoder level has one more).
        layers, decoder_layers: blocks by level, pixels first, middle last, where they differ.
        residual: parameter-free shortcuts around every level (Wan2.2).
        pixel_patch: pixels folded into channels before the first convolution.
        temporal: for each change of level of the encoder, pixels first: whether time is halved too
            (some decoders walk it from the latent in the same order, see the kind).
        temporal_steps: temporal factor of each change of level, pixels first.
        down: what each change of level halves, pixels first.
        up: what each change of level of the decoder doubles, pixels first, without a shortcut
            beside it (empty: everything, with the input repeated beside it).
        quant_convs: 1x1 convolutions around the latent.
        attention_levels: levels (the middle last) whose encoder blocks have attention (Mochi), or
            whose blocks are attention blocks (DC-AE).
        tile_px, tile_stride_px: default tile and stride of a tiled run, in pixels, for decode and
            for vLLM-Omni's distributed encode; diffusers applies the numbers to the folded map
            when it encodes, so its encode tiles are `pixel_patch` times as wide.
        tile_frames, tile_stride_frames: longer clips run in overlapping temporal tiles (0: never).
        bits: bits of a weight and of an activation as engines load it.
        traced: operators of a class that was traced.
    """

    kind: Literal[
        "wan",
        "qwen_image",
        "kl2d",
        "flux2",
        "hunyuanvideo",
        "hunyuanvideo15",
        "cogvideox",
        "ltx",
        "ltx2",
        "minimax_h3",
        "mochi",
        "dcae",
        "traced",
    ] = "wan"
    name: str
    z_channels: Positive
    encoder_width: Positive
    decoder_width: Positive
    multipliers: Annotated[tuple[Positive, ...], Field(min_length=2)] = (1, 2, 4, 4)
    decoder_multipliers: tuple[Positive, ...] | None = None
    resnets: Positive = 2
    layers: Layers = ()
    decoder_layers: Layers = ()
    residual: bool = False
    pixel_patch: Positive = 1
    temporal: tuple[bool, ...] = (False, True, True)
    temporal_steps: tuple[Positive, ...] = ()
    down: tuple[Resampling, ...] = ()
    up: tuple[Resampling, ...] = ()
    quant_convs: bool = False
    attention_levels: tuple[bool, ...] = ()
    spatial_ratio: Positive
    temporal_ratio: Positive
    tile_px: Positive = 256
    tile_stride_px: Positive = 192
    tile_frames: Annotated[int, Field(strict=True, ge=0, le=4096)] = 0
    tile_stride_frames: Annotated[int, Field(strict=True, ge=0, le=4096)] = 0
    bits: Positive = 16
    traced: TracedVae | None = None

    @model_validator(mode="after")
    def _check(self) -> VaeSpec:
        for name in self.model_fields_set & READ_BY.keys():
            if self.kind not in READ_BY[name]:
                raise ValueError(f"{name} is not read for a VAE of kind {self.kind}")
        for name, count in self._lengths().items():
            if len(getattr(self, name)) != count:
                raise ValueError(f"{name} needs {count} entries for a VAE of kind {self.kind}")
        if (self.kind == "traced") != (self.traced is not None):
            raise ValueError("kind traced and the operators in traced go together")
        if bool(self.tile_frames) != bool(self.tile_stride_frames):
            raise ValueError("tile_frames and tile_stride_frames go together")
        return self

    def _lengths(self) -> dict[str, int]:
        """Entries that each list needs: levels, changes of level, or levels and the middle."""
        levels = len(self.multipliers)
        if self.kind in ("ltx", "ltx2"):
            decoder = len(self.decoder_multipliers or self.multipliers)
            up = {"up": decoder} if self.up else {}
            return {"layers": levels + 1, "down": levels, "decoder_layers": decoder + 1, **up}
        if self.kind == "mochi":
            return {
                "layers": levels + 1,
                "temporal_steps": levels - 1,
                "attention_levels": levels + 1,
            }
        if self.kind == "dcae":
            return dict.fromkeys(("layers", "decoder_layers", "attention_levels"), levels)
        return {"temporal": levels - 1} if self.kind in READ_BY["temporal"] else {}
