"""Which links the collectives of a table crossed: the rates that predictions take for them too."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.calibrate.records import Rows
from perfmodel.catalog.gpus import Overrides, build_system
from perfmodel.spec.hardware import Device
from perfmodel.topology import Path, Tier, Topology

LINK, ROOF = "link_bytes_per_s", "link_roof_bytes_per_s"
FEWEST_RANKS = 2


def with_links(rows: Rows, device: Device, host: Overrides) -> Rows:
    """`rows` of collectives with two more columns, both per rank and direction.

    ``link_bytes_per_s`` is what `perfmodel.topology` gives one group alone on the usual hosts of
    `device`: between two devices of a mesh that is one of its links, through host memory a share
    of it.  ``link_roof_bytes_per_s`` is the datasheet rate above it, which leaves out what the
    topology only assumes of a host (its memory, the link between its CPUs).

    Args:
        rows: with ``num_ranks`` and ``collective``.
        device: that they were measured on.
        host: where its host differs from the usual one: peer access, sockets.
    """
    ranks = np.maximum(rows["num_ranks"], FEWEST_RANKS).astype(np.int64)
    system = build_system(
        device, count=max(device.node_size, int(ranks.max(initial=0))), overrides=host
    )
    topology = Topology.of(system)
    ring, pairs = (topology.path(ranks, pattern=pattern) for pattern in ("ring", "pairwise"))
    pairwise = rows.text("collective") == "all_to_all"
    link = np.where(pairwise, pairs.bytes_per_s_per_direction, ring.bytes_per_s_per_direction)
    roof = np.where(pairwise, _roof(topology, pairs), _roof(topology, ring))
    return replace(rows, columns={**rows.columns, LINK: link, ROOF: roof})


def _roof(topology: Topology, path: Path) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    slot = topology.host_bytes_per_s / topology.copies
    inside_host = path.tier == int(Tier.HOST)
    return np.where(inside_host, slot, path.bytes_per_s_per_direction)
