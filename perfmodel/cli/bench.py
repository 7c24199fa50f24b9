"""`perfmodel bench`: measure the device at hand."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.streams import put, say, warn
from perfmodel.errors import BadInput, MissingData, Problem, needs
from perfmodel.files import as_word

if TYPE_CHECKING:
    from perfmodel.calibrate.cases import Case
    from perfmodel.calibrate.measure.bench import BenchReport, BenchRequest, Progress

SCHEMA_VERSION = "1.0"
SHOWN_REASONS = 8
PRESETS = ("quick", "full")
COMPILED = {"auto": None, "on": True, "off": False}


def command(
    out: Annotated[Path, typer.Option("--out", help="folder of the records")] = Path("records"),
    device: Annotated[
        str | None, typer.Option("--device", help="cuda, npu or cpu; default: the first there is")
    ] = None,
    ops: Annotated[
        str, typer.Option("--ops", help="only these, e.g. gemm,attention; default: all")
    ] = "",
    preset: Annotated[str, typer.Option("--preset", help="quick or full")] = "quick",
    for_model: Annotated[
        str | None,
        typer.Option("--for", help="the shapes this model runs on --gpus, instead of a preset"),
    ] = None,
    gpus: Annotated[
        str | None, typer.Option("--gpus", help="with --for: 4xB300, 2x8xH100, ...")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="go on with the records in --out")
    ] = False,
    ranks: Annotated[
        int, typer.Option("--ranks", min=0, help="processes for collectives; 0: all devices")
    ] = 0,
    threads: Annotated[
        int, typer.Option("--threads", min=0, help="CPU threads of torch; 0: torch's choice")
    ] = 0,
    budget: Annotated[
        float, typer.Option("--budget", min=0.0, help="seconds for one shape; 0: the preset's")
    ] = 0.0,
    compiled: Annotated[
        str, typer.Option("--compiled", help="also torch.compile: auto (on GPUs), on or off")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Measure this device with torch and write records that `perfmodel calibrate` reads."""
    _check(preset, compiled, for_model, gpus)
    first = os.environ.get("RANK", "0") == "0"
    if first:
        _check_folder(out)
    cases = _model_cases(for_model, str(gpus)) if for_model else None
    from perfmodel.calibrate.measure.bench import BenchRequest

    request = BenchRequest(
        out=out,
        device=device,
        ops=tuple(part.strip() for part in ops.split(",") if part.strip()),
        preset="full" if preset == "full" else "quick",
        cases=cases,
        resume=resume,
        ranks=ranks,
        threads=threads,
        budget_s=budget,
        compiled=COMPILED[compiled],
    )
    _show(_run(request, first), as_json)


def _run(request: BenchRequest, first: bool) -> BenchReport:
    """Measure, with a bar; say where the records are when interrupted."""
    from perfmodel.calibrate.measure.bench import run_bench

    try:
        with _progress(first) as progress:
            return run_bench(request, progress)
    except KeyboardInterrupt:
        if first:
            say(f"interrupted: the records so far are in {request.out}; go on with --resume")
        raise


def _show(report: BenchReport, as_json: bool) -> None:
    """The summary on stdout, once under torchrun.

    Raises:
        MissingData: not a single row.
    """
    if report.rank > 0:
        return
    warn(report.warnings)
    put(json.dumps(_document(report), indent=1) + "\n" if as_json else _text(report))
    if report.records == 0:
        raise MissingData(_nothing(report))


def _check(preset: str, compiled: str, for_model: str | None, gpus: str | None) -> None:
    """All problems of the flags, before torch is loaded.

    Raises:
        BadInput: values out of their lists, half of a pair, or torch is missing.
    """
    problems = [
        Problem(
            f"bench-{flag}",
            f'--{flag} "{value}" is unknown; one of: {", ".join(legal)}',
            field=f"--{flag}",
            value=value,
            legal_values=tuple(legal),
        )
        for flag, value, legal in (("preset", preset, PRESETS), ("compiled", compiled, COMPILED))
        if value not in legal
    ]
    if (for_model is None) != (gpus is None):
        message = (
            "--for MODEL and --gpus NxNAME belong together; try --for cosmos3-nano --gpus 4xB300"
        )
        problems.append(Problem("bench-for", message, field="--for", value=for_model))
    if find_spec("torch") is None:
        problems.append(Problem("bench-torch", needs("bench", "torch", "bench")))
    if problems:
        raise BadInput(*problems)


