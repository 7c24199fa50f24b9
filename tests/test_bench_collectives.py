"""Collectives between real processes, and the groups they form."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch.distributed as dist

from perfmodel.calibrate import presets
from perfmodel.calibrate.cases import CollectiveCase, NodesCollectiveCase
from perfmodel.calibrate.measure import collectives, worker
from perfmodel.calibrate.measure.collectives import World
from perfmodel.calibrate.measure.device import open_device
from perfmodel.calibrate.measure.store import Context, RecordStore
from perfmodel.calibrate.measure.timing import Timing
from perfmodel.errors import MissingData


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(
    ("local", "sizes"), [(1, []), (2, [2]), (4, [2, 4]), (6, [2, 4, 6]), (8, [2, 4, 8])]
)
def test_groups_are_powers_of_two_and_the_node(local: int, sizes: list[int]) -> None:
    assert collectives.group_sizes(World(0, 2 * local, local)) == sizes


def test_groups_over_nodes_take_one_rank_of_each_or_all() -> None:
    world = World(0, 8, 4)
    base = [CollectiveCase("all_gather", "nccl", 2, 512, 2, 1024)]
    cases = collectives.across_nodes(base, world)
    assert all(isinstance(case, NodesCollectiveCase) for case in cases)
    assert [case.num_ranks for case in cases] == [2, 8]  # type: ignore[attr-defined]
    assert [collectives.members(case, world) for case in cases] == [  # type: ignore[arg-type]
        [0, 4],
        [0, 1, 2, 3, 4, 5, 6, 7],
    ]
    assert all(case.elements % case.num_ranks == 0 for case in cases)  # type: ignore[attr-defined]
    assert {case.file for case in cases} == {"network/collective.csv"}
    assert collectives.across_nodes(base, World(0, 4, 4)) == []


def test_two_processes_measure_every_collective(tmp_path: Path) -> None:
    cases = [
        presets.collective_case(op, 2, size, "gloo")
        for op in presets.COLLECTIVES
        for size in (4096, 2**20)
    ]
    store = RecordStore(tmp_path, Context.of(open_device("cpu")), resume=False)
    store.append(cases[0], Timing(1e-3, 0.0, 1), None)
    plan = worker.Plan("cpu", tuple(cases), tmp_path, True, 0.01, 1)
    outcomes: list[str] = []
    assert worker.launch(plan, 2, outcomes.append) == len(cases) - 1
    assert outcomes == ["done before", *["measured"] * (len(cases) - 1)]
    found = rows(tmp_path / "collective.csv")
    assert [(r["collective"], int(r["message_bytes"])) for r in found] == [
        (case.collective, case.message_bytes) for case in cases
    ]
    assert all(0 < float(r["latency_us"]) < 1e6 for r in found)


def test_a_rank_that_fails_is_reported_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "collective.csv").write_text("op,other\nx,y\n")
    case = presets.collective_case("all_reduce", 2, 4096, "gloo")
    plan = worker.Plan("cpu", (case,), tmp_path, True, 0.01, 1)
    with pytest.raises(MissingData, match="a rank of the 2-process collective benchmark failed"):
        worker.launch(plan, 2)


SUMS = """
import torch.distributed as dist
from perfmodel.calibrate import presets
from perfmodel.calibrate.measure import collectives
from perfmodel.calibrate.measure.device import open_device

def run():
    device = open_device("cpu")
    world = collectives.join(device)
    for op in presets.COLLECTIVES:
        case = presets.collective_case(op, 2, 4096, "gloo")
        collectives.build(case, device, dist.group.WORLD, world.rank)()
    if world.rank == 0:
        print("all ran", world.size, world.local_size, world.nodes)

run()
collectives.leave()
"""


def test_torchrun_starts_the_ranks(tmp_path: Path) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(SUMS)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", str(script)]
    root = str(Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "all ran 2 2 1" in done.stdout


def test_no_group_outlives_the_job(tmp_path: Path) -> None:
    class Holder:
        def __init__(self, group: dist.ProcessGroup | None) -> None:
            self.group, self.me = group, self

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    held = weakref.ref(Holder(dist.group.WORLD))
    assert held() is not None
    collectives.leave()
    assert held() is None
    assert not dist.is_initialized()


def test_the_library_is_that_of_the_device() -> None:
    device = open_device("cpu")
    (case,) = collectives.fill_library([presets.collective_case("p2p", 2, 100)], device)
    assert case.library == "gloo"  # type: ignore[attr-defined]
