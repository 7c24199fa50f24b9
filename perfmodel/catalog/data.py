"""Reads the data folders: shipped files, and the user's own through ``PERFMODEL_PATH``."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from perfmodel import files
from perfmodel.catalog.problems import validated
from perfmodel.errors import BadInput, PerfmodelError, Problem
from perfmodel.spec.hardware import Device

if TYPE_CHECKING:
    from pydantic import BaseModel

    from perfmodel.spec.model import ModelSpec

PATH_VARIABLE = "PERFMODEL_PATH"
NEAREST = 3
_FITS = "calibration/fits"
_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Entry:
    """One device or model file and everything it is called.

    A file of the user's that cannot be read is called by its file name; `problems` says why.
    """

    id: str
    title: str
    names: tuple[str, ...]
    path: Path
    problems: tuple[Problem, ...] = ()

    @property
    def called(self) -> dict[str, str]:
        """Simple forms of its title and names, and how they are written."""
        return {simple(name): name for name in (self.title, *self.names)}


class _UniqueKeys(yaml.CSafeLoader):
    """A key written twice is an error, not a silent overwrite."""


def _unique_mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            mark = node.value[index][0].start_mark
            raise yaml.MarkedYAMLError(problem=f'"{key}" is written twice', problem_mark=mark)
    return loader.construct_mapping(node, deep=True)


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def data_roots() -> tuple[Path, ...]:
    """Folders laid out like the repository, in rising precedence: shipped data first.

    Raises:
        BadInput: an entry of ``PERFMODEL_PATH`` is not a folder.
    """
    return _roots(os.environ.get(PATH_VARIABLE, ""))


@cache
def _roots(variable: str) -> tuple[Path, ...]:
    own = [Path(part).expanduser() for part in variable.split(os.pathsep) if part.strip()]
    bad = [path for path in own if not files.is_dir(path)]
    if bad:
        raise BadInput(
            *(
                Problem(
                    "data-path",
                    f'"{path}" in {PATH_VARIABLE} is not a folder; it lists folders that hold '
                    "hardware/, models/ or calibration/",
                    field=PATH_VARIABLE,
                    value=str(path),
                )
                for path in bad
            )
        )
    inside = _PACKAGE / "_data"
    return (inside if inside.is_dir() else _PACKAGE.parent, *own)


def read_yaml(path: Path, rule_id: str, label: str | None = None) -> dict[str, Any]:
    """One YAML mapping; keys written twice are refused.

    Raises:
        BadInput: unreadable, broken or not a mapping; the line is named.
    """
    label = label or str(path)
    try:
        data = files.read_yaml(path, _UniqueKeys)
    except files.Unreadable as error:
        line = f" line {error.line}:" if error.line else ""
        raise BadInput(Problem(rule_id, f"{label}:{line} {error}", field=label)) from None
    if not isinstance(data, dict):
        raise BadInput(Problem(rule_id, f"{label}: a mapping of fields is needed", field=label))
    return data


def simple(name: str) -> str:
    """A name without case, spaces and punctuation, for comparing."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def entry(data: dict[str, Any]) -> dict[str, Any]:
    """What the index keeps of one file: id, title and everything people may call it."""
    names = [data.get("hf_id"), *(data.get("names") or ()), *(data.get("aliases") or ())]
    identity = data.get("id") or data.get("slug")
    return {
        "id": identity,
        "title": data.get("title") or identity,
        "names": [name for name in names if name],
    }


def entries(folder: str) -> dict[str, Entry]:
    """All files of `folder` (``hardware`` or ``models``) by id, user files over shipped ones."""
    return _entries(folder, data_roots())


@cache
def _entries(folder: str, roots: tuple[Path, ...]) -> dict[str, Entry]:
    found: dict[str, Entry] = {}
    for path, item in _shipped(roots[0] / folder):
        found[item["id"]] = Entry(item["id"], item["title"], tuple(item["names"]), path)
    for root in roots[1:]:
        for path in sorted((root / folder).glob("*.yaml")):
            one = _own(folder, path)
            found[one.id] = one
    return found


