"""Very many devices: the search stays small, says what it leaves out, and skips nothing usual."""

from __future__ import annotations

import itertools
import math
import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel import api
from perfmodel.cli.app import run
from perfmodel.errors import BadInput, MissingData
from perfmodel.plan import make
from perfmodel.report.render import Look, render
from perfmodel.search.enumerate import (
    COMPUTE_AXES,
    MOST_ROWS,
    MOST_WORLD,
    candidates,
    combinations,
    left_out,
    world_sizes,
)
from perfmodel.spec.parallel import parse_parallel

PARTS = len(COMPUTE_AXES)


@given(st.integers(1, 60), st.integers(1, 4))
def test_combinations_are_counted_without_making_them(world, parts):
    divisors = [n for n in range(1, world + 1) if world % n == 0]
    ways = sum(math.prod(degrees) == world for degrees in itertools.product(divisors, repeat=parts))
    patches = {world} | {2**i for i in range(10) if 2**i <= world}
    choices = 2 + len(patches - {1})
    assert combinations(world, parts) == ways * len(divisors) * choices


@given(st.integers(1, 100_000))
@settings(max_examples=300)
def test_no_number_of_devices_makes_a_large_search(num_gpus):
    sizes = world_sizes(num_gpus)
    assert sum(combinations(size, PARTS) for size in sizes) <= MOST_ROWS
    assert max(sizes) <= min(num_gpus, MOST_WORLD)
    assert {1, 2} & set(sizes) or num_gpus == 1
    # what is tried and what is left out are all divisors
    divisors = {n for n in range(1, num_gpus + 1) if num_gpus % n == 0}
    assert divisors - set(sizes) == set(left_out(num_gpus))


@pytest.mark.parametrize("num_gpus", [*range(1, 17), 24, 32, 48, 64, 72, 96, 128, 256, 512])
def test_machines_of_usual_size_leave_nothing_out(num_gpus):
    assert left_out(num_gpus) == ()


@pytest.mark.parametrize("num_gpus", [8, 24, 64])
def test_the_rows_made_are_those_counted_and_some_of_pure_weight_sharding(num_gpus):
    counted = sum(combinations(size, PARTS) for size in world_sizes(num_gpus))
    assert counted <= len(candidates(num_gpus)) <= 1.1 * counted


def test_a_hundred_thousand_devices_are_answered_soon_and_the_line_says_what_is_left_out():
    started = time.process_time()
    answer = api.recommend(pm.Workload(frames=81), "100000xH100")
    assert time.process_time() - started < 6
    assert answer.recommendations
    (line,) = [w for w in answer.warnings if w.rule_id == "search-bound"]
    assert "100,000 and" in line.message
    assert "1,024" in line.message
    assert "100000 GPUs as replicas" in render(answer, "table", Look())


def test_an_engine_without_axes_is_bounded_too():
    assert world_sizes(100_000, 0)
    answer = api.recommend(pm.Workload(model="wan2.1-t2v-14b"), "64xH100", engine="wan-official")
    assert answer.recommendations


def test_all_of_too_many_devices_is_one_line(capsys):
    assert run(["recommend", "--gpus", "2048xH100-SXM", "--use-all-gpus"]) == 2
    (line,) = [row for row in capsys.readouterr().err.splitlines() if row.startswith("error")]
    assert "--use-all-gpus: a request is not tried on 2,048 GPUs" in line
    with pytest.raises(BadInput):
        api.recommend(pm.Workload(), "2048xH100", use_all_gpus=True)
    asked = pm.Workload(frames=81)
    used = api.recommend(asked, "12xH100", engine="sglang-diffusion", use_all_gpus=True)
    assert {row.num_gpus for row in used.recommendations} == {12}


