"""Very many devices: the search stays small, says what it leaves out, and skips nothing usual."""

from __future__ import annotations

import itertools
import math
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel import api
from perfmodel.cli.app import run
from perfmodel.errors import BadInput
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
    used = api.recommend(pm.Workload(frames=81), "12xH100", use_all_gpus=True)
    assert {row.num_gpus for row in used.recommendations} == {12}
