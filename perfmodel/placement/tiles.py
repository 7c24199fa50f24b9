"""VAE tiles: the overlapping grid, and dealing whole tiles to ranks, longest first.

A map of ``H x W`` latent rows and columns is cut every `stride` into tiles of `size` that are cut
off at the far edge (never shifted). A map that one tile covers is not cut; where an engine still
divides it (the two-dimensional VAE), each rank takes a patch with a halo. Tiles go to the least
loaded rank in order of falling area, ties to the lowest rank (vLLM-Omni 0.30.0,
``distributed/autoencoders``).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Tiling:
    """Tile edge and step in map units (latent rows for decode, pixels for encode).

    `halo`: least rows around the patch of a rank when one tile covers the map; None: not divided.
    """

    size: int
    stride: int
    halo: int | None = None


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
    if max(height, width) <= tiling.size:
        if ranks > 1 and tiling.halo is not None:
            return _patches(height, width, ranks, tiling.halo)
        tiling = Tiling(tiling.size, tiling.size)
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


def _patches(height: int, width: int, ranks: int, halo: int) -> Dealing:
    """One patch a rank, on the squarest grid; a halo is at least half a patch's shorter side.

    Source: vLLM-Omni 0.30.0 ``autoencoder_kl.py patch_split``.
    """
    rows = next(r for r in range(int(ranks**0.5), 0, -1) if ranks % r == 0)
    columns = ranks // rows
    shapes = []
    for row in range(rows):
        for column in range(columns):
            top, bottom = row * height // rows, (row + 1) * height // rows
            left, right = column * width // columns, (column + 1) * width // columns
            around = max(halo, min(bottom - top, right - left) // 2)
            tall = min(height, bottom + around) - max(0, top - around)
            wide = min(width, right + around) - max(0, left - around)
            shapes.append((tall, wide))
    kinds = sorted(set(shapes))
    counts = np.zeros((ranks, len(kinds)), np.int64)
    for rank, shape in enumerate(shapes):
        counts[rank, kinds.index(shape)] = 1
    found = np.array(kinds, np.int64)
    return Dealing(found[:, 0], found[:, 1], counts, (rows, columns))
