"""Selecting cases from a shape whose numbers may be columns."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.shapes import Shape


def take_shape(shape: Shape, index: NDArray[np.intp]) -> Shape:
    """`shape` at some rows: columns are indexed, scalars stay."""
    picked = {
        f.name: value[index]
        for f in fields(shape)
        if isinstance(value := getattr(shape, f.name), np.ndarray)
    }
    return replace(shape, **picked)  # type: ignore[arg-type]
