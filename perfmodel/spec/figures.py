"""A number with its evidence, and the bounds that catch a slipped prefix."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from perfmodel.errors import MissingData, Problem

Kind = Literal["datasheet", "measured", "derived", "prior"]
Number = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]
Count = Annotated[int, Field(strict=True, ge=1, le=100_000)]
Text = Annotated[str, Field(strict=True, min_length=1)]


class Strict(BaseModel):
    """Frozen, and unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Alternative(Strict):
    """What another source says about the same figure."""

    value: Number
    source: Text
    kind: Kind
    note: Text | None = None


class Figure(Strict):
    """One number with its evidence; ``value`` null: the source says there is none."""

    value: Number | None
    source: Text
    kind: Kind
    note: Text | None = None
    alternatives: tuple[Alternative, ...] = ()


_MEASURED_LOW_FRAC = 0.01


def _within(low: float, high: float, unit: str, hint: str) -> AfterValidator:
    """Refuse a figure outside what hardware of this decade can do: a slipped prefix.

    A measured figure may be a hundred times lower: that is what a few CPU cores reach.
    """

    def check(figure: Figure) -> Figure:
        least = low * (_MEASURED_LOW_FRAC if figure.kind == "measured" else 1.0)
        for value in (figure.value, *(other.value for other in figure.alternatives)):
            if value is not None and not least <= value <= high:
                raise ValueError(
                    f"{value:g} {unit} is not plausible, expected {least:.0e} to {high:.0e}; {hint}"
                )
        return figure

    return AfterValidator(check)


Rate = Annotated[Figure, _within(1e9, 5e16, "FLOP/s", "989 TFLOP/s is written 9.89e+14")]
ExpRate = Annotated[Figure, _within(1e9, 1e14, "exp/s", "10.7 tera is written 1.07e+13")]
Bandwidth = Annotated[Figure, _within(1e9, 5e13, "B/s", "3.35 TB/s is written 3.35e+12")]
LinkRate = Annotated[
    Figure, _within(1e8, 5e12, "B/s", "per device and direction; 450 GB/s is 4.5e+11")
]
NetworkRate = Annotated[
    Figure, _within(1e8, 4e11, "B/s", "per device and direction; 400 Gb/s is 5e+10")
]
Capacity = Annotated[Figure, _within(5e8, 2e13, "B", "80 GB is written 8.0e+10")]
CacheSize = Annotated[Figure, _within(5e5, 2e9, "B", "50 MB is written 5.0e+7")]
Units = Annotated[Figure, _within(1, 2000, "units", "multiprocessors, compute units or cube cores")]
Clock = Annotated[Figure, _within(2e8, 5e9, "Hz", "1980 MHz is written 1.98e+9")]
Power = Annotated[Figure, _within(5, 5000, "W", "watts of one device")]


def value_of(figure: Figure) -> float:
    """The number of a figure that must exist.

    Raises:
        MissingData: the figure is null.
    """
    if figure.value is None:
        raise MissingData(Problem("no-figure", f"a hardware figure is null ({figure.source})"))
    return figure.value
