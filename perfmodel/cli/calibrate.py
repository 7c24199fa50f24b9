"""`perfmodel calibrate`: fit the cost laws of a device to microbenchmark records."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.errors import BadInput, Problem

if TYPE_CHECKING:
    from perfmodel.calibrate.run import Calibration
    from perfmodel.spec.hardware import Device


def command(
    records: Annotated[
        list[Path], typer.Option("--records", help="folder of CSV files, or one file; repeatable")
    ],
    device: Annotated[str, typer.Option("--device", help="id in hardware/, or a hardware YAML")],
    out: Annotated[
        Path | None, typer.Option("--out", help="fit file; default calibration/fits/<device>.json")
    ] = None,
    trials: Annotated[int, typer.Option("--trials", min=1, help="trials of each law's study")] = 60,
    jobs: Annotated[
        int, typer.Option("--jobs", min=1, help="threads; more than 1 is not repeatable bit by bit")
    ] = 1,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0.1, help="seconds for each law's study")
    ] = None,
    storage: Annotated[
        str | None,
        typer.Option(
            "--storage",
            help="Optuna journal file or RDB URL; default calibration/studies/<device>.journal",
        ),
    ] = None,
    sampler: Annotated[str, typer.Option("--sampler", help="tpe, or cmaes")] = "tpe",
    polish: Annotated[bool, typer.Option(help="refine with scipy after the study")] = True,
    laws: Annotated[str, typer.Option("--laws", help="only these, e.g. gemm/bf16,attention")] = "",
    prior: Annotated[
        str | None, typer.Option("--prior", help="family that lends the laws without records")
    ] = None,
    extrapolation: Annotated[
        bool,
        typer.Option("--extrapolation", help="also fit without the top tenth of work and test it"),
    ] = False,
    excluded: Annotated[
        list[str] | None,
        typer.Option("--exclude", help="rows to leave out: collective:num_ranks=4,8; repeatable"),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="of the study")] = 20260901,
) -> None:
    """Fit the cost laws to RECORDS and write calibration/fits/<device>.json."""
    from perfmodel.calibrate.fitfile import check_writable
    from perfmodel.calibrate.run import calibrate
    from perfmodel.calibrate.study import Options, check_storage

    hardware = read_hardware(device)
    if sampler not in ("tpe", "cmaes"):
        raise BadInput(_choice("--sampler", sampler, ("tpe", "cmaes")))
    if prior is not None:
        _check_family(prior)
    target = out or Path("calibration") / "fits" / f"{hardware.id}.json"
    check_writable(target)
    options = Options(
        trials=trials,
        jobs=jobs,
        timeout_s=timeout,
        sampler=sampler,
        seed=seed,
        storage=storage or _default_storage(out, hardware.id),
        polish=polish,
    )
    check_storage(options.storage)
    result = calibrate(
        records,
        hardware,
        options,
        only=tuple(part.strip() for part in laws.split(",") if part.strip()),
        excluded=tuple(excluded or ()),
        extrapolation=extrapolation,
        progress=lambda name: typer.echo(f"fitting {name}", err=True),
    )
    _show(result, target, prior)


def _show(result: Calibration, target: Path, prior: str | None) -> None:
    """Warnings, the fit file, the report."""
    from perfmodel.calibrate.fitfile import fit_document, write_fit
    from perfmodel.calibrate.report import report_lines

    for problem in (*result.records.problems, *result.refused):
        typer.echo(problem.line(), err=True)
    document = fit_document(result, prior)
    older = write_fit(document, target)
    for line in report_lines(result, document):
        typer.echo(line)
    if older is not None:
        typer.echo(f"the fit that was there is kept as {older}", err=True)
    typer.echo(f"wrote {target}", err=True)


def read_hardware(name: str) -> Device:
    """A device of the catalogue, or the one of a hardware YAML file."""
    from perfmodel.catalog import load_device, read_device

    path = Path(name)
    return read_device(path) if path.suffix in (".yaml", ".yml") else load_device(name)


def _default_storage(out: Path | None, device_id: str) -> str:
    """A journal beside a given fit file, else in calibration/studies."""
    if out is not None:
        return str(out.with_suffix(".journal"))
    return str(Path("calibration") / "studies" / f"{device_id}.journal")


def _check_family(name: str) -> None:
    from perfmodel.cost.fits import load_priors

    families = tuple(sorted(load_priors().get("families", {})))
    if name not in families:
        raise BadInput(_choice("--prior", name, families))


def _choice(flag: str, value: str, legal: tuple[str, ...]) -> Problem:
    return Problem(
        "option",
        f'{flag} "{value}" is unknown; one of: {", ".join(legal)}',
        field=flag,
        value=value,
        legal_values=legal,
    )
