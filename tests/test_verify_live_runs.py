"""`verify --live` on this CPU: what is built, what is kept, what a second start does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from perfmodel.api.recommend import recommend
from perfmodel.api.session import open_session
from perfmodel.catalog import parse_gpus, read_device
from perfmodel.errors import BadInput
from perfmodel.report.live_answer import LiveAnswer
from perfmodel.report.render import Look, render
from perfmodel.spec.parallel import ParallelConfig, parse_parallel
from perfmodel.spec.workload import Workload
from perfmodel.verify.live.question import ask, pick
from perfmodel.verify.live.store import LiveStore, Row, setup_id

ROOT = Path(__file__).parent.parent
DEVICE = """
id: {id}
vendor: Some
title: A processor
names: [{name}]
architecture: x86_64
family: cpu
node_size: 2
peak_flop_per_s:
  bf16: {{value: 2.0e+11, source: s, kind: measured}}
  fp32: {{value: 1.0e+11, source: s, kind: measured}}
memory:
  kind: host memory
  capacity_bytes: {{value: 3.2e+10, source: s, kind: measured}}
  usable_bytes: {{value: 3.2e+10, source: s, kind: measured}}
  bandwidth_bytes_per_s: {{value: 2.0e+10, source: s, kind: measured}}
  l2_bytes: {{value: 3.3e+7, source: s, kind: measured}}
compute:
  multiprocessors: {{value: 1, source: s, kind: measured}}
link:
  kind: shared memory
  bytes_per_s_per_direction: {{value: 1.0e+9, source: s, kind: measured}}
  topology: switch
  domain_size: 2
host_link:
  kind: memory copy
  bytes_per_s_per_direction: {{value: 5.0e+9, source: s, kind: measured}}
network:
  kind: Ethernet
  bytes_per_s_per_direction: {{value: 1.25e+9, source: s, kind: prior}}
sources:
  s: {{url: none, what: made up for a test}}
