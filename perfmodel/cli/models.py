"""``perfmodel models``: the models that are known, their weights, shapes and work; your own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.output import show_found
from perfmodel.cli.streams import warn
from perfmodel.errors import BadInput, Problem

if TYPE_CHECKING:
    from perfmodel.report.page import Page
    from perfmodel.spec.model import ModelSpec
    from perfmodel.spec.workload import Workload

app = typer.Typer(no_args_is_help=True, help="Models: list, show, import your own.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
SMALLEST_SIDE, LARGEST_SIDE = 16, 16_384
LONGEST = 10_000


@app.command("list")
def list_models(json: Json = False) -> None:
    """All models with their tasks and the defaults of the first one."""
    from perfmodel import catalog
    from perfmodel.report.models_page import list_page

    def answer() -> Page | dict[str, Any]:
        warn(catalog.drafts(["models"]))
        rows = [_row(model) for model in catalog.all_models()]
        return {"models": rows} if json else list_page(rows)

    show_found(answer, json)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Slug, alias, checkpoint id or a YAML file.")],
    size: Annotated[str | None, typer.Option("--size", help="WIDTHxHEIGHT.")] = None,
    frames: Annotated[int | None, typer.Option("--frames", min=1, max=LONGEST)] = None,
    task: Annotated[str | None, typer.Option("--task", help="t2v, i2v, t2i, ...")] = None,
    json: Json = False,
) -> None:
    """One model: tasks, weights by component, tokens, FLOP by stage and kind, sources."""
    from perfmodel.report.models_page import show_page

    def answer() -> Page | dict[str, Any]:
        model = _load(name)
        found = _document(model, _workload(model, size, frames, task))
        return found if json else show_page(found)

    show_found(answer, json)


@app.command("import")
def import_model(
    path: Annotated[Path, typer.Argument(help="Directory in the diffusers format (no weights).")],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File or folder; else models/ in the first PERFMODEL_PATH."),
    ] = None,
    json: Json = False,
) -> None:
    """Describe a diffusers directory as a model file: dimensions read, the rest assumed.

    A transformer class of no known family is traced on meta tensors where torch and diffusers are
    installed: its operators become the file, marked traced (one GPU, guidance parallelism, Ulysses
    and ring).
    """
    from perfmodel.report.models_page import import_page

    def answer() -> Page | dict[str, Any]:
        found = _import(path, out)
        return found if json else import_page(found)

    show_found(answer, json)


def _import(path: Path, out: Path | None) -> dict[str, Any]:
    from perfmodel.spec.workload import Workload
    from perfmodel.stages.imports.directory import read_directory
    from perfmodel.stages.imports.write import prepare_folder, write_model

    prepare_folder(out)
    imported = read_directory(path)
    model = imported.model
    written = write_model(model, out)
    return {
        **_document(model, Workload(model=model.slug)),
        "written": str(written),
        "template": imported.template,
        "taken_over": list(imported.assumed),
    }


def _load(name: str) -> ModelSpec:
    from perfmodel import catalog, files

    path = Path(name)
    is_file = path.suffix in (".yaml", ".yml") and files.is_file(path)
    return catalog.read_model(path) if is_file else catalog.load_model(name)


def _workload(model: ModelSpec, size: str | None, frames: int | None, task: str | None) -> Workload:
    from perfmodel.spec.workload import Workload

    width, height = _sides(size) if size is not None else (None, None)
    return Workload(model=model.slug, task=task, width=width, height=height, frames=frames)


def _sides(size: str) -> tuple[int, int]:
    found = SIZE.fullmatch(size.strip().lower())
    sides = tuple(int(side) for side in found.groups()) if found else (0, 0)
    if not all(SMALLEST_SIDE <= side <= LARGEST_SIDE for side in sides):
        legal = f"{SMALLEST_SIDE} to {LARGEST_SIDE} pixels a side"
        raise BadInput(
            Problem(
                "size",
                f'--size "{size}" is not WIDTHxHEIGHT with {legal}; try --size 1280x720',
                field="--size",
                value=size,
                legal_values=(legal,),
                suggestions=("--size 1280x720",),
            )
        )
    return sides[0], sides[1]


def _row(model: ModelSpec) -> dict[str, Any]:
    from perfmodel.stages import family

    first = model.tasks[model.default_task]
    return {
        "slug": model.slug,
        "title": model.title,
        "hf_id": model.hf_id,
        "family": model.family,
        "tasks": list(model.tasks),
        "distilled": model.distilled,
        "params": sum(component.params for component in family(model).components(model)),
        "size": f"{first.width}x{first.height}",
        "frames": first.frames,
        "steps": first.steps,
        "guidance": first.guidance,
        "aliases": list(model.aliases),
    }


def _document(model: ModelSpec, workload: Workload) -> dict[str, Any]:
    from perfmodel.stages import family
    from perfmodel.stages.base import Traits
    from perfmodel.stages.summary import request_flops

    traits = Traits()
    shape = family(model).shape(model, workload, traits)
    described = model.model_dump(mode="json")
    return {
        **described,
        "components": _components(model),
        "shape": {
            key: getattr(shape, key)
            for key in shape.__dataclass_fields__
            if key not in ("notes", "assumed")
        },
        "assumed": list(shape.assumed),
        "shape_notes": [note.message for note in shape.notes],
        "flops": request_flops(model, shape, traits),
    }


def _components(model: ModelSpec) -> list[dict[str, Any]]:
    from perfmodel.stages import family
    from perfmodel.units import BITS_PER_BYTE

    return [
        {
            "name": component.name,
            "kind": component.kind,
            "params": component.params,
            "bytes": component.params * component.bits // BITS_PER_BYTE,
            "blocks": component.blocks,
            "block_params": component.block_params,
            "tp_params": component.tp_params,
            "when": list(component.when),
        }
        for component in family(model).components(model)
    ]
