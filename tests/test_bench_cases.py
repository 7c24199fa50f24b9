"""Shapes of the microbenchmarks: columns, presets, and the shapes of given operators."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.calibrate import presets
from perfmodel.calibrate.cases import CASES, PointwiseCase, header
from perfmodel.calibrate.shapes import for_ops
from perfmodel.ops import Attention, Collective, Conv, Gemm, HostWork, Pointwise, Transfer, flops

# The columns of the public records, typed from their description.
PUBLIC_COLUMNS = {
    "gemm": "op,dtype,kernel,m,n,k,latency_us,device,software",
    "attention": "op,dtype,kernel,causal,batch,seq_q,seq_kv,num_heads,num_kv_heads,head_dim,"
    "latency_us,device,software",
    "collective": "op,collective,library,num_ranks,elements,element_bytes,message_bytes,"
    "latency_us,device,software",
    "quantize": "op,what,kernel,dtype,m,k,latency_us,device,software",
}


@pytest.mark.parametrize("op", sorted(PUBLIC_COLUMNS))
def test_files_start_with_the_columns_of_the_public_records(op: str) -> None:
    wanted = tuple(PUBLIC_COLUMNS[op].split(","))
    assert header(CASES[op])[: len(wanted)] == wanted


@pytest.mark.parametrize("scale", ["cpu", "accelerator"])
@pytest.mark.parametrize("op", sorted(presets.PRESETS))
def test_full_presets_add_to_quick_ones_and_nothing_is_listed_twice(op: str, scale: str) -> None:
    quick = presets.PRESETS[op]("quick", scale)
    full = presets.PRESETS[op]("full", scale)
    assert len(set(quick)) == len(quick)
    assert len(set(full)) == len(full) >= len(quick) > 0
    assert {case.op for case in full} == {op}


@pytest.mark.parametrize("scale", ["cpu", "accelerator"])
def test_every_law_gets_the_eight_rows_a_fit_needs(scale: str) -> None:
    for op, name in (("gemm", "dtype"), ("quantize", "what"), ("attention", "dtype")):
        cases = presets.PRESETS[op]("quick", scale)
        for value in {getattr(case, name) for case in cases}:
            assert sum(getattr(case, name) == value for case in cases) >= 8, (op, value)
    assert len(presets.media_cases("quick", scale)) >= 8
    for collective in presets.COLLECTIVES:
        rows = presets.collective_cases("quick", scale, [2])
        assert sum(case.collective == collective for case in rows) >= 8


def test_quick_cpu_shapes_take_a_core_less_than_a_tenth_of_a_second() -> None:
    slow_core_flop_per_s = 4e10
    for build in presets.PRESETS.values():
        assert max(case.flops for case in build("quick", "cpu")) < 0.13 * slow_core_flop_per_s


def test_collective_messages_divide_over_the_ranks() -> None:
    for case in presets.collective_cases("full", "accelerator", [2, 3, 8]):
        assert case.message_bytes == case.elements * case.element_bytes
        assert case.elements % case.num_ranks == 0


def test_compiled_pointwise_moves_one_pass_in_one_launch() -> None:
    eager = presets.pointwise_case("rms_norm", 64, 512)
    (compiled,) = presets.compiled_pointwise([eager])
    assert isinstance(compiled, PointwiseCase)
    assert compiled.bytes_moved == 2 * 64 * 512 * 2
    assert (compiled.launches, compiled.kernel) == (1, "compile.rms_norm")
    assert presets.compiled_pointwise([presets.pointwise_case("copy", 64, 512)]) == []


def test_operators_become_their_distinct_shapes() -> None:
    m = np.array([64, 128, 64, 4096])
    on = np.array([1, 3, 2, 0])
    ops = [
        Gemm(name="a", count=on, m=m, n=256, k=32),
        Gemm(name="same again", m=64, n=256, k=32),
        Gemm(name="batched", m=10, n=256, k=32, batch=np.array([2])),
        HostWork(name="no shape", term="x"),
        Collective(
            name="c",
            op="all_reduce",
            full_bytes=np.array([4096.0, 4096.0, 3.0]),
            ranks=np.array([1, 2, 4]),
        ),
        Transfer(name="t", bytes_moved=100.0, direction="ipc"),
    ]
    cases = for_ops(ops)
    assert [(c.m, c.n, c.k) for c in cases if c.op == "gemm"] == [
        (20, 256, 32),
        (64, 256, 32),
        (128, 256, 32),
    ]
    found = [(c.num_ranks, c.message_bytes) for c in cases if c.op == "collective"]
    assert sorted(found) == [(2, 4096), (4, 8)]
    assert [(c.direction, c.bytes_moved) for c in cases if c.op == "transfer"] == [("h2h", 100)]


def test_pointwise_operators_become_copies_of_about_the_same_traffic() -> None:
    (case,) = for_ops([Pointwise(name="p", bytes_moved=123_456_789.0)])
    assert case.bytes_moved == pytest.approx(123_456_789, rel=0.06)
    assert case.what == "copy"


@settings(max_examples=60, deadline=None)
@given(
    count=st.integers(1, 3),
    dims=st.lists(st.integers(1, 5000), min_size=5, max_size=5),
    causal=st.booleans(),
)
def test_a_case_has_the_work_of_its_operator(count: int, dims: list[int], causal: bool) -> None:
    a, b, c, d, e = dims
    ops = (
        Gemm(name="g", count=count, m=a, n=b, k=c, batch=count),
        Attention(
            name="a",
            seq_q=a,
            seq_kv=b,
            heads=c,
            kv_heads=c,
            head_dim=64,
            batch=count,
            causal=causal,
        ),
        Conv(
            name="c",
            in_channels=d,
            out_channels=e,
            kernel=(3, 1, 3),
            out_t=a,
            out_h=b,
            out_w=c,
            batch=count,
        ),
    )
    for op in ops:
        (case,) = for_ops([op])
        assert case.flops == pytest.approx(float(flops(op)), rel=1e-12)
