"""What costing an operator returns, and the helpers that all laws share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

BOUNDS = ("matrix", "exp", "memory", "link", "latency", "host")
MATRIX, EXP, MEMORY, LINK, LATENCY, HOST = range(len(BOUNDS))

UNIQUE_ABOVE = 1024
"""Rows from which looking for repeated dimensions is cheaper than costing all of them."""


@dataclass(frozen=True, slots=True)
class Costed:
    """Time of one execution of an operator, per configuration.

    Attributes:
        time_each_s: seconds; exactly 0 where the operator does not run.
        roof_s: lower bound at max(datasheet, best measured) rates.
        bound_code: index into `BOUNDS` of what limits each row.
        flops_each, bytes_each: work of one execution.
        provenance: ``fitted``, ``prior`` or ``datasheet``: that of the weakest input.
        extrapolated: rows outside the range of the records behind the law.
        law: name of the law used.
        guessed: rows that are priors whatever `provenance` says of the others; None: no row.
    """

    time_each_s: FloatArray
    roof_s: FloatArray
    bound_code: NDArray[np.int8]
    flops_each: FloatArray
    bytes_each: FloatArray
    provenance: str
    extrapolated: NDArray[np.bool_]
    law: str = ""
    guessed: NDArray[np.bool_] | None = None

    @property
    def bound(self) -> str:
        """What limits the row that takes longest."""
        return self.bound_at(int(np.argmax(self.time_each_s)))

    def bound_at(self, index: int) -> str:
        """What limits row `index` (scalars broadcast)."""
        codes = np.broadcast_to(self.bound_code, self.time_each_s.shape)
        return BOUNDS[int(codes.flat[index if codes.size > 1 else 0])]


def as_float(value: object) -> FloatArray:
    """A float64 array of any int or float input."""
    return np.asarray(value, np.float64)


def p_max(first: FloatArray, second: FloatArray, power: float) -> FloatArray:
    """Smooth maximum ``(a^p + b^p)^(1/p)``: monotone in both, at least the larger."""
    high = np.maximum(first, second)
    low = np.minimum(first, second)
    ratio = np.divide(low, high, out=np.zeros_like(high), where=high > 0)
    result: FloatArray = high * (1.0 + ratio**power) ** (1.0 / power)
    return result


def on_distinct(
    law: Callable[..., tuple[FloatArray, ...]], columns: Mapping[str, object]
) -> tuple[FloatArray, ...]:
    """Evaluate `law(**columns)` once per distinct row and spread the results.

    Columns broadcast against each other; long ones are reduced to their distinct rows by a
    64-bit hash, which is verified (a collision falls back to all rows).
    """
    arrays = {name: np.asarray(value) for name, value in columns.items()}
    shape = np.broadcast_shapes(*(a.shape for a in arrays.values()))
    size = int(np.prod(shape)) if shape else 1
    varying = {name: a for name, a in arrays.items() if a.size > 1}
    if size < UNIQUE_ABOVE or not varying:
        return law(**_spread(arrays, shape))
    flat = {name: np.broadcast_to(a, shape).reshape(-1) for name, a in varying.items()}
    key = np.zeros(size, np.uint64)
    for column in flat.values():
        key = key * np.uint64(0x9E3779B97F4A7C15) + _bits(column)
        key ^= key >> np.uint64(29)
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    if any(not np.array_equal(c[first][inverse], c) for c in flat.values()):
        return law(**_spread(arrays, shape))
    few = {name: flat[name][first] if name in flat else a for name, a in arrays.items()}
    results = law(**{name: np.broadcast_to(a, first.shape) for name, a in few.items()})
    return tuple(np.broadcast_to(r, first.shape)[inverse].reshape(shape) for r in results)


def _spread(
    arrays: Mapping[str, NDArray[np.generic]], shape: tuple[int, ...]
) -> dict[str, NDArray[np.generic]]:
    return {
        name: a if a.shape == shape else np.broadcast_to(a, shape) for name, a in arrays.items()
    }


def _bits(column: NDArray[np.generic]) -> NDArray[np.uint64]:
    if column.dtype.kind == "f":
        return np.ascontiguousarray(column, np.float64).view(np.uint64)
    return column.astype(np.int64).view(np.uint64)


def outside(
    ranges: Mapping[str, tuple[float, float]], dims: Mapping[str, FloatArray]
) -> NDArray[np.bool_]:
    """Rows with a dimension outside the fitted range (False where no range is known)."""
    flag = np.zeros((), bool)
    for name, values in dims.items():
        if name in ranges:
            low, high = ranges[name]
            flag = flag | (values < low) | (values > high)
    return np.asarray(flag)