@pytest.mark.parametrize("command", ["recommend", "plan"])
@pytest.mark.parametrize(
    ("question", "said"),
    [
        ("5xH100 --model qwen-image --engine xdit", "no legal configuration uses all 5 GPUs"),
        ("7xH100 --model flux.1-dev --engine diffusers", "no legal configuration uses all 7 GPUs"),
        ("8xH100 --engine wan-official", "has no pipeline in wan-official"),
    ],
)
def test_where_all_gpus_cannot_be_used_one_line_says_why(command, question, said, capsys):
    assert run([command, "--gpus", *question.split(), "--use-all-gpus"]) == 2
    out, err = capsys.readouterr()
    (line,) = [row for row in err.splitlines() if row.startswith("error")]
    assert said in line
    assert "NOTHING FITS" not in out


def test_the_number_of_gpus_that_it_names_works(capsys):
    question = ["--model", "qwen-image", "--engine", "xdit", "--use-all-gpus"]
    assert run(["recommend", "--gpus", "5xH100", *question]) == 2
    (number,) = re.findall(r"(\d+) GPUs work", capsys.readouterr().err)
    assert run(["recommend", "--gpus", f"{number}xH100", *question]) == 0


@pytest.mark.parametrize("ask", [api.recommend, make.plan])
def test_copies_use_all_gpus_where_the_objective_runs_them(ask):
    """A server of vLLM-Omni has one host, so one request never uses 16 GPUs of two."""
    job, gpus = pm.Workload(model="wan2.2-t2v-a14b", frames=81), "2x8xH100"
    with pytest.raises(BadInput, match="8 GPUs work, 2 replicas use all"):
        ask(job, gpus, use_all_gpus=True)
    two = job.model_copy(update={"concurrency": 2})
    for answer in (
        ask(two, gpus, use_all_gpus=True),
        ask(job, gpus, use_all_gpus=True, objective="throughput"),
    ):
        rows = answer.recommendations if ask is api.recommend else answer.runs
        worlds = [parse_parallel(row.config_id)[0].world_size for row in rows]
        assert worlds
        assert all(16 % world == 0 for world in worlds)
    with pytest.raises(BadInput, match="3 replicas use all"):
        ask(two, "3x8xH100", use_all_gpus=True)


def test_candidates_of_fewer_gpus_are_not_all_gpus():
    question = (pm.Workload(frames=81), "4xH100")
    with pytest.raises(BadInput, match=r"none of --candidates uses all 4 GPUs.*2 GPUs work"):
        make.plan(*question, candidates=("single", "usp2"), use_all_gpus=True)
    made = make.plan(*question, candidates=("usp2", "usp4"), use_all_gpus=True)
    assert [run.config_id for run in made.runs] == ["usp4"]


@pytest.mark.parametrize("ask", [api.recommend, make.plan])
def test_a_peak_that_is_missing_is_missing_data_whatever_is_asked(ask):
    with pytest.raises(MissingData, match="no nvfp4 matrix rate"):
        ask(pm.Workload(), "4xascend-910b2", options=pm.Options(dtype="nvfp4"))


@pytest.mark.parametrize("ask", [api.recommend, make.plan])
def test_where_only_fewer_gpus_fit_the_miss_is_of_all_and_the_fewer_are_offered(ask):
    """Between what five cards need at least, and what four do."""
    work, engine = pm.Workload(model="wan2.1-t2v-14b"), "sglang-diffusion"
    rows = api.recommend(work, "5xrtx-4090", engine=engine, top=999).recommendations
    least = {n: min(r.required_memory_gib for r in rows if r.num_gpus == n) for n in (4, 5)}
    assert least[4] < least[5]
    machine = pm.system("5xrtx-4090", gpu_memory_gib=sum(least.values()) / 2)
    answer = ask(work, machine, engine=engine, use_all_gpus=True)
    assert answer.status == "does_not_fit"
    assert answer.nearest_miss.num_gpus == 5
    assert answer.over_gib > 0
    (fewer,) = [choice for choice in answer.would_fit if choice.title == "without --use-all-gpus"]
    assert fewer.num_gpus == 4
    assert fewer.fit_status != "no"
    page = " ".join(render(answer, "table", Look()).split())
    assert "configurations of all 5 GPUs fits" in answer.problems[0].message
    assert ("of fewer GPUs fit" in page) == (ask is api.recommend)
