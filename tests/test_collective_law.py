"""The collective law by itself: changes of protocol and algorithm, on values that are given."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.calibrate.explore import from_unit
from perfmodel.cost.collective import collective_time_s
from perfmodel.cost.protocols import PAIR_PARAMETERS, RING_PARAMETERS, switch_sizes
from perfmodel.units import KIB, MIB

LINK = 450e9
SIZES = np.geomspace(256, 2e9, 1500)
DEFAULTS = {p.name: p.default for p in (*PAIR_PARAMETERS, *RING_PARAMETERS)}


def ring(op, size, ranks, in_switch=False, **changes):
    values = {**DEFAULTS, **changes}
    return collective_time_s(values, op, size, np.float64(ranks), LINK, in_switch=in_switch)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_time_never_falls_with_bytes_whatever_the_parameters(data):
    parameters = data.draw(st.sampled_from([RING_PARAMETERS, PAIR_PARAMETERS]))
    unit = data.draw(st.lists(st.floats(0, 1), min_size=len(parameters), max_size=len(parameters)))
    values = {p.name: from_unit(p, x) for p, x in zip(parameters, unit, strict=True)}
    ops = ("all_to_all",) if parameters is PAIR_PARAMETERS else ("all_gather", "all_reduce")
    for op in ops:
        ranks = np.float64(data.draw(st.sampled_from([2, 4, 8, 16])))
        inside, far = data.draw(st.booleans()), data.draw(st.booleans())
        time = collective_time_s(values, op, SIZES, ranks, LINK, in_switch=inside, far=far)
        assert np.all(time > 0)
        assert np.all(np.diff(time) >= -1e-9 * time[1:])


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_what_does_not_fit_the_buffer_goes_in_rounds(ranks):
    """Beyond 200 MB more than two ranks take 1 / rounds_frac for each byte, never less time."""
    near, beyond = np.array([1.0e8, 1.9e8]), np.array([4e9, 8e9])

    def slope(size, **changes):
        early, late = ring("all_to_all", size, ranks, **changes)
        return (late - early) / (size[1] - size[0])

    slower = 1 / 0.75 if ranks > 2 else 1.0
    whole, rounds = slope(beyond), slope(beyond, rounds_frac=0.75)
    assert rounds == pytest.approx(slower * whole, rel=1e-3)
    assert slope(near, rounds_frac=0.75) == slope(near)
    faster = ring("all_to_all", np.array([2.0e8, 2.01e8]), ranks, rounds_frac=1.2)
    assert faster[1] >= faster[0]


def test_streams_hide_a_share_of_the_latency():
    hidden = {"stream_frac": 0.25, "all_to_all.small_s": 1e-4, "plateau_s": 1e-6}
    shown = {**hidden, "stream_frac": 1.0}
    size = np.float64(256 * MIB)
    saved = ring("all_to_all", size, 4, **shown) - ring("all_to_all", size, 4, **hidden)
    latency = 1e-4 + 2 * DEFAULTS["all_to_all.rank_s"]
    assert saved == pytest.approx(0.75 * latency, rel=0.01)


def sizes(op, ranks, tuner, switch_s=1.43e-6, far=False):
    values = {"switch_s": switch_s, "tuner": tuner}
    first, last = switch_sizes(values, op, np.float64(ranks), LINK, far)
    return float(first), float(last)


def nccl_choice(op, ranks, size, rate):
    """Cheapest protocol by the library's own sum, with its constants for NVLink."""
    passes = 2 if op == "all_reduce" else 1
    steps = passes * (ranks - 1)
    sent = size * steps / ranks
    cost = {
        "LL": 6.6e-6 + 0.6e-6 * steps + sent / (0.39 * rate),
        "LL128": 14.0e-6 + 1.9e-6 * steps + sent / (0.92 * rate),
        "Simple": 8.4e-6 + 3.4e-6 * steps + sent / rate,
    }
    return min(cost, key=cost.get)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16])
def test_changes_are_where_the_library_expects_them(op, ranks):
    """The argmin over a fine grid of sizes agrees with the closed form on both changes."""
    rate = 360e9
    switch_s = rate / LINK * 2.8e-6 / (1 / 0.39 - 1)
    first, last = sizes(op, ranks, tuner=1, switch_s=switch_s)
    for size in np.geomspace(2e5, 4e8, 400):
        if min(abs(np.log(size / first)), abs(np.log(size / last))) < 0.01:
            continue
        expected = "LL" if size < first else "LL128" if size < last else "Simple"
        assert nccl_choice(op, ranks, size, rate) == expected


