"""The model file of a directory whose transformer was traced."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from perfmodel.stages.imports import fallback, transformers
from perfmodel.stages.imports.read import Config
from perfmodel.stages.imports.shared import (
    INDEX,
    Imported,
    checked,
    has,
    known_encoder,
    plain_slug,
    schedule_shift,
    vae_fields,
)

TEXT_PARTS = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")
NO_SHIFT = 1.0


def read_traced(root: Path, index: Mapping[str, Any], main: Config) -> Imported:
    """The model of a directory whose transformer class has no family.

    Raises:
        BadInput: the class cannot be traced, or a file is missing or malformed.
    """
    found = fallback.denoiser(main, transformers.CLASSES)
    vae, vae_assumed = vae_fields(root, None)
    spec = found.spec
    side, time = int(vae["spatial_ratio"]), int(vae["temporal_ratio"])
    pipeline = import_module("perfmodel.stages.imports.trace.pipeline")
    dims = _unpacked(found.dims, int(vae["z_channels"])) if found.packed else found.dims
    patch = dims["patch"]
    grid_px = spec.grid and (spec.grid[0] * patch[1] * side, spec.grid[1] * patch[2] * side)
    usual = pipeline.defaults(
        fallback.pipeline_class(index),
        main.values,
        (side, time),
        frames=spec.frames,
        text=spec.text_tokens,
        video=found.video,
        grid_px=grid_px,
    )
    names, encoders, text_assumed = _text_encoders(root, index)
    shift, _ = schedule_shift(root)
    name = root.resolve().name
    task = {**usual.task, "flow_shift": NO_SHIFT if shift is None else shift}
    embedded = main.values.get("guidance_embeds") is True
    data = {
        "slug": plain_slug(name),
        "title": name,
        "hf_id": str(root.resolve()),
        "family": "traced",
        "tasks": {"t2v" if found.video else "t2i": task},
        "transformer": {**dims, "guidance_embedded": embedded},
        "vae": vae,
        "text_encoders": names,
        "frame_rounding": "down",
        "branches_together": usual.together,
        "size_multiple": side * max(patch[1], patch[2]),
        "traced": {**spec.model_dump(exclude_defaults=True), "encoders": encoders},
        "notes": (f"Operators traced from {spec.class_name} of {spec.library}.",),
        "sources": (
            f"{INDEX} and component configurations of {name}",
            f"{spec.library} (https://pypi.org/project/{spec.library.replace(' ', '/')}/)",
        ),
    }
    stated = () if shift is not None else ("a schedule without shift",)
    left = ", ".join(found.left_out)
    without = (f"arguments without a value: {left}",) if left else ()
    assumed = (*usual.assumed, *without, *vae_assumed, *text_assumed, *stated)
    return Imported(checked(data, root), None, assumed)


def _unpacked(dims: dict[str, Any], latent_channels: int) -> dict[str, Any]:
    """A token of as many channels as the latent has holds one position, not several."""
    volume = dims["patch"][0] * dims["patch"][1] * dims["patch"][2]
    if dims["in_channels"] * volume != latent_channels:
        return dims
    wide = {name: dims[name] * volume for name in ("in_channels", "out_channels")}
    return {**dims, **wide, "patch": (1, 1, 1)}


def _text_encoders(
    root: Path, index: Mapping[str, Any]
) -> tuple[tuple[str, ...], list[dict[str, Any]], tuple[str, ...]]:
    """Encoders of the catalogue, those that were traced, and what is left out."""
    names: list[str] = []
    traced: list[dict[str, Any]] = []
    left: list[str] = []
    for part in TEXT_PARTS:
        if not has(index, part):
            continue
        name = known_encoder(root / part / "config.json", ())
        if name is not None:
            names.append(name)
            continue
        found = fallback.encoder(index[part], part, root / part)
        if found is None:
            left.append(f"{part} ({index[part][1]}) costs nothing: it is not known and not traced")
        else:
            traced.append(found.model_dump(exclude_defaults=True))
    return tuple(names), traced, tuple(left)
