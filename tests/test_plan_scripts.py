"""The scripts of a plan, run against a small engine: failures, interruptions, a second start."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.cli.app import run as typed
from perfmodel.engines.vllm_omni import commands
from perfmodel.errors import BadInput
from perfmodel.plan import choose, runner
from perfmodel.plan.make import plan, run_records
from perfmodel.plan.scripts import write_scripts
from perfmodel.spec.record import read_records
from perfmodel.spec.workload import Workload

CANDIDATES = ("cfg2_usp2_vaepp4", "usp4_vaepp4", "cfg2_usp2")
FAKE = '''#!{python}
"""Speaks the endpoints and headers of the engine; misbehaves as the environment says."""
import json, os, subprocess, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

words = " ".join(sys.argv[1:])
if os.environ.get("FAKE_CRASH") and os.environ["FAKE_CRASH"] in words:
    print("CUDA out of memory", flush=True)
    sys.exit(7)
child = subprocess.Popen(["sleep", "600"])
with open(os.environ["FAKE_PIDS"], "a") as out:
    out.write(f"{{os.getpid()}} {{child.pid}}\\n")


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        with open(os.environ["FAKE_PIDS"] + ".requests", "a") as out:
            out.write(words + "\\n")
        time.sleep(float(os.environ.get("FAKE_SLEEP", "0")))
        if os.environ.get("FAKE_500"):
            self.send_response(500)
            self.end_headers()
            self.wfile.write(b"engine died")
            return
        self.send_response(200)
        stages = {{"P.forward": 9.0, "P.diffuse": 7.5, "P.vae.decode": 1.25}}
        self.send_header("Content-Type", "video/mp4")
        self.send_header("X-Inference-Time-S", "10.500")
        self.send_header("X-Stage-Durations", json.dumps(stages))
        self.send_header("X-Peak-Memory-MB", "2048.000")
        self.end_headers()
        self.wfile.write(b"mp4")


ThreadingHTTPServer(("localhost", int(os.environ["FAKE_PORT"])), Handler).serve_forever()
'''


@dataclass
class Sweep:
    """A written plan and the environment of its engine."""

    folder: Path
    names: list[str]
    env: dict[str, str]
    port: int

    def start(self, script: str = "run_all.sh", **env: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", str(self.folder / script)],
            cwd=self.folder,
            env={**self.env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, script: str = "run_all.sh", **env: str) -> tuple[int, str]:
        process = self.start(script, **env)
        said, _ = process.communicate(timeout=60)
        return process.returncode, said

    def records(self) -> dict[str, dict[str, Any]]:
        lines = (self.folder / "results.jsonl").read_text().splitlines()
        return {record["run"]: record for record in map(json.loads, lines)}

    def requests(self) -> int:
        path = Path(self.env["FAKE_PIDS"] + ".requests")
        return len(path.read_text().splitlines()) if path.exists() else 0

    def living(self) -> list[int]:
        path = Path(self.env["FAKE_PIDS"])
        pids = map(int, path.read_text().split()) if path.exists() else ()
        return [pid for pid in pids if runner.started_at(pid) is not None]


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("localhost", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def planned():
    """A plan of three runs, its records and the port that its scripts use."""
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(commands, "PORT", port)
        patch.setattr(choose, "CONTAINS_FRAC", 1.1)  # all candidates are run
        question = Workload(frames=189), catalog.parse_gpus("4xB300")
        answer = plan(*question, candidates=CANDIDATES, max_runs=3)
        yield answer, run_records(open_session(*question), answer), port


@pytest.fixture
def sweep(tmp_path, planned):
    answer, records, port = planned
    folder = tmp_path / "a sweep"
    names = write_scripts(answer, records, folder)
    binary = tmp_path / "bin"
    binary.mkdir()
    (binary / "vllm").write_text(FAKE.format(python=sys.executable))
    (binary / "vllm").chmod(0o755)
    env = {
        **os.environ,
        "PATH": f"{binary}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FAKE_PORT": str(port),
        "FAKE_PIDS": str(tmp_path / "pids"),
    }
    made = Sweep(folder, names, env, port)
    yield made
    for pid in made.living():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def crash_of(sweep: Sweep) -> str:
    """A part of the serve command that only the second run has."""
    serve = (sweep.folder / sweep.names[1] / "serve.sh").read_text()
    return next(line for line in serve.splitlines() if "vllm serve" in line).partition("vllm ")[2]


def test_all_runs_become_records_and_no_process_stays(sweep):
    assert len(sweep.names) == 3
    code, said = sweep.run()
    assert code == 0, said
    records = sweep.records()
    assert list(records) == sweep.names
    first = records[sweep.names[0]]
    assert first["measured_ms"]["server"] == 10_500
    assert first["measured_ms"]["denoise"] == 7_500
    assert first["measured_ms"]["client"] > 0
    assert first["http_status"] == 200
    assert first["server_headers"]["X-Inference-Time-S"] == "10.500"
    assert first["peak_memory_mib"] == 2048
    assert Path(first["output_file"]).read_bytes() == b"mp4"
    assert (first["frames"], first["gpu"], first["engine"]) == (189, "b300-sxm", "vllm-omni")
    found, bad = read_records([sweep.folder / "results.jsonl"])
    assert (len(found), bad) == (3, [])
    assert sweep.living() == []
    assert not runner.port_answers(sweep.port)


def test_the_loop_from_plan_to_verdict(sweep, capsys):
    assert sweep.run(FAKE_CRASH=crash_of(sweep))[0] == 1
    flags = ["--gpus", "4xB300", "--frames", "189", "--json"]
    assert typed(["verify", "--from", str(sweep.folder / "results.jsonl"), *flags]) == 0
    answer = json.loads(capsys.readouterr().out)
    found = {run["letter"]: run for run in answer["runs"]}
    assert [found[letter]["status"] for letter in "ABC"] == ["measured", "failed", "measured"]
    assert "ended with code 7" in found["B"]["reason"]
    assert found["A"]["compared_ms"] == 10_500
    assert found["A"]["peak_memory_gib"] == 2


def test_a_failed_run_is_a_record_and_only_it_runs_again(sweep):
    crash = crash_of(sweep)
    code, said = sweep.run(FAKE_CRASH=crash)
    assert code == 1, said
    failed = sweep.records()[sweep.names[1]]
    assert failed["measured_ms"] == {}
    assert "ended with code 7" in failed["error"]
    assert any("CUDA out of memory" in line for line in failed["log_tail"])
    assert (
        failed["parallel"]
        == json.loads((sweep.folder / sweep.names[1] / "job.json").read_text())["record"][
            "parallel"
        ]
    )
    assert not sweep.records()[sweep.names[2]].get("error")
    before = sweep.requests()
    code, said = sweep.run()
    assert code == 0, said
    assert said.count("done before, skipped") == 2
    assert not any(record.get("error") for record in sweep.records().values())
    assert before < sweep.requests() <= before + 4
    assert sweep.living() == []


def test_an_http_error_is_recorded_with_its_status(sweep):
    code, _ = sweep.run(FAKE_500="1")
    assert code == 1
    for record in sweep.records().values():
        assert record["http_status"] == 500
        assert "engine died" in record["error"]
    assert sweep.living() == []


def wait_for(condition: Any, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_continues(sweep, number):
    process = sweep.start(FAKE_SLEEP="0.2")
    wait_for(lambda: (sweep.folder / sweep.names[1] / "server.pid").exists())
    wait_for(lambda: len(Path(sweep.env["FAKE_PIDS"]).read_text().splitlines()) == 2)
    process.send_signal(number)
    said, _ = process.communicate(timeout=30)
    assert process.returncode == 128 + number, said
    assert sweep.living() == []
    assert list(sweep.records()) == sweep.names[:1]
    code, said = sweep.run()
    assert code == 0, said
    assert f"{sweep.names[0]}: done before" in said
    assert list(sweep.records()) == sweep.names


def test_a_killed_runner_leaves_a_server_that_the_next_start_ends(sweep):
    process = sweep.start(FAKE_SLEEP="30")
    wait_for(lambda: sweep.requests() == 1)
    process.kill()
    process.communicate(timeout=10)
    assert len(sweep.living()) == 2
    code, said = sweep.run()
    assert code == 0, said
    assert "ends the server of an interrupted run" in said
    assert sweep.living() == []


def test_a_server_of_others_is_left_alone(sweep):
    other = subprocess.Popen(
        [shutil.which("vllm", path=sweep.env["PATH"]), "serve", "x"], env=sweep.env
    )
    try:
        wait_for(lambda: runner.port_answers(sweep.port))
        code, _ = sweep.run()
        assert code == 1
        assert all("is in use" in r["error"] for r in sweep.records().values())
        assert other.poll() is None
    finally:
        other.terminate()
        other.wait(10)
        for pid in sweep.living():
            os.kill(pid, signal.SIGTERM)


def test_a_program_without_a_server_is_run_by_its_benchmark_alone(tmp_path):
    folder = tmp_path / "A_single"
    folder.mkdir()
    (folder / "serve.sh").write_text("touch served\n")
    line = json.dumps({"measured_ms": {"e2e": 5.0}})
    (folder / "bench.sh").write_text(f"echo '{line}' >> results.jsonl\n")
    job = {"run": "A_single", "plan": "x", "port": None, "record": {"id": "x"}}
    (folder / "job.json").write_text(json.dumps(job))
    assert runner.run(folder)
    assert json.loads((folder / "record.json").read_text())["measured_ms"] == {"e2e": 5.0}
    assert not (folder / "served").exists()


def test_the_json_of_a_benchmark_is_a_record_in_milliseconds(tmp_path):
    folder = tmp_path / "A_single"
    folder.mkdir()
    (folder / "bench.sh").write_text("echo '{\"latency_median\": 2.5}' > bench.json\n")
    job = {"run": "A_single", "plan": "x", "port": None, "record": {"id": "x"}}
    (folder / "job.json").write_text(json.dumps(job))
    assert runner.run(folder)
    assert json.loads((folder / "record.json").read_text())["measured_ms"] == {"client": 2500.0}


def test_a_noted_process_of_another_time_is_not_ours(tmp_path):
    note = tmp_path / "server.pid"
    note.write_text(json.dumps({"pid": os.getpid(), "started": "1"}))
    assert runner.noted_process(note) is None
    runner.note_process(note, os.getpid())
    assert runner.noted_process(note) == os.getpid()


def test_the_array_script_runs_the_run_of_its_number(sweep):
    code, said = sweep.run("slurm.sh", SLURM_ARRAY_TASK_ID="2", SLURM_SUBMIT_DIR=str(sweep.folder))
    assert code == 0, said
    assert list(sweep.records()) == [sweep.names[2]]
    text = (sweep.folder / "slurm.sh").read_text()
    assert "#SBATCH --array=0-2\n" in text
    assert "#SBATCH --gpus-per-node=4\n" in text


def test_scripts_are_clean(sweep):
    shellcheck = shutil.which("shellcheck", path=sweep.env["PATH"])
    scripts = sorted(map(str, sweep.folder.rglob("*.sh")))
    assert len(scripts) == 2 + 3 * len(sweep.names)
    done = subprocess.run(["bash", "-n", *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    if shellcheck is None:
        pytest.skip("no shellcheck here")
    done = subprocess.run([shellcheck, *scripts], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_another_plan_is_not_mixed_with_this_one(tmp_path, planned):
    answer, records, _ = planned
    folder = tmp_path / "sweep"
    write_scripts(answer, records, folder)
    write_scripts(answer, records, folder)
    before = sorted(folder.rglob("*"))
    other = answer.model_copy(update={"answer_id": "feedbeef"})
    fewer = answer.model_copy(update={"runs": answer.runs[:1]})
    for changed in (other, fewer):
        with pytest.raises(BadInput, match=r"sweep holds another plan .* or remove") as refused:
            write_scripts(changed, records[: len(changed.runs)], folder)
        assert refused.value.exit_code == 2
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["pl an", "it's", "--weird"])
def test_the_next_steps_can_be_pasted(name, tmp_path, monkeypatch, capsys):
    """A shell splits the line into the words that name the files."""
    monkeypatch.chdir(tmp_path)
    assert typed(["plan", "--gpus", "2xH100-SXM", "--frames", "33", f"--out={name}"]) == 0
    (line,) = [row for row in capsys.readouterr().err.splitlines() if row.startswith("next: ")]
    first, _, second = line.removeprefix("next: ").partition(", then ")
    shell, script = shlex.split(first)
    assert (shell, script[:1] == "-", Path(script).is_file()) == ("bash", False, True)
    *command, results = shlex.split(second)
    assert command == ["perfmodel", "verify", "--from"]
    assert Path(results) == Path(name) / "results.jsonl"
    assert not results.startswith("-")