def test_pairs_never_use_the_middle_protocol_and_large_groups_do():
    for ranks in (2, 4):
        assert sizes("all_gather", ranks, 1)[0] == sizes("all_gather", ranks, 1)[1]
    first, last = sizes("all_gather", 8, 1)
    assert 4 * MIB < first < 5 * MIB
    assert 16 * MIB < last < 32 * MIB
    assert sizes("all_gather", 8, 0)[0] == sizes("all_gather", 8, 0)[1]


def test_two_ranks_all_reduce_changes_before_all_gather():
    assert sizes("all_reduce", 2, 0)[0] < 2 * MIB < sizes("all_gather", 2, 0)[0] < 4 * MIB


def test_sizes_by_hand_count_bytes_a_rank():
    entry = 4e-6 * LINK
    for ranks in (2, 8, 32):
        assert sizes("all_reduce", ranks, 2, 4e-6)[0] == pytest.approx(entry * ranks)
        assert sizes("all_gather", ranks, 2, 4e-6)[0] == pytest.approx(entry * ranks / 2)
    assert sizes("all_reduce", 32, 2, 4e-6, far=True)[0] == pytest.approx(entry * 4)


def test_the_plateau_after_the_change_costs_a_chunk_with_every_step():
    change = {"switch_s": 2e-6, "plateau_s": 4e-5, "plateau_step_s": 1e-5}
    for ranks in (4, 8):
        at = float(sizes("all_gather", ranks, 0, 2e-6)[0])
        below, above = ring("all_gather", np.array([0.999 * at, at]), ranks, **change)
        plateau = 4e-5 + 1e-5 * (ranks - 1)
        assert below < plateau < above < 2 * plateau


def test_groups_that_leave_the_host_fill_a_pipeline_and_are_slower_on_the_wire():
    """Two passes of each, against a group of the same size inside a host without a plateau."""
    values = {**DEFAULTS, "tuner": 2, "plateau_s": 1e-12, "plateau_step_s": 1e-12}
    values |= {"far_s": 7e-5, "far_bytes": 2e6, "far_frac": 1.0, "all_reduce.copy_frac": 0.05}

    def extra_s(size, **changes):
        near, far = (
            collective_time_s(values | changes, "all_reduce", np.array([size]), 32.0, LINK, far=far)
            for far in (np.array([False]), np.array([True]))
        )
        return float((far - near)[0])

    assert extra_s(1e10) == pytest.approx(2 * 7e-5, rel=0.01)
    assert extra_s(2e9, far_bytes=1e8) == pytest.approx(2 * 7e-5 * 20 / 21, rel=0.01)
    wire_s = 2 * 1e10 * (31 / 32) / values["all_reduce.wire_frac"] / LINK
    slower_s = extra_s(1e10, far_frac=0.8) - extra_s(1e10)
    assert slower_s == pytest.approx(0.25 * wire_s, rel=0.01)


def test_short_messages_save_a_share_of_the_latency():
    """One byte: both parts of the first protocol are idle * (1 - short_frac)."""
    idle = DEFAULTS["all_gather.small_s"] + 6 * DEFAULTS["all_gather.rank_s"]
    for frac in (0.0, 0.3):
        (short,) = ring("all_gather", np.array([1.0]), 8, short_frac=frac)
        assert short == pytest.approx(2**0.25 * (1 - frac) * idle, rel=1e-3)
    short, long = ring("all_gather", np.array([1.0, 64.0 * KIB]), 8, short_frac=0.3)
    assert short < 0.9 * long < idle


def test_the_switch_sums_for_the_ranks_where_its_rate_is_higher_at_every_size():
    """Its wire bytes are S (1 + 1/n), the ring's 2 S (n-1)/n: many ranks gain, two lose."""
    rates = {"in_switch_frac": 0.9, "all_reduce.wire_frac": 0.8, "all_reduce.copy_frac": 0.05}
    sizes = np.array([6.4e7, 1e9])
    for ranks, gains in ((2, False), (8, True)):
        inside = ring("all_reduce", sizes, ranks, True, in_switch_s=1e-6, **rates)
        outside = ring("all_reduce", sizes, ranks, False, **rates)
        assert np.all(inside < outside) if gains else np.all(inside == outside)
    large = ring("all_reduce", np.array([1e10]), 8, True, **rates)[0]
    assert large == pytest.approx(1e10 * 1.125 / (0.9 * LINK), rel=0.01)
