"""Buffers of the denoiser and of the decode, each where it is all that differs, counted by hand."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import pytest
from diffusers import UniPCMultistepScheduler
from meta_modules import torch
from test_memory import BARE, BLOCK_PARAMS, OUTSIDE, WORK, shape_of, table_of
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from perfmodel.memory import PARTS, PHASES
from perfmodel.memory.denoise import denoise
from perfmodel.ops import Attention
from perfmodel.spec.parallel import Layouts, ParallelConfig

SHAPE = shape_of()
TOKENS, HEADS, KV_HEADS, HEAD_DIM = SHAPE.tokens, 16, 4, 8
GROUPED = replace(WORK, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM)


def live(work: Any = GROUPED, shape: Any = SHAPE, outputs: int = 1, **degrees: int) -> Any:
    return denoise(work, shape, Layouts.of([ParallelConfig(**degrees)]), BARE, outputs)


def nbytes(*size: int, dtype: Any = torch.bfloat16) -> int:
    return torch.zeros(*size, dtype=dtype, device="meta").nbytes


class Alive(TorchDispatchMode):
    """Bytes of the tensors that exist."""

    def __init__(self) -> None:
        super().__init__()
        self.now: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for found in tree_leaves(result):
            if isinstance(found, torch.Tensor):
                storage = found.untyped_storage()
                if storage._cdata not in self.now:
                    self.now[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.now.pop, storage._cdata, None)
        return result


def test_latents_are_those_that_a_guided_loop_over_a_multistep_solver_holds() -> None:
    """diffusers' UniPC in fp32: what is alive while the second branch runs, after a few steps."""
    size = (1, 4, 16, 32, 64)
    solver = UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    solver.set_timesteps(6)
    held = 0
    with Alive() as alive:
        sample = torch.zeros(size)
        for time in solver.timesteps:
            model_input = sample.clone()
            guided = torch.zeros(size)
            held = max(held, sum(alive.now.values()))
            plain = torch.zeros(size)
            noise = plain + 5.0 * (guided - plain)
            sample = solver.step(noise, time, sample, return_dict=False)[0]
    del model_input
    elements = sample.numel()
    work = replace(GROUPED, velocity_elements=float(elements))
    more = live(work).activations - live().activations
    assert more[0] == pytest.approx(held, rel=1e-3)
    three = live(work, outputs=3).activations - live().activations
    assert three[0] == pytest.approx(3 * more[0])


@pytest.mark.parametrize("together", [False, True])
def test_latents_of_all_outputs_are_held_once(together: bool) -> None:
    """Branches that run as one batch double the activations, not the solver's tensors."""

    def activations(elements: float, batch: int) -> float:
        table = table_of(
            ParallelConfig(),
            shape=shape_of(batch=batch),
            work=replace(GROUPED, velocity_elements=elements),
            branches_together=together,
        )
        return float(table.parts_bytes[PHASES.index("denoise"), PARTS.index("activations"), 0])

    one, two = (activations(1e6, batch) - activations(0.0, batch) for batch in (1, 2))
    assert one > 0
    assert two == pytest.approx(2 * one)


