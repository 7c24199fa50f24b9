"""A diffusers directory as a model: its files say the dimensions, a shipped model the rest.

The family comes from the transformer's class.  Of the shipped models of that family the one whose
dimensions agree most gives what no configuration says: sizes, steps, guidance, prompt lengths.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any

from perfmodel import catalog
from perfmodel.catalog.problems import validated
from perfmodel.errors import BadInput
from perfmodel.files import is_dir
from perfmodel.spec.model import ModelSpec
from perfmodel.stages import encoders
from perfmodel.stages.imports import transformers, vaes
from perfmodel.stages.imports.read import Config, read_config, read_json, refuse

INDEX = "model_index.json"
CONDITIONED = re.compile("Kontext|Fill|Edit|Inpaint|Img2Img|Image2|ImageTo|Video2|Transfer|VACE")
"""In the names of pipelines that take an image or a clip."""
SCHEDULE_NAMES = ("flow_shift", "shift")
TEXT_PARTS = ("text_encoder", "text_encoder_2", "text_encoder_3", "text_encoder_4")
WIDTH_NAMES = ("d_model", "hidden_size")
DEPTH_NAMES = ("num_layers", "num_hidden_layers")


@dataclass(frozen=True, slots=True)
class Imported:
    """A model that was read from a directory.

    Attributes:
        model: the description.
        template: the shipped model that gave what no file says.
        assumed: what was taken from it, in words.
    """

    model: ModelSpec
    template: str
    assumed: tuple[str, ...]


def read_directory(path: str | Path) -> Imported:
    """The model of a directory in the diffusers format.

    Raises:
        BadInput: a missing or malformed file, or a class of no known family.
    """
    root = Path(path)
    if not is_dir(root):
        raise refuse(str(root), "is no directory; give one with a model_index.json")
    index = read_json(root / INDEX)
    main = read_config(root / "transformer" / "config.json")
    known = transformers.CLASSES.get(main.cls)
    if known is None:
        raise _unknown_class(main.path, main.cls, transformers.CLASSES)
    fields = known.fields(main)
    name = root.resolve().name
    template = _template(known.family, fields, index, name)
    dims = {**template.transformer.model_dump(), **fields}
    vae, vae_assumed = _vae(root, template)
    names, text_assumed = _text_encoders(root, index, template)
    shift, shift_assumed = _shift(root, template)
    tasks = {
        name: {**task.model_dump(), "flow_shift": task.flow_shift if shift is None else shift}
        for name, task in template.tasks.items()
    }
    data = {
        **template.model_dump(),
        **_experts(index, root, template),
        "slug": _slug(name, template.slug),
        "title": name,
        "hf_id": str(index.get("_name_or_path") or name),
        "aliases": (),
        "published_params": None,
        "transformer": {key: value for key, value in dims.items() if value is not None},
        "vae": vae,
        "text_encoders": names,
        "tasks": tasks,
        "notes": (f"Read from configuration files; the rest is that of {template.slug}.",),
        "sources": (f"{INDEX} and component configurations of {name}", *template.sources),
    }
    data["tasks"] = {key: _drop_none(task) for key, task in data["tasks"].items()}
    model = _checked(data, root)
    assumed = (
        "sizes, frames, steps, guidance and prompt lengths of the tasks",
        *vae_assumed,
        *text_assumed,
        *shift_assumed,
    )
    return Imported(model, template.slug, assumed)


def _checked(data: dict[str, Any], root: Path) -> ModelSpec:
    """The description, or the first thing that is wrong with it."""
    try:
        return validated(ModelSpec, _drop_none(data), str(root), "models-import")
    except BadInput as error:
        raise BadInput(error.problems[0]) from None


def _unknown_class(path: Path, cls: str, known: dict[str, Any]) -> BadInput:
    near = get_close_matches(cls, known, n=2, cutoff=0.3)
    hint = f"; nearest: {', '.join(near)}" if near else ""
    what = f'class "{cls}" is of no known family{hint}; a new family: see models/README.md'
    return refuse(str(path), what, value=cls, suggestions=tuple(near))


def _slug(name: str, template: str) -> str:
    """The directory's name; engines know a model by the start of its slug."""
    slug = re.sub(r"[^a-z0-9.\-]+", "-", name.lower()).strip("-.")
    known = re.sub(r"[^a-z0-9]", "", slug).startswith(re.sub(r"[^a-z0-9]", "", template))
    return slug if known else f"{template}-{slug}".strip("-")


