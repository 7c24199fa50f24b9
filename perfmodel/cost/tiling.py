"""The kernels of a library whose order of tiles is known: which one runs, and what it reads again.

CUTLASS walks the tiles of a product along the side with fewer of them (its raster heuristic), one
line of thread-block clusters after the other, so the operand along that side is read again for
every line.  Lines that run at once share one reading as long as their blocks stay in step.

A library takes a faster kernel, or a better order, from some size on: just below that size the
larger product would be the faster one.  The law then takes the time of the larger product, so that
time grows with every dimension by construction: each `Way` raises the shape to where it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from perfmodel.cost.result import FloatArray

Tiles = tuple[tuple[int, int], ...]

TILES: dict[str, Tiles] = {
    "blackwell": ((64, 64), (128, 64), (128, 128), (128, 256), (256, 128), (256, 256)),
    "hopper": ((64, 64), (64, 128), (128, 128), (128, 256), (256, 128)),
}
DEFAULT_TILES: Tiles = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))
"""(rows, columns) of the tiles that a library may choose, by family, where it is not known more."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a library.

    Attributes:
        tiles: (rows, columns) of the outputs that one multiprocessor computes at a time.
        line_rows, line_columns: outputs that one cluster covers: the height or width of a line.
        turn: tiles run along m where ``n * turn > m``: rows over columns of a counted tile.
        from_m, from_k: smallest shape that the library gives it.
    """

    tiles: Tiles
    line_rows: float
    line_columns: float
    turn: float
    from_m: float = 0.0
    from_k: float = 0.0

    @property
    def area(self) -> float:
        """Outputs of the largest tile."""
        return float(max(rows * columns for rows, columns in self.tiles))


KERNELS: dict[tuple[str, str], tuple[Kernel, ...]] = {
    ("hopper", "fp8"): (
        Kernel(((64, 64), (64, 128), (128, 128)), 256.0, 128.0, 1.0),
        Kernel(((256, 128),), 512.0, 128.0, 2.0, from_m=8192.0, from_k=6144.0),
    ),
    ("blackwell", "fp8"): (Kernel(((64, 64), (128, 64), (128, 128)), 256.0, 256.0, 1.0),),
}
"""By architecture family and dtype.  fp8: CUTLASS kernels of vLLM 0.24.0, which measured the rows
(csrc/libtorch_stable/quantization/w8a8/cutlass/c3x, scaled_mm_sm90_fp8_dispatch.cuh and
scaled_mm_sm100_fp8_dispatch.cuh): on sm90 ping-pong 128 x 128 tiles in clusters of 2 x 1, and from
m = 8192 and k = 6144 cooperative 256 x 128 tiles; on sm100 tiles of 256 x 128 over two
multiprocessors in clusters of 2 x 2.  The measured rows change at the same sizes."""


@dataclass(frozen=True, slots=True)
class Way:
    """A kernel and the side its tiles run along, at the nearest shape that it serves."""

    kernel: Kernel
    along_m: bool
    m: FloatArray
    n: FloatArray
    k: FloatArray


def ways(kernels: tuple[Kernel, ...], m: FloatArray, n: FloatArray, k: FloatArray) -> Iterator[Way]:
    """Every kernel in both orders, each at the smallest shape that holds the product and has it."""
    for kernel in kernels:
        high, deep = np.maximum(m, kernel.from_m), np.maximum(k, kernel.from_k)
        yield Way(kernel, True, high, np.maximum(n, high / kernel.turn), deep)
        yield Way(kernel, False, np.maximum(high, n * kernel.turn), n, deep)


def passes(way: Way, multiprocessors: float, in_step: FloatArray) -> FloatArray:
    """How often the operand along the lines is read, at least once.

    Lines over those that run at once; of these the share `in_step` (0 to 1) reads together.
    """
    kernel = way.kernel
    across, line = (way.n, kernel.line_columns) if way.along_m else (way.m, kernel.line_rows)
    along = way.m if way.along_m else way.n
    lines = across / line
    at_once = np.maximum(multiprocessors * kernel.area / (np.maximum(along, 1.0) * line), 1.0)
    result: FloatArray = np.maximum(lines / (1.0 + (at_once - 1.0) * in_step), 1.0)
    return result
