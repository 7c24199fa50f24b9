"""The parallel blocks compute what one process computes, and what other formulas say."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import live_ranks
import pytest
import torch
import torch.nn.functional as F

from perfmodel.spec.parallel import ParallelConfig, parse_parallel
from perfmodel.verify.live import parts
from perfmodel.verify.live.attend import Sequence
from perfmodel.verify.live.mesh import Mesh, coordinates, ranks_of, teams
from perfmodel.verify.live.parts import Weights
from perfmodel.verify.live.tape import Tape
from perfmodel.verify.live.vae_slice import Slice, SliceBlock

EVEN, ODD = (2, 4, 4), (3, 6, 6)  # 8 and 27 tokens: the latter is padded over 2 ranks
RANKS = Path(__file__).with_name("live_ranks.py")
TWO = [
    [family, identity, grid]
    for family in ("cosmos3", "wan")
    for identity, grid in (("usp2", ODD), ("ring2", ODD), ("tp2", EVEN), ("cfg2", EVEN))
]
FOUR = [["cosmos3", "usp2_ring2", ODD], ["wan", "usp2_tp2", EVEN]]


def run_ranks(cases: list, ranks: int, folder: Path) -> dict[str, list[float]]:
    env = {**os.environ, "PYTHONPATH": str(RANKS.parent.parent), "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, str(RANKS), json.dumps(cases)]
    started = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), str(folder / "meeting")],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    try:
        said = [process.communicate(timeout=120) for process in started]
    finally:
        for process in started:
            process.kill()
    for process, (_, errors) in zip(started, said, strict=True):
        assert process.returncode == 0, errors[-2000:]
    found = [json.loads(out) for out, _ in said]
    # every rank ends with the whole prediction
    return {key: [max(f[key][n] for f in found) for n in range(2)] for key in found[0]}


@pytest.mark.parametrize(("cases", "ranks"), [(TWO, 2), (FOUR, 4)], ids=["two", "four"])
def test_every_parallelism_gives_the_result_of_one_process(cases, ranks, tmp_path):
    found = run_ranks(cases, ranks, tmp_path)
    assert len(found) == len(cases)
    for case, (difference, largest) in found.items():
        assert largest > 0.1, case
        assert difference <= 1e-5 * largest, case


def test_ranks_lie_as_the_engine_orders_them():
    config = ParallelConfig(tp=2, ulysses=2, cfg=2)
    assert ranks_of(config) == 8
    assert coordinates(config, 5) == {"tp": 1, "ulysses": 0, "ring": 0, "cfg": 1}
    assert next(iter(teams(config, ("tp",)))) == [0, 1]
    assert [0, 4] in list(teams(config, ("cfg",)))
    both = list(teams(ParallelConfig(ulysses=2, ring=2), ("ulysses", "ring")))
    assert both == [[0, 1, 2, 3]]


@pytest.mark.parametrize("heads", [4, 2])
def test_a_chunk_at_a_time_is_the_whole_attention(heads):
    q = torch.randn(1, 5, 4, 8)
    k, v = torch.randn(2, 1, 12, heads, 8)
    out, lse = parts.chunk_attention(q, k[:, :7], v[:, :7])
    out, lse = parts.merge(out.float(), lse, *parts.chunk_attention(q, k[:, 7:], v[:, 7:]))
    wide = k.repeat_interleave(4 // heads, dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, wide) / math.sqrt(8)
    values = v.repeat_interleave(4 // heads, dim=2)
    wanted = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values)
    torch.testing.assert_close(out, wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(lse[..., 0], scores.logsumexp(-1).transpose(1, 2))


def test_the_written_out_chunk_is_the_kernel():
    q, k, v = torch.randn(3, 1, 2, 9, 4)
    for one, other in zip(parts._chunk_by_rows(q, k, v), parts._chunk_cpu(q, k, v), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


def test_rotations_keep_lengths_and_depend_on_distance_alone():
    cos, sin = parts.rope_tables(9, 8, torch.device("cpu"))
    x = torch.randn(1, 1, 1, 8).expand(1, 9, 1, 8)
    turned = parts.rotate_pairs(x, cos, sin)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    products = torch.einsum("bqhd,bkhd->qk", turned, turned)
    torch.testing.assert_close(products[0, 2], products[5, 7])
    halves = parts.rotate_halves(x, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))
    torch.testing.assert_close(halves.norm(dim=-1), x.norm(dim=-1))
    assert not torch.allclose(halves, turned)


def test_padding_is_at_the_end_and_masked():
    mesh = Mesh(ParallelConfig(ulysses=2, ring=2), rank=3)
    sequence = Sequence.of(9, mesh)
    rows = torch.arange(9.0)[None, :, None]
    assert sequence.mine(rows, mesh).flatten().tolist() == [0, 0, 0]
    assert sequence.mine(rows, Mesh(mesh.config, 1)).flatten().tolist() == [3, 4, 5]


def names_of(family: str, identity: str = "single") -> list[str]:
    tape = Tape(recording=True)
    with torch.inference_mode():
        live_ranks.step(family, EVEN, Mesh(parse_parallel(identity)[0]), tape)
    return [step.name for step in tape.steps]


@pytest.mark.parametrize("family", ["cosmos3", "wan"])
def test_steps_have_the_names_and_counts_of_the_predicted_operators(family):
    """One branch, two blocks: as often as placement says."""
    from perfmodel.api.session import open_session
    from perfmodel.catalog import parse_gpus
    from perfmodel.spec.workload import Workload
    from perfmodel.verify.live.question import ask

    session = open_session(Workload(model=live_ranks.MODELS[family]), parse_gpus("B300"))
    question = ask(session, ParallelConfig())
    predicted, runs = question.denoise(), question.block_runs()
    counted = names_of(family)
    assert set(counted) <= set(predicted)
    for name in set(counted):
        if predicted[name].kind in ("gemm", "attention") and predicted[name].count >= runs:
            assert counted.count(name) == live_ranks.BLOCKS * predicted[name].count / runs, name
    share = sum(predicted[name].total_s for name in set(counted))
    assert share > 0.95 * sum(one.total_s for one in predicted.values())


def test_the_block_has_the_work_of_its_operators():
    """FLOP of the torch block, counted by torch, against the sum over operator records."""
    from torch.utils.flop_counter import FlopCounterMode

    from perfmodel.catalog import load_model
    from perfmodel.ops import Gemm, gemm_flops
    from perfmodel.shapes import Shape
    from perfmodel.stages import family as family_of
    from perfmodel.stages.base import Traits

    for family in ("cosmos3", "wan"):
        size = live_ranks.size(family, EVEN)
        with FlopCounterMode(display=False) as counter, torch.inference_mode():
            live_ranks.step(family, EVEN, Mesh(ParallelConfig()), Tape())
        products = sum(
            count
            for op, count in counter.get_flop_counts()["Global"].items()
            if str(op) in ("aten.mm", "aten.addmm", "aten.bmm")
        )
        model = load_model(live_ranks.MODELS[family]).model_copy(
            update={"transformer": size.spec.model_copy(update={"layers": live_ranks.BLOCKS})}
        )
        shape = Shape(
            task=model.default_task, batch=1, width=64, height=64, frames=5, fps=8,
            request_steps=1, steps=1, guidance=5, branches=2, forwards=2, latent_frames=2,
            latent_height=4, latent_width=4, video_tokens=size.tokens, text_tokens=7,
        )  # fmt: skip
        work = family_of(model).denoise(model, shape, Traits())
        entry = ("time projection", "modulation projection", "text projection", "image projection")
        wanted = 2 * sum(
            float(op.count * gemm_flops(op))
            for op in work.per_forward
            if isinstance(op, Gemm) and not op.name.startswith(entry)
        )
        text_keys = 0
        if family == "cosmos3":  # K and V of the text come from the other tower
            spec = size.spec
            text_keys = 2 * live_ranks.BLOCKS * 2 * 2 * 7 * spec.hidden * spec.kv_width
        assert products == wanted + text_keys, family


def test_the_vae_slice_is_a_residual_block():
    size = Slice("L3 8x4", 8, 4, 5, 6)
    block = SliceBlock(size, Weights(torch.device("cpu"), torch.float32, Mesh(ParallelConfig())))
    tape = Tape(recording=True)
    out = block(tape, block.entry)
    hidden = block.entry
    for conv, past in zip(block.convs, block.past, strict=True):
        rms = hidden / hidden.pow(2).mean(1, keepdim=True).sqrt()
        joined = torch.cat((past, F.silu(rms * block.gamma)), dim=2)
        hidden = F.conv3d(joined, conv, block.bias, padding=(0, 1, 1))
    torch.testing.assert_close(out, hidden + block.entry, atol=1e-5, rtol=1e-4)
    assert [step.name for step in tape.steps].count("decode later: conv L3 8x4 to L3 8x4 k333") == 2
