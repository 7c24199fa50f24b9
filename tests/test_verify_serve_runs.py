"""A plan run by `verify --serve` against a small engine: nothing of it is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from test_plan_scripts import CANDIDATES, FAKE, Sweep, free_port, wait_for

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.engines.vllm_omni import commands
from perfmodel.errors import BadInput
from perfmodel.plan import choose, runner
from perfmodel.plan.make import plan, run_records
from perfmodel.plan.scripts import write_scripts
from perfmodel.spec.workload import Workload
from perfmodel.verify.serve import run as served

STUBBORN = FAKE.replace(
    "child = ", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nchild = "
)
SLOW = FAKE.replace("ThreadingHTTPServer((", "time.sleep(600)\nThreadingHTTPServer((")


@pytest.fixture(scope="module")
def planned():
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "PORT", port)
        patch.setattr(choose, "CONTAINS_FRAC", 1.1)  # all candidates are run
        question = Workload(frames=189), catalog.parse_gpus("4xB300")
        answer = plan(*question, candidates=CANDIDATES[:2], max_runs=2)
        yield answer, run_records(open_session(*question), answer), port


@pytest.fixture
def sweep(tmp_path, planned, monkeypatch):
    answer, records, port = planned
    folder = tmp_path / "a sweep"
    names = write_scripts(answer, records, folder)
    (tmp_path / "bin").mkdir()
    made = Sweep(folder, names, dict(os.environ), port)
    made.env |= {
        "PATH": f"{tmp_path / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FAKE_PORT": str(port),
        "FAKE_PIDS": str(tmp_path / "pids"),
    }
    for key in ("PATH", "FAKE_PORT", "FAKE_PIDS"):
        monkeypatch.setenv(key, made.env[key])
    install(made)
    yield made
    for pid in made.living():
        os.kill(pid, signal.SIGKILL)


def install(sweep: Sweep, text: str = FAKE) -> None:
    path = sweep.folder.parent / "bin" / "vllm"
    path.write_text(text.format(python=sys.executable))
    path.chmod(0o755)


def test_runs_become_records_once_and_the_server_is_gone(sweep):
    said: list[str] = []
    found = served.serve(sweep.folder, say=said.append)
    assert found.measured == tuple(sweep.names)
    assert found.failed == {}
    records = sweep.records()
    assert list(records) == sweep.names
    first = records[sweep.names[0]]
    assert first["measured_ms"]["server"] == 10_500
    assert first["server_headers"]["X-Inference-Time-S"] == "10.500"
    assert sweep.living() == []
    assert not runner.port_answers(sweep.port)
    before = sweep.requests()
    again = served.serve(sweep.folder, say=said.append)
    assert again.measured == tuple(sweep.names)
    assert sweep.requests() == before
    assert said[-1].endswith("done before, skipped")


def test_only_the_wanted_runs(sweep):
    letter = sweep.names[1].split("_")[0]
    found = served.serve(sweep.folder, runs=[letter])
    assert found.measured == (sweep.names[1],)
    assert list(sweep.records()) == [sweep.names[1]]
    with pytest.raises(BadInput, match="not in the plan"):
        served.serve(sweep.folder, runs=["Z"])


def test_a_crash_is_a_record_with_the_end_of_its_log(sweep, monkeypatch):
    monkeypatch.setenv("FAKE_CRASH", "serve")
    found = served.serve(sweep.folder)
    assert found.measured == ()
    for name in sweep.names:
        record = sweep.records()[name]
        assert "ended with code 7" in record["error"]
        assert record["measured_ms"] == {}
        assert any("CUDA out of memory" in line for line in record["log_tail"])
    assert sweep.living() == []


def test_a_server_that_never_gets_ready_is_given_up(sweep, monkeypatch):
    install(sweep, SLOW)
    monkeypatch.setattr(runner, "POLL_S", 0.05)
    started = time.monotonic()
    found = served.serve(sweep.folder, runs=["A"], ready_s=1.5)
    assert time.monotonic() - started < 20
    assert "not ready within 1.5 s" in found.failed[sweep.names[0]]
    assert len(Path(sweep.env["FAKE_PIDS"]).read_text().splitlines()) == 1
    assert sweep.living() == []


def test_a_server_that_ignores_the_request_to_end_is_killed(sweep, monkeypatch):
    install(sweep, STUBBORN)
    monkeypatch.setattr(runner, "GRACE_S", 1.0)
    assert served.serve(sweep.folder, runs=["A"]).failed == {}
    assert sweep.living() == []


def test_an_engine_that_is_not_installed_is_said(sweep):
    (sweep.folder.parent / "bin" / "vllm").unlink()
    with pytest.raises(BadInput, match="not installed here"):
        served.serve(sweep.folder)
    with pytest.raises(BadInput, match="holds no plan"):
        served.serve(sweep.folder.parent)


def command(sweep: Sweep, *more: str) -> subprocess.Popen[str]:
    root = Path(__file__).parent.parent
    return subprocess.Popen(
        [sys.executable, "-m", "perfmodel", "verify", "--serve", str(sweep.folder), *more],
        env={**sweep.env, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interruption_leaves_nothing_and_a_second_start_continues(sweep, number):
    process = command(sweep)
    wait_for(lambda: (sweep.folder / sweep.names[0] / "record.json").exists(), 60)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert sweep.living() == []
    assert sweep.names[0] in sweep.records()
    done = command(sweep, "--json")
    out, errors = done.communicate(timeout=60)
    assert done.returncode == 0, errors
    assert f"{sweep.names[0]}: done before" in errors
    answer = json.loads(out)
    assert [run["status"] for run in answer["runs"]] == ["measured"] * 2
    assert sweep.living() == []


@pytest.mark.parametrize(
    ("script", "program"),
    [
        ("#!/bin/bash\nset -eu\ncd x\nvllm serve a \\\n  --b c\n", "vllm"),
        ("A=1 B='x y' vllm serve", "vllm"),
        ("export A=1\nexec sglang serve", "sglang"),
        ("# nothing\n", None),
    ],
)
def test_the_program_of_a_script(script, program):
    assert served.program_of(script) == program
