"""Sharding laws: identity at degree 1, conservation, and hand-derived message sizes."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.ops import (
    Attention,
    Collective,
    Gemm,
    Pointwise,
    Role,
    Rows,
    Split,
    flops,
)
from perfmodel.placement import guidance, sequence, tensor, weights
from perfmodel.placement.denoise import place_denoise
from perfmodel.shapes import Shape
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Options
from perfmodel.stages.base import DenoiseWork

TOKENS, TEXT, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 44_160, 512, 4096, 32, 8, 128, 36


@dataclass(frozen=True)
class Table:
    ulysses_copies: int = 2
    pad_masked: bool = False
    hsdp_breaks_graph: bool = True
    fused_quantise: bool = False
    patch_warmup_steps: int | None = None
    attention_backend: str = "CUDNN_ATTN"
    ring_attention_kernel: str = "TORCH_SDPA"
    cross_attention_backend: str = "TORCH_SDPA"


def shape(tokens=TOKENS, steps=35, branches=2, forwards=None) -> Shape:
    return Shape(
        task="t2v",
        batch=1,
        width=1280,
        height=720,
        frames=189,
        fps=24.0,
        request_steps=steps,
        steps=steps,
        guidance=6.0,
        branches=branches,
        forwards=steps * branches if forwards is None else forwards,
        latent_frames=48,
        latent_height=45,
        latent_width=80,
        video_tokens=tokens,
        text_tokens=TEXT,
    )


def work(tokens=TOKENS) -> DenoiseWork:
    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    return DenoiseWork(
        per_forward=(
            Gemm(name="embed", m=tokens, n=HIDDEN, k=192, rows=Rows.FULL),
            Gemm(
                name="q",
                count=LAYERS,
                m=tokens,
                n=q,
                k=HIDDEN,
                rows=Rows.TOKENS,
                split=Split.COLUMN,
            ),
            Gemm(
                name="k",
                count=LAYERS,
                m=tokens,
                n=kv,
                k=HIDDEN,
                rows=Rows.TOKENS,
                split=Split.COLUMN,
            ),
            Attention(
                name="self",
                count=LAYERS,
                seq_q=tokens,
                seq_kv=tokens + TEXT,
                prefix_kv=TEXT,
                heads=HEADS,
                kv_heads=KV_HEADS,
                head_dim=HEAD_DIM,
            ),
            Gemm(
                name="o", count=LAYERS, m=tokens, n=HIDDEN, k=q, rows=Rows.TOKENS, split=Split.ROW
            ),
            Pointwise(
                name="norm", count=LAYERS, bytes_moved=4.0 * tokens * HIDDEN, rows=Rows.TOKENS
            ),
        ),
        blocks=LAYERS,
        block_params=192_946_432,
        hidden=HIDDEN,
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        exit_width=HIDDEN,
        velocity_elements=48.0 * 48 * 45 * 80,
    )


def place(config: ParallelConfig, tokens=TOKENS, **kwargs):
    return place_denoise(
        work(tokens), shape(tokens, **kwargs), Layouts.of([config]), Table(), Options()
    )


def by_name(placed) -> dict[str, object]:
    return {op.name: op for op in placed.ops}


def total_flops(placed) -> float:
    return float(sum(np.sum(np.asarray(op.count) * flops(op)) for op in placed.ops))


def value(x) -> float:
    return float(np.asarray(x).reshape(-1)[0])


def test_degree_one_is_identity():
    placed = place(ParallelConfig())
    plain = sum(70 * np.asarray(op.count) * flops(op) for op in work().per_forward)
    assert total_flops(placed) == pytest.approx(plain, rel=1e-12)
    assert all(value(op.count) == 0 for op in placed.ops if isinstance(op, Collective))


def test_columns_equal_one_by_one():
    configs = [
        ParallelConfig(),
        ParallelConfig(cfg=2, ulysses=2),
        ParallelConfig(ulysses=2, ring=2),
        ParallelConfig(tp=4),
        ParallelConfig(cfg=2, hsdp=2),
    ]
    together = place_denoise(work(), shape(), Layouts.of(configs), Table(), Options())
    for number, config in enumerate(configs):
        alone = place(config)
        for many, one in zip(together.ops, alone.ops, strict=True):
            assert many.name == one.name
            assert np.broadcast_to(many.count, len(configs))[number] == value(one.count)
            assert np.broadcast_to(flops(many), len(configs))[number] == pytest.approx(
                value(flops(one)), rel=1e-12
            )


@given(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4]), st.sampled_from([1, 2]))
def test_flops_of_split_operators_are_conserved(ulysses, ring, tp):
    if tp * ulysses > KV_HEADS:
        return
    config = ParallelConfig(ulysses=ulysses, ring=ring, tp=tp)
    tokens = 44_160 // 64 * 64
    ranks = config.world_size
    one, many = by_name(place(ParallelConfig(), tokens)), by_name(place(config, tokens))
    for name in ("q", "k", "o"):
        whole = value(one[name].count) * value(flops(one[name]))
        part = value(many[name].count) * value(flops(many[name]))
        assert part * ranks == pytest.approx(whole, rel=1e-12)
    attention = sum(
        value(op.count) * value(flops(op)) for op in many.values() if isinstance(op, Attention)
    )
    assert attention * ranks == pytest.approx(
        value(one["self"].count) * value(flops(one["self"])), rel=1e-12
    )


def test_ulysses_message_sizes_by_hand():
    # q and o: S/P x 32 x 128 x 2 B = 45.2 MB at P = 8; k and v a quarter of it; four a layer.
    ops = by_name(place(ParallelConfig(ulysses=8)))
    query, key = ops["Ulysses all-to-all q, o"], ops["Ulysses all-to-all k, v"]
    assert value(query.full_bytes) == 5520 * 32 * 128 * 2
    assert value(key.full_bytes) == 5520 * 8 * 128 * 2
    assert value(query.count) == value(key.count) == 2 * LAYERS * 70
    # The exit gather of the hidden state: 44160 x 4096 x 2 B = 362 MB, once a forward.
    gather = ops["sequence exit gather"]
    assert value(gather.full_bytes) == 44_160 * 4096 * 2
    assert value(gather.count) == 70


def test_text_keys_are_sliced_by_head_not_by_token():
    attention = by_name(place(ParallelConfig(ulysses=4)))["self"]
    assert value(attention.seq_kv) == TOKENS + TEXT
    assert value(attention.seq_q) == TOKENS
    assert (value(attention.heads), value(attention.kv_heads)) == (8, 2)


def test_ring_sees_every_key_once_and_text_once():
    ops = by_name(place(ParallelConfig(ring=4)))
    first, later = ops["self, first ring chunk"], ops["self, ring chunk"]
    assert value(ops["self"].count) == 0
    assert first.backend == later.backend == "TORCH_SDPA"
    seen = value(first.seq_kv) + 3 * value(later.seq_kv)
    assert seen == TOKENS + TEXT
    assert value(later.count) == 3 * value(first.count)
    send = ops["ring send k, v"]
    assert value(send.full_bytes) == 2 * TOKENS / 4 * KV_HEADS * HEAD_DIM * 2
    assert value(send.count) == 3 * LAYERS * 70


def test_tensor_parallel_reduces_after_the_row_split():
    ops = by_name(place(ParallelConfig(tp=4)))
    reduce = ops["o all-reduce"]
    assert value(reduce.full_bytes) == TOKENS * HIDDEN * 2
    assert value(reduce.count) == LAYERS * 70
    assert value(ops["o"].k) == HEADS * HEAD_DIM / 4
    assert value(ops["q"].n) == HEADS * HEAD_DIM / 4


def test_embedding_runs_in_full_on_every_sequence_rank():
    ops = by_name(place(ParallelConfig(ulysses=4)))
    assert value(ops["embed"].m) == TOKENS


def test_guidance_runs_one_branch_a_rank_and_gathers_velocity():
    placed = place(ParallelConfig(cfg=2))
    assert value(placed.forwards) == 35
    gather = by_name(placed)["guidance exchange"]
    # Two predictions of 48 x 48 x 45 x 80 in bf16: 16.6 MB each.
    assert value(gather.full_bytes) == 2 * 48 * 48 * 45 * 80 * 2
    assert value(gather.count) == 35


def test_guidance_in_part_of_the_steps():
    # 50 steps, 41 of them guided: 91 forwards on one rank, 50 on the busiest of two.
    one = place(ParallelConfig(), steps=50, forwards=91)
    two = place(ParallelConfig(cfg=2), steps=50, forwards=91)
    assert value(one.forwards) == 91
    assert value(two.forwards) == 50
    assert value(by_name(two)["guidance exchange"].count) == 41


def test_three_branches_on_two_ranks_take_two_rounds():
    forwards = guidance.forwards_of_a_rank(
        shape(branches=3), Layouts.of([ParallelConfig(cfg=2), ParallelConfig(cfg=3)])
    )
    assert forwards.tolist() == [70, 35]


def test_weight_sharding_gathers_each_block_and_repeats_the_compute():
    config = ParallelConfig(hsdp=4)
    ops = by_name(place(config))
    gather = ops["HSDP weight gather"]
    assert value(gather.full_bytes) == 192_946_432 * 2
    assert value(gather.count) == LAYERS * 70
    assert total_flops(place(config)) == total_flops(place(ParallelConfig()))


def test_fp8_halves_the_gathered_weights():
    layouts = Layouts.of([ParallelConfig(hsdp=4)])
    bf16, fp8 = (
        weights.shard_messages(100, 1, dtype, layouts)[0].full_bytes[0] for dtype in ("bf16", "fp8")
    )
    assert bf16 == 2 * fp8 == 200


def test_padding_rounds_up_and_builds_a_mask_where_the_model_does():
    layouts = Layouts.of([ParallelConfig(ulysses=4), ParallelConfig(ulysses=2)])
    assert sequence.local_tokens(8190, layouts).tolist() == [2048, 4095]
    attention = by_name(
        place_denoise(
            work(8190),
            shape(8190),
            layouts,
            Table(pad_masked=True),
            Options(),
        )
    )["self"]
    assert attention.masked.tolist() == [True, False]


def test_quantised_linears_change_their_dtype_and_launch_two_more_kernels():
    placed = place_denoise(
        work(), shape(), Layouts.of([ParallelConfig()]), Table(), Options(dtype="fp8")
    )
    ops = by_name(placed)
    assert (ops["q"].dtype, ops["q"].launches) == ("fp8", 3)
    assert ops["q"].m == TOKENS
    assert ops["norm"].launches == 1


@pytest.mark.parametrize(
    ("dtype", "read_and_written"),
    [("fp8wo", 3.0), ("int8wo", 3.0), ("nf4", 2.5), ("fp8cast", 6.0), ("fp6wo", None)],
)
@pytest.mark.parametrize("tp", [1, 2])
def test_stored_weights_are_widened_before_a_product_in_bf16(dtype, read_and_written, tp):
    placed = place_denoise(
        work(), shape(), Layouts.of([ParallelConfig(tp=tp)]), Table(), Options(dtype=dtype)
    )
    ops = by_name(placed)
    assert ops["q"].dtype == "bf16"
    if read_and_written is None:
        assert not any("widened" in name for name in ops)
        return
    widened = ops["q, weight widened"]
    weights = HIDDEN * HEADS * HEAD_DIM / tp
    assert float(np.ravel(widened.bytes_moved)[0]) == pytest.approx(read_and_written * weights)
    assert widened.count[0] == ops["q"].count[0]


def test_cache_skip_scales_forwards_only():
    plain = place(ParallelConfig())
    skipped = place_denoise(
        work(), shape(), Layouts.of([ParallelConfig()]), Table(), Options(cache_skip=0.25)
    )
    assert total_flops(skipped) == pytest.approx(0.75 * total_flops(plain), rel=1e-12)


@given(density=st.floats(0.01, 0.99), ulysses=st.sampled_from([1, 2, 4]))
def test_a_sparse_attention_has_its_share_of_the_products_and_reorders_four_tensors(
    density, ulysses
):
    layout = ParallelConfig(ulysses=ulysses)
    dense = by_name(place(layout))
    placed = place_denoise(
        work(), shape(), Layouts.of([layout]), Table(), Options(attention_density=density)
    )
    thin = by_name(placed)
    kept = float(flops(thin["self"])[0] / flops(dense["self"])[0])
    assert kept == pytest.approx(density, abs=1 / TOKENS)
    rows = (TOKENS * HEADS + (TOKENS + TEXT) * KV_HEADS) // ulysses
    moved = 4 * 2 * HEAD_DIM * rows
    assert float(thin["self, tiles reordered"].bytes_moved[0]) == pytest.approx(moved)
    assert {name for name in thin if thin[name] != dense.get(name)} >= {"self"}
    assert float(flops(thin["q"])[0]) == float(flops(dense["q"])[0])


def test_all_products_are_an_ordinary_attention():
    assert "self, tiles reordered" not in by_name(place(ParallelConfig()))


PATCHED = Table(patch_warmup_steps=2)


@given(stages=st.sampled_from([2, 3, 4, 9]), ulysses=st.sampled_from([1, 2]))
def test_patches_do_the_products_of_a_stage_and_warm_up_those_of_all(stages, ulysses):
    """Warm-up in full; then each rank a stage's blocks over all tokens, the first patch once more.

    q and o have no share of text or of uneven tokens, so their work divides exactly.
    """
    layout = ParallelConfig(pp=stages, ulysses=ulysses)
    alone = place(ParallelConfig(ulysses=ulysses))
    piped = place_denoise(work(), shape(), Layouts.of([layout]), PATCHED, Options())
    whole = sum(float(np.sum(op.count * flops(op))) for op in alone.ops if op.name == "q")
    found = sum(float(np.sum(op.count * flops(op))) for op in piped.ops if op.name == "q")
    steps, largest = 35, -(-LAYERS // stages) / LAYERS
    expected = (2 + (steps - 2 + (stages - 1) / stages) * largest) / steps
    assert found / whole == pytest.approx(expected, rel=2 * stages / TOKENS)
    kernels = [float(op.count[0]) for op in piped.ops if op.name == "q"]
    assert sum(kernels) == pytest.approx(
        LAYERS * 2 * (2 + (steps - 2 + (stages - 1) / stages) * largest * stages)
    )


def test_a_pipeline_of_patches_shorter_than_its_warm_up_is_an_ordinary_one():
    layout = Layouts.of([ParallelConfig(pp=4)])
    short = place_denoise(work(), shape(steps=2), layout, PATCHED, Options())
    plain = place_denoise(work(), shape(steps=2), layout, Table(), Options())
    assert total_flops(short) == pytest.approx(total_flops(plain))


def test_one_stage_has_no_patches():
    layout = Layouts.of([ParallelConfig(), ParallelConfig(pp=2)])
    both = place_denoise(work(), shape(), layout, PATCHED, Options())
    alone = place(ParallelConfig())
    first = sum(float(np.broadcast_to(op.count * flops(op), 2)[0]) for op in both.ops)
    assert first == pytest.approx(total_flops(alone))


def test_norm_reduce_moves_one_fp32_sum_a_row():
    layouts = Layouts.of([ParallelConfig(tp=2), ParallelConfig()])
    (reduce,) = tensor.norm_all_reduces(
        (("qk norm", 40, 1, True),), np.array([100, 100]), 0, layouts
    )
    assert reduce.full_bytes.tolist() == [400.0, 400.0]
    assert reduce.count.tolist() == [40, 0]


@given(st.integers(1, 100_000), st.sampled_from([1, 2, 3, 4, 6, 8]))
def test_local_tokens_cover_the_sequence_with_less_than_a_row_a_rank_to_spare(tokens, ranks):
    layouts = Layouts.of([ParallelConfig(ring=ranks)])
    local = sequence.local_tokens(tokens, layouts)[0]
    assert tokens <= local * ranks < tokens + ranks


def test_cross_attention_splits_queries_only():
    layouts = Layouts.of([ParallelConfig(ulysses=4, tp=2)])
    cross = Attention(
        name="cross", seq_q=800, seq_kv=512, heads=40, kv_heads=40, head_dim=128, role=Role.CROSS
    )
    placed = sequence.split_rows(tensor.split_widths(cross, layouts), layouts)
    assert (value(placed.seq_q), value(placed.seq_kv), value(placed.heads)) == (200, 512, 20)


def test_sound_reads_the_video_by_heads_with_two_exchanges_and_a_gather():
    asks = Attention(
        name="sound asks video",
        count=LAYERS,
        seq_q=126,
        seq_kv=TOKENS,
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=64,
        role=Role.HEADS,
    )
    layouts = Layouts.of([ParallelConfig(), ParallelConfig(ulysses=4)])
    attention, exchange, gather = sequence.exchange_keys(asks, layouts)
    assert attention.heads.tolist() == [HEADS, HEADS // 4]
    assert (attention.seq_q, attention.seq_kv) == (126, TOKENS)
    width = HEADS * 64
    # Keys and values of the rank's own tokens, then what all ranks made of their heads.
    assert exchange.count.tolist() == [0, 2 * LAYERS]
    assert exchange.full_bytes.tolist() == [TOKENS * width * 2, TOKENS // 4 * width * 2]
    assert gather.count.tolist() == [0, LAYERS]
    assert float(gather.full_bytes) == 126 * width * 2


def test_gathers_of_rows_are_as_large_as_the_padded_sequence():
    layouts = Layouts.of([ParallelConfig(ulysses=n) for n in (1, 2, 7)])
    (gather,) = sequence.row_gathers((("rows", 30, HIDDEN),), TOKENS, 2, layouts)
    assert gather.count.tolist() == [0, 30, 30]
    padded = [TOKENS, TOKENS, 7 * -(-TOKENS // 7)]
    assert gather.full_bytes.tolist() == [2 * rows * HIDDEN * 2 for rows in padded]


def test_attention_over_time_divides_its_batch_and_sends_nothing():
    over_time = Attention(
        name="time", batch=1024, seq_q=16, seq_kv=16, heads=16, kv_heads=16, head_dim=72,
        role=Role.LOCAL,
    )  # fmt: skip
    layouts = Layouts.of([ParallelConfig(), ParallelConfig(ulysses=2, ring=2)])
    local = sequence.split_rows(over_time, layouts)
    assert local.batch.tolist() == [1024, 256]
    assert (local.seq_q, local.seq_kv) == (16, 16)
