"""`perfmodel calibrate`: fit kernel laws to microbenchmarks, or engine terms to whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perfmodel.cli.fit_place import home_of, own_fit_path
from perfmodel.cli.streams import few, warn
from perfmodel.errors import BadInput, Problem
from perfmodel.files import as_word

if TYPE_CHECKING:
    from perfmodel.calibrate.run import Calibration
    from perfmodel.spec.hardware import Device

Paths = list[Path] | None
Texts = list[str] | None
LAW_TRIALS = 60
RUN_TRIALS = 12
ONLY_LAWS = ("device", "laws", "prior", "extrapolation", "excluded", "no_p2p", "sockets")
"""Arguments that mean nothing for whole runs."""

RecordsFlag = Annotated[
    Paths, typer.Option("--records", help="folder of CSV files, or one file; repeatable")
]
RunsFlag = Annotated[
    Paths, typer.Option("--runs", help="measured whole runs (JSONL): fit engine terms; repeatable")
]
DeviceFlag = Annotated[
    str | None, typer.Option("--device", help="id in hardware/, or a hardware YAML")
]
EngineFlag = Annotated[
    Texts, typer.Option("--engine", help="runs: only the terms of this engine; repeatable")
]
OutFlag = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="fit file, default calibration/fits/<device>.json, in your folder that describes the "
        "device or here; with --runs the folder of terms files, default calibration/engines",
    ),
]
TrialsFlag = Annotated[
    int | None,
    typer.Option(
        "--trials", min=1, help=f"trials of each study; {LAW_TRIALS}, with --runs {RUN_TRIALS}"
    ),
]
JobsFlag = Annotated[
    int,
    typer.Option(
        "--jobs",
        min=1,
        help="threads of a law's study (more than 1 is not repeatable bit by bit); with --runs "
        "processes",
    ),
]
TimeoutFlag = Annotated[
    float | None, typer.Option("--timeout", min=0.1, help="seconds for each study")
]
StorageFlag = Annotated[
    str | None,
    typer.Option(
        "--storage",
        help="Optuna journal file or RDB URL; default calibration/studies/<device>.journal, beside "
        "a given --out, with --runs calibration/studies/engines.journal",
    ),
]
SamplerFlag = Annotated[str, typer.Option("--sampler", help="tpe, or cmaes")]
PolishFlag = Annotated[bool, typer.Option(help="refine with scipy after the study")]
LawsFlag = Annotated[
    str,
    typer.Option("--laws", help="only these, e.g. gemm/bf16,attention; the fit keeps its others"),
]
PriorFlag = Annotated[
    str | None, typer.Option("--prior", help="family that lends the laws without records")
]
ExtrapolationFlag = Annotated[
    bool,
    typer.Option("--extrapolation", help="also fit without the top tenth of work and test it"),
]
ExcludeFlag = Annotated[
    Texts,
    typer.Option("--exclude", help="rows to leave out: collective:num_ranks=4,8; repeatable"),
]
NoPeersFlag = Annotated[
    bool,
    typer.Option(
        "--no-p2p", help="the collectives went through host memory: no peer access; kept in the fit"
    ),
]
SocketsFlag = Annotated[
    int | None,
    typer.Option(
        "--sockets", min=1, max=16, help="CPUs of the host of the collectives; kept in the fit"
    ),
]
SeedFlag = Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="of the study")]


def command(
    records: RecordsFlag = None,
    device: DeviceFlag = None,
    runs: RunsFlag = None,
    engine: EngineFlag = None,
    out: OutFlag = None,
    trials: TrialsFlag = None,
    jobs: JobsFlag = 1,
    timeout: TimeoutFlag = None,
    storage: StorageFlag = None,
    sampler: SamplerFlag = "tpe",
    polish: PolishFlag = True,
    laws: LawsFlag = "",
    prior: PriorFlag = None,
    extrapolation: ExtrapolationFlag = False,
    excluded: ExcludeFlag = None,
    no_p2p: NoPeersFlag = False,
    sockets: SocketsFlag = None,
    seed: SeedFlag = 20260901,
) -> None:
    """Fit cost laws to RECORDS of a device, or engine terms to measured whole RUNS."""
    given = dict(locals())
    _check(given)
    if runs:
        from perfmodel.cli.calibrate_runs import fit_engines

        study = out / "engines.journal" if out else _study(Path(), "engines")
        options = _options(given, RUN_TRIALS, str(study))
        fit_engines(runs, engine or [], options, out or Path("calibration") / "engines")
    else:
        _fit_device(given)


def _check(given: dict[str, Any]) -> None:
    """One of two inputs, with the flags that belong to it."""
    found: list[Problem] = []
    if bool(given["runs"]) == bool(given["records"]):
        found.append(
            Problem(
                "usage",
                "calibrate takes either --records with --device (microbenchmarks) or --runs "
                "(measured whole runs)",
                field="--records",
            )
        )
    elif given["records"] and not given["device"]:
        found.append(Problem("usage", "--records needs --device, its name", field="--device"))
    elif given["records"] and given["engine"]:
        found.append(Problem("usage", "--engine goes with --runs", field="--engine"))
    elif given["runs"]:
        found += [
            Problem("usage", f"{name} goes with --records", field=name)
            for name in (_flag(key) for key in ONLY_LAWS if given[key])
        ]
    if given["sampler"] not in ("tpe", "cmaes"):
        found.append(_choice("--sampler", given["sampler"], ("tpe", "cmaes")))
    if found:
        raise BadInput(*found)


def _flag(name: str) -> str:
    return f"--{name.replace('excluded', 'exclude').replace('_', '-')}"


def _options(given: dict[str, Any], trials: int, storage: str) -> Any:
    """Options of the studies; a storage that cannot be used is refused."""
    from perfmodel.calibrate.explore import Options, check_storage

    options = Options(
        trials=given["trials"] or trials,
        jobs=given["jobs"],
        timeout_s=given["timeout"],
        sampler=given["sampler"],
        seed=given["seed"],
        storage=given["storage"] or storage,
        polish=given["polish"],
    )
    check_storage(options.storage)
    return options


def _fit_device(given: dict[str, Any]) -> None:
    """Fit the laws of a device and write them."""
    from perfmodel.calibrate.fitfile import check_writable, read_older
    from perfmodel.calibrate.run import calibrate
    from perfmodel.catalog import Overrides

    hardware = read_hardware(given["device"])
    if given["prior"] is not None:
        _check_family(given["prior"])
    home = home_of(given["device"], hardware)
    target = given["out"] or own_fit_path(given["device"], hardware)
    check_writable(target)
    only = tuple(part.strip() for part in given["laws"].split(",") if part.strip())
    older = read_older(target, hardware.id, only) if only and target.exists() else None
    study = given["out"].with_suffix(".journal") if given["out"] else _study(home, hardware.id)
    result = calibrate(
        given["records"],
        hardware,
        _options(given, LAW_TRIALS, str(study)),
        only=only,
        excluded=tuple(given["excluded"] or ()),
        host=Overrides(p2p=False if given["no_p2p"] else None, sockets=given["sockets"]),
        extrapolation=given["extrapolation"],
        progress=lambda name: typer.echo(f"fitting {name}", err=True),
    )
    _show(result, target, given["prior"], older)


def _show(
    result: Calibration, target: Path, prior: str | None, older: dict[str, Any] | None
) -> None:
    """Warnings, the fit file, the report."""
    from perfmodel.calibrate.fitfile import fit_document, write_fit
    from perfmodel.calibrate.report import report_lines

    document = fit_document(result, prior, older)
    moved = write_fit(document, target)
    warn(few((*result.records.problems, *result.refused)))
    for line in report_lines(result, document):
        typer.echo(line)
    if moved is not None:
        typer.echo(f"the fit that was there is kept as {moved}", err=True)
    typer.echo(f"wrote {target}{_how_to_use(target)}", err=True)


def read_hardware(name: str) -> Device:
    """A device of the catalogue, or the one of a hardware YAML file."""
    from perfmodel.catalog import load_device, read_device

    path = Path(name)
    return read_device(path) if path.suffix in (".yaml", ".yml") else load_device(name)


def _study(home: Path, name: str) -> Path:
    return home / "calibration" / "studies" / f"{name}.journal"


def _how_to_use(target: Path) -> str:
    """What makes predictions take a fit that lies where none is looked for."""
    from perfmodel.catalog import data_roots

    folder = target.resolve().parent
    if folder in [(root / "calibration" / "fits").resolve() for root in data_roots()]:
        return ""
    if folder.parts[-2:] == ("calibration", "fits"):
        return f"; to use it: PERFMODEL_PATH={as_word(folder.parent.parent)}"
    return f"; to use it: --fit {as_word(target)}"


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
