"""Collectives of an accelerator's ranks in processes of their own: who skips, fails and resumes."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfmodel.calibrate import presets
from perfmodel.calibrate.cases import Case
from perfmodel.calibrate.measure import ranks, worker
from perfmodel.errors import MissingData

ROOT = Path(__file__).parents[1]
SMALL, LARGE = 4096, 2**27
MEMORY = 2**26
"""The fake devices' memory [B]: the message beyond it is refused (or kills its rank)."""

START = """
import os, sys
if not any("distributed.run" in word for word in sys.orig_argv):
    import fake_accelerator as fake
    chip = fake.Chip(count=2, total_bytes={memory})
    whole = fake.Chip(count=2)
    mine = os.environ.get("RANK") == "1"
    fake.on_cpu({kind!r}, chip if mine else whole, {full})
"""


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Write what makes every python process below this one see two accelerators."""

    def write(kind: str = "cuda", full: str = "None") -> None:
        folder = tmp_path / "start"
        folder.mkdir(exist_ok=True)
        text = START.format(kind=kind, memory=MEMORY, full=full)
        (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
        paths = (folder, ROOT, ROOT / "tests")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, paths)))
        monkeypatch.setenv("OMP_NUM_THREADS", "1")

    return write


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def cases(library: str) -> tuple[Case, ...]:
    sizes = (("all_reduce", SMALL), ("all_reduce", LARGE), ("p2p", SMALL))
    return tuple(presets.collective_case(op, 2, size, library) for op, size in sizes)


@pytest.mark.parametrize(("kind", "library"), [("cuda", "nccl"), ("npu", "hccl")])
def test_all_ranks_leave_out_what_one_has_no_memory_for(
    fakes, tmp_path: Path, kind: str, library: str
) -> None:
    fakes(kind)
    plan = worker.Plan(kind, cases(library), tmp_path / "records", True, 1e-3, 1)
    outcomes: list[str] = []
    assert worker.launch(plan, 2, outcomes.append) == 2
    assert outcomes == ["measured", "skipped", "measured"]
    (skipped,) = rows(tmp_path / "records" / "skipped.csv")
    assert skipped["reason"].startswith("OutOfMemoryError: CUDA out of memory")
    assert len(rows(tmp_path / "records" / "collective.csv")) == 2
    assert worker.launch(plan, 2, outcomes.append) == 0
    assert outcomes[3:] == ["done before"] * 3


def test_a_rank_that_dies_ends_the_others_soon_and_is_named(
    fakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fakes(full="lambda: os._exit(7)")
    monkeypatch.setattr(ranks, "GRACE_S", 5.0)
    plan = worker.Plan("cuda", cases("nccl"), tmp_path, True, 1e-3, 1)
    start_s = time.monotonic()
    with pytest.raises(MissingData, match=r"benchmark failed: rank 1 ended with exit code 7"):
        worker.launch(plan, 2)
    assert time.monotonic() - start_s < 120
    assert len(rows(tmp_path / "collective.csv")) == 1


def test_ranks_end_when_their_launcher_is_gone(tmp_path: Path) -> None:
    child = (
        "import os, time\n"
        "from perfmodel.calibrate.measure import ranks\n"
        "ranks.end_with_launcher()\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(60)\n"
    )
    launcher = (
        "import os, subprocess, sys\n"
        "os.environ['PERFMODEL_PARENT'] = str(os.getpid())\n"
        f"child = subprocess.Popen([sys.executable, '-c', {child!r}], stdout=subprocess.PIPE)\n"
        "print(child.stdout.readline().decode(), flush=True)\n"
        "os._exit(1)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", launcher],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        check=False,
    )
    identity = int(done.stdout)
    deadline_s = time.monotonic() + 30
    while Path(f"/proc/{identity}").exists() and _runs(identity):
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def _runs(identity: int) -> bool:
    status = Path(f"/proc/{identity}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def torchrun(node: int, port: int, out: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"]
    command += ["--node-rank", str(node), "--master-addr", "127.0.0.1"]
    command += ["--master-port", str(port), "--nproc-per-node", "1", "-m", "perfmodel", "bench"]
    command += ["--out", str(out), "--budget", "0.0001", *options]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_two_nodes_meet_and_the_first_rank_alone_writes(fakes, tmp_path: Path) -> None:
    fakes()
    start = tmp_path / "start" / "sitecustomize.py"
    few = "\nfrom perfmodel.calibrate import presets\npresets.GIB = 4096\n"
    start.write_text(start.read_text(encoding="utf-8") + few, encoding="utf-8")
    out, nowhere = tmp_path / "records", Path("/proc/nowhere")
    port = 20_000 + os.getpid() % 20_000
    both = [torchrun(0, port, out), torchrun(1, port, nowhere)]
    said = [process.communicate(timeout=240)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert "NVIDIA H100 80GB HBM3" in said[0]
    assert "records in" not in said[1]
    found = rows(out / "network" / "collective.csv")
    assert {(r["num_ranks"], r["nodes"], r["ranks_per_node"]) for r in found} == {("2", "2", "1")}
    assert {r["library"] for r in found} == {"nccl"}
    assert not (out / "collective.csv").exists()


def test_an_exit_code_of_its_own_is_nearer_the_cause_than_a_lost_connection(tmp_path: Path) -> None:
    """Both ended before anybody looked; one killed at the end of the grace is no cause."""
    (tmp_path / "errors0").write_text("RuntimeError: Connection closed by peer\n")
    for rank in (1, 2):
        (tmp_path / f"errors{rank}").write_text("")
    codes = (1, 7, -signal.SIGKILL)
    found = [
        ranks._reason(tmp_path, SimpleNamespace(returncode=code), rank, [])  # type: ignore[arg-type]
        for rank, code in enumerate(codes)
    ]
    assert min(found)[1] == "rank 1 ended with exit code 7"
    assert max(found)[1] == "rank 2 ended with exit code -9"
