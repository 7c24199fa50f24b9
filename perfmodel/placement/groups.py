"""Process groups of a layout: size, distance between neighbours, how many run at once.

Rank order is ``tp - sp - pp - cfg - dp`` with tp fastest; inside sp, Ulysses is inner and ring
outer (vLLM-Omni 0.30.0, ``distributed/parallel_state.py``).  The weight-sharding mesh has its shard
dimension inside; the VAE group is the first ranks of the world.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.ops import Collective, Floats, Ints
from perfmodel.spec.parallel import IntColumn, Layouts


@dataclass(frozen=True, slots=True)
class Group:
    """A family of equal process groups: `ranks` members `stride` apart, `count` groups at once."""

    axis: str
    ranks: IntColumn
    stride: IntColumn
    count: IntColumn

    def message(self, name: str, op: str, full_bytes: Floats, count: Ints = 1) -> Collective:
        """A collective of the group, `count` times; never where a group is one rank alone."""
        return Collective(
            name=name,
            count=count * (self.ranks > 1),
            op=op,
            full_bytes=full_bytes,
            ranks=self.ranks,
            stride=self.stride,
            groups=self.count,
            axis=self.axis,
        )


def _group(axis: str, layouts: Layouts, ranks: IntColumn, stride: IntColumn) -> Group:
    return Group(axis, ranks, stride, np.maximum(layouts.world_size // np.maximum(ranks, 1), 1))


def tensor_group(layouts: Layouts) -> Group:
    """Ranks that split one layer's widths: neighbours."""
    return _group("tp", layouts, layouts.tp, np.ones_like(layouts.tp))


def ulysses_group(layouts: Layouts) -> Group:
    """Ranks that exchange heads for tokens."""
    return _group("ulysses", layouts, layouts.ulysses, layouts.tp)


def ring_group(layouts: Layouts) -> Group:
    """Ranks that pass K and V round."""
    return _group("ring", layouts, layouts.ring, layouts.tp * layouts.ulysses)


def allgather_group(layouts: Layouts) -> Group:
    """Ranks that gather K and V instead of exchanging heads."""
    return _group("allgather", layouts, layouts.allgather, layouts.tp)


def sequence_group(layouts: Layouts) -> Group:
    """All ranks that share one sequence."""
    return _group("sequence", layouts, layouts.sequence_parallel, layouts.tp)


def pipeline_group(layouts: Layouts) -> Group:
    """Ranks that hold consecutive layers."""
    return _group("pp", layouts, layouts.pp, layouts.tp * layouts.sequence_parallel)


def guidance_group(layouts: Layouts) -> Group:
    """Ranks that run different guidance branches."""
    return _group("cfg", layouts, layouts.cfg, layouts.tp * layouts.sequence_parallel * layouts.pp)


def offload_group(layouts: Layouts) -> Group:
    """Ranks that keep a share of each offloaded block: replicas, else the ranks of a sequence.

    Source: vLLM-Omni 0.30.0, ``diffusion/offloader/base.py OffloadConfig.from_od_config``.
    """
    replicas = layouts.dp > 1
    inside = layouts.world_size // layouts.dp
    return _group(
        "offload",
        layouts,
        np.where(replicas, layouts.dp, layouts.sequence_parallel),
        np.where(replicas, inside, layouts.tp),
    )


def shard_group(layouts: Layouts) -> Group:
    """Ranks that share one copy of the block weights (HSDP)."""
    return _group("hsdp", layouts, layouts.hsdp, np.ones_like(layouts.hsdp))