def _drop_none(data: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None}


def _template(family: str, fields: dict[str, Any], index: dict[str, Any], name: str) -> ModelSpec:
    """The shipped model that agrees in most dimensions, then in experts, condition and name."""
    models = [catalog.load_model(slug) for slug in catalog.model_ids()]
    two = _has(index, "transformer_2")
    conditioned = bool(CONDITIONED.search(str(index.get("_class_name"))))

    def agreement(model: ModelSpec) -> tuple[int, int, int, float]:
        same = sum(getattr(model.transformer, key) == value for key, value in fields.items())
        called = (model.slug, model.title, model.hf_id.rsplit("/", 1)[-1])
        likeness = max(_likeness(name, other) for other in called)
        takes = model.tasks[model.default_task].condition != "none"
        return same, int((model.experts > 1) == two), int(takes == conditioned), likeness

    return max((model for model in models if model.family == family), key=agreement)


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one.lower(), other.lower()).ratio()


def _has(index: dict[str, Any], name: str) -> bool:
    entry = index.get(name)
    return isinstance(entry, list) and len(entry) == 2 and entry[1] is not None


def _experts(index: dict[str, Any], root: Path, template: ModelSpec) -> dict[str, Any]:
    if not _has(index, "transformer_2"):
        return {"experts": 1, "expert_boundary": None}
    boundary = index.get("boundary_ratio")
    if boundary is None:
        return {"experts": 2, "expert_boundary": template.expert_boundary}
    if isinstance(boundary, bool) or not isinstance(boundary, (int, float)) or not 0 < boundary < 1:
        what = f"boundary_ratio: {str(boundary)[:40]} is not between 0 and 1"
        raise refuse(str(root / INDEX), what)
    return {"experts": 2, "expert_boundary": float(boundary)}


def _vae(root: Path, template: ModelSpec) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The VAE by its class; a shipped one of the kind gives what the file does not say."""
    config = read_config(root / "vae" / "config.json")
    known = vaes.CLASSES.get(config.cls)
    if known is None:
        raise _unknown_class(config.path, config.cls, vaes.CLASSES)
    kind, fields_of = known
    fields = fields_of(config)
    shipped = [template, *(catalog.load_model(name) for name in catalog.model_ids())]
    same = [model.vae for model in shipped if model.vae.kind == kind]

    def agreement(position: int) -> int:
        return sum(getattr(same[position], key) == value for key, value in fields.items())

    base = same[max(range(len(same)), key=agreement)]
    merged = {**base.model_dump(exclude_unset=True), **fields, "kind": kind}
    return merged, (f"tiling of the {base.name}",)


def _text_encoders(
    root: Path, index: dict[str, Any], template: ModelSpec
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Encoders that are known by width and depth; else those of the template."""
    found: list[str] = []
    for part in TEXT_PARTS:
        if not _has(index, part):
            continue
        name = _known_encoder(root / part / "config.json", template)
        if name is None:
            return template.text_encoders, (f"{part}: those of {template.slug}",)
        found.append(name)
    if not found:
        return template.text_encoders, (f"text encoders: those of {template.slug}",)
    images = [n for n in template.text_encoders if not encoders.ENCODERS[n].is_text]
    return (*found, *images), ()


def _known_encoder(path: Path, template: ModelSpec) -> str | None:
    data = read_json(path)
    inner = data.get("text_config")
    values = inner if isinstance(inner, dict) else data
    width = next((values[name] for name in WIDTH_NAMES if name in values), None)
    depth = next((values[name] for name in DEPTH_NAMES if name in values), None)
    ordered = (*template.text_encoders, *encoders.ENCODERS)
    for name in ordered:
        known = encoders.ENCODERS[name]
        if known.is_text and (known.hidden, known.layers) == (width, depth):
            vocabulary = values.get("vocab_size")
            if vocabulary in (None, known.vocabulary) or name in template.text_encoders:
                return name
    return None


def _shift(root: Path, template: ModelSpec) -> tuple[float | None, tuple[str, ...]]:
    path = root / "scheduler" / "scheduler_config.json"
    if not path.is_file():
        return None, ("shift of the schedule",)
    data = read_json(path)
    name = next((name for name in SCHEDULE_NAMES if data.get(name) is not None), None)
    if name is None:
        return None, ("shift of the schedule",)
    config = Config(path, "scheduler", data, frozenset(data))
    return config.ratio(name, most=100.0), ()
