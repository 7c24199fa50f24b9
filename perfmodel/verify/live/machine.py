"""Which device the prediction is for: the catalogue's, or one described by its own records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from perfmodel.calibrate import presets
from perfmodel.calibrate.cases import AttentionCase, Case
from perfmodel.calibrate.explore import Options
from perfmodel.calibrate.fitfile import fit_document, write_fit
from perfmodel.calibrate.measure import card, collectives, kernels
from perfmodel.calibrate.measure.bench import BenchRequest, run_bench
from perfmodel.calibrate.measure.device import Device
from perfmodel.calibrate.run import calibrate
from perfmodel.catalog import find, load_device, read_device
from perfmodel.errors import MissingData, Problem
from perfmodel.spec import hardware

DTYPE = "bf16"
OPS = ("gemm", "attention", "conv", "pointwise")
RECORDS, FIT = "records", "fit.json"
TRIALS = 20
BENCH_BUDGET_S = 0.03

Say = Callable[[str], None]


@dataclass(frozen=True)
class Known:
    """A device that can be predicted.

    Attributes:
        device: its description.
        fit: calibration file that was made for it here; None: the catalogue's.
    """

    device: hardware.Device
    fit: Path | None


def known_device(
    opened: Device, out: Path, ranks: int, threads: int, fit: Path | None, say: Say
) -> Known:
    """The description of `opened`.

    The catalogue (and ``PERFMODEL_PATH``) comes first; then what an earlier start measured into
    `out`; else a quick bench describes the device and fits its laws, about a minute.

    Args:
        opened: the device.
        out: folder of the verification.
        ranks: processes that will exchange messages.
        threads: CPU threads of each.
        fit: calibration of the user's own, which wins.
        say: gets a line about what happens.

    Raises:
        MissingData: several processes were started from outside on a device nobody described.
    """
    identity = card.catalogue_id(opened)
    if identity is None and find("hardware", card.device_id(opened)) is not None:
        identity = card.device_id(opened)
    if identity is not None:
        return Known(load_device(identity), fit)
    records = out / RECORDS
    path = records / "hardware" / f"{card.device_id(opened)}.yaml"
    own = records / FIT
    if not (path.is_file() and (own.is_file() or fit)):
        if collectives.under_torchrun():
            raise MissingData(_undescribed(opened))
        say(f"{opened.name} is not in the catalogue: a quick bench describes it, in {records}")
        path = _measure(opened, records, ranks, threads)
    return Known(read_device(path), fit or own)


def _measure(opened: Device, records: Path, ranks: int, threads: int) -> Path:
    report = run_bench(
        BenchRequest(
            out=records,
            device=opened.kind,
            ops=(*OPS, "collective") if ranks > 1 else OPS,
            cases=tuple(_cases(opened, ranks)),
            resume=True,
            ranks=ranks,
            threads=threads,
            budget_s=BENCH_BUDGET_S,
            compiled=False,
        )
    )
    if report.device_file is None:
        raise MissingData(_undescribed(opened))
    described = read_device(report.device_file)
    result = calibrate([records], described, Options(trials=TRIALS))
    write_fit(fit_document(result), records / FIT)
    return report.device_file


def _cases(opened: Device, ranks: int) -> list[Case]:
    """The quick preset in one dtype, with torch's first choice of attention."""
    scale: presets.Scale = "cpu" if opened.is_cpu else "accelerator"
    cases: list[Case] = [
        replace(case, kernel=kernels.first_choice(opened))
        if isinstance(case, AttentionCase)
        else case
        for op in OPS
        for case in presets.PRESETS[op]("quick", scale)
        if getattr(case, "dtype", DTYPE) == DTYPE
    ]
    sizes = collectives.group_sizes(collectives.World(0, ranks, ranks)) if ranks > 1 else []
    return cases + presets.collective_cases("quick", scale, sizes)


def _undescribed(opened: Device) -> Problem:
    return Problem(
        "live-device",
        f"{opened.name} is not in the catalogue; describe it first: perfmodel bench --out records, "
        f"perfmodel calibrate --records records --device records/hardware/"
        f"{card.device_id(opened)}.yaml, then PERFMODEL_PATH=records",
        field="--gpus",
        value=opened.name,
    )


def software(opened: Device) -> str:
    """Versions, and on the CPU the threads."""
    threads = f", {torch.get_num_threads()} threads" if opened.is_cpu else ""
    return opened.software + threads
