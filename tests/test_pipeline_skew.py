"""Waiting for the slowest of n ranks: order statistics of their paces."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.pipeline.evaluate import evaluate
from perfmodel.pipeline.lines import DEVICE_KINDS
from perfmodel.pipeline.skew import STATED_RANKS, skew_share
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Workload

# Expected largest of n standard normals: closed forms to n = 5 (Jones 1948, Godwin 1949), then
# Harter, "Expected values of normal order statistics", Biometrika 48 (1961), table 1.
_PAIR = 1 / math.sqrt(math.pi)
EXPECTED = {
    1: 0.0,
    2: _PAIR,
    3: 1.5 * _PAIR,
    4: 1.5 * _PAIR * (1 + 2 / math.pi * math.asin(1 / 3)),
    5: 2.5 * _PAIR * (0.5 + 3 / math.pi * math.asin(1 / 3)),
    8: 1.42360,
    16: 1.76599,
}


@pytest.mark.parametrize("ranks", sorted(EXPECTED))
def test_the_slowest_lies_as_far_behind_as_the_largest_of_normals(ranks):
    wanted = EXPECTED[ranks] / EXPECTED[STATED_RANKS]
    assert skew_share(ranks) == pytest.approx(wanted, rel=1e-5, abs=1e-12)


def test_devices_drawn_at_random_wait_as_long():
    paces = np.random.default_rng(7).normal(1.0, 0.01, (200_000, 8))
    of_two, of_four, of_eight = (paces[:, :n].max(axis=1).mean() - 1.0 for n in (2, 4, 8))
    found = skew_share(np.array([[2, 8]]))
    assert found.shape == (1, 2)
    assert found[0] == pytest.approx([of_two / of_four, of_eight / of_four], rel=0.01)


@given(st.integers(1, 4096))
def test_more_ranks_wait_longer_and_each_adds_less(ranks):
    one, two, four = skew_share(np.array([1, 2, 4]) * ranks)
    assert one < two < four
    assert ranks == 1 or four - two < two - one


def waiting_share(gpus, config):
    session = open_session(Workload(frames=81), catalog.parse_gpus(gpus))
    lines = evaluate(session.job, Layouts.of([config])).stages["denoise"].lines
    waits = sum(float(line.total_s[0]) for line in lines if line.kind == "wait")
    return waits / sum(float(line.total_s[0]) for line in lines if line.kind in DEVICE_KINDS)


def test_a_request_waits_by_the_ranks_that_it_runs_on():
    session = open_session(Workload(frames=81), catalog.parse_gpus("4xB300"))
    of_four = session.job.machine.term("rank_skew_frac")
    for ulysses in (2, 4, 8):
        found = waiting_share(f"{ulysses}xB300", ParallelConfig(ulysses=ulysses))
        assert found == pytest.approx(of_four * EXPECTED[ulysses] / EXPECTED[4], rel=1e-4)


def test_replicas_do_not_wait_for_each_other():
    alone = waiting_share("2xB300", ParallelConfig(cfg=2))
    assert waiting_share("4xB300", ParallelConfig(cfg=2, dp=2)) == pytest.approx(alone)