def _own(folder: str, path: Path) -> Entry:
    """A file of the user's; one that is broken takes its name's place, and says so when asked."""
    try:
        _check_file(folder, path)
        item = entry(read_yaml(path, f"{folder}-file"))
    except PerfmodelError as error:
        return Entry(path.stem, path.stem, (), path, error.problems)
    return Entry(item["id"], item["title"], tuple(item["names"]), path)


def _shipped(folder: Path) -> list[tuple[Path, dict[str, Any]]]:
    index = folder / "index.json"
    if not index.is_file():
        paths = sorted(folder.glob("*.yaml"))
        return [(path, entry(read_yaml(path, "data-file"))) for path in paths]
    items = json.loads(index.read_text(encoding="utf-8"))["entries"]
    return [(folder / f"{item['id']}.yaml", item) for item in items]


def _check_file(folder: str, path: Path) -> None:
    if folder == "hardware":
        read_device(path)
    else:
        read_model(path)


@cache
def _names(folder: str, roots: tuple[Path, ...]) -> dict[str, str]:
    """Simple name to id; an id always means itself, and names of user files win over others."""
    names: dict[str, str] = {}
    files = _entries(folder, roots)
    for item in sorted(files.values(), key=lambda one: not one.path.is_relative_to(roots[0])):
        names.update(dict.fromkeys(item.called, item.id))
    names.update({simple(item.id): item.id for item in files.values()})
    return names


def find(folder: str, name: str) -> Entry | None:
    """The file that `name` (id, alias, title, tool-printed) means, or None."""
    identity = _names(folder, data_roots()).get(simple(name)) if simple(name) else None
    return entries(folder)[identity] if identity else None


def nearest(folder: str, name: str, count: int = NEAREST) -> tuple[str, ...]:
    """Titles most like `name`, best first; `find` understands each of them."""
    wanted = simple(name)
    scored: dict[str, float] = {}
    for item in entries(folder).values():
        called = {simple(item.id), simple(item.title)}
        score = max(SequenceMatcher(None, wanted, other).ratio() for other in called)
        scored[item.title] = max(score, scored.get(item.title, 0.0))
    best = sorted(scored, key=lambda title: (-scored[title], title))
    return tuple(title for title in best[:count] if scored[title] > 0.3)


def read_device(path: Path) -> Device:
    """A hardware file, checked; its id must be its file name."""
    label = f"{path.parent.name}/{path.name}"
    label = str(path) if not _is_shipped(path) else label
    device = validated(Device, read_yaml(path, "hardware-file", label), label, "hardware-file")
    _same_id(device.id, path, label, "hardware-file", "id")
    return device


def read_model(path: Path) -> ModelSpec:
    """A model file, checked."""
    from perfmodel.spec.model import ModelSpec

    label = f"{path.parent.name}/{path.name}" if _is_shipped(path) else str(path)
    model: type[BaseModel] = ModelSpec
    spec = validated(model, read_yaml(path, "models-file", label), label, "models-file")
    assert isinstance(spec, ModelSpec)
    return spec


def _is_shipped(path: Path) -> bool:
    return path.is_relative_to(_roots("")[0])


def _same_id(identity: str, path: Path, label: str, rule_id: str, field: str) -> None:
    if path.stem != identity:
        raise BadInput(
            Problem(
                rule_id,
                f'{label}: {field}: "{identity}" differs from the file name; call the file '
                f"{identity}.yaml",
                field=f"{label}: {field}",
                value=identity,
            )
        )


@cache
def _device(path: Path) -> Device:
    return read_device(path)


@cache
def _model(path: Path) -> ModelSpec:
    return read_model(path)


@cache
def _imported(path: Path) -> ModelSpec:
    # Named as text: the reader lies above the catalogue, whose shipped models it fills in from.
    reader = import_module("perfmodel.stages.imports.directory")
    model: ModelSpec = reader.read_directory(path).model
    return model


def hardware_ids() -> tuple[str, ...]:
    """Ids of all devices that can be read."""
    return _readable("hardware")


