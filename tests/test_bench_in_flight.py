"""Benchmarks of several requests in flight send them at once, and their records are read so."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.cli.app import run
from perfmodel.engines.vllm_omni import commands
from perfmodel.pipeline.queue import copies, of_a_server
from perfmodel.spec.parallel import Layouts, ParallelConfig

SERVICE_S = 0.2
SLOWER = 200.0


class OneAfterAnother(BaseHTTPRequestHandler):
    """A server that takes one request at a time; how many stood in line when each came."""

    lock = threading.Lock()
    inside = 0
    seen: list[int]

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def do_POST(self) -> None:
        mine = type(self)
        self.rfile.read(int(self.headers["Content-Length"]))
        mine.inside += 1
        mine.seen.append(mine.inside)
        with mine.lock:
            time.sleep(SERVICE_S)
        mine.inside -= 1
        self.send_response(200)
        self.send_header("Content-Type", "video/mp4")
        self.send_header("X-Inference-Time-S", f"{SERVICE_S}")
        self.send_header("X-Stage-Durations", json.dumps({"P.diffuse": 0.15}))
        self.end_headers()
        self.wfile.write(b"mp4")


@pytest.fixture
def port(monkeypatch):
    OneAfterAnother.seen = []
    http = ThreadingHTTPServer(("localhost", 0), OneAfterAnother)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    monkeypatch.setattr(commands, "PORT", http.server_address[1])
    yield http.server_address[1]
    http.shutdown()
    http.server_close()


def benchmark(parallel: str, in_flight: int) -> str:
    job = pm.Workload(frames=189, concurrency=in_flight)
    predicted = pm.predict(job, "4xB300", parallel=parallel).prediction
    assert predicted is not None
    assert predicted.commands is not None
    return predicted.commands.benchmark or ""


@pytest.mark.parametrize(("parallel", "at_once"), [("cfg2_usp2_vaepp4", 4), ("cfg2", 2)])
def test_a_benchmark_sends_what_its_server_gets_and_verify_reads_it(
    port, tmp_path, capsys, parallel, at_once
):
    text = benchmark(parallel, 4)
    done = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "results.jsonl").read_text())
    assert (record["concurrency"], record["latency_of"]) == (at_once, "mean")
    # a warm-up alone, then three waves
    assert len(OneAfterAnother.seen) == 1 + 3 * at_once
    assert max(OneAfterAnother.seen) == at_once
    mean_ms = 1000 * SERVICE_S * (at_once + 1) / 2
    assert record["measured_ms"]["client"] == pytest.approx(mean_ms, rel=0.15)
    assert record["measured_ms"]["denoise"] == 150
    # as a model of this size would take
    record["measured_ms"] = {k: v * SLOWER for k, v in record["measured_ms"].items()}
    path = tmp_path / "real.jsonl"
    path.write_text(json.dumps(record))
    asked = ["--gpus", "4xB300", "--frames", "189", "--concurrency", "4", "--study", "none"]
    assert run(["verify", *asked, "--json", "--from", str(path)]) == 0
    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert row["status"] == "measured"
    assert row["compared_ms"] == pytest.approx(1000 * SERVICE_S * SLOWER, rel=0.15)


def test_one_request_stays_one_at_a_time():
    text = benchmark("cfg2_usp2_vaepp4", 1)
    assert '"in_flight": 1' in text
    assert "latency_of" not in text.split("<<'END_OF_CLIENT'")[0]


def test_the_servers_limit_holds_the_wait():
    def served(in_flight: int) -> str:
        job = pm.Workload(model="wan2.1-t2v-14b", width=1280, height=720, concurrency=in_flight)
        predicted = pm.predict(job, "4xH100-SXM", parallel="cfg2_usp2_vaepp4").prediction
        assert predicted is not None
        assert predicted.latency_ms is not None
        assert 200e3 < predicted.latency_ms < 300e3
        assert predicted.commands is not None
        return predicted.commands.serve or ""

    assert "VLLM_OMNI_VIDEO_SYNC_TIMEOUT" not in served(1)
    limit_s = int(served(4).partition("VLLM_OMNI_VIDEO_SYNC_TIMEOUT=")[2].split()[0])
    assert limit_s > 4 * 300


@given(st.integers(1, 64), st.integers(0, 5), st.integers(1, 4))
def test_all_servers_together_take_all_requests(in_flight, doublings, replicas):
    layouts = Layouts.of([ParallelConfig(ulysses=2, dp=replicas)])
    num_gpus = 2 * replicas * 2**doublings
    servers = int(copies(in_flight, num_gpus, layouts)[0]) * replicas
    share = int(of_a_server(in_flight, num_gpus, layouts)[0])
    assert servers * share >= in_flight > servers * (share - 1)


def test_a_plan_drives_the_requests_in_flight_and_counts_their_time(capsys):
    asked = ["plan", "--gpus", "4xB300", "--frames", "189", "--json"]
    asked += ["--candidates", "cfg2_usp2_vaepp4,cfg2"]

    def runs(in_flight: int) -> dict[str, dict[str, float]]:
        assert run([*asked, "--concurrency", str(in_flight)]) == 0
        found = json.loads(capsys.readouterr().out)["runs"]
        return {one["config_id"]: one for one in found}

    alone, four = runs(1), runs(4)
    assert {name: one["in_flight"] for name, one in four.items()} == {
        name: {"cfg2_usp2_vaepp4": 4, "cfg2": 2}[name] for name in four
    }
    for name in set(alone) & set(four):
        each_min = alone[name]["prediction"]["latency_ms"] / 60e3
        more = four[name]["repeats"] * four[name]["in_flight"] - alone[name]["repeats"]
        assert four[name]["minutes"] - alone[name]["minutes"] == pytest.approx(more * each_min)
