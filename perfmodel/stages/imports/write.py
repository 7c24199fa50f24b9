"""Model files of the user: where they go, and their text."""

from __future__ import annotations

import os
from pathlib import Path

import yaml

from perfmodel.catalog.data import PATH_VARIABLE
from perfmodel.errors import BadInput, Problem
from perfmodel.spec.model import ModelSpec

LINE = 100


def prepare_folder(out: Path | None) -> None:
    """Create the first folder of PERFMODEL_PATH where a model file is to go there.

    Raises:
        BadInput: it cannot be created.
    """
    own = _own_folders()
    if out is not None or not own:
        return
    folder = Path(own[0]).expanduser() / "models"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        message = f"{folder}, of {PATH_VARIABLE}, cannot be created: {error.strerror}"
        raise BadInput(Problem("models-import", message, field=PATH_VARIABLE)) from None


def _own_folders() -> list[str]:
    parts = os.environ.get(PATH_VARIABLE, "").split(os.pathsep)
    return [part for part in parts if part.strip()]


def write_model(model: ModelSpec, out: Path | None) -> Path:
    """Write the file of a model.

    Args:
        model: what to write.
        out: a ``.yaml`` file or a folder; None: ``models`` in the first folder of PERFMODEL_PATH.

    Raises:
        BadInput: nowhere to write to.
    """
    target = _target(model, out)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(model_text(model), encoding="utf-8")
    except OSError as error:
        message = f"{target}: cannot be written: {error.strerror}"
        raise BadInput(Problem("models-import", message, field="--out")) from None
    return target


def model_text(model: ModelSpec) -> str:
    """The model file: what differs from the defaults of the format."""
    data = model.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(data, sort_keys=False, width=LINE, default_flow_style=None)


def _target(model: ModelSpec, out: Path | None) -> Path:
    if out is not None:
        return out if out.suffix in (".yaml", ".yml") else out / f"{model.slug}.yaml"
    own = _own_folders()
    if not own:
        raise BadInput(
            Problem(
                "models-import",
                f"nowhere to write {model.slug}.yaml: give --out FILE or set {PATH_VARIABLE}",
                field="--out",
                suggestions=(f"--out {model.slug}.yaml",),
            )
        )
    return Path(own[0]).expanduser() / "models" / f"{model.slug}.yaml"