def model_ids() -> tuple[str, ...]:
    """Slugs of all models that can be read."""
    return _readable("models")


def _readable(folder: str) -> tuple[str, ...]:
    return tuple(name for name, item in entries(folder).items() if not item.problems)


def load_device(name: str) -> Device:
    """The device called `name` (id, alias, or a name that a tool prints).

    Raises:
        BadInput: no such device (the nearest are named), or a broken file.
    """
    item = find("hardware", name)
    if item is None:
        raise BadInput(unknown_device(name))
    return _device(item.path)


OWN_DEVICE = "your own: DIR/hardware/ID.yaml and PERFMODEL_PATH=DIR, then its ID"
"""How a device that is not in the catalogue is named."""


def unknown_device(name: str) -> Problem:
    """The refusal of an accelerator that is not in the catalogue."""
    near = nearest("hardware", name)
    hint = f" nearest: {', '.join(near)};" if near else ""
    return Problem(
        "gpu-name",
        f'no accelerator "{name}";{hint} list: perfmodel hardware list; {OWN_DEVICE}',
        field="--gpus",
        value=name,
        suggestions=near,
    )


def load_model(name: str) -> ModelSpec:
    """The model called `name`: slug, alias, HF id (with or without owner), a file or a directory.

    A directory in the diffusers format is read by `perfmodel.stages.imports`; where the catalogue
    knows the bare name of one, the catalogue's model is meant (``./name`` is the directory).

    Raises:
        BadInput: no such model (the nearest are named), or a broken file.
    """
    path = Path(name)
    if files.is_dir(path) and _means_directory(name):
        return _imported(path.resolve())
    if path.suffix in (".yaml", ".yml") and files.is_file(path):
        return read_model(path)
    item = find("models", name) or find("models", name.rstrip("/").rsplit("/", 1)[-1])
    if item is None:
        near = nearest("models", name)
        hint = f" nearest: {', '.join(near)};" if near else ""
        raise BadInput(
            Problem(
                "model-name",
                f'no model "{name}";{hint} list: perfmodel models list; '
                "your own: --model FILE.yaml",
                field="--model",
                value=name,
                suggestions=near,
            )
        )
    return _model(item.path)


def _means_directory(name: str) -> bool:
    if name.startswith((".", "/")):
        return True
    if not files.is_file(Path(name) / "model_index.json"):
        return False
    return "/" in name or find("models", name) is None


def all_models() -> tuple[ModelSpec, ...]:
    """All models of the catalogue, from its files: directories of their names play no part."""
    return tuple(_model(entries("models")[slug].path) for slug in model_ids())


def data_files(pattern: str) -> tuple[Path, ...]:
    """Files under all data roots that match `pattern`, e.g. ``calibration/runs/*.jsonl``."""
    return tuple(path for root in data_roots() for path in sorted(root.glob(pattern)))


def load_fit(device_id: str) -> dict[str, Any] | None:
    """The kernel fit of a device (``calibration/fits/<id>.json``), or None if there is none."""
    return json_file(_FITS, device_id)


def shadowing_file(device_id: str) -> Path | None:
    """The user's file of a shipped device whose shipped fit is used with it; else None."""
    item, shipped = find("hardware", device_id), data_roots()[0]
    fits = [root for root in data_roots() if (root / _FITS / f"{device_id}.json").is_file()]
    if item is None or fits[-1:] != [shipped] or item.path.is_relative_to(shipped):
        return None
    return item.path


def json_file(folder: str, stem: str) -> dict[str, Any] | None:
    """The object in ``<folder>/<stem>.json`` of the last data root that has it."""
    for root in reversed(data_roots()):
        path = root / folder / f"{stem}.json"
        if path.is_file():
            return _json(path)
    return None


@cache
def _json(path: Path) -> dict[str, Any]:
    try:
        data = files.read_json(path)
    except files.Unreadable as error:
        raise BadInput(Problem("data-file", f"{path}: {error}", field=str(path))) from None
    if isinstance(data, dict):
        return data
    raise BadInput(Problem("data-file", f"{path}: a JSON object is needed", field=str(path)))
