"""The terms of the matrix-product law against closed forms and a simulated cache."""

from collections import OrderedDict
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import load_device
from perfmodel.cost import gemm, gemm_traffic
from perfmodel.cost.machine import Rates
from perfmodel.cost.tiling import KERNELS, Kernel, Way, passes, ways

RATES = Rates.of(load_device("h100-sxm"))
VALUES = {p.name: p.default for p in gemm.PARAMETERS}
QUANTISED = {p.name: p.default for p in gemm.QUANTISED_PARAMETERS}
FP8 = {p.name: p.default for p in gemm.FP8_PARAMETERS}
MIB = 1 << 20
SIZES = np.unique(np.geomspace(1, 200_000, 300).astype(np.int64)).astype(float)


def seconds(values, dtype, m, n, k, **more):
    return float(gemm.gemm_time_s(values, RATES, dtype, m, n, k, **more))


def loads_of_an_lru(m, n, k, strip, cache_bytes, width=2, columns=512):
    """Bytes of `w` loaded by a walk over all columns of a strip of rows, then the next strip."""
    held: OrderedDict[int, int] = OrderedDict()
    loaded = 0
    for _ in range(m // strip):
        for block in range(n // columns):
            if block in held:
                held.move_to_end(block)
                continue
            loaded += columns * k * width
            held[block] = columns * k * width
            while sum(held.values()) > cache_bytes:
                held.popitem(last=False)
    return loaded


@pytest.mark.parametrize(("k", "fits"), [(256, True), (16_384, False)])
def test_strips_read_again_what_a_least_recently_used_cache_has_lost(k, fits):
    m, n, strip = 65_536, 16_384, 512
    values = {**VALUES, "strip": strip / 2, "cache_frac": 0.5}
    again = loads_of_an_lru(m, n, k, strip, 0.5 * RATES.l2_bytes) - 2 * n * k
    found = float(gemm_traffic.reread_bytes(values, RATES, "bf16", *map(np.asarray, (m, n, k))))
    if fits:
        assert again == 0
        assert found < 0.05 * 2 * n * k * (m / strip - 1)
    else:
        assert found == pytest.approx(again, rel=0.01)


def test_strips_take_the_cheaper_operand():
    values = {**VALUES, "strip": 256.0}
    tall = float(
        gemm_traffic.reread_bytes(values, RATES, "bf16", *map(np.asarray, (1e6, 4096, 16_384)))
    )
    # w (128 MiB) is the smaller one: 1e6 / 512 times, a (30 GiB) would be read 16 times
    left, right = 2 * 1e6 * 16_384, 2 * 4096 * 16_384
    assert tall == pytest.approx(min(left * 15, right * (1e6 / 512 - 1)), rel=0.02)


def test_a_product_that_stays_in_the_cache_reads_nothing_again():
    assert (
        float(gemm_traffic.reread_bytes(VALUES, RATES, "bf16", *map(np.asarray, (512, 512, 512))))
        < 1.0
    )


def test_the_store_of_the_output_is_added_to_the_products():
    m, n, k = 32_768, 32_768, 512
    hidden = seconds({**VALUES, "store_frac": 0.0, "overlap_power": 8.0}, "bf16", m, n, k)
    bare = seconds({**VALUES, "store_frac": 1.0, "overlap_power": 8.0}, "bf16", m, n, k)
    written = 2.0 * m * n / (RATES.memory_bytes_per_s * VALUES["memory_frac"])
    assert hidden < bare < hidden + written * (1 + 1e-9)
    assert bare > hidden + 0.5 * written


def test_quantising_steps_at_chunks_of_a_row():
    rows, width = np.asarray(30_000.0), np.asarray(256.0)
    values = {**FP8, "input_pass_bytes": 0.0, "output_pass_bytes": 0.0}

    def quantising(k):
        return float(gemm.quantise_s(values, RATES, rows, width, np.asarray(float(k))))

    assert quantising(2048) == quantising(256)
    assert quantising(2049) - quantising(2048) == pytest.approx(30_000 * values["chunk_s"])
    assert quantising(16_384) == pytest.approx(30_000 * (values["row_s"] + 8 * values["chunk_s"]))


def test_activations_inside_the_cache_cost_no_traffic():
    values = {**FP8, "row_s": 0.0, "chunk_s": 0.0, "output_pass_bytes": 0.0}
    inside, outside = (
        float(gemm.quantise_s(values, RATES, np.asarray(rows), np.asarray(0.0), np.asarray(4096.0)))
        for rows in (256.0, 256_000.0)
    )
    assert outside == pytest.approx(256_000 * 4096 / RATES.memory_bytes_per_s, rel=0.01)
    assert inside < 0.01 * outside / 1000


def test_low_precision_kernels_never_split_k():
    """One tile, ever deeper: the time grows with k; a product that may split k grows less."""
    free = {"row_s": 0.0, "chunk_s": 0.0, "input_pass_bytes": 0.0, "output_pass_bytes": 0.0}
    deep = [seconds({**FP8, **free, "launch_s": 0.0}, "fp8", 128, 128, k) for k in (32e3, 64e3)]
    assert deep[1] / deep[0] == pytest.approx(2.0, rel=0.05)
    split = [seconds({**VALUES, "launch_s": 0.0}, "bf16", 128, 128, k) for k in (32e3, 64e3)]
    assert split[1] / split[0] < 1.9


@given(small=st.floats(0.2, 1.0), middle=st.floats(0.2, 1.0))
def test_tile_rates_rise_with_the_area(small, middle):
    values = {"small_tile_frac": small, "middle_tile_frac": middle}
    areas = (64 * 64, 64 * 128, 128 * 128, 128 * 256, 256 * 256)
    found = [gemm.tile_frac(values, float(area)) for area in areas]
    assert all(a <= b * (1 + 1e-12) for a, b in pairwise(found))
    assert found[1] == pytest.approx(np.sqrt(found[0] * found[2]))
    assert found[3] == found[4] == 1.0


@given(
    strip=st.floats(64, 16_384),
    cache=st.floats(0.05, 1.0),
    store=st.floats(0, 1),
    gain=st.floats(1, 8),
    pitch=st.floats(0, 0.5),
    beside=st.floats(0, 1),
    dtype=st.sampled_from(["bf16", "fp8_block"]),
    dim=st.sampled_from(["m", "n", "k"]),
    resident=st.booleans(),
)
@settings(max_examples=100, deadline=None)
def test_any_parameters_keep_the_law_monotone(
    strip, cache, store, gain, pitch, beside, dtype, dim, resident
):
    changed = {"strip": strip, "cache_frac": cache, "store_frac": store, "l2_gain": gain}
    wide = {**VALUES, "pitch_frac": pitch, "beside_frac": beside}
    values = wide if dtype == "bf16" else QUANTISED
    dims = {"m": 6000.0, "n": 7000.0, "k": 9000.0, dim: SIZES}
    times = gemm.gemm_time_s({**values, **changed}, RATES, dtype, **dims, resident=resident)
    assert np.all(np.diff(times) >= -1e-12 * times[1:])


@given(
    middle=st.floats(0.2, 1.0),
    cache=st.floats(0.05, 1.0),
    step=st.floats(500, 1e6),
    m=st.sampled_from([100.0, 6000.0, 8191.0, 8192.0, 40_000.0]),
    n=st.sampled_from([256.0, 5000.0, 70_000.0]),
    k=st.sampled_from([1000.0, 6143.0, 6144.0, 50_000.0]),
    device=st.sampled_from(["h100-sxm", "b300-sxm"]),
    dim=st.sampled_from(["m", "n", "k"]),
)
@settings(max_examples=150, deadline=None)
def test_known_kernels_keep_the_law_monotone(middle, cache, step, m, n, k, device, dim):
    values = {**FP8, "middle_tile_frac": middle, "cache_frac": cache, "step_bytes": step}
    rates = Rates.of(load_device(device))
    assert (rates.family, "fp8") in KERNELS
    sizes = np.union1d(SIZES, [6143.0, 6144.0, 8191.0, 8192.0])
    times = gemm.gemm_time_s(values, rates, "fp8", **{"m": m, "n": n, "k": k, dim: sizes})
    assert np.all(np.diff(times) >= -1e-12 * times[1:])


def readings_of_a_walk(rows, lines, at_once, together):
    """Readings of each tile row of `a` by a walk along m, line by line, `at_once` tiles a wave."""
    order = [(row, line) for line in range(lines) for row in range(rows)]
    read = 0
    for start in range(0, len(order), at_once):
        wave = order[start : start + at_once]
        read += len({row for row, _ in wave} if together else set(wave))
    return read / rows


@pytest.mark.parametrize(("rows", "lines"), [(10, 240), (30, 120), (120, 40), (240, 40)])
@pytest.mark.parametrize("together", [True, False])
def test_lines_at_once_share_a_reading_only_in_step(rows, lines, together):
    kernel = Kernel(((128, 128),), 128.0, 128.0, 1.0)
    m, n, k = (np.asarray(float(x)) for x in (rows * 128, lines * 128, 1024))
    found = passes(Way(kernel, True, m, n, k), 120.0, np.asarray(float(together)))
    assert found == pytest.approx(readings_of_a_walk(rows, lines, 120, together))


@given(m=st.floats(1, 2e5), n=st.floats(1, 2e5), k=st.floats(1, 2e5))
def test_each_way_holds_the_product_and_is_what_the_library_does_there(m, n, k):
    found = list(ways(KERNELS["hopper", "fp8"], *map(np.asarray, (m, n, k))))
    here = [w for w in found if (w.m, w.n, w.k) == (m, n, k)]
    assert len(found) == 4
    assert here, "the library's own choice for this shape is one of the ways"
    for way in found:
        assert way.m >= m
        assert way.n >= n
        assert way.k >= k
        assert way.m >= way.kernel.from_m
        assert way.k >= way.kernel.from_k
        tall = way.m - way.n * way.kernel.turn
        assert tall <= 1e-9 * way.m if way.along_m else tall >= -1e-9 * way.m


def test_a_large_product_takes_the_kernel_with_the_larger_tile():
    """128 x 128 tiles at 0.7 of the rate of 256 x 128: from m = 8192 and k = 6144 the latter."""
    free = {"row_s": 0.0, "chunk_s": 0.0, "input_pass_bytes": 0.0, "output_pass_bytes": 0.0}
    values = {**FP8, **free, "middle_tile_frac": 0.7, "wave_frac": 0.0, "throttle_frac": 0.0}
    values.update(launch_s=0.0, store_frac=0.0, overlap_power=8.0)

    def rate(m, k):
        return m * k / seconds(values, "fp8", m, 2048, k)

    assert rate(8192, 4096) / rate(8192, 6144) == pytest.approx(0.7, rel=0.02)
    assert rate(4096, 6144) / rate(8192, 6144) == pytest.approx(0.7, rel=0.02)


def test_outputs_written_beside_the_products_cost_no_time_until_the_memory_is_busy():
    """Products wait for their operands (power 1: the two add up); the output is free, or the roof.

    Shapes of long k and of short k against sums made by hand from bytes and a measured rate.
    """
    still = {"launch_s": 0.0, "store_frac": 0.0, "overlap_power": 1.0, "strip": 16_384.0}
    values = {**VALUES, **still, "beside_frac": 1.0}
    bandwidth = RATES.memory_bytes_per_s * values["memory_frac"]
    m, n, k = 256, 8192, 8192
    matrix_s = float(gemm.matrix_s(values, RATES, "bf16", *np.array([m, n, k, 1.0])))
    found = seconds(values, "bf16", m, n, k)
    assert found == pytest.approx(matrix_s + 2 * k * (m + n) / bandwidth, rel=5e-3)
    inside = seconds({**values, "beside_frac": 0.0}, "bf16", m, n, k)
    assert inside - found == pytest.approx(2 * m * n / bandwidth, rel=0.1)
    m, n, k = 16_384, 16_384, 64
    roof_s = 2 * (m * n + k * (m + n)) / bandwidth
    assert roof_s <= seconds(values, "bf16", m, n, k) < 1.1 * roof_s


def test_rows_that_meet_in_a_bank_take_longer():
    values = {**VALUES, "launch_s": 0.0, "pitch_frac": 0.25}
    plain = {**values, "pitch_frac": 0.0}
    m, n = 4096, 4096
    met = seconds(values, "bf16", m, n, 16_384)
    assert met == pytest.approx(1.25 * seconds(plain, "bf16", m, n, 16_384))
    assert seconds(values, "bf16", m, n, 16_383) == seconds(plain, "bf16", m, n, 16_383)
    # just above, the law keeps the time of the slow rows, so that it grows with k
    assert seconds(values, "bf16", m, n, 16_640) == pytest.approx(met)
    assert seconds(values, "bf16", m, n, 24_576) == seconds(plain, "bf16", m, n, 24_576)
    assert "pitch_frac" not in QUANTISED