def _check_folder(out: Path) -> None:
    """Refuse a folder that cannot be written before anything is measured; none is made.

    Raises:
        BadInput: a file stands where a folder belongs, or this user may not write there.
    """
    there = next((path for path in (out, *out.absolute().parents) if path.exists()), Path("/"))
    if there.is_dir() and os.access(there, os.W_OK):
        return
    reason = f"{there} may not be written" if there.is_dir() else f"{there} is a file"
    message = f"--out {out} cannot hold records: {reason}; name a folder of yours"
    raise BadInput(Problem("bench-out", message, field="--out", value=str(out)))


def _model_cases(model: str, gpus: str) -> tuple[Case, ...]:
    """The shapes of every legal configuration of the model's default request."""
    from perfmodel.api.session import open_session
    from perfmodel.api.table import legality, search_space
    from perfmodel.calibrate.model_shapes import model_cases
    from perfmodel.catalog import parse_gpus
    from perfmodel.spec.workload import Workload

    system = parse_gpus(gpus)
    warn(system.warnings)
    session = open_session(Workload(model=model), system)
    found = legality(session, search_space(session))
    return tuple(model_cases(session.job, found.layouts.take(found.legal)))


@contextmanager
def _progress(first: bool) -> Iterator[Progress]:
    """A bar with the time left on stderr; silent in other ranks, and where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    shown = first and sys.stderr.isatty()
    columns = (TextColumn("{task.description:<10}"), BarColumn(), MofNCompleteColumn())
    bar = Bar(*columns, TimeRemainingColumn(), console=console, disable=not shown)
    with bar:
        task = bar.add_task("bench", total=None)

        def update(op: str, finished: int, total: int) -> None:
            bar.update(task, description=op, completed=finished, total=total)

        yield update


def _text(report: BenchReport) -> str:
    lines = [f"{report.device}  {report.software}", ""]
    lines.append(f"  {'operator':<12}{'measured':>10}{'skipped':>10}{'done before':>13}")
    for op, (measured, skipped, before) in report.by_op.items():
        lines.append(f"  {op:<12}{measured:>10,}{skipped:>10,}{before:>13,}")
    for reason, count in sorted(report.reasons.items(), key=lambda item: -item[1])[:SHOWN_REASONS]:
        lines.append(f"  skipped {count:,}: {reason}")
    lines += ["", f"records in {report.out}/"]
    if report.device_file is not None:
        lines.append(f"this device is not in the catalogue; described in {report.device_file}")
    out = as_word(Path(report.out))
    lines.append(f"next: perfmodel calibrate --records {out} --device {_device(report)}")
    return "\n".join(lines) + "\n"


def _device(report: BenchReport) -> str:
    if report.device_file is not None:
        return as_word(Path(report.device_file))
    return report.device_id or "HARDWARE.yaml"


def _document(report: BenchReport) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "status": "ok" if report.records else "missing_data",
        "problems": [],
        "warnings": [problem.message for problem in report.warnings],
        "device": report.device,
        "device_id": report.device_id,
        "device_file": str(report.device_file) if report.device_file else None,
        "software": report.software,
        "out": str(report.out),
        "operators": {
            op: {"measured": measured, "skipped": skipped, "done_before": before}
            for op, (measured, skipped, before) in report.by_op.items()
        },
        "skipped_reasons": report.reasons,
    }


def _nothing(report: BenchReport) -> Problem:
    reason = next(iter(report.reasons), "no shape was chosen")
    message = f"nothing could be measured on {report.device}: {reason}"
    return Problem("bench-empty", message, field="--ops")
