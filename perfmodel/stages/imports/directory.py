"""A diffusers directory as a model: its files say the dimensions, a shipped model the rest.

The family comes from the transformer's class.  Of the shipped models of that family the one whose
dimensions agree most gives what no configuration says: sizes, steps, guidance, prompt lengths.  A
class without a family is traced where torch and diffusers are installed (`traced`).
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from perfmodel import catalog
from perfmodel.files import is_dir
from perfmodel.spec.model import ModelSpec
from perfmodel.stages import encoders
from perfmodel.stages.imports import transformers
from perfmodel.stages.imports.read import Config, read_config, read_json, refuse
from perfmodel.stages.imports.shared import (
    INDEX,
    Imported,
    checked,
    has,
    known_encoder,
    plain_slug,
    schedule_shift,
    vae_fields,
    without_none,
)
from perfmodel.stages.imports.traced import TEXT_PARTS, read_traced

CONDITIONED = re.compile("Kontext|Fill|Edit|Inpaint|Img2Img|Image2|ImageTo|Video2|Transfer|VACE")
"""In the names of pipelines that take an image or a clip."""


def read_directory(path: str | Path) -> Imported:
    """The model of a directory in the diffusers format.

    Raises:
        BadInput: a missing or malformed file, or a class of no known family that is not traced.
    """
    root = Path(path)
    if not is_dir(root):
        raise refuse(str(root), "is no directory; give one with a model_index.json")
    index = read_json(root / INDEX)
    main = read_config(root / "transformer" / "config.json")
    known = transformers.CLASSES.get(main.cls)
    if known is None:
        return read_traced(root, index, main)
    return _of_family(root, index, main, known)


def _of_family(
    root: Path, index: dict[str, Any], main: Config, known: transformers.TransformerClass
) -> Imported:
    fields = known.fields(main)
    name = root.resolve().name
    template = _template(known.family, fields, index, name)
    dims = {**template.transformer.model_dump(), **fields}
    vae, vae_assumed = vae_fields(root, template.vae)
    names, text_assumed = _text_encoders(root, index, template)
    shift, shift_assumed = schedule_shift(root)
    tasks = {
        name: {**task.model_dump(), "flow_shift": task.flow_shift if shift is None else shift}
        for name, task in template.tasks.items()
    }
    data = {
        **template.model_dump(),
        **_experts(index, root, template),
        "slug": _slug(name, template.slug),
        "title": name,
        "hf_id": str(root.resolve()),
        "aliases": (),
        "published_params": None,
        "transformer": without_none(dims),
        "vae": vae,
        "text_encoders": names,
        "tasks": tasks,
        "notes": (f"Read from configuration files; the rest is that of {template.slug}.",),
        "sources": (f"{INDEX} and component configurations of {name}", *template.sources),
    }
    data["tasks"] = {key: without_none(task) for key, task in data["tasks"].items()}
    model = checked(data, root)
    assumed = (
        "sizes, frames, steps, guidance and prompt lengths of the tasks",
        *vae_assumed,
        *text_assumed,
        *shift_assumed,
    )
    return Imported(model, template.slug, assumed)


def _slug(name: str, template: str) -> str:
    """The directory's name; engines know a model by the start of its slug."""
    slug = plain_slug(name)
    known = re.sub(r"[^a-z0-9]", "", slug).startswith(re.sub(r"[^a-z0-9]", "", template))
    return slug if known else f"{template}-{slug}".strip("-")


def _template(family: str, fields: dict[str, Any], index: dict[str, Any], name: str) -> ModelSpec:
    """The shipped model that agrees in most dimensions, then in experts, condition and name."""
    two = has(index, "transformer_2")
    conditioned = bool(CONDITIONED.search(str(index.get("_class_name"))))

    def agreement(model: ModelSpec) -> tuple[int, int, int, float]:
        same = sum(getattr(model.transformer, key) == value for key, value in fields.items())
        called = (model.slug, model.title, model.hf_id.rsplit("/", 1)[-1])
        likeness = max(_likeness(name, other) for other in called)
        takes = model.tasks[model.default_task].condition != "none"
        return same, int((model.experts > 1) == two), int(takes == conditioned), likeness

    return max((model for model in catalog.all_models() if model.family == family), key=agreement)


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one.lower(), other.lower()).ratio()


def _experts(index: dict[str, Any], root: Path, template: ModelSpec) -> dict[str, Any]:
    if not has(index, "transformer_2"):
        return {"experts": 1, "expert_boundary": None}
    boundary = index.get("boundary_ratio")
    if boundary is None:
        return {"experts": 2, "expert_boundary": template.expert_boundary}
    if isinstance(boundary, bool) or not isinstance(boundary, (int, float)) or not 0 < boundary < 1:
        what = f"boundary_ratio: {str(boundary)[:40]} is not between 0 and 1"
        raise refuse(str(root / INDEX), what)
    return {"experts": 2, "expert_boundary": float(boundary)}


def _text_encoders(
    root: Path, index: dict[str, Any], template: ModelSpec
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Encoders that are known by width and depth; else those of the template."""
    found: list[str] = []
    for part in TEXT_PARTS:
        if not has(index, part):
            continue
        name = known_encoder(root / part / "config.json", template.text_encoders)
        if name is None:
            return template.text_encoders, (f"{part}: those of {template.slug}",)
        found.append(name)
    if not found:
        return template.text_encoders, (f"text encoders: those of {template.slug}",)
    images = [n for n in template.text_encoders if not encoders.ENCODERS[n].is_text]
    return (*found, *images), ()
