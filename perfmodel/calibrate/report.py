"""What a calibration prints: accuracy, achieved rates, worst shapes, parameters at bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfmodel.calibrate.run import Calibration, FittedLaw
from perfmodel.units import PERCENT


def report_lines(result: Calibration, document: Mapping[str, Any]) -> Iterator[str]:
    """Plain text, at most 100 columns."""
    rows = sum(f.rows for f in result.records.files)
    yield (
        f"{result.device.title}  fit {result.device.id}@{document['fit_id']}  {rows:,} rows of "
        f"{result.records.seen:,} from {len(result.records.files)} files"
    )
    yield ""
    yield (
        f"  {'law':<26}{'rows':>7}{'fit':>7}{'held out':>10}{'median':>8}{'9 of 10':>9}"
        f"{'bias':>7}{'of peak':>9}{'beyond':>8}"
    )
    yield f"  {'':<26}{'':>7}{'%':>7}{'%':>10}{'%':>8}{'% below':>9}{'%':>7}{'%':>9}{'%':>8}"
    for fitted in result.laws:
        yield _line(fitted)
        yield from _classes(fitted)
    yield ""
    yield from _bounds(result)
    yield "  worst held-out shapes"
    for fitted in result.laws:
        for place, shape, error in fitted.worst[:1]:
            yield f"    {fitted.law.name:<24} {error:+.0f} %  {shape}  ({place})"


def _line(fitted: FittedLaw) -> str:
    held = fitted.heldout
    peak = "-" if fitted.achieved_frac is None else f"{fitted.achieved_frac * PERCENT:.0f}"
    beyond = "-" if fitted.extrapolation is None else f"{fitted.extrapolation['mape']:.1f}"
    return (
        f"  {fitted.law.name:<26}{len(fitted.law.rows):>7,}{fitted.train['mape']:>7.1f}"
        f"{held['mape']:>10.1f}{held['median_ape']:>8.1f}{held['p90_ape']:>9.1f}"
        f"{held['bias']:>+7.1f}{peak:>9}{beyond:>8}"
    )


def _classes(fitted: FittedLaw) -> Iterator[str]:
    by: Any = fitted.heldout["by"]
    for name, error in by["size"].items():
        yield (
            f"    {name:<24}{error['n']:>7,}{'':>7}{error['mape']:>10.1f}"
            f"{error['median_ape']:>8.1f}{error['p90_ape']:>9.1f}{error['bias']:>+7.1f}"
        )


def _bounds(result: Calibration) -> Iterator[str]:
    for fitted in result.laws:
        if fitted.found.at_bounds:
            yield f"  at a bound: {fitted.law.name}: {', '.join(fitted.found.at_bounds)}"