"""


def question(identity: str, scale: int = 1, **work: object):
    session = open_session(Workload(**{"frames": 189, **work}), parse_gpus("4xB300"))
    return ask(session, parse_parallel(identity)[0], scale)


def test_the_built_shapes_are_those_of_the_request():
    asked = question("cfg2_usp2_vaepp4")
    spec = asked.job.model.transformer
    assert (spec.hidden, spec.heads, spec.kv_heads, spec.ffn) == (4096, 32, 8, 12288)
    assert asked.grid == (48, 46, 80)  # 720p of 189 frames, rows padded to the patch
    assert asked.piece() == (48, 16, 16)  # tiles of 256 pixels, 16 to a latent row
    assert asked.block_runs() == 35 * 36  # one branch a rank
    assert question("usp4").block_runs() == 2 * 35 * 36
    assert question("usp4").piece() == (48, 45, 80)


def test_the_pick_is_the_best_that_can_be_built():
    session = open_session(Workload(frames=189), parse_gpus("4xB300"))
    config = pick(session, 4, ())
    assert config.world_size == 4
    assert config.hsdp == config.pp == config.dp == 1
    best = recommend(Workload(frames=189), parse_gpus("4xB300"), use_all_gpus=True, top=50)
    others = ("hsdp_shard_size", "pipeline_parallel_size", "data_parallel_size")
    buildable = [
        row.config_id
        for row in best.recommendations
        if all(getattr(row.parallel, name) == 1 for name in others)
    ]
    assert config.config_id in buildable[:3]
    # guidance 1 has one branch: a rule that counts unless it is overlooked
    single = open_session(Workload(frames=189, guidance=1), parse_gpus("2xB300"))
    assert pick(single, 2, ()).cfg == 1


def test_a_reduced_request_keeps_what_the_ranks_divide():
    for scale in (2, 8, 16):
        asked = question("usp2_tp2", scale)
        spec = asked.job.model.transformer
        assert spec.kv_heads % 4 == 0
        assert spec.heads == 4 * spec.kv_heads
        assert spec.ffn % 4 == spec.hidden % 4 == 0
        assert int(asked.job.shape.width) <= 1280 / scale * 1.2
        assert spec.head_dim == 128
    whole, small = question("usp4"), question("usp4", 4)
    assert small.block_runs() == whole.block_runs()
    seconds = [sum(p.total_s for p in asked.denoise().values()) for asked in (small, whole)]
    assert seconds[0] < seconds[1] / 16


def test_what_cannot_be_built_is_said_at_once():
    with pytest.raises(BadInput) as caught:
        question("hsdp4", model="hunyuanvideo", frames=61)
    assert {problem.rule_id for problem in caught.value.problems} == {"live-family", "live-axis"}


def test_rows_survive_an_interruption(tmp_path):
    path, setup = tmp_path / "live.jsonl", {"model": "m", "scale": 8}
    store = LiveStore(path, setup)
    store.append(Row("denoise", "q projection", "1x2", 1, 0.5, 0.01, 5))
    store.append(Row("denoise", "odd", "1x2", 1, skipped="no such kernel"))
    with path.open("a") as stream:
        stream.write('{"setup": "half')
    again = LiveStore(path, setup)
    assert [row.each_ms for row in again.rows.values()] == [0.5, None]
    assert again.done(("denoise", "odd", "1x2"))
    assert not LiveStore(path, {"model": "m", "scale": 4}).rows
    again.append(Row("denoise", "k projection", "1x2", 1, 0.25))
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["operator"] for record in records][-1] == "k projection"
    assert {record["setup"] for record in records} == {setup_id(setup)}


@pytest.fixture
def described(tmp_path):
    """A folder that describes this CPU, so that no bench runs."""
    import torch

    from perfmodel.calibrate.measure import card
    from perfmodel.calibrate.measure.device import open_device

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    device = open_device("cpu")
    identity, name = card.device_id(device), device.name
    torch.set_num_threads(threads)
    path = tmp_path / "data" / "hardware" / f"{identity}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(DEVICE.format(id=identity, name=json.dumps(name)), encoding="utf-8")
    read_device(path)
    return tmp_path / "data"


def command(described: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    words = ["verify", "--live", "--device", "cpu", "--frames", "5", "--scale", "16"]
    return subprocess.Popen(
        [sys.executable, "-m", "perfmodel", *words, "--records", str(out), "--json", *more],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PERFMODEL_PATH": str(described)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> LiveAnswer:
    out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors[-2000:]
    return LiveAnswer.model_validate_json(out)


def test_two_ranks_are_compared_operator_by_operator_and_go_on_after_a_kill(described, tmp_path):
    rows = tmp_path / "out" / "live.jsonl"
    first = command(described, rows.parent, "--parallel", "usp2")
    deadline = time.monotonic() + 90
    while not (rows.exists() and rows.read_text().count("\n") >= 3):
        assert time.monotonic() < deadline, first.communicate()
        assert first.poll() is None, first.communicate()
        time.sleep(0.02)
    first.kill()  # the ranks end by themselves: their partner or their listener is gone
    first.communicate(timeout=60)
    kept = [json.loads(line) for line in rows.read_text().splitlines(True) if line.endswith("\n")]
    answer = finished(command(described, rows.parent, "--parallel", "usp2"))
    assert answer.measured_before >= len(kept) >= 3
    # the very same rows, not measured again
    again = [json.loads(line) for line in rows.read_text().splitlines()]
    assert again[: len(kept)] == kept
    keys = [(row["piece"], row["operator"], row["signature"]) for row in again]
    assert len(keys) == len(set(keys))
    by_name = {row.operator: row for row in answer.rows}
    wanted = {"self-attention", "q projection", "down projection", "Ulysses all-to-all q, o"}
    assert wanted | {"Ulysses layout copies", "sequence exit gather"} <= set(by_name)
    assert all(row.measured_ms and row.measured_ms > 0 for row in answer.rows)
    assert any("conv" in name for name in by_name)
    assert answer.covered_share > 0.9
    assert answer.block_measured_ms
    assert answer.block_runs == 2 * 35 * 36
    assert answer.denoise_measured_ms > answer.block_measured_ms * answer.block_runs
    page = render(answer, "table", Look())
    assert "reduced by 16" in page
    assert "self-attention" in page
    assert f"{len(again)} from before" not in page


def test_wan_on_one_rank_with_an_image(described, tmp_path):
    answer = finished(
        command(described, tmp_path, "--model", "wan2.1-i2v-14b", "--parallel", "single")
    )
    names = {row.operator for row in answer.rows}
    assert {"text cross-attention", "image cross-attention", "q, k, v projection"} <= names
    assert answer.backend is None
    assert answer.ranks == 1


def test_flags_that_do_not_belong_are_refused(described, tmp_path):
    for words, said in (
        (("--gpus", "4xB300"), "leave out --gpus"),
        (("--ranks", "3", "--parallel", "usp2"), "--ranks 2"),
        (("--runs", "A"), "belongs to --serve"),
    ):
        process = command(described, tmp_path, *words)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 2, errors
        assert said in errors


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "hunyuanvideo"), "builds blocks of cosmos3, wan"),
        (("--model", "no-such-model"), "no-such-model"),
        (("--parallel", "usp5", "--model", "wan2.1-t2v-1.3b"), "ulysses"),
        (("--parallel", "hsdp2"), "not over hsdp"),
        (("--size", "1x1"), "--size"),
    ],
)
def test_what_no_device_can_build_is_refused_before_an_unknown_one_is_measured(
    words, said, tmp_path
):
    (tmp_path / "nothing" / "hardware").mkdir(parents=True)
    process = command(tmp_path / "nothing", tmp_path / "out", *words)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2, errors
    assert said in errors
    assert "a quick bench" not in errors
    assert not (tmp_path / "out").exists()


def test_the_setup_tells_configurations_apart():
    assert setup_id({"a": 1, "b": [2]}) == setup_id({"b": [2], "a": 1})
    assert setup_id({"a": 1}) != setup_id({"a": 2})
    assert ParallelConfig(ulysses=2).config_id == "usp2"
