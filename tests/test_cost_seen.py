"""Collectives of devices whose law is lent: the bus bandwidths that were measured on them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel import catalog
from perfmodel.catalog.gpus import Overrides
from perfmodel.cost.collective import cost_collective, wire_factor
from perfmodel.cost.machine import Machine
from perfmodel.cost.seen import figures, seen_ratio
from perfmodel.errors import BadInput
from perfmodel.ops import Collective
from perfmodel.topology import Topology

LENT = ("rtx-pro-6000-server", "gb300")
GIB = 2.0**30
CASES = [
    (name, op, ranks, rate)
    for name in LENT
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
    for ranks, rate in figures(catalog.load_device(name), op).items()
]


def machine(gpus: str, overrides: Overrides | None = None) -> Machine:
    system = catalog.parse_gpus(gpus, overrides)
    return Machine.build(system.device, Topology.of(system))


def seconds(on: Machine, op: str, ranks: int, size: float = GIB, stride: int = 1) -> float:
    work = Collective(name=op, op=op, full_bytes=size, ranks=ranks, stride=stride)
    return float(np.ravel(cost_collective(work, on).time_each_s)[0])


@pytest.mark.parametrize(("name", "op", "ranks", "rate"), CASES)
def test_large_messages_run_at_the_measured_rate(name, op, ranks, rate):
    wire = float(wire_factor(op, np.asarray(float(ranks)))) * GIB
    assert wire / seconds(machine(f"8x{name}"), op, ranks) == pytest.approx(rate, rel=0.03)


def test_there_are_figures_to_test():
    assert len(CASES) > 15


@pytest.mark.parametrize("overrides", [Overrides(sockets=2), Overrides(p2p=False)])
def test_what_the_user_says_of_the_host_wins(overrides):
    said = machine("8xrtx-pro-6000-server", overrides)
    none = said.device.measured.model_copy(update={"collectives": None})
    without = replace(said, device=said.device.model_copy(update={"measured": none}))
    assert seconds(said, "all_to_all", 4) == seconds(without, "all_to_all", 4)
    assert seconds(said, "all_to_all", 4) != seconds(
        machine("8xrtx-pro-6000-server"), "all_to_all", 4
    )


def test_a_device_with_a_fit_keeps_its_law():
    own = machine("8xa100-sxm-80g")
    none = own.device.measured.model_copy(update={"collectives": None})
    without = replace(own, device=own.device.model_copy(update={"measured": none}))
    for op in ("all_reduce", "all_to_all", "p2p"):
        assert seconds(own, op, 8) == seconds(without, op, 8)


@pytest.mark.parametrize("name", ["ascend-910b1", "ascend-910b3"])
def test_devices_with_the_same_links_lend_their_collectives_as_priors(name):
    measured, lent = machine("8xascend-910b2"), machine(f"8x{name}")
    for op in ("all_reduce", "all_gather", "all_to_all", "p2p"):
        for ranks in (2, 4, 8):
            assert seconds(lent, op, ranks) == seconds(measured, op, ranks)
    law = lent.laws["collective/all_to_all"]
    assert (law.provenance, law.origin) == ("prior", "links of ascend-910b2")
    assert measured.laws["collective/all_to_all"].provenance == "fitted"
    assert lent.laws["gemm/bf16"].origin == "family davinci"


def test_a_lender_without_a_fit_is_refused_by_field():
    box = machine("8xascend-910b1")
    link = box.device.link.model_copy(update={"same_as": "l20"})
    device = box.device.model_copy(update={"link": link})
    with pytest.raises(BadInput, match=r"ascend-910b1\.yaml: link\.same_as: \"l20\" has no fit"):
        Machine.build(device, box.topology)


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all"])
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_a_fitted_mesh_comes_near_the_figures_of_its_datasheet_file(op, ranks):
    """Best over sizes, of the same server: the fit's large messages are not a tenth above."""
    box = machine("8xascend-910b2")
    rate = figures(box.device, op)[ranks]
    wire = float(wire_factor(op, np.asarray(float(ranks))))
    best = max(wire * size / seconds(box, op, ranks, size) for size in (1e8, 1.9e8, 1e9, 8e9))
    assert 0.8 * rate < best < 1.1 * rate


def test_crossing_the_cpus_is_in_the_figures():
    """Four of eight cards that lie on both CPUs: no further loss than four neighbours have."""
    box = machine("8xrtx-pro-6000-server")
    assert seconds(box, "all_to_all", 4, stride=2) == pytest.approx(
        seconds(box, "all_to_all", 4), rel=1e-9
    )


def test_between_group_sizes_the_ratio_is_interpolated():
    device = catalog.load_device("rtx-pro-6000-server")
    seen = figures(device, "all_gather")
    flat = {2: 64e9, 4: 32e9, 8: 16e9}
    found = seen_ratio(
        device, "all_gather", np.asarray([2.0, 2.0**1.5, 4.0, 8.0, 16.0]),
        lambda op, n: np.asarray([flat[int(x)] for x in n]),
    )  # fmt: skip
    two, four, eight = (seen[n] / flat[n] for n in (2, 4, 8))
    assert found == pytest.approx([two, (two * four) ** 0.5, four, eight, eight])


@settings(max_examples=40, deadline=None)
@given(
    op=st.sampled_from(["all_reduce", "all_gather", "all_to_all", "p2p"]),
    ranks=st.sampled_from([2, 3, 4, 6, 8]),
    low=st.floats(1e3, 1e9),
    more=st.floats(1.0, 50.0),
)
def test_time_grows_with_the_message(op, ranks, low, more):
    box = machine("8xrtx-pro-6000-server")
    assert seconds(box, op, ranks, low * more) >= seconds(box, op, ranks, low) * (1 - 1e-12)
