"""What sharding adds to a forward, against bytes that torch moves and messages counted by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from meta_modules import Kernels, torch

from perfmodel.ops import Attention
from perfmodel.placement import sequence
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
