"""Joint attention over ranks: text queries on every rank, their output gathered, joined rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.ops import Attention, Collective, Gemm, Op, Rows, Split, flops
from perfmodel.placement import sequence, tensor
from perfmodel.placement.denoise import place_op
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Options
from perfmodel.stages.base import DenoiseWork

TOKENS, TEXT, HEADS, HEAD_DIM, LAYERS = 4096, 512, 24, 128, 60


@dataclass(frozen=True)
class Table:
    ulysses_copies: int = 2
    pad_masked: bool = False
    hsdp_breaks_graph: bool = True
    fused_quantise: bool = False
    patch_warmup_steps: int | None = None
    attention_backend: str = "TORCH_SDPA"
    ring_attention_kernel: str = "TORCH_SDPA"
    torch_attention_kernel: str = "TORCH_SDPA"
    cross_attention_backend: str = "TORCH_SDPA"


def joint(**changes: object) -> Attention:
    fields: dict[str, object] = dict(
        name="joint",
        count=LAYERS,
        seq_q=TOKENS + TEXT,
        seq_kv=TOKENS + TEXT,
        prefix_q=TEXT,
        prefix_kv=TEXT,
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=HEAD_DIM,
    )
    return Attention(**{**fields, **changes})  # type: ignore[arg-type]


def work(*ops: Op) -> DenoiseWork:
    return DenoiseWork(
        per_forward=ops,
        blocks=LAYERS,
        block_params=1,
        hidden=HEADS * HEAD_DIM,
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=HEAD_DIM,
        exit_width=64,
        velocity_elements=1.0,
    )


def place(op: Op, *configs: ParallelConfig) -> list[Op]:
    return place_op(op, work(op), Layouts.of(list(configs)), Table(), Options())


def attention_flops(ops: list[Op]) -> float:
    return float(
        sum(np.sum(np.asarray(op.count) * flops(op)) for op in ops if isinstance(op, Attention))
    )


def active(ops: list[Op]) -> dict[str, Op]:
    return {op.name: op for op in ops if np.all(np.asarray(op.count) > 0)}


def test_degree_one_is_identity() -> None:
    placed = active(place(joint(), ParallelConfig()))
    assert set(placed) == {"joint"}
    assert placed["joint"].seq_q == TOKENS + TEXT  # type: ignore[attr-defined]
    assert attention_flops(list(placed.values())) == LAYERS * float(flops(joint()))


@given(st.sampled_from([1, 2, 3, 4, 6, 8]), st.sampled_from([1, 2]))
def test_ulysses_conserves_the_work(ulysses: int, tp: int) -> None:
    if HEADS % (ulysses * tp):
        return
    tokens = 24 * 100
    op = joint(seq_q=tokens + TEXT, seq_kv=tokens + TEXT)
    config = ParallelConfig(ulysses=ulysses, tp=tp)
    one, part = attention_flops(place(op, ParallelConfig())), attention_flops(place(op, config))
    assert part * config.world_size == pytest.approx(one, rel=1e-12)


def test_ring_repeats_the_text_queries_on_every_member() -> None:
    part = attention_flops(place(joint(), ParallelConfig(ring=4)))
    pairs = (TOKENS / 4 + TEXT) * (TOKENS + TEXT)
    assert part == pytest.approx(LAYERS * 4 * HEADS * HEAD_DIM * pairs, rel=1e-12)


def test_text_output_is_gathered_over_the_heads() -> None:
    gather = active(place(joint(), ParallelConfig(ulysses=4)))["Ulysses text gather"]
    assert isinstance(gather, Collective)
    assert gather.op == "all_gather"
    # [1, 512, 24, 128] in bf16 after the gather.
    assert float(gather.full_bytes[0]) == 512 * 24 * 128 * 2  # type: ignore[index]
    assert int(gather.count[0]) == LAYERS  # type: ignore[index]


def test_exchanges_move_latent_tokens_only() -> None:
    placed = active(place(joint(), ParallelConfig(ulysses=4)))
    query = placed["Ulysses all-to-all q, o"]
    assert float(query.full_bytes[0]) == 1024 * HEADS * HEAD_DIM * 2  # type: ignore[attr-defined]


def test_attention_without_text_queries_gathers_nothing() -> None:
    plain = joint(seq_q=TOKENS, prefix_q=0)
    assert not any(op.name == "Ulysses text gather" for op in place(plain, ParallelConfig(ring=2)))


def test_columns_equal_one_by_one() -> None:
    configs = [
        ParallelConfig(),
        ParallelConfig(ulysses=4),
        ParallelConfig(ulysses=2, ring=2),
        ParallelConfig(ring=4),
        ParallelConfig(tp=2, ulysses=2),
    ]
    together = place(joint(), *configs)
    for row, config in enumerate(configs):
        for many, one in zip(together, place(joint(), config), strict=True):
            assert np.broadcast_to(many.count, 5)[row] == np.broadcast_to(one.count, 1)[0]
            mine, alone = np.broadcast_to(flops(many), 5)[row], np.broadcast_to(flops(one), 1)[0]
            assert mine == pytest.approx(alone, rel=1e-12)


def test_joined_rows_divide_without_their_text() -> None:
    gemm = Gemm(
        name="single",
        m=TOKENS + TEXT,
        n=3072,
        k=3072,
        rows=Rows.TOKENS,
        split=Split.COLUMN,
        fixed_rows=TEXT,
    )
    layouts = Layouts.of([ParallelConfig(), ParallelConfig(ulysses=4), ParallelConfig(ring=3)])
    split = sequence.split_rows(gemm, layouts)
    assert isinstance(split, Gemm)
    assert split.m.tolist() == [4608, 1024 + 512, 1366 + 512]  # type: ignore[union-attr]


def test_heads_that_tensor_parallelism_leaves_whole() -> None:
    layouts = Layouts.of([ParallelConfig(tp=4)])
    whole = tensor.split_widths(joint(tensor_split=False), layouts)
    divided = tensor.split_widths(joint(), layouts)
    assert (whole.heads, int(divided.heads[0])) == (HEADS, HEADS // 4)  # type: ignore[union-attr]


def test_gathered_maps_hold_local_tokens_and_text() -> None:
    layouts = Layouts.of([ParallelConfig(tp=2), ParallelConfig()])
    rows = np.array([4096 + 512, 4096 + 512])
    (gather,) = tensor.width_gathers((("inputs", 48, 55_296),), rows, 2, layouts)
    assert gather.full_bytes.tolist() == [2 * 4608 * 55_296 * 2] * 2  # type: ignore[union-attr]
    assert gather.count.tolist() == [48, 0]  # type: ignore[union-attr]


def test_torch_runs_a_masked_attention_on_its_memory_efficient_kernel() -> None:
    masked, plain = place(joint(masked=True), ParallelConfig()), place(joint(), ParallelConfig())
    assert masked[0].backend == "SDPA_EFFICIENT"  # type: ignore[attr-defined]
    assert plain[0].backend == "TORCH_SDPA"  # type: ignore[attr-defined]
