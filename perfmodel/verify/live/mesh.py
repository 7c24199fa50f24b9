"""Process groups of one configuration, and the messages that its ranks exchange.

Rank order is that of the engine: tensor fastest, then Ulysses, ring, guidance.  The tokens of a
sequence are split in that order too, so that a ring member holds neighbouring tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
import torch.distributed as dist

from perfmodel.spec.parallel import ParallelConfig

AXES = ("tp", "ulysses", "ring", "cfg")
"""Degrees that a mesh has, fastest first."""

# newer torch has new names for the same operations and warns about the old ones
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


@dataclass(frozen=True)
class Mesh:
    """The place of one rank.

    Attributes:
        config: degrees.
        rank: of this process.
        groups: process group by axis, ``sequence`` (Ulysses and ring together) and ``world``; an
            axis of degree 1 has none.
    """

    config: ParallelConfig
    rank: int = 0
    groups: dict[str, Any] = field(default_factory=dict)

    @property
    def sequence(self) -> int:
        """Ranks that share the tokens."""
        return self.config.ulysses * self.config.ring

    def size(self, axis: str) -> int:
        """Degree of an axis."""
        return self.sequence if axis == "sequence" else int(getattr(self.config, axis))

    def place(self, axis: str) -> int:
        """This rank's number on an axis."""
        if axis == "sequence":
            return self.place("ring") * self.config.ulysses + self.place("ulysses")
        return coordinates(self.config, self.rank)[axis]

    def all_reduce(self, values: torch.Tensor, axis: str) -> torch.Tensor:
        """Sum over an axis, in place."""
        dist.all_reduce(values, group=self.groups[axis])
        return values

    def all_gather(self, values: torch.Tensor, axis: str) -> torch.Tensor:
        """``[...]`` of each rank as ``[ranks, ...]``."""
        own = values.contiguous()
        out = own.new_empty((self.size(axis) * own.numel(),))
        _ALL_GATHER(out, own.flatten(), group=self.groups[axis])
        return out.view(self.size(axis), *values.shape)

    def all_to_all(self, values: torch.Tensor, axis: str) -> torch.Tensor:
        """Part ``i`` of the first dimension goes to rank ``i``."""
        out = torch.empty_like(values)
        dist.all_to_all_single(out, values, group=self.groups[axis])
        return out

    def pass_on(self, values: tuple[torch.Tensor, ...]) -> Passing:
        """Begin to send to the next rank of the ring and to receive from the one before."""
        group, ranks, place = self.groups["ring"], self.config.ring, self.place("ring")
        values = tuple(part.contiguous() for part in values)
        after = dist.get_global_rank(group, (place + 1) % ranks)
        before = dist.get_global_rank(group, (place - 1) % ranks)
        received = tuple(torch.empty_like(part) for part in values)
        operations = [
            operation
            for sent, got in zip(values, received, strict=True)
            for operation in (
                dist.P2POp(dist.isend, sent, after, group=group),
                dist.P2POp(dist.irecv, got, before, group=group),
            )
        ]
        return Passing(received, [w.wait for w in dist.batch_isend_irecv(operations)])

    def ring_step(self, values: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        """Send and receive, to the end."""
        return self.pass_on(values).wait()


@dataclass(frozen=True)
class Passing:
    """A ring step on its way."""

    received: tuple[torch.Tensor, ...]
    waits: list[Callable[[], object]]

    def wait(self) -> tuple[torch.Tensor, ...]:
        """What came."""
        for wait in self.waits:
            wait()
        return self.received


def coordinates(config: ParallelConfig, rank: int) -> dict[str, int]:
    """Number of `rank` on each axis."""
    found = {}
    for axis in AXES:
        degree = int(getattr(config, axis))
        found[axis], rank = rank % degree, rank // degree
    return found


def ranks_of(config: ParallelConfig) -> int:
    """Ranks of a mesh."""
    return config.tp * config.ulysses * config.ring * config.cfg


def teams(config: ParallelConfig, axes: tuple[str, ...]) -> Iterator[list[int]]:
    """All groups of ranks that differ in `axes` alone, each in the order of its places."""
    places = [coordinates(config, rank) for rank in range(ranks_of(config))]
    fixed = [axis for axis in AXES if axis not in axes]
    for key in product(*(range(int(getattr(config, axis))) for axis in fixed)):
        wanted = dict(zip(fixed, key, strict=True))
        yield [
            rank
            for rank, place in enumerate(places)
            if all(place[axis] == number for axis, number in wanted.items())
        ]


def join(config: ParallelConfig, rank: int) -> Mesh:
    """The mesh of a process that is in the default process group already.

    Every rank makes all groups in the same order, as `torch.distributed` asks.
    """
    groups: dict[str, Any] = {"world": dist.group.WORLD}
    members = {axis: (axis,) for axis in AXES} | {"sequence": ("ulysses", "ring")}
    for name, axes in members.items():
        for team in teams(config, axes):
            if len(team) > 1:
                made = dist.new_group(team)
                if rank in team:
                    groups[name] = made
    return Mesh(config, rank, groups)
