"""Plans whose runs span several hosts: two of them played by two folders' worth of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.cli.app import run as typed
from perfmodel.errors import BadInput
from perfmodel.plan.make import plan, run_records
from perfmodel.plan.scripts import several_hosts, write_scripts
from perfmodel.spec.workload import Workload
from perfmodel.verify.serve.run import serve

FAKE = '''#!{python}
"""A program of two hosts: each waits for the other, the second never ends by itself."""
import os, sys, time
from pathlib import Path

if os.environ.get("FAKE_CRASH") == os.environ["NODE_RANK"]:
    sys.exit(7)
here = Path(os.environ["FAKE_HOSTS"])
words = [word for word in sys.argv if word.startswith(("--node_rank", "--master_addr"))]
(here / os.environ["NODE_RANK"]).write_text(" ".join(words))
while len(list(here.iterdir())) < 2:
    time.sleep(0.02)
if os.environ["NODE_RANK"] == "1":
    time.sleep(600)
'''


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """Folder of a plan of one run over 2 hosts of 8, and a program that plays the engine."""
    system = catalog.parse_gpus("2x8xh100-sxm")
    job = Workload(model="hunyuanvideo")
    answer = plan(job, system, engine="xdit", max_runs=1)
    session = open_session(job, system, engine="xdit")
    folder = tmp_path / "sweep"
    write_scripts(answer, run_records(session, answer), folder)
    assert several_hosts(answer) == 2
    program = tmp_path / "bin" / "xdit"
    program.parent.mkdir()
    program.write_text(FAKE.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
    (tmp_path / "hosts").mkdir()
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_HOSTS", str(tmp_path / "hosts"))
    monkeypatch.delenv("NODE_RANK", raising=False)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    return folder


def start(folder: Path, rank: int, **more: str) -> subprocess.Popen[str]:
    hosts = {"NODE_RANK": str(rank), "MASTER_ADDR": "10.0.0.1"}
    return subprocess.Popen(
        ["bash", "run_all.sh"],
        cwd=folder,
        env={**os.environ, **hosts, **more},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_the_first_host_measures_and_the_others_take_part(sweep):
    other, first = start(sweep, 1), start(sweep, 0)
    said, also = first.communicate(timeout=60)[0], other.communicate(timeout=60)[0]
    assert first.returncode == 0, said
    assert other.returncode == 0, also
    (record,) = map(json.loads, (sweep / "results.jsonl").read_text().splitlines())
    assert record["num_gpus"] == 16
    assert record["measured_ms"]
    hosts = {path.name: path.read_text() for path in (sweep.parent / "hosts").iterdir()}
    assert hosts == {n: f"--node_rank={n} --master_addr=10.0.0.1" for n in ("0", "1")}
    assert "takes part" in also
    again = start(sweep, 1).communicate(timeout=60)[0]
    assert "nothing to do on host 1" in again


def test_a_failure_of_another_host_is_its_exit_code(sweep):
    first = start(sweep, 0)
    while not list(sweep.glob("*/runner.pid")):
        time.sleep(0.02)
    other = start(sweep, 1, FAKE_CRASH="1")
    assert "failed with code 7" in other.communicate(timeout=60)[0]
    assert other.returncode == 1
    first.terminate()
    first.communicate(timeout=60)


def test_hosts_that_are_not_told_apart_are_refused(sweep):
    found = subprocess.run(
        ["bash", "run_all.sh"], cwd=sweep, capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert "2 hosts take part" in found.stderr
    assert "NODE_RANK=0 to 1 and MASTER_ADDR=HOST0" in found.stderr


@pytest.mark.parametrize("rank", ["", "one", "-1"])
def test_a_host_whose_number_is_none_of_the_run_is_refused(sweep, rank):
    """Read as 0, a second host would measure beside the first, in the same folder."""
    env = {**os.environ, "NODE_RANK": rank, "MASTER_ADDR": "10.0.0.1"}
    found = subprocess.run(
        ["bash", "run_all.sh"],
        cwd=sweep,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert found.returncode == 2, found.stdout
    assert "NODE_RANK=0 to 1" in found.stderr
    assert not list(sweep.glob("*/record.json"))


def test_a_host_that_waited_in_vain_fails(sweep):
    (path,) = sweep.glob("*/job.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "limit_s": 0.2}))
    other = start(sweep, 1)
    assert "no result within the time limit" in other.communicate(timeout=60)[0]
    assert other.returncode == 1


def test_a_batch_system_starts_a_task_on_each_host(sweep, tmp_path):
    """`srun` and `scontrol` are played by scripts; the task sees its number and the first host."""
    for name, text in {
        "scontrol": "#!/bin/bash\nprintf 'node7\\nnode8\\n'\n",
        "srun": '#!/bin/bash\nshift\nSLURM_NODEID=1 exec "$@"\n',
        "python3": '#!/bin/bash\necho "$NODE_RANK $MASTER_ADDR $*"\n',
    }.items():
        (tmp_path / "bin" / name).write_text(text, encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    env = {**os.environ, "SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_NODELIST": "node[7-8]"}
    found = subprocess.run(
        ["bash", "slurm.sh"], cwd=sweep, env=env, capture_output=True, text=True, check=True
    )
    (name,) = (path.parent.name for path in sweep.glob("*/job.json"))
    assert found.stdout.split() == ["1", "node7", "runner.py", name]


def test_one_host_alone_does_not_serve_them(sweep):
    with pytest.raises(BadInput, match=r"takes several hosts; run bash .*run_all\.sh on each"):
        serve(sweep)


def test_the_next_step_names_the_hosts(tmp_path, capsys):
    asked = ["plan", "--gpus", "2x8xh100-sxm", "--model", "hunyuanvideo", "--engine", "xdit"]
    assert typed([*asked, "--max-runs", "1", "--out", str(tmp_path / "p")]) == 0
    assert "run_all.sh on each of 2 hosts" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "engine", "hosts"),
    [
        ("wan2.1-t2v-14b", "xdit", 1),
        ("wan2.1-t2v-14b", "vllm-omni", 1),
        ("hunyuanvideo", "xdit", 2),
    ],
)
def test_a_batch_job_asks_for_the_hosts_of_its_runs_and_their_gpus(tmp_path, model, engine, hosts):
    """A run of 8 GPUs on one of the two hosts needs all 8 there, not 4 on each."""
    system = catalog.parse_gpus("2x8xh100-sxm")
    job = Workload(model=model, frames=81 if model.startswith("wan") else None)
    answer = plan(job, system, engine=engine, max_runs=1)
    assert [run.prediction.num_gpus for run in answer.runs] == [8 * hosts]
    session = open_session(job, system, engine=engine)
    write_scripts(answer, run_records(session, answer), tmp_path / "p")
    text = (tmp_path / "p" / "slurm.sh").read_text()
    assert f"#SBATCH --nodes={hosts}\n" in text
    assert "#SBATCH --gpus-per-node=8\n" in text
