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
from perfmodel.ops import Collective
from perfmodel.pipeline.evaluate import evaluate
from perfmodel.placement.sequence import state_reduces
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
