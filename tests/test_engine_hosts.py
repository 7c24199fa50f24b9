"""Commands of configurations that span several hosts."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.api import recommend
from perfmodel.api.session import open_session
from perfmodel.engines import engine
from perfmodel.engines.base import Commands
from perfmodel.engines.described import timed_run
from perfmodel.engines.legality import problems
from perfmodel.spec.parallel import parse_parallel
from perfmodel.spec.workload import Options, Workload

MODEL = "wan2.2-t2v-a14b"


def commands(name: str, gpus: str, parallel: str, model: str = MODEL) -> Commands:
    session = open_session(Workload(model=model), gpus, engine=name)
    return engine(name).commands(session.context, parse_parallel(parallel)[0], 1.0)


def started(text: str, rank: int) -> list[str]:
    """Words of the command as a shell on host `rank` passes them on."""
    line = next(line for line in text.splitlines() if line and not line.startswith(("#", "cat")))
    variables = {**os.environ, "NODE_RANK": str(rank), "MASTER_ADDR": "10.0.0.1"}
    program = f"{sys.executable} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' {line}"
    done = subprocess.run(
        ["bash", "-c", program], env=variables, capture_output=True, text=True, check=True
    )
    words: list[str] = json.loads(done.stdout)
    return words


NODES = {
    # server_args.py 0.5.23: num_gpus counts all hosts; --dist-init-addr is required.
    "sglang-diffusion": [
        "--num-gpus 16", "--nnodes 2", "--node-rank=1", "--dist-init-addr=10.0.0.1:29500",
    ],
    # xfuser/cli.py 0.7.0 hands these to torchrun, whose processes are counted on each host.
    "xdit": ["--nnodes=2", "--node_rank=1", "--master_addr=10.0.0.1", "--nproc_per_node=8"],
    "wan-official": ["--nnodes=2", "--node_rank=1", "--master_addr=10.0.0.1", "--nproc_per_node=8"],
}  # fmt: skip
PARALLEL = {
    "sglang-diffusion": "cfg2_usp8",
    "xdit": "cfg2_usp8",
    "wan-official": "usp16",
}


@pytest.mark.parametrize("name", NODES)
def test_each_host_has_its_rank_and_the_first_ones_address(name: str) -> None:
    text = commands(name, "2x8xH100", PARALLEL[name]).serve
    assert "# start it on each of 2 hosts, with NODE_RANK=0 to 1" in text
    words = " ".join(started(text, rank=1))
    for said in NODES[name]:
        assert said in words


@pytest.mark.parametrize("name", NODES)
def test_one_host_needs_none_of_it(name: str) -> None:
    for gpus, parallel in (("8xH100", "usp8"), ("2x8xH100", "usp8")):
        text = commands(name, gpus, parallel).serve
        assert "NODE_RANK" not in text
        assert "--nnodes" not in text


@pytest.mark.parametrize("name", NODES)
def test_a_launch_over_hosts_reads_back_as_its_configuration(name: str) -> None:
    text = commands(name, "2x8xH100", PARALLEL[name]).serve
    read = engine(name).read_launch(started(text, rank=0))
    assert read.num_gpus == 16
    config = parse_parallel(PARALLEL[name])[0]
    assert (read.parallel.cfg, read.parallel.ulysses) == (config.cfg, config.ulysses)


def test_hosts_have_as_many_ranks_each() -> None:
    # 12 ranks on hosts of 8: two of 6.
    words = started(commands("xdit", "2x8xH100", "usp6_ring2").serve, rank=0)
    assert "--nproc_per_node=6" in words


@pytest.mark.parametrize(
    ("gpus", "parallel", "offload", "refused"),
    [
        ("2x8xH100", "cfg2_usp8", "none", True),
        ("2x8xH100", "usp8", "none", False),
        ("16xH100", "usp8_dp2", "none", False),  # two servers
        ("16xH100", "usp8_dp2", "layerwise-gather", True),  # one
        ("128x8xH100", "cfg2_usp4_ring2_tp2", "none", True),
        ("8xH100", "cfg2_usp4", "none", False),
    ],
)
def test_a_server_of_vllm_omni_is_on_one_host(gpus, parallel, offload, refused) -> None:
    # diffusion/worker of 0.30.0: processes that meet at localhost; diffusion/executor: no ray.
    session = open_session(Workload(model=MODEL), gpus, options=Options(offload=offload))
    config = parse_parallel(parallel)[0]
    found = problems(engine("vllm-omni").rules(), session.context, config)
    assert ("one-host" in {problem.rule_id for problem in found}) == refused


def test_what_is_recommended_over_hosts_starts() -> None:
    answer = recommend(Workload(model=MODEL), "2x8xH100")
    assert {row.num_gpus for row in answer.recommendations} <= set(range(1, 9))


def test_a_benchmark_over_hosts_takes_the_variables_of_its_shell(tmp_path: Path) -> None:
    text = commands("xdit", "2x8xH100", "cfg2_usp8").benchmark
    line = next(line for line in text.splitlines() if line.startswith("python3 -"))
    job = json.loads(shlex.split(line.split(" <<")[0])[2])
    seen = tmp_path / "seen.json"
    show = f"import json, sys; json.dump(sys.argv[1:], open({str(seen)!r}, 'w'))"
    job |= {"argv": [sys.executable, "-c", show, *job["argv"]], "repeats": 1}
    job["out"] = str(tmp_path / "out.jsonl")
    subprocess.run(
        [sys.executable, timed_run.__file__, json.dumps(job)],
        env={**os.environ, "NODE_RANK": "1", "MASTER_ADDR": "10.0.0.1"},
        check=True,
        cwd=tmp_path,
    )
    words = json.loads(seen.read_text(encoding="utf-8"))
    assert "--node_rank=1" in words
    assert "--master_addr=10.0.0.1" in words


@pytest.mark.parametrize("name", ["sglang-diffusion", "xdit", "wan-official", "diffusers"])
def test_a_run_over_several_hosts_takes_whole_hosts(name: str) -> None:
    """Launchers start as many processes on each host; 9 ranks of 16 would be 10."""
    session = open_session(Workload(model="wan2.1-t2v-14b"), "2x8xH100", engine=name)
    rules = engine(name).rules()

    def broken(parallel: str) -> dict[str, str]:
        config = parse_parallel(parallel)[0]
        return {p.rule_id: p.message for p in problems(rules, session.context, config)}

    for ranks in (9, 12, 15):
        assert "whole-hosts" in broken(f"ring{ranks}")
    assert "ask --gpus 2x6xh100-sxm" in broken("ring12")["whole-hosts"]
    for parallel in ("ring5", "ring8", "ring16", "usp8_ring2"):
        assert "whole-hosts" not in broken(parallel)
