"""The collective law by itself: changes of protocol and algorithm, on values that are given."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.calibrate.explore import from_unit
from perfmodel.cost.collective import (
    PAIR_PARAMETERS,
    RING_PARAMETERS,
    collective_time_s,
    switch_size,
)
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
        time = collective_time_s(values, op, SIZES, ranks, LINK, in_switch=data.draw(st.booleans()))
        assert np.all(time > 0)
        assert np.all(np.diff(time) >= -1e-9 * time[1:])


def test_the_change_is_where_a_step_of_latency_buys_the_bytes():
    """Equal fixed and step latency d, rates r and 2 r: 2 d (1 + steps) = bytes / r."""
    step_s, rate = 1e-6, 1e11
    for op, passes in (("all_gather", 1.0), ("all_reduce", 2.0)):
        for ranks in (2.0, 4.0, 8.0):
            steps = passes * (ranks - 1)
            wire = passes * (ranks - 1) / ranks
            values = {"switch_bytes": 2 * step_s * rate, "gather_switch_frac": 1.0}
            size = switch_size(values, op, passes, np.float64(ranks))
            first = step_s * (1 + steps) + size * wire / rate
            second = 2 * step_s * (1 + steps) + size * wire / (2 * rate)
            assert first == pytest.approx(second)


def test_two_ranks_all_reduce_changes_before_all_gather():
    values = {**DEFAULTS, "switch_bytes": 0.3 * MIB}
    assert switch_size(values, "all_reduce", 2.0, np.float64(2)) < MIB
    assert switch_size(values, "all_gather", 1.0, np.float64(2)) > MIB
    half = {**values, "gather_switch_frac": 0.5}
    assert switch_size(half, "all_gather", 1.0, np.float64(2)) == pytest.approx(0.6 * MIB)


def test_the_plateau_after_the_change_costs_more_with_every_rank():
    change = {"switch_bytes": 1.0 * MIB, "plateau_s": 4e-5, "plateau_rank_s": 1e-5}
    for ranks in (4, 8):
        at = float(switch_size({**DEFAULTS, **change}, "all_gather", 1.0, np.float64(ranks)))
        below, above = ring("all_gather", np.array([0.999 * at, at]), ranks, **change)
        plateau = 4e-5 + 1e-5 * (ranks - 2)
        assert below < plateau < above < 2 * plateau


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
