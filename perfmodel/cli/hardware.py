"""``perfmodel hardware``: the accelerators that are known, their figures, and this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.output import show_found
from perfmodel.cli.streams import warn
from perfmodel.errors import BadInput, PerfmodelError, Problem

if TYPE_CHECKING:
    from perfmodel.report.page import Page
    from perfmodel.spec.hardware import Device

app = typer.Typer(no_args_is_help=True, help="Accelerators: list, show, check a file, detect.")

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_devices(json: Json = False) -> None:
    """All devices that are known, with their main figures."""
    from perfmodel import catalog
    from perfmodel.report.hardware_page import list_page, row_of

    def answer() -> Page | dict[str, Any]:
        warn(catalog.drafts(["hardware"]))
        devices = [catalog.load_device(name) for name in catalog.hardware_ids()]
        return {"devices": [row_of(one) for one in devices]} if json else list_page(devices)

    show_found(answer, json)


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Id, alias or a name that a tool prints.")],
    json: Json = False,
) -> None:
    """Every figure of one device with its source."""
    from perfmodel import catalog
    from perfmodel.report.hardware_page import show_page

    def answer() -> Page | dict[str, Any]:
        device, warning = catalog.resolve(name)
        if warning is not None:
            typer.echo(warning.line(), err=True)
        return device.model_dump(mode="json", exclude_defaults=True) if json else show_page(device)

    show_found(answer, json)


@app.command("check")
def check(
    files: Annotated[list[Path], typer.Argument(help="Hardware or --system YAML files.")],
    json: Json = False,
) -> None:
    """Read files strictly; every problem is one line with file and field."""

    def answer() -> Page | dict[str, Any]:
        problems: list[Problem] = []
        good: list[dict[str, str]] = []
        for path in files:
            try:
                good.append(_checked(path))
            except PerfmodelError as error:
                problems.extend(error.problems)
        if problems:
            raise BadInput(*problems)
        return (
            {"files": good} if json else _lines([f"{row['file']}: {row['what']}" for row in good])
        )

    show_found(answer, json)


@app.command("detect")
def detect(
    out: Annotated[Path | None, typer.Option("--out", help="Write the file here.")] = None,
    json: Json = False,
) -> None:
    """Describe this machine as a --system file (nvidia-smi, npu-smi or rocm-smi)."""
    from perfmodel.catalog.detect import detect as read
    from perfmodel.catalog.machine import system_yaml

    def answer() -> Page | dict[str, Any]:
        import dataclasses

        found = read()
        text = system_yaml(found)
        if out is not None:
            _write(out, text)
            return dataclasses.asdict(found) if json else _lines([f"wrote {out}"])
        return dataclasses.asdict(found) if json else _lines(text.splitlines())

    show_found(answer, json)


def _checked(path: Path) -> dict[str, str]:
    from perfmodel import catalog
    from perfmodel.catalog.machine import looks_like_machine

    if looks_like_machine(catalog.read_yaml(path, "hardware-file")):
        return {"file": str(path), "what": f"a good machine, {catalog.load_system(path).label}"}
    device: Device = catalog.read_device(path)
    warn([*catalog.collisions(path), *catalog.gaps(device)])
    return {"file": str(path), "what": f"a good device, {device.title}"}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            Problem("out", f"--out {path} cannot be written: {error.strerror}", field="--out")
        ) from None


def _lines(lines: list[str]) -> Page:
    from perfmodel.report.page import Code, Page

    return Page([Code("\n".join(lines))])
