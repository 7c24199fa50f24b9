"""The whole loop on this machine: bench, calibrate, predict, measure; and a model's shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from perfmodel.calibrate.cases import AttentionCase, CollectiveCase, GemmCase
from perfmodel.calibrate.measure import slices
from perfmodel.calibrate.measure.live import live_proof
from perfmodel.cli.bench import _model_cases
from perfmodel.ops import flops


def test_predictions_from_fresh_records_hold_on_this_machine(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    try:
        proof = live_proof(tmp_path, device="cpu", budget_s=0.01, trials=12)
    finally:
        torch.set_num_threads(threads)
    found = {row.name: row for row in proof.compared}
    assert set(found) == {"transformer block", "VAE slice", "all-reduce"}
    for name in ("transformer block", "VAE slice"):
        assert 1 / 3 < found[name].predicted_s / found[name].measured_s < 3, proof.lines()
    # two processes on shared cores wait for the scheduler: only the magnitude is certain
    assert 1 / 30 < found["all-reduce"].predicted_s / found["all-reduce"].measured_s < 30
    assert {"gemm/bf16", "attention/bf16", "conv/bf16", "pointwise"} <= set(proof.heldout_mape)


@pytest.mark.parametrize("scale", ["cpu", "accelerator"])
def test_the_operators_of_the_slices_have_the_work_of_the_modules(scale: str) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    block, volume = slices.SIZES[scale]
    cases = (
        (
            slices.Block,
            block,
            ((1, block.tokens, block.width), (1, block.text_tokens, block.width)),
            slices.block_ops(block),
        ),
        (
            slices.MapBlock,
            volume,
            ((1, volume.channels, volume.frames, volume.rows, volume.cols),),
            slices.map_ops(volume),
        ),
    )
    for module, size, shapes, ops in cases:
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            module(size)(*(torch.empty(shape) for shape in shapes))
        wanted = sum(float(op.count) * float(flops(op)) for op in ops)
        assert counter.get_total_flops() == wanted


def test_the_shapes_of_a_model_are_those_its_configurations_run() -> None:
    cases = _model_cases("cosmos3-nano", "4xB300")
    tokens, text = 44_160, 512  # 48 x 23 x 40 latent patches of a 720p clip of 189 frames
    attention = {
        (c.seq_q, c.seq_kv, c.num_heads, c.num_kv_heads)
        for c in cases
        if isinstance(c, AttentionCase) and not c.causal
    }
    # one GPU; heads over two ranks (Ulysses); queries over two ranks (ring)
    assert (tokens, tokens + text, 32, 8) in attention
    assert (tokens, tokens + text, 16, 4) in attention
    rows = {c.m for c in cases if isinstance(c, GemmCase)}
    assert {tokens, tokens // 2, tokens // 4} <= rows
    exchanges = {
        c.message_bytes
        for c in cases
        if isinstance(c, CollectiveCase) and (c.collective, c.num_ranks) == ("all_to_all", 2)
    }
    # queries of 32 heads and keys of 8 heads, 128 wide, 16 bit, half of the tokens on each rank
    assert {tokens // 2 * 32 * 128 * 2, tokens // 2 * 8 * 128 * 2} <= exchanges