@pytest.mark.parametrize(("ulysses", "ring", "tp"), [(1, 2, 1), (1, 4, 2), (2, 2, 1)])
def test_a_ring_holds_the_chunk_it_sends_and_the_one_it_receives(ulysses, ring, tp) -> None:
    alone = live(ulysses=ulysses, tp=tp).collectives
    alone = alone / ring if ulysses > 1 else 0.0  # the exchanged tokens are divided further
    chunk = nbytes(TOKENS // ring, KV_HEADS // ulysses // tp, HEAD_DIM)
    found = live(ulysses=ulysses, ring=ring, tp=tp).collectives - alone
    assert found[0] == 2 * (chunk + chunk)  # keys and values, sent and received


def test_gathered_keys_and_values_are_held_whole() -> None:
    both = 2 * nbytes(TOKENS, KV_HEADS, HEAD_DIM)
    assert live(allgather=4).collectives[0] == both
    assert live(allgather=2, tp=2).collectives[0] == both / 2


@pytest.mark.parametrize(
    ("ulysses", "ring", "tp"), [(1, 1, 1), (2, 1, 1), (1, 4, 1), (1, 1, 4), (2, 2, 2)]
)
def test_attention_keeps_the_log_sum_exp_of_its_rows(ulysses, ring, tp) -> None:
    """Second result of torch's own flash attention: one fp32 number a row and head."""
    heads = HEADS // ulysses // tp
    q = torch.zeros(1, heads, TOKENS // ring, HEAD_DIM, dtype=torch.bfloat16, device="meta")
    _, rows, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, q, q)
    assert live(ulysses=ulysses, ring=ring, tp=tp).workspace[0] == rows.nbytes


def test_the_exit_of_a_split_sequence_holds_all_of_its_rows() -> None:
    """Hidden state, its fp32 norm and what is gathered, of all tokens on every rank."""
    hidden, width = GROUPED.hidden, 10_000  # wider than any block
    wide = replace(GROUPED, exit_width=width)
    norm = nbytes(TOKENS, hidden, dtype=torch.float32)
    expected = nbytes(TOKENS, hidden) + norm + nbytes(TOKENS, width)
    assert live(wide, ring=4).activations[0] == expected
    assert live(wide).activations[0] == live().activations[0]


@pytest.mark.parametrize(("cfg", "tp"), [(1, 1), (2, 1), (1, 2)])
def test_keys_and_values_of_the_text_are_kept_for_all_blocks_and_branches(cfg, tp) -> None:
    """A model that encodes the text once: what its attention reads before the latent tokens."""
    text = SHAPE.text_tokens
    reads = Attention(
        name="self", seq_q=TOKENS, seq_kv=TOKENS + text, prefix_kv=text,
        heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM,
    )  # fmt: skip
    cached = replace(GROUPED, per_forward=(*GROUPED.per_forward, reads))
    more = live(cached, cfg=cfg, tp=tp).activations - live(cfg=cfg, tp=tp).activations
    branches = 2 // cfg
    assert more[0] == branches * 2 * nbytes(GROUPED.blocks, text, KV_HEADS // tp, HEAD_DIM)


def runtime(config: ParallelConfig, cached_frac: float, **changes: Any) -> float:
    terms = replace(BARE, cached_frac=cached_frac, **changes)
    table = table_of(config, terms=terms)
    return float(table.parts_bytes[PHASES.index("vae_decode"), PARTS.index("runtime"), 0])


CLIP = 17 * 640 * 384 * 3 * 2
MAP = 100 * 48 * 80
TILE_MAP, TILES = 100 * 32 * 32, 17 * (256 + 192) * (256 + 256 + 256 + 64) * 3 * 2
"""Rows of 384 pixels at stride 192: tiles of 256 and 192; columns of 640: 256, 256, 256 and 64."""


@pytest.mark.parametrize("cached_frac", [0.0, 0.5, 1.0])
def test_the_allocator_keeps_its_share_of_what_was_freed(cached_frac) -> None:
    """What lived before the highest moment and is not there then, in each kind of decode."""
    full_blocks = 2 * (4 * BLOCK_PARAMS + OUTSIDE)
    sharded = runtime(ParallelConfig(ulysses=4, hsdp=4), cached_frac)
    assert sharded == pytest.approx(cached_frac * full_blocks)
    # Three fp32 clips come after the map: bytes of the map stay cached beside them.
    untiled = runtime(ParallelConfig(), cached_frac, uint8_on_device=True)
    assert untiled == pytest.approx(cached_frac * MAP)
    # The highest moment is the clip and three fp32 copies; tiles (with the map of one) and the
    # blended rows and clips before it, but for one clip, stay.
    tiled = runtime(ParallelConfig(vae_tiling=True), cached_frac, uint8_on_device=True)
    before = TILES + TILE_MAP + 4 * CLIP
    assert tiled == pytest.approx(cached_frac * (before - CLIP))


@pytest.mark.parametrize(
    ("degrees", "groups"),
    [
        ({}, []),
        ({"cfg": 2}, [2, 2]),
        ({"cfg": 2, "ulysses": 2}, [4, 2, 2]),
        ({"ulysses": 2, "ring": 2, "hsdp": 4}, [4, 2, 2, 4]),
        ({"tp": 4}, [4, 4]),
        ({"pp": 2, "cfg": 2}, [4, 2, 2]),
    ],
)
def test_each_group_of_a_rank_has_buffers_of_its_own(degrees: Any, groups: list[int]) -> None:
    """The world's, then one an axis; each holds a buffer and one more a peer."""
    terms = replace(BARE, communicator_bytes=1e6, peer_bytes=1e5)
    table = table_of(ParallelConfig(**degrees), terms=terms)
    expected = sum(1e6 + 1e5 * (ranks - 1) for ranks in groups)
    # while denoising the messages of a layer are held beside them
    for phase in ("load", "text_encode", "vae_decode"):
        found = table.parts_bytes[PHASES.index(phase), PARTS.index("collectives"), 0]
        assert found == expected
