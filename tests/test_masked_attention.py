"""Attention over padded text: ragged, masked pair by pair, or cut before the blocks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel import catalog
from perfmodel.cost import cost
from perfmodel.cost.machine import Machine
from perfmodel.ops import Attention, Gemm, Pointwise
from perfmodel.spec.workload import Workload
from perfmodel.stages import hunyuan_video15
from perfmodel.stages.base import Traits
from perfmodel.topology import Topology

# 480 x 832, 33 frames in a VAE of 16 x 16 x 4: 9 x 30 x 52 latent tokens.
TOKENS, SLOTS, WORDS = 14040, 1985, 128
HIDDEN = 2048


def forward(**traits: bool) -> tuple[object, ...]:
    model = catalog.load_model("hunyuanvideo-1.5")
    request = Workload(model=model.slug, width=832, height=480, frames=33)
    chosen = Traits(**traits)
    shape = hunyuan_video15.shape(model, request, chosen)
    return hunyuan_video15.denoise(model, shape, chosen).per_forward


def named(ops: tuple[object, ...], name: str) -> list[object]:
    return [op for op in ops if getattr(op, "name", "") == name]


@pytest.mark.parametrize(
    ("traits", "keys", "text_rows"),
    [
        ({}, TOKENS + SLOTS, SLOTS),
        ({"ragged_attention": True}, TOKENS + WORDS, SLOTS),
        ({"valid_text_only": True}, TOKENS + WORDS, WORDS),
        ({"valid_text_only": True, "ragged_attention": True}, TOKENS + WORDS, WORDS),
    ],
)
def test_who_sees_the_padding(traits, keys, text_rows):
    ops = forward(**traits)
    (attention,) = named(ops, "joint attention")
    assert isinstance(attention, Attention)
    assert (attention.seq_q, attention.seq_kv) == (keys, keys)
    (text,) = named(ops, "text feed-forward in")
    assert isinstance(text, Gemm)
    assert text.m == text_rows


def test_a_ragged_attention_copies_its_operands():
    ops = forward(ragged_attention=True)
    moved = sum(
        float(op.bytes_moved)
        for op in ops
        if isinstance(op, Pointwise) and op.name.startswith("joint attention gather")
    )
    # q, k and v read and written, the output written as zeros, then read and written: 9 in bf16.
    assert moved == 9 * 2 * HIDDEN * (TOKENS + SLOTS)
    assert not named(forward(valid_text_only=True, ragged_attention=True), "joint attention gather")
    # No mask of all pairs is built then.
    assert not named(ops, "joint attention mask")
    assert named(forward(), "joint attention mask")


def test_a_mask_costs_pairwise_kernels_most():
    system = catalog.parse_gpus("1xH200")
    on = Machine.build(system.device, Topology.of(system))
    plain = Attention(
        name="a", seq_q=50345, seq_kv=50345, heads=16, kv_heads=16, head_dim=128, backend="X"
    )

    def slowdown(backend: str) -> float:
        op = replace(plain, backend=backend)
        masked = replace(op, masked=True)
        return float(cost(masked, on).time_each_s / cost(op, on).time_each_s)

    assert slowdown("FLASH_ATTN") == slowdown("CUDNN_ATTN") == pytest.approx(1.15)
    assert slowdown("SDPA_EFFICIENT") == slowdown("FLASHINFER_ATTN") == pytest.approx(2.3)
    # diffusers needs 1135.7 s for 100 forwards of 54 blocks of this length, mostly attention.
    efficient = replace(plain, backend="SDPA_EFFICIENT", masked=True)
    assert 100 * 54 * float(cost(efficient, on).time_each_s) == pytest.approx(1050.0, rel=0.1)
