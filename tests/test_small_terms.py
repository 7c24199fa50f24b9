"""Terms that are small in most answers, each where it is all there is."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import perfmodel as pm
from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.cost.collective import cost_collective
from perfmodel.cost.machine import Machine
from perfmodel.cost.pointwise import memory_traffic
from perfmodel.ops import Collective
from perfmodel.pipeline.evaluate import evaluate
from perfmodel.placement.sequence import state_reduces
from perfmodel.search import rank
from perfmodel.search.rank import needless_sharding
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.topology import Topology


def test_host_work_of_a_forward_is_waited_for_where_the_host_is_slower():
    session = open_session(pm.Workload(model="cosmos3-nano", frames=5), "1xb300-sxm")
    layouts = Layouts.of([ParallelConfig()])

    def denoise_s(each_s: float) -> float:
        terms = {**session.job.machine.terms, "forward_host_s": each_s}
        job = replace(session.job, machine=replace(session.job.machine, terms=terms))
        return float(evaluate(job, layouts).stages["denoise"].total_s[0])

    forwards = int(session.job.shape.forwards)
    assert denoise_s(3.0) - denoise_s(2.0) == pytest.approx(forwards * 1.0)


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_broadcast_sends_what_a_gather_of_the_same_wire_bytes_does(ranks):
    """Every rank ends with S bytes: an all_gather in which each sends and receives S."""
    system = catalog.parse_gpus("8xh100-sxm")
    box = Machine.build(system.device, Topology.of(system))

    def seconds(op: str, size: float) -> float:
        work = Collective(name=op, op=op, full_bytes=size, ranks=ranks)
        return float(np.ravel(cost_collective(work, box).time_each_s)[0])

    size = 2.0**28
    gather = seconds("all_gather", size * ranks / (ranks - 1))
    assert seconds("broadcast", size) == pytest.approx(gather)


def test_host_memory_is_that_of_the_ranks_of_one_host():
    job = pm.Workload(model="wan2.1-t2v-14b")
    options = pm.Options(offload="layerwise")
    one, two = (
        pm.predict(job, gpus, engine="sglang-diffusion", parallel=parallel, options=options)
        for gpus, parallel in (("8xH100-SXM", "usp8"), ("2x8xH100-SXM", "cfg2_usp8"))
    )
    assert one.prediction.host_memory_gib > 100
    assert two.prediction.host_memory_gib == pytest.approx(one.prediction.host_memory_gib)


def test_states_of_linear_attention_are_summed_in_fp32():
    layouts = Layouts.of([ParallelConfig(ulysses=2)])
    (reduce,) = state_reduces((("state", 5, 1000),), 3, layouts)
    assert float(np.ravel(reduce.full_bytes)[0]) == 4 * 3 * 1000
    assert int(np.ravel(reduce.count)[0]) == 5


def test_sharding_is_needless_where_the_same_layout_without_it_is_as_fast():
    layouts = Layouts.of(
        [
            ParallelConfig(ulysses=4),
            ParallelConfig(ulysses=4, hsdp=4),
            ParallelConfig(cfg=2, ulysses=2, hsdp=4),
            ParallelConfig(ring=4),
            ParallelConfig(ring=4, hsdp=4),
        ]
    )
    scores = np.array([1.0, 1.01, 0.9, 2.0, 1.5])
    rows = np.arange(5)
    assert needless_sharding(layouts, rows, scores) == {1: 0}
    assert needless_sharding(layouts, rows[::-1], scores) == {3: 4}


@pytest.mark.parametrize(
    ("gpu", "own_bytes"),
    [
        # 40 MB in two partitions of 20: A100 white paper, "each L2 partition caches data for
        # memory accesses from SMs in the GPCs directly connected to the partition"
        ("1xa100-sxm-80g", 20e6),
        ("1xh100-sxm", 25e6),  # 50 MB, the same
        ("1xl40s", 96e6),  # one partition
    ],
)
def test_a_cache_in_two_partitions_holds_half_of_what_all_multiprocessors_read(gpu, own_bytes):
    """A kernel as large as the cache finds half of what one of no bytes does."""
    system = catalog.parse_gpus(gpu)
    box = Machine.build(system.device, Topology.of(system))
    box = replace(box, terms={**box.terms, "cache_hit_frac": 0.6})
    reached = memory_traffic(np.array([own_bytes]), box)
    assert reached[0] == pytest.approx((1 - 0.3) * own_bytes, rel=0.03)


@pytest.mark.parametrize(
    ("slower", "peaks_frac", "first"),
    [
        (0.015, (0.95, 0.85), 1),  # 1.5 % for a tenth of a device that is nearly full
        (0.03, (0.95, 0.85), 0),  # 3 % is more than memory is worth
        (0.015, (0.75, 0.40), 0),  # free memory is of no use where a quarter is free anyway
        (0.015, (0.85, 0.40), 1),
        (0.0, (0.95, 0.85), 1),
    ],
)
def test_a_tie_gives_way_to_memory_where_that_is_scarce(slower, peaks_frac, first):
    """The glossary: within 2 % of the fastest, least memory above 80 % of a device goes first."""
    scores, capacity = np.array([1.0, 1.0 + slower]), 100 * 2.0**30
    peaks = np.array(peaks_frac) * capacity
    ahead = rank._first(np.arange(2), np.ones(2, bool), scores, peaks, capacity)
    assert ahead == first
