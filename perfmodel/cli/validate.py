"""`perfmodel validate`: how far predictions are from measured records."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.limits import LIMIT_MISSED
from perfmodel.cli.output import page_columns
from perfmodel.cli.streams import few, put, warn
from perfmodel.errors import BadInput, Problem
from perfmodel.files import is_dir, is_file

if TYPE_CHECKING:
    from perfmodel.spec.hardware import Device

ROW_RULES = ("records-row", "records-duplicate")
"""Rules with a warning a row, of which only the first are shown."""

REASONS = 4
"""Reasons that one line lists."""

READS = "run records (JSONL), or folders and files of microbenchmark CSV (with --device)"


def command(
    records: Annotated[
        list[Path] | None,
        typer.Argument(help=f"{READS}; default: the shipped runs", metavar="[RECORDS]..."),
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="microbenchmarks: the device they were taken on")
    ] = None,
    fit: Annotated[
        Path | None,
        typer.Option("--fit", help="fit file; default: what calibrate wrote, else the shipped one"),
    ] = None,
    include_doubtful: Annotated[
        bool, typer.Option("--include-doubtful", help="runs: score doubtful rows too")
    ] = False,
    in_fit: Annotated[
        bool | None,
        typer.Option("--in-fit/--outside-fit", help="runs: only rows inside or outside every fit"),
    ] = None,
    fail_above: Annotated[
        list[str] | None,
        typer.Option("--fail-above", help="METRIC=PERCENT: exit 5 when the mean error is larger"),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option("--plot", help="runs: scatter plot as PNG (extra: plot)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="write the answer to a file")] = None,
) -> None:
    """Score predictions against measured records; never fits anything."""
    paths = records or list(shipped_runs())
    if paths and all(path.suffix in (".jsonl", ".json") for path in paths):
        _only_with("microbenchmark CSV", device=device, fit=fit)
        from perfmodel.validate.runs import METRICS

        limits = _limits(fail_above or [], METRICS)
        raise typer.Exit(_runs(paths, include_doubtful, in_fit, limits, plot, as_json, out))
    if gone := [path for path in paths if not path.exists()]:
        raise BadInput(*(_gone(path) for path in gone))
    if not all(_is_microbench(path) for path in paths):
        unread = [path for path in paths if not _is_microbench(path)]
        raise BadInput(*(_unread(path) for path in unread))
    _only_with("run records (JSONL)", plot=plot, include_doubtful=include_doubtful, in_fit=in_fit)
    if code := _microbench(paths, device, fit, fail_above or [], as_json, out):
        raise typer.Exit(code)


def _gone(path: Path) -> Problem:
    return Problem("records-missing", f"{path}: does not exist", "RECORDS", str(path))


def _only_with(what: str, **flags: object) -> None:
    """Refuse flags that would mean nothing for the other kind of records."""
    given = [name.replace("_", "-") for name, value in flags.items() if value not in (None, False)]
    if given:
        raise BadInput(*(Problem("usage", f"--{n} goes with {what}", f"--{n}") for n in given))


def _microbench(
    paths: list[Path],
    device: str | None,
    fit: Path | None,
    fail_above: list[str],
    as_json: bool,
    out: Path | None,
) -> int:
    from perfmodel.calibrate.laws_fit import KINDS
    from perfmodel.calibrate.score import table_lines, validate_microbench

    limits = _limits(fail_above, tuple(KINDS))
    hardware = _device(device)
    answer = validate_microbench(paths, hardware, _fit(fit or _beside(device, hardware), hardware))
    skipped = [
        (s["id"] if s["id"] in ROW_RULES else "records", s["reason"]) for s in answer["skipped"]
    ]
    warn(few(Problem(rule, reason, severity="warning") for rule, reason in skipped))
    warn(Problem("records", text, severity="warning") for text in answer["warnings"])
    text = json.dumps(answer, indent=1) if as_json else "\n".join(table_lines(answer))
    put(text + "\n", out)
    means = {name: found["mape"] for name, found in answer["metrics"].items()}
    return _exit_code(means, limits)


def shipped_runs() -> tuple[Path, ...]:
    """Run records of the data folders."""
    from perfmodel.catalog import data_files

    return data_files("calibration/runs/*.jsonl")


def _runs(
    paths: list[Path],
    include_doubtful: bool,
    in_fit: bool | None,
    limits: dict[str, float],
    plot: Path | None,
    as_json: bool,
    out: Path | None,
) -> int:
    from perfmodel.report.tables import render_text
    from perfmodel.report.validate_page import validate_page
    from perfmodel.validate.runs import fitted_ids, validate_runs

    answer = validate_runs(
        paths,
        include_doubtful=include_doubtful,
        fit_ids=fitted_ids(),
        in_fit=in_fit,
        progress=_progress,
    )
    warn(Problem("record", row, severity="warning") for row in answer.bad_rows)
    if plot is not None:
        from perfmodel.validate.plot import scatter

        scatter(answer, plot)
    if as_json:
        put(answer.model_dump_json() + "\n", out)
    else:
        put(render_text(validate_page(answer), page_columns(out)), out)
    missed = _exit_code({name: found.mape for name, found in answer.metrics.items()}, limits)
    if answer.predicted:
        return missed
    kinds = Counter(row.reason for row in answer.skipped).most_common(REASONS)
    why = "; ".join(f"{count}: {reason}" for reason, count in kinds) or "none is readable"
    warn([Problem("records", f"no record can be predicted ({why})", field="RECORDS")])
    return missed or BadInput.exit_code


def _exit_code(means: Mapping[str, float], limits: Mapping[str, float]) -> int:
    missed = [line for name, limit in limits.items() if (line := _missed(means, name, limit))]
    warn(Problem("fail-above", line, field="--fail-above") for line in missed)
    return LIMIT_MISSED if missed else 0


def _missed(means: Mapping[str, float], name: str, limit: float) -> str | None:
    """Why a stated limit is missed; one that nothing was measured against is."""
    mean = means.get(name)
    if mean is None:
        return f"{name} was measured by no scored record, so nothing is below {limit:g} %"
    return f"{name} {mean:.1f} % above {limit:g} %" if mean > limit else None


REQUEST = "request"


def _limits(texts: list[str], metrics: tuple[str, ...]) -> dict[str, float]:
    """``request=10`` as {metric: percent}."""
    limits: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        metric = "e2e" if name == REQUEST else name
        try:
            limits[metric] = float(value)
        except ValueError:
            metric = ""
        if metric not in metrics:
            names = [REQUEST if name == "e2e" else name for name in metrics]
            raise BadInput(
                Problem(
                    "fail-above",
                    f'--fail-above "{text}" is not METRIC=PERCENT; metrics: {", ".join(names)}; '
                    f"try --fail-above {names[0]}=10",
                    field="--fail-above",
                    value=text,
                )
            )
    return limits


def _progress(done: int, whole: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {whole} records", end="" if done < whole else "\n", file=sys.stderr)


def _is_microbench(path: Path) -> bool:
    """A CSV file, or a folder (which holds CSV files or is refused by the reader)."""
    return is_dir(path) or path.suffix.lower() == ".csv"


def _unread(path: Path) -> Problem:
    reason = "does not exist" if not is_file(path) else "is in no format that validate reads"
    return Problem(
        "records-format",
        f"{path} {reason}; it reads {READS}",
        field="RECORDS",
        value=str(path),
    )


def _device(name: str | None) -> Device:
    from perfmodel.catalog import load_device, read_device

    if name is None:
        raise BadInput(
            Problem(
                "option",
                "microbenchmarks need --device NAME (or a hardware YAML); "
                "list: perfmodel hardware list",
                field="--device",
            )
        )
    path = Path(name)
    return read_device(path) if path.suffix in (".yaml", ".yml") else load_device(name)


def _beside(name: str | None, device: Device) -> Path | None:
    """What `calibrate` wrote for a device file of the user's; None where a fit is found anyway."""
    from perfmodel.catalog import load_fit
    from perfmodel.cli.fit_place import own_fit_path

    if name is None or load_fit(device.id) is not None:
        return None
    path = own_fit_path(name, device)
    return path if path.is_file() else None


def _fit(path: Path | None, device: Device) -> dict[str, Any] | None:
    """A fit file as JSON; None takes the shipped one."""
    if path is None:
        return None
    from perfmodel.cost.fitcheck import device_problem, own_fit

    data = own_fit(path, device.id)
    if (found := device_problem(path, data, device.id)) is not None:
        warn((found,))
    return data
