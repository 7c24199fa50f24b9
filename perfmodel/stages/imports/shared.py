"""What directories have in common, with or without a family: VAE, encoders, schedule, names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel import catalog
from perfmodel.catalog.problems import validated
from perfmodel.errors import BadInput
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.vae import VaeSpec
from perfmodel.stages import encoders
from perfmodel.stages.imports import fallback, vaes
from perfmodel.stages.imports.read import Config, read_config, read_json

INDEX = "model_index.json"
SCHEDULE_NAMES = ("flow_shift", "shift")
WIDTH_NAMES = ("d_model", "hidden_size")
DEPTH_NAMES = ("num_layers", "num_hidden_layers")
NAMELESS = "model"


@dataclass(frozen=True, slots=True)
class Imported:
    """A model that was read from a directory.

    Attributes:
        model: the description.
        template: the shipped model that gave what no file says; None where none did.
        assumed: what no file says, in words.
    """

    model: ModelSpec
    template: str | None
    assumed: tuple[str, ...]


def checked(data: dict[str, Any], root: Path) -> ModelSpec:
    """The description, or the first thing that is wrong with it."""
    try:
        return validated(ModelSpec, without_none(data), str(root), "models-import")
    except BadInput as error:
        raise BadInput(error.problems[0]) from None


def without_none(data: dict[str, Any]) -> dict[str, Any]:
    """The fields that have a value."""
    return {key: value for key, value in data.items() if value is not None}


def plain_slug(name: str) -> str:
    """A directory's name as a slug."""
    return re.sub(r"[^a-z0-9.\-]+", "-", name.lower()).strip("-.") or NAMELESS


def has(index: Mapping[str, Any], name: str) -> bool:
    """Whether the directory says that it holds a component."""
    entry = index.get(name)
    return isinstance(entry, list) and len(entry) == 2 and entry[1] is not None


def vae_fields(root: Path, first: VaeSpec | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The VAE by its class; a shipped one of the kind gives what the file does not say.

    Args:
        root: the directory.
        first: the VAE that is taken where several agree equally.
    """
    config = read_config(root / "vae" / "config.json")
    known = vaes.CLASSES.get(config.cls)
    if known is None:
        tiles = f"tiling of the VAE ({config.cls}, traced): that of most VAEs"
        return fallback.vae(config, vaes.CLASSES), (tiles,)
    kind, fields_of = known
    fields = fields_of(config)
    shipped = [model.vae for model in catalog.all_models()]
    same = [vae for vae in ([first] if first else []) + shipped if vae.kind == kind]

    def agreement(position: int) -> int:
        return sum(getattr(same[position], key) == value for key, value in fields.items())

    base = same[max(range(len(same)), key=agreement)]
    merged = {**base.model_dump(exclude_unset=True), **fields, "kind": kind}
    return merged, (f"tiling of the {base.name}",)


def known_encoder(path: Path, likeliest: Iterable[str]) -> str | None:
    """The encoder of the catalogue with the width and depth of a configuration."""
    data = read_json(path)
    inner = data.get("text_config")
    values = inner if isinstance(inner, dict) else data
    width = next((values[name] for name in WIDTH_NAMES if name in values), None)
    depth = next((values[name] for name in DEPTH_NAMES if name in values), None)
    likely = tuple(likeliest)
    for name in (*likely, *encoders.ENCODERS):
        known = encoders.ENCODERS[name]
        if known.is_text and (known.hidden, known.layers) == (width, depth):
            vocabulary = values.get("vocab_size")
            if vocabulary in (None, known.vocabulary) or name in likely:
                return name
    return None


def schedule_shift(root: Path) -> tuple[float | None, tuple[str, ...]]:
    """The shift of the schedule, if a file says it."""
    path = root / "scheduler" / "scheduler_config.json"
    if not path.is_file():
        return None, ("shift of the schedule",)
    data = read_json(path)
    name = next((name for name in SCHEDULE_NAMES if data.get(name) is not None), None)
    if name is None:
        return None, ("shift of the schedule",)
    config = Config(path, "scheduler", data, frozenset(data))
    return config.ratio(name, most=100.0), ()
