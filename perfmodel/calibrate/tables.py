"""The tables of ``calibration/README.md``: ``python -m perfmodel.calibrate.tables``.

Rewrites the parts between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``: the accuracy of the
shipped fits, what each parameter means, and the engine terms that runs have fitted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perfmodel.catalog import data_roots
from perfmodel.cost import attention, gemm, media, pointwise, protocols, quantize, transfer
from perfmodel.cost.fits import Parameter
from perfmodel.units import PERCENT

COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("product bf16, large", "gemm/bf16", "m>=4096 n,k>=2048"),
    ("product bf16, 20 us and more", "gemm/bf16", "latency>=20us"),
    ("product bf16, below 20 us", "gemm/bf16", "latency<20us"),
    ("product fp8, large", "gemm/fp8", "m>=4096 n,k>=2048"),
    ("product fp8 block, large", "gemm/fp8_block", "m>=4096 n,k>=2048"),
    ("product int8, large", "gemm/int8", "m>=4096 n,k>=2048"),
    ("product nvfp4, large", "gemm/nvfp4", "m>=4096 n,k>=2048"),
    ("attention, 4096 tokens and more", "attention/bf16", "seq>=4096"),
    ("attention, shorter", "attention/bf16", "seq<4096"),
    ("ring collectives, 2 MiB and more", "collective/ring", "bytes>=2MiB"),
    ("ring collectives, smaller", "collective/ring", "bytes<2MiB"),
    ("all_to_all, 2 MiB and more", "collective/all_to_all", "bytes>=2MiB"),
)

EXTRAPOLATED = (
    "gemm/bf16",
    "gemm/fp8",
    "attention/bf16",
    "collective/ring",
    "collective/all_to_all",
)
PAIR_ONLY = ("switch_s", *protocols.HCCL_ONLY)
PARAMETER_TABLES: tuple[tuple[str, tuple[Parameter, ...]], ...] = (
    (
        "gemm; conv, where it was measured, without `strip`, `cache_frac`, `l2_gain`, "
        "`host_floor_s`, `pitch_frac` and `beside_frac`",
        gemm.PARAMETERS,
    ),
    (
        "gemm, low-precision dtypes: besides (without `split_s`, `pitch_frac`, `beside_frac`)",
        gemm.QUANTISED_PARAMETERS[-4:],
    ),
    ("gemm, fp8: besides those", gemm.FP8_PARAMETERS[-1:]),
    ("attention", attention.PARAMETERS),
    ("collective, shared by its operations", protocols.RING_SHARED),
    (
        "collective, all_to_all: the first seven of these, but",
        tuple(p for p in protocols.PAIR_PARAMETERS if p.name in PAIR_ONLY),
    ),
    ("collective, of each operation", protocols.OWN_PARAMETERS),
    ("quantize", quantize.PARAMETERS),
    ("pointwise", pointwise.PARAMETERS),
    ("transfer", transfer.PARAMETERS),
    ("media", media.PARAMETERS),
)


def accuracy_table(fits: Iterable[Mapping[str, Any]]) -> str:
    """Held-out mean errors by device and size class, and the extrapolation, in percent."""
    fits = list(fits)
    devices = [fit["device"] for fit in fits]
    lines = [
        "| held-out rows, mean error in % (rows) | " + " | ".join(devices) + " |",
        "|---|" + "---|" * len(devices),
    ]
    for title, law, size in COLUMNS:
        cells = [_cell(fit, law, size) for fit in fits]
        if any(cell != "-" for cell in cells):
            lines.append(f"| {title} | " + " | ".join(cells) + " |")
    for law in EXTRAPOLATED:
        cells = [_beyond(fit, law) for fit in fits]
        lines.append(f"| top tenth of work unseen: {law} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(fit: Mapping[str, Any], law: str, size: str) -> str:
    entry = fit["laws"].get(law, {}).get("heldout", {}).get("by", {}).get("size", {}).get(size)
    return f"{entry['mape']:.1f} ({entry['n']})" if entry else "-"


def _beyond(fit: Mapping[str, Any], law: str) -> str:
    entry = fit["laws"].get(law, {}).get("extrapolation")
    return f"{entry['mape']:.1f} ({entry['n']})" if entry else "-"


def parameter_tables() -> str:
    """What each parameter means and its bounds."""
    blocks = []
    for title, parameters in PARAMETER_TABLES:
        rows = [f"**{title}**", "", "| parameter | bounds | meaning |", "|---|---|---|"]
        rows += [f"| `{p.name}` | {_bounds(p)} | {p.meaning} |" for p in parameters]
        blocks.append("\n".join(rows))
    return "\n\n".join(blocks)


def engine_table(files: Iterable[Mapping[str, Any]]) -> str:
    """Runs behind each engine's terms, and errors of unseen sources before and after the fit."""
    lines = [
        "| terms of | runs | independent | sources | unseen sources, error in % | fitted terms |",
        "|---|---|---|---|---|---|",
    ]
    for data in files:
        about = data["fit"]
        error = {name: _percent(found) for name, found in about["held_out"].items()}
        fitted = [n for n, term in data["terms"].items() if term["provenance"] == "fitted"]
        cells = (
            data["engine"],
            about["rows"],
            about["independent_rows"],
            about["sources"],
            " to ".join(error.values()) or about["kept"][""],
            ", ".join(f"`{name}`" for name in fitted) or "none",
        )
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def _percent(found: Mapping[str, float]) -> str:
    return f"{found['weighted'] * PERCENT:.1f}"


def term_table(files: Iterable[Mapping[str, Any]]) -> str:
    """Every fitted engine term: its prior, its value and the runs that identify it."""
    lines = [
        "| term | of | prior | fitted | bounds | runs | sources |",
        "|---|---|---|---|---|---|---|",
    ]
    for data in files:
        for name, term in data["terms"].items():
            if term["provenance"] == "fitted" and "records" in term:
                bound = ", at its bound" if term["at_bound"] else ""
                cells = (
                    f"`{name}`",
                    data["engine"],
                    f"{term['prior']:g}",
                    f"{term['value']:g}{bound}",
                    f"{term['low']:g} to {term['high']:g}",
                    term["rows"],
                    term["sources"],
                )
                lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines)


def shipped_terms(folder: Path) -> list[dict[str, Any]]:
    """Terms files that a fit wrote, by name."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return [data for data in found if "fit" in data]


def _bounds(p: Parameter) -> str:
    if p.grid:
        return ", ".join(f"{value:g}" for value in p.grid)
    return f"{p.low:g} to {p.high:g}"


def fill(text: str, name: str, content: str) -> str:
    """`text` with the part called `name` replaced."""
    pattern = re.compile(rf"(<!-- begin {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
    return pattern.sub(lambda found: f"{found[1]}{content}\n{found[2]}", text)


def shipped_fits(folder: Path) -> list[dict[str, Any]]:
    """Current fits (not the kept older ones), by name."""
    paths = sorted(path for path in folder.glob("*.json") if path.name.count(".") == 1)
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]


def main() -> None:
    """Rewrite the tables of the README."""
    root = Path(data_roots()[0]) / "calibration"
    target = root / "README.md"
    text = target.read_text(encoding="utf-8")
    text = fill(text, "accuracy", accuracy_table(shipped_fits(root / "fits")))
    terms = shipped_terms(root / "engines")
    text = fill(text, "parameters", parameter_tables())
    text = fill(text, "engines", engine_table(terms))
    target.write_text(fill(text, "terms", term_table(terms)), encoding="utf-8")


if __name__ == "__main__":
    main()
