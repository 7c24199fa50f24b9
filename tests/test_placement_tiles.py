"""Tiles and dealing against brute force and published grids."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.placement.tiles import Tiling, deal, edges


def brute_force_tiles(height: int, width: int, size: int, stride: int) -> list[tuple[int, int]]:
    """The slicing loop of a tiled decode, written out."""
    grid = np.zeros((height, width))
    return [
        grid[top : top + size, left : left + size].shape
        for top in range(0, height, stride)
        for left in range(0, width, stride)
    ]


@given(
    st.integers(1, 60),
    st.integers(1, 60),
    st.integers(2, 20),
    st.integers(1, 20),
    st.integers(1, 8),
)
def test_dealing_matches_the_slicing_loop_and_loses_no_tile(height, width, size, step, ranks):
    tiling = Tiling(size, min(step, size))
    dealing = deal(height, width, ranks, tiling)
    step = tiling.stride if max(height, width) > tiling.size else tiling.size
    expected = brute_force_tiles(height, width, tiling.size, step)
    kinds = list(zip(dealing.heights.tolist(), dealing.widths.tolist(), strict=True))
    got = [k for k, n in zip(kinds, dealing.counts.sum(axis=0), strict=True) for _ in range(n)]
    assert sorted(got) == sorted(expected)
    assert dealing.counts.shape[0] == ranks


def brute_force_longest_first(areas: list[int], ranks: int) -> list[int]:
    load = [0] * ranks
    for area in sorted(areas, reverse=True):
        lightest = min(range(ranks), key=lambda r: (load[r], r))
        load[lightest] += area
    return sorted(load)


@given(st.integers(1, 50), st.integers(1, 90), st.integers(1, 9))
def test_loads_are_those_of_longest_first(height, width, ranks):
    tiling = Tiling(16, 12 if max(height, width) > 16 else 16)
    dealing = deal(height, width, ranks, tiling)
    loads = dealing.counts @ (dealing.heights * dealing.widths)
    areas = [a * b for a, b in product(edges(height, tiling), edges(width, tiling))]
    assert sorted(loads.tolist()) == brute_force_longest_first(areas, ranks)


def test_longest_first_is_within_four_thirds_of_the_best_possible():
    tiling = Tiling(16, 12)
    areas = [a * b for a, b in product(edges(30, tiling), edges(26, tiling))]
    best = min(
        max(sum(a for a, r in zip(areas, assignment, strict=True) if r == rank) for rank in (0, 1))
        for assignment in product((0, 1), repeat=len(areas))
    )
    dealing = deal(30, 26, 2, tiling)
    assert (dealing.counts @ (dealing.heights * dealing.widths)).max() <= best * 4 / 3


@pytest.mark.parametrize(
    ("ranks", "max_tiles", "max_area"), [(1, 28, 5928), (2, 14, 2992), (4, 7, 1552), (8, 4, 784)]
)
def test_720p_grid_of_the_wan22_vae(ranks, max_tiles, max_area):
    # 45 x 80 latent positions, 256 px tiles every 192 px at 16 px a position: 4 x 7 tiles.
    dealing = deal(45, 80, ranks, Tiling(16, 12))
    assert dealing.grid == (4, 7)
    assert dealing.max_tiles == max_tiles
    assert (dealing.counts @ (dealing.heights * dealing.widths)).max() == max_area


def test_untiled_map_stays_whole():
    dealing = deal(45, 80, 1, None)
    assert dealing.heights.tolist() == [45]
    assert dealing.widths.tolist() == [80]
    assert dealing.tiles == 1


def test_a_map_that_one_tile_covers_is_not_cut():
    for ranks in (1, 4):
        dealing = deal(16, 12, ranks, Tiling(16, 12))
        assert (dealing.tiles, dealing.seams) == (1, 0)


def test_patches_of_a_covered_map_cover_it_with_half_their_side_around():
    # 128 x 128 over four ranks: quarters of 64 with a halo of 32 towards the inside.
    dealing = deal(128, 128, 4, Tiling(128, 96, halo=16))
    assert dealing.counts.sum(axis=1).tolist() == [1, 1, 1, 1]
    assert (dealing.heights.tolist(), dealing.widths.tolist()) == ([96], [96])
    assert dealing.grid == (2, 2)
    # Two ranks: halves of 64 columns, the shorter side halved around.
    halves = deal(128, 128, 2, Tiling(128, 96, halo=16))
    assert (halves.heights.tolist(), halves.widths.tolist()) == ([128], [96])
