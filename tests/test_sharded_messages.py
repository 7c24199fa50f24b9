"""What sharding adds to a forward, against bytes that torch moves and messages counted by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from meta_modules import Kernels, torch
from test_placement import shape

from perfmodel.ops import Attention, Conv, Gemm, Pointwise, Rows, Split
from perfmodel.placement import groups, guidance, patches, sequence, tensor, weights
from perfmodel.spec.parallel import Layouts, ParallelConfig

BATCH, TOKENS, HEADS, KV_HEADS, HEAD_DIM, COUNT = 2, 4096, 32, 8, 128, 5
ATTENTION = Attention(
    name="self", count=COUNT, batch=BATCH, seq_q=TOKENS, seq_kv=TOKENS,
    heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM,
)  # fmt: skip


def placed(copies: int = 2, **degrees: int) -> dict[str, Any]:
    layouts = Layouts.of([ParallelConfig(**degrees)])
    ops = sequence.split_self_attention(ATTENTION, layouts, builds_mask=False, copies=copies)
    return {op.name: op for op in ops}


def one(value: Any) -> float:
    return float(np.ravel(np.asarray(value))[0])


@pytest.mark.parametrize("ring", [2, 4])
def test_a_ring_merge_moves_what_torch_moves(ring: int) -> None:
    """The update of a ring attention (any of the engines'), on meta tensors.

    The log-sum-exp of a row is one number for `HEAD_DIM` of the output; its own kernels are left
    out, so torch moves up to 2 % more.
    """
    rows = (BATCH, TOKENS // ring, HEADS)
    chunk = torch.zeros(*rows, HEAD_DIM, dtype=torch.bfloat16, device="meta")
    weight = torch.zeros(*rows, 1, dtype=torch.float32, device="meta")
    with Kernels() as first:
        out = chunk.to(torch.float32)
    with Kernels() as merge:
        later = chunk.to(torch.float32)
        out = out - weight * (out - later)
    with Kernels() as last:
        out.to(torch.bfloat16)
    ops = placed(ring=ring)
    found = ops["ring merge"]
    assert one(found.bytes_moved) <= merge.moved <= 1.02 * one(found.bytes_moved)
    assert one(found.launches) == merge.calls
    assert one(found.count) == COUNT * (ring - 1)
    ends = ops["ring accumulator"]
    assert one(ends.bytes_moved) == first.moved + last.moved
    assert one(ends.launches) == first.calls + last.calls
    assert one(ends.count) == COUNT


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("ulysses", [2, 8])
def test_layout_copies_rewrite_every_exchanged_tensor(ulysses: int, copies: int) -> None:
    """q, k, v and o: heads before tokens for the exchange, each time a copy of the tensor."""
    local = (BATCH, TOKENS // ulysses)
    with Kernels() as torch_copies:
        for heads in (HEADS, KV_HEADS, KV_HEADS, HEADS):
            sent = torch.zeros(*local, heads, HEAD_DIM, dtype=torch.bfloat16, device="meta")
            for _ in range(copies):
                sent.transpose(1, 2).clone(memory_format=torch.contiguous_format)
    found = placed(copies=copies, ulysses=ulysses)["Ulysses layout copies"]
    assert one(found.count) * one(found.bytes_moved) == COUNT * torch_copies.moved
    assert one(found.count) * one(found.launches) == COUNT * torch_copies.calls
    assert one(placed(copies=copies)["Ulysses layout copies"].count) == 0


def test_gathered_keys_and_values_are_two_whole_tensors() -> None:
    """Every rank ends with the keys and the values of all tokens; queries are not sent."""
    found = placed(allgather=4)
    whole = torch.zeros(BATCH, TOKENS, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="meta")
    message = found["all-gather k, v"]
    assert one(message.full_bytes) == whole.nbytes
    assert (one(message.count), one(message.ranks)) == (2 * COUNT, 4)
    attention = found["self"]
    assert (one(attention.seq_q), one(attention.seq_kv)) == (TOKENS / 4, TOKENS)
    assert one(attention.heads) == HEADS
    assert one(placed(ulysses=4)["all-gather k, v"].count) == 0


@pytest.mark.parametrize(("ulysses", "sent"), [(4, COUNT), (1, 0)])
def test_text_of_a_joint_attention_is_joined_over_its_query_heads(ulysses: int, sent: int) -> None:
    text = 77
    joint = replace(ATTENTION, seq_q=TOKENS + text, seq_kv=TOKENS + text, prefix_q=text)
    layouts = Layouts.of([ParallelConfig(ulysses=ulysses)])
    ops = sequence.split_self_attention(joint, layouts, builds_mask=False, copies=2)
    (message,) = (op for op in ops if op.name == "Ulysses text gather")
    whole = torch.zeros(BATCH, text, HEADS, HEAD_DIM, dtype=torch.bfloat16, device="meta")
    assert one(message.full_bytes) == whole.nbytes
    assert one(message.count) == sent


def test_keys_and_values_of_a_ring_are_two_sends_of_one_chunk() -> None:
    found = placed(ring=4)["ring send k, v"]
    chunk = torch.zeros(BATCH, TOKENS // 4, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="meta")
    assert one(found.full_bytes) == one(found.launches) * chunk.nbytes
    assert (one(found.launches), one(found.count)) == (2, 3 * COUNT)


@pytest.mark.parametrize(("axis", "split"), [("ring", "tokens"), ("tp", "widths")])
def test_a_rank_has_its_share_of_maps_and_of_unfused_traffic(axis: str, split: str) -> None:
    """A causal convolution over a sequence and a chain that the compiler would fuse."""
    rows = {"tokens": Rows.TOKENS, "widths": Rows.FULL}[split]
    column = Split.COLUMN if split == "widths" else Split.NONE
    chain = Pointwise(name="chain", bytes_moved=600, eager_bytes=1800, rows=rows, split=column)
    wide = Conv(
        name="conv",
        kernel=(1, 1, 3), out_t=1, out_h=1, out_w=601, in_channels=8, out_channels=8, rows=rows,
        split=column,
    )  # fmt: skip
    layouts = Layouts.of([ParallelConfig(**{axis: 3})])
    place = {"tokens": sequence.split_rows, "widths": tensor.split_widths}[split]
    assert one(place(wide, layouts).out_w) == 201
    part = place(chain, layouts)
    assert (one(part.bytes_moved), one(part.eager_bytes)) == (200, 600)


def test_sums_of_a_row_split_are_of_all_outputs() -> None:
    down = Gemm(name="down", batch=BATCH, m=TOKENS, n=640, k=2560, split=Split.ROW)
    (reduce,) = tensor.row_all_reduce(down, Layouts.of([ParallelConfig(tp=2)]))
    summed = torch.zeros(BATCH, TOKENS, 640, dtype=torch.bfloat16, device="meta")
    assert one(reduce.full_bytes) == summed.nbytes


def test_a_gathered_block_is_copied_out_of_its_flat_buffer() -> None:
    """FSDP2: the shard into the buffer, then the block out of it (``split_with_sizes_copy``)."""
    sizes = [3000, 5000, 2000]
    buffer = torch.zeros(sum(sizes), dtype=torch.bfloat16, device="meta")
    with Kernels() as out:
        torch.split_with_sizes_copy(buffer, sizes)
    layouts = Layouts.of([ParallelConfig(ulysses=4, hsdp=4)])
    gather, copies, _ = weights.shard_messages(sum(sizes), 7, "bf16", layouts)
    assert one(gather.full_bytes) == buffer.nbytes
    assert one(copies.bytes_moved) == out.moved
    assert (one(copies.launches), one(copies.count)) == (1 + out.calls, 7)


def test_the_hidden_state_is_handed_from_stage_to_stage() -> None:
    asked = replace(shape(TOKENS), batch=BATCH)
    message = weights.stage_hand_over(640, asked, Layouts.of([ParallelConfig(pp=4, ulysses=2)]))
    state = torch.zeros(BATCH, TOKENS // 2, 640, dtype=torch.bfloat16, device="meta")
    assert one(message.full_bytes) == state.nbytes
    assert one(message.count) == 3


def test_groups_are_the_slices_of_the_mesh() -> None:
    """Ranks laid out with tensor parallelism fastest: dp, cfg, pp, ring, Ulysses, tp."""
    degrees = {"dp": 2, "cfg": 3, "pp": 2, "ring": 5, "ulysses": 2, "tp": 4}
    mesh = np.arange(np.prod(list(degrees.values()))).reshape(tuple(degrees.values()))
    layouts = Layouts.of([ParallelConfig(**degrees)])
    found = {
        "tp": groups.tensor_group,
        "ulysses": groups.ulysses_group,
        "ring": groups.ring_group,
        "pp": groups.pipeline_group,
        "cfg": groups.guidance_group,
    }
    for place, axis in enumerate(degrees):
        if axis in found:
            group = found[axis](layouts)
            ranks = np.moveaxis(mesh, place, -1).reshape(-1, degrees[axis])
            assert one(group.ranks) == ranks.shape[1], axis
            assert one(group.count) == ranks.shape[0], axis
            assert set(np.diff(ranks, axis=1).ravel()) == {one(group.stride)}, axis


def test_predictions_of_all_branches_and_outputs_are_exchanged() -> None:
    asked = replace(shape(TOKENS), batch=BATCH)
    message = guidance.velocity_gather(1000.0, asked, Layouts.of([ParallelConfig(cfg=2)]))
    assert one(message.full_bytes) == 2 * BATCH * 1000 * 2


def test_a_patch_reads_all_keys_writes_its_own_and_sends_its_share() -> None:
    layouts, text = Layouts.of([ParallelConfig(pp=4)]), 77
    joint = replace(ATTENTION, seq_q=TOKENS + text, seq_kv=TOKENS + text, prefix_q=text)
    message = groups.ulysses_group(Layouts.of([ParallelConfig(ulysses=2)])).message(
        "x", "all_to_all", 4000.0
    )
    attention, sent = patches.in_patches([joint, message], layouts)
    assert one(attention.seq_q) == TOKENS / 4 + text
    assert one(attention.seq_kv) == TOKENS + text
    assert one(sent.full_bytes) == 1000.0
    # keys and values of the patch are joined, then written into those of all
    keys, values = (
        torch.zeros(BATCH, TOKENS // 4, KV_HEADS * HEAD_DIM, dtype=torch.bfloat16, device="meta")
        for _ in "kv"
    )
    with Kernels() as kernels:
        joined = torch.cat([keys, values], dim=-1)
        joined.clone()  # as many bytes as a copy into the held ones
    asked = replace(shape(TOKENS), batch=BATCH)
    found = patches.stale_cache(7, KV_HEADS * HEAD_DIM, asked, layouts)
    assert one(found.bytes_moved) == kernels.moved
    assert (one(found.launches), one(found.count)) == (kernels.calls, 7)
