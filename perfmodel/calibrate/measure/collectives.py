"""Collectives with torch.distributed: nccl, hccl or gloo, on one node or several.

Every rank runs `measure_all` with the same list.  Under torchrun the processes are there already;
otherwise `launch` starts them on this machine.  Decisions (repeat counts, skips) rest on values
that all ranks share, so that no rank waits for another that went on.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial

import torch
import torch.distributed as dist

from perfmodel.calibrate.cases import Case, CollectiveCase, NodesCollectiveCase
from perfmodel.calibrate.measure.device import Call, Device, Unsupported
from perfmodel.calibrate.measure.store import RecordStore
from perfmodel.calibrate.measure.timing import Timing, issue_s, summary
from perfmodel.errors import BadInput, Problem

BACKENDS = {"cuda": "nccl", "npu": "hccl", "cpu": "gloo"}
TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for another: cases take seconds, compilations minutes."""

# newer torch has new names for the same operations and warns about the old ones
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_MIN_SAMPLE_S = 1e-3
_MAX_CALLS = 50
_REPEATS = (5, 100)


@dataclass(frozen=True, slots=True)
class World:
    """This process among the others.

    Attributes:
        rank, size: of the whole job.
        local_size: ranks on each node.
    """

    rank: int
    size: int
    local_size: int

    @property
    def nodes(self) -> int:
        """Nodes of the job."""
        return self.size // self.local_size


def under_torchrun() -> bool:
    """Whether a launcher started this process as one of several.

    Containers of clusters carry the variables also where they run one process alone.
    """
    return "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", "1")) > 1


def is_first() -> bool:
    """Whether this process writes and speaks: the only one, or rank 0 of those started."""
    return not under_torchrun() or os.environ["RANK"] == "0"


def join(device: Device, init_method: str = "env://") -> World:
    """Join the process group that the environment (``RANK``, ``WORLD_SIZE``) describes.

    Raises:
        BadInput: no ``LOCAL_RANK``, so that all ranks of a node would take its first device; or
            nodes with different numbers of ranks.
    """
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if size > 1 and not device.is_cpu and "LOCAL_RANK" not in os.environ:
        message = "RANK and WORLD_SIZE are set but LOCAL_RANK is not; start the ranks with torchrun"
        raise BadInput(Problem("bench-ranks", message))
    dist.init_process_group(
        BACKENDS[device.kind],
        init_method=init_method,
        rank=rank,
        world_size=size,
        timeout=TIMEOUT,
    )
    local = int(os.environ.get("LOCAL_WORLD_SIZE", size))
    counts: list[int] = [0] * size
    dist.all_gather_object(counts, local)
    if len(set(counts)) > 1 or size % local:
        message = f"nodes have different numbers of ranks ({sorted(set(counts))}); start as many"
        raise BadInput(Problem("bench-ranks", message + " on each (--nproc-per-node)"))
    return World(rank, size, local)


def leave() -> None:
    """Leave the process group that `join` made; nothing may hold its groups any more.

    A group that lives on keeps the threads of gloo, and one that lets go of a tensor once the
    interpreter has ended aborts the process.
    """
    gc.collect()  # groups in cycles
    dist.destroy_process_group()


def group_sizes(world: World) -> list[int]:
    """Powers of two up to the ranks of a node, and all of them."""
    sizes = [2**power for power in range(1, world.local_size.bit_length())]
    return sorted({size for size in (*sizes, world.local_size) if 1 < size <= world.local_size})


def across_nodes(cases: Iterable[Case], world: World) -> list[Case]:
    """The cases of `cases` again for groups over all nodes: one rank a node, and all ranks.

    The message sizes are those of the two-rank cases.
    """
    if world.nodes < 2:
        return []
    found: dict[Case, None] = {}
    for case in cases:
        if not isinstance(case, CollectiveCase) or case.num_ranks != 2:
            continue
        for each in sorted({1, world.local_size}):
            ranks = each * world.nodes
            unit = ranks * case.element_bytes
            message = -(-case.message_bytes // unit) * unit
            elements = message // case.element_bytes
            shape = (ranks, elements, case.element_bytes, message)
            found[NodesCollectiveCase(case.collective, case.library, *shape, world.nodes, each)] = (
                None
            )
    return list(found)


def members(case: CollectiveCase, world: World) -> list[int]:
    """Global ranks of the case's group: neighbours on node 0, or the first ranks of each node."""
    if isinstance(case, NodesCollectiveCase):
        starts = range(0, world.size, world.local_size)
        return [start + local for start in starts for local in range(case.ranks_per_node)]
    return list(range(case.num_ranks))


def fill_library(cases: Iterable[Case], device: Device) -> list[Case]:
    """Cases with the communication library of `device`."""
    library = BACKENDS[device.kind]
    return [replace(c, library=library) for c in cases if isinstance(c, CollectiveCase)]


def measure_all(
    cases: Sequence[Case],
    device: Device,
    world: World,
    store: RecordStore | None,
    budget_s: float,
    tick: Callable[[Case, str], None] | None = None,
) -> int:
    """Measure `cases` on all ranks; rank 0 holds the `store` and writes.

    Returns:
        The number of rows measured.
    """
    groups: dict[tuple[int, ...], dist.ProcessGroup] = {}
    measured = 0
    device.prepare()
    for case in cases:
        if not isinstance(case, CollectiveCase):
            continue
        if _shared_choice(store is not None and store.done(case)):
            outcome = "done before"
        else:
            ranks = tuple(members(case, world))
            if ranks not in groups:
                groups[ranks] = dist.new_group(list(ranks))
            result = _one(case, device, world, groups[ranks], ranks, budget_s)
            outcome = "measured" if isinstance(result, Timing) else "skipped"
            measured += outcome == "measured"
            if store is not None:
                _write(store, case, result, device)
        if tick is not None:
            tick(case, outcome)
    return measured


def _write(store: RecordStore, case: Case, result: Timing | str, device: Device) -> None:
    if isinstance(result, Timing):
        store.append(case, result, device.clock_mhz())
    else:
        store.skip(case, result)


def _shared_choice(choice: bool) -> bool:
    """Rank 0's `choice` on every rank."""
    box = [choice]
    dist.broadcast_object_list(box, src=0)
    return box[0]


def _one(
    case: CollectiveCase,
    device: Device,
    world: World,
    group: dist.ProcessGroup,
    ranks: tuple[int, ...],
    budget_s: float,
) -> Timing | str:
    """Timing, or why there is none; the same on all ranks of the world."""
    inside = world.rank in ranks
    call, reason = None, ""
    try:
        call = build(case, device, group, ranks.index(world.rank)) if inside else None
    except Exception as error:  # whatever it is, the other ranks must hear of it
        reason = f"{type(error).__name__}: {_first_line(error)}"
    reasons: list[str] = [""] * world.size
    dist.all_gather_object(reasons, reason)
    result: Timing | str = next((text for text in reasons if text), "")
    if not result and call is not None:
        result = _timed(call, device, group, budget_s)
    box = [result]
    dist.broadcast_object_list(box, src=0)
    if isinstance(box[0], str):
        del call
        device.release()
    return box[0]


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:200]


