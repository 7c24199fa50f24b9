"""VAE tiles: the overlapping grid, and dealing whole tiles to ranks, longest first.

A map of ``H x W`` latent rows and columns is cut every `stride` into tiles of `size` that are cut
off at the far edge (never shifted).  Tiles go to the least loaded rank in order of falling area,
ties to the lowest rank (vLLM-Omni 0.30.0, ``distributed/autoencoders``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tile edge and step in map units (latent rows for decode, pixels for encode)."""

    size: int
    stride: int


@dataclass(frozen=True, slots=True)
class Dealing:
    """Which tile shapes each rank decodes.

    Attributes:
        heights, widths: the distinct tile shapes, ``[kinds]``.
        counts: tiles of each shape on each rank, ``[ranks, kinds]``.
        grid: tile rows and columns.
    """

    heights: NDArray[np.int64]
    widths: NDArray[np.int64]
    counts: NDArray[np.int64]
    grid: tuple[int, int]

    @property
    def max_tiles(self) -> int:
        """Most tiles on one rank: the gather pads every rank to it."""
        return int(self.counts.sum(axis=1).max())

    @property
    def seams(self) -> int:
        """Neighbouring pairs of tiles."""
        rows, columns = self.grid
        return (rows - 1) * columns + rows * (columns - 1)

    @property
    def tiles(self) -> int:
        """All tiles."""
        return int(self.counts.sum())


def edges(extent: int, tiling: Tiling) -> tuple[int, ...]:
    """Tile edges along one axis: ``min(size, extent - start)`` at every step."""
    return tuple(min(tiling.size, extent - start) for start in range(0, extent, tiling.stride))


@lru_cache(maxsize=4096)
def deal(height: int, width: int, ranks: int, tiling: Tiling | None) -> Dealing:
    """Cut a map and deal its tiles to `ranks` ranks; None leaves the map whole on every rank."""
    if tiling is None:
        whole = np.array([[1]], np.int64)
        return Dealing(np.array([height]), np.array([width]), whole, (1, 1))
    rows, columns = edges(height, tiling), edges(width, tiling)
    tiles = [(h, w) for h in rows for w in columns]
    kinds = sorted(set(tiles))
    counts = np.zeros((ranks, len(kinds)), np.int64)
    load = [0] * ranks
    # Python's sort is stable, so equal areas keep their raster order as in the engine.
    for tile in sorted(tiles, key=lambda t: -t[0] * t[1]):
        rank = load.index(min(load))
        load[rank] += tile[0] * tile[1]
        counts[rank, kinds.index(tile)] += 1
    shapes = np.array(kinds, np.int64)
    return Dealing(shapes[:, 0], shapes[:, 1], counts, (len(rows), len(columns)))
