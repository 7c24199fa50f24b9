"""Paths of groups: against brute force, by hand, and the laws they must obey."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import Overrides, parse_gpus
from perfmodel.errors import BadInput
from perfmodel.spec.hardware import DescribedLink
from perfmodel.topology import (
    HOST_STAGING_BYTES_PER_S,
    SOCKET_LINK_BYTES_PER_S,
    SOCKET_PEERS_BYTES_PER_S,
    Tier,
    Topology,
    _inside,
)

GB = 1e9


def rate(text, ranks, stride=1, groups=1, pattern="ring", **overrides):
    topology = Topology.of(parse_gpus(text, Overrides(**overrides)))
    path = topology.path(ranks, stride, groups, pattern)
    return int(path.tier), float(path.bytes_per_s_per_direction)


def members(ranks, stride, groups):
    return [
        [(g // stride) * ranks * stride + g % stride + i * stride for i in range(ranks)]
        for g in range(groups)
    ]


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 20), st.integers(1, 16))
@settings(max_examples=500, deadline=None)
def test_groups_inside_a_block_as_listed_one_by_one(ranks, stride, groups, block):
    crossing = any(
        len({rank // block for rank in group}) > 1 for group in members(ranks, stride, groups)
    )
    found = _inside(*(np.array(value) for value in (ranks, stride, groups)), block)
    assert bool(found) == (not crossing)


@pytest.mark.parametrize("gpus", ["8xB300", "8xMI300X", "8x4090", "2x8xh100-sxm"])
def test_one_rank_never_leaves_the_device(gpus):
    assert rate(gpus, 1) == (Tier.LOCAL, np.inf)


def test_switch_gives_any_group_its_full_rate():
    for ranks, stride, groups in [(2, 1, 4), (2, 4, 4), (4, 2, 2), (8, 1, 1)]:
        for pattern in ("ring", "pairwise"):
            assert rate("8xB300", ranks, stride, groups, pattern) == (Tier.DOMAIN, 900 * GB)


@pytest.mark.parametrize(
    ("gpus", "pair"), [("8xMI300X", 64), ("8xascend-910b3", 28), ("8xmi355x", 76.5)]
)
def test_mesh_pair_has_one_link_and_eight_have_seven(gpus, pair):
    assert rate(gpus, 2)[1] == pytest.approx(pair * GB)
    assert rate(gpus, 2, 4, 4)[1] == pytest.approx(pair * GB)
    assert rate(gpus, 4, 1, 2)[1] == pytest.approx(3 * pair * GB)
    assert rate(gpus, 8)[1] == pytest.approx(7 * pair * GB)


def test_a_message_to_the_next_rank_takes_one_link_of_a_mesh_and_one_port():
    for ranks in (2, 4, 8):
        assert rate("8xMI300X", ranks, pattern="next")[1] == pytest.approx(64 * GB)
        assert rate("8xB300", ranks, pattern="next")[1] == 900 * GB
    # one hop in eight leaves the host of a ring of 16, through its sender's port alone
    assert rate("2x8xh100-sxm", 16, pattern="next") == (Tier.NETWORK, 50 * GB)
    # below the 28 GB/s of a link of the mesh
    assert rate("2x8xascend-910b3", 16, pattern="next")[1] == pytest.approx(25 * GB)


def test_mesh_pair_does_not_gain_from_a_smaller_machine():
    assert rate("2xMI300X", 2)[1] == rate("8xMI300X", 2)[1]


def test_rack_scale_domain_spans_hosts():
    assert rate("16xGB300", 16) == (Tier.DOMAIN, 900 * GB)
    assert rate("72xGB200", 8, 9, 9)[0] == Tier.DOMAIN
    assert rate("144xGB300", 2, 72, 72)[0] == Tier.NETWORK


def test_network_by_pattern():
    # a pair over two hosts: one port of 50 GB/s each
    assert rate("2x8xh100-sxm", 2, 8, 8) == (Tier.NETWORK, 50 * GB)
    # ring over all 16: the eight ports of a host carry it together, 400 < 450 of NVLink
    assert rate("2x8xh100-sxm", 16) == (Tier.NETWORK, 400 * GB)
    # pairwise: 8 of 15 messages leave the host through the own port
    assert rate("2x8xh100-sxm", 16, pattern="pairwise")[1] == pytest.approx(50 * GB * 15 / 8)


def test_a_link_domain_ends_with_a_host_that_is_not_full():
    assert rate("2x4xh100-sxm", 8)[0] == Tier.NETWORK
    assert rate("2x4xh100-sxm", 4, 1, 2) == (Tier.DOMAIN, 450 * GB)


def test_network_without_peer_access_is_fed_from_host_memory():
    # half of the 32 GB/s slot, below the port's 25 GB/s
    assert rate("2x2xrtx-4090", 2, 2, 2) == (Tier.NETWORK, 16 * GB)


def test_network_ring_is_bounded_by_the_link_inside():
    topology = Topology.of(parse_gpus("2x8xh800-sxm"))
    assert float(topology.path(16).bytes_per_s_per_direction) == 200 * GB


def test_pcie_with_peer_access_on_one_socket_has_the_slot():
    assert rate("4xL40S", 4) == (Tier.HOST, 32 * GB)
    assert rate("4xL40S", 2, 1, 2) == (Tier.HOST, 32 * GB)


def test_groups_over_two_sockets_share_the_cpu_link():
    one = rate("8xL40S", 2, 4, 1, sockets=2)[1]
    four = rate("8xL40S", 2, 4, 4, sockets=2)[1]
    assert one == 32 * GB
    assert four == pytest.approx(SOCKET_LINK_BYTES_PER_S / 4)
    # pairs of neighbours stay on their socket
    assert rate("8xL40S", 2, 1, 4, sockets=2)[1] == 32 * GB
    # all-to-all of 8: 4 ranks send 4 of 7 messages across
    assert rate("8xL40S", 8, pattern="pairwise", sockets=2)[1] == pytest.approx(
        SOCKET_PEERS_BYTES_PER_S * 7 / 16
    )
    assert rate("8xL40S", 8, pattern="pairwise", sockets=1)[1] == 32 * GB
    # two groups of 4: 2 ranks of each send 2 of 3 messages across
    assert rate("8xL40S", 4, 2, 2, pattern="pairwise", sockets=2)[1] == pytest.approx(
        SOCKET_PEERS_BYTES_PER_S * 3 / 4 / 2
    )
    # one pair across is a single stream
    assert rate("8xL40S", 2, 4, 1, pattern="pairwise", sockets=2)[1] == 32 * GB


def test_without_peer_access_copies_bounce_through_host_memory():
    tier, two = rate("2xrtx-4090", 2)
    assert (tier, two) == (Tier.HOST, 16 * GB)
    assert rate("4xrtx-4090", 4)[1] == pytest.approx(HOST_STAGING_BYTES_PER_S / 8)
    assert rate("2xrtx-4090", 2, p2p=True)[1] == 32 * GB
    assert rate("2xL40S", 2, p2p=False)[1] == 16 * GB


def test_no_p2p_takes_nvlink_away_too():
    assert rate("4xB300", 4, p2p=False)[0] == Tier.HOST


def test_bridged_pairs_leave_over_pcie():
    assert rate("4xh100-nvl", 2, 1, 2) == (Tier.DOMAIN, 300 * GB)
    assert rate("4xh100-nvl", 4) == (Tier.HOST, 64 * GB)


def test_columns_equal_single_answers():
    topology = Topology.of(parse_gpus("2x8xMI300X"))
    ranks, stride, groups = np.array([[1, 2], [4, 8], [2, 16]]), np.array([[1], [2], [8]]), 2
    many = topology.path(ranks, stride, groups)
    assert many.tier.shape == (3, 2)
    for i, j in np.ndindex(3, 2):
        one = topology.path(int(ranks[i, j]), int(stride[i, 0]), groups)
        assert one.tier == many.tier[i, j]
        assert one.bytes_per_s_per_direction == many.bytes_per_s_per_direction[i, j]


@given(
    st.sampled_from(["8xB300", "8xMI300X", "8xL40S", "8xrtx-4090", "2x8xh100-sxm", "8xh100-nvl"]),
    st.sampled_from([2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 3),
    st.sampled_from(["ring", "pairwise", "next"]),
)
@settings(max_examples=100, deadline=None)
def test_more_concurrent_groups_never_help_and_rates_are_finite(gpus, ranks, stride, more, pattern):
    topology = Topology.of(parse_gpus(gpus))
    few = topology.path(ranks, stride, 1, pattern)
    many = topology.path(ranks, stride, 1 + more, pattern)
    assert 0 < many.bytes_per_s_per_direction <= few.bytes_per_s_per_direction < np.inf
    assert many.tier >= few.tier


def described(cables, gpus=4, **overrides):
    system = parse_gpus(f"{gpus}xL40S", Overrides(**overrides))
    links = tuple(DescribedLink(a, b, value * GB) for a, b, value in cables)
    return Topology.of(replace(system, links=links))


TREE = [
    ("gpu0", "cpu0", 32),
    ("gpu1", "cpu0", 32),
    ("gpu2", "cpu1", 32),
    ("gpu3", "cpu1", 32),
    ("cpu0", "cpu1", 20),
]


def test_described_tree_shares_the_cable_between_cpus():
    topology = described(TREE)
    assert float(topology.path(2, 1, 2).bytes_per_s_per_direction) == 32 * GB
    assert float(topology.path(2, 2, 1).bytes_per_s_per_direction) == 20 * GB
    assert float(topology.path(2, 2, 2).bytes_per_s_per_direction) == 10 * GB
    # ring of 4 crosses once a direction; pairwise 2 ranks send 2/3 across
    assert float(topology.path(4).bytes_per_s_per_direction) == 20 * GB
    assert float(topology.path(4, pattern="pairwise").bytes_per_s_per_direction) == pytest.approx(
        20 * GB * 3 / 4
    )
    assert topology.path(4).tier == Tier.HOST


def test_described_full_mesh_equals_the_closed_form_pairwise():
    cables = [(f"gpu{a}", f"gpu{b}", 64) for a, b in permutations(range(4), 2) if a < b]
    topology = described(cables)
    path = topology.path([2, 4], 1, [2, 1], "pairwise")
    assert path.bytes_per_s_per_direction == pytest.approx([64 * GB, 3 * 64 * GB])
    assert list(path.tier) == [Tier.DOMAIN, Tier.DOMAIN]


def test_described_machine_needs_a_path_to_every_device():
    with pytest.raises(BadInput, match="no cable to gpu3"):
        described([("gpu0", "gpu1", 1), ("gpu1", "gpu2", 1)]).path(2)
    with pytest.raises(BadInput, match="without a cable"):
        described([("gpu0", "gpu1", 1), ("gpu2", "gpu3", 1)]).path(2)