def _timed(call: Call, device: Device, group: dist.ProcessGroup, budget_s: float) -> Timing | str:
    """Median over repeats of the slowest rank's time per call.

    A collective that the backend lacks fails on every rank alike before anything is sent.
    """
    try:
        call()
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return f"unsupported: {_first_line(error)}"
    device.synchronize()
    for _ in range(2):
        once_s = max(_slowest_s([call], device, group), 1e-7)
    batch = max(1, min(_MAX_CALLS, round(_MIN_SAMPLE_S / once_s)))
    least, most = _REPEATS
    repeats = max(least, min(most, round(budget_s / (batch * once_s))))
    head_start_s = 1.5 * batch * issue_s(device, [call])
    samples = [
        _slowest_s([call] * batch, device, group, head_start_s) / batch for _ in range(repeats)
    ]
    return summary(samples)


def _slowest_s(
    calls: Sequence[Call], device: Device, group: dist.ProcessGroup, head_start_s: float = 0.0
) -> float:
    """Time of `calls` once all ranks are there, the maximum over the group's ranks.

    On an accelerator the ranks meet on the device: behind the work that gives the host its head
    start, which takes each rank another time, and before the first event.
    """
    box = torch.zeros(1, device=device.torch_device, dtype=torch.float32)
    if device.is_cpu:
        dist.barrier(group=group)
        spent_s = _wall_s(calls)
    else:
        meet = partial(dist.all_reduce, box, group=group)
        spent_s = device.batch_s(calls, head_start_s=head_start_s, first=meet)
    box.fill_(spent_s)
    dist.all_reduce(box, op=dist.ReduceOp.MAX, group=group)
    return float(box.item())


def _wall_s(calls: Sequence[Call]) -> float:
    """Wall time: waiting for another process is part of a collective."""
    start_s = time.perf_counter()
    for call in calls:
        call()
    return time.perf_counter() - start_s


def build(case: CollectiveCase, device: Device, group: dist.ProcessGroup, place: int) -> Call:
    """The collective on buffers of this rank; `place` is its rank within the group.

    Raises:
        Unsupported: an operation that has no name here.
    """
    dtype = torch.bfloat16 if case.element_bytes == 2 else torch.float32
    full = device.random(case.elements, dtype=dtype)
    shard = device.random(case.elements // case.num_ranks, dtype=dtype)
    options: dict[str, Callable[[], object]] = {
        "all_reduce": lambda: dist.all_reduce(full, group=group),
        "all_gather": lambda: _ALL_GATHER(full, shard, group=group),
        "reduce_scatter": lambda: _REDUCE_SCATTER(shard, full, group=group),
        "broadcast": lambda: dist.broadcast(full, dist.get_global_rank(group, 0), group=group),
    }
    if case.collective in ("all_to_all", "p2p"):
        other = torch.empty_like(full)
        options["all_to_all"] = lambda: dist.all_to_all_single(other, full, group=group)
        options["p2p"] = lambda: _ring_step(full, other, group, place, case.num_ranks)
    if case.collective not in options:
        raise Unsupported(f"no collective {case.collective}")
    return options[case.collective]


def _ring_step(
    sent: torch.Tensor,
    received: torch.Tensor,
    group: dist.ProcessGroup,
    place: int,
    ranks: int,
) -> None:
    """Send to the next rank and receive from the previous one (a step of ring attention)."""
    after = dist.get_global_rank(group, (place + 1) % ranks)
    before = dist.get_global_rank(group, (place - 1) % ranks)
    peers = [
        dist.P2POp(dist.isend, sent, after, group=group),
        dist.P2POp(dist.irecv, received, before, group=group),
    ]
    for work in dist.batch_isend_irecv(peers):
        work.wait()
