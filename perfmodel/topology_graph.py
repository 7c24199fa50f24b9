"""Groups on a machine that is described by its cables (imported only for such machines)."""

from __future__ import annotations

from itertools import pairwise, permutations
from typing import TYPE_CHECKING, TypeAlias

import networkx as nx
import numpy as np

from perfmodel.errors import BadInput, Problem
from perfmodel.spec.hardware import System

if TYPE_CHECKING:
    from perfmodel.topology import Floats, Ints, Pattern, Topology

Graph: TypeAlias = "nx.Graph[str]"


def graph_path(
    topology: Topology, ranks: Ints, stride: Ints, groups: Ints, pattern: Pattern
) -> tuple[Ints, Floats]:
    """Tier and rate per rank: each distinct question is routed once.

    Messages take the path of least summed 1/rate; all groups of a host load its cables together,
    and the most loaded cable sets the rate.  Cables carry both directions at once.
    """
    questions = np.stack([ranks.ravel(), stride.ravel(), groups.ravel()], axis=1)
    distinct, back = np.unique(questions, axis=0, return_inverse=True)
    graph = cable_graph(topology.system)
    answers = [
        _answer(topology, graph, int(n), int(s), int(g), pattern) for n, s, g in distinct.tolist()
    ]
    index = back.reshape(ranks.shape)
    tier = np.array([answer[0] for answer in answers], np.int64)[index]
    return tier, np.array([answer[1] for answer in answers], np.float64)[index]


def cable_graph(system: System) -> Graph:
    """The cables of one host as a graph; every device must be reachable from every other.

    Raises:
        BadInput: a device without a cable, or two parts without a path between them.
    """
    graph: Graph = nx.Graph()
    for link in system.links:
        graph.add_edge(link.a, link.b, rate=link.bytes_per_s_per_direction)
    devices = [f"gpu{i}" for i in range(system.gpus_per_node)]
    missing = [name for name in devices if name not in graph]
    if missing or not nx.is_connected(graph):
        what = f"no cable to {', '.join(missing)}" if missing else "two parts without a cable"
        raise BadInput(
            Problem("system-links", f"links: {what}; name devices gpu0 ..", field="--system: links")
        )
    return graph


def _answer(
    topology: Topology, graph: Graph, ranks: int, stride: int, groups: int, pattern: Pattern
) -> tuple[int, float]:
    if ranks == 1:
        return 0, float("inf")
    members = [
        [(g // stride) * ranks * stride + g % stride + i * stride for i in range(ranks)]
        for g in range(groups)
    ]
    node = topology.node
    if any(group[0] // node != group[-1] // node for group in members):
        one = [np.array(value, np.int64) for value in (ranks, stride, groups)]
        return 3, float(topology.network_rate(one[0], one[1], one[2], pattern))
    load: dict[tuple[str, str], float] = {}
    direct = True
    for group in members:
        if group[0] >= node:
            continue
        for a, b, part in _messages(group, pattern):
            route = _route(graph, f"gpu{a}", f"gpu{b}")
            direct = direct and len(route) == 2
            for edge in pairwise(route):
                load[edge] = load.get(edge, 0.0) + part
    rate = min(graph.edges[edge]["rate"] / part for edge, part in load.items())
    return (1 if direct else 2), rate / topology.copies


def _messages(group: list[int], pattern: Pattern) -> list[tuple[int, int, float]]:
    """(from, to, share of a rank's traffic): to the next rank, or evenly to all others."""
    if pattern != "pairwise":
        return [(a, b, 1.0) for a, b in zip(group, group[1:] + group[:1], strict=True)]
    return [(a, b, 1.0 / (len(group) - 1)) for a, b in permutations(group, 2)]


def _route(graph: Graph, start: str, end: str) -> list[str]:
    route: list[str] = nx.shortest_path(
        graph, start, end, weight=lambda a, b, edge: 1.0 / edge["rate"]
    )
    return route
