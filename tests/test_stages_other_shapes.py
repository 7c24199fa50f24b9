"""Shapes, rounding, passes and scaling laws of the families with attention to text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_slugs import JOINT_FAMILIES, OTHER_FAMILIES
from model_slugs import OTHER as SLUGS

from perfmodel.catalog import load_model, model_ids
from perfmodel.ops import Attention, Conv, Gemm, Op, Role, Rows, Split, flops
from perfmodel.placement.denoise import place_op
from perfmodel.placement.guidance import forwards_of_a_rank, guided_steps, together
from perfmodel.shapes import Shape
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Options, Workload
from perfmodel.stages import FAMILIES, family, helios, ltx2
from perfmodel.stages.base import Traits
from perfmodel.stages.summary import flops_by_kind

TRAITS = Traits()


def shape_of(slug: str, **asked: object) -> Shape:
    model = load_model(slug)
    return family(model).shape(model, Workload(**asked), TRAITS)


def forward(slug: str, shape: Shape) -> tuple[Op, ...]:
    model = load_model(slug)
    return family(model).denoise(model, shape, TRAITS).per_forward


def test_every_family_has_a_model_and_is_taken_by_some_test() -> None:
    taken = OTHER_FAMILIES | JOINT_FAMILIES | {"wan", "cosmos3"}
    assert {load_model(slug).family for slug in model_ids()} == taken
    assert set(FAMILIES) == taken | {"traced"}


def test_frames_go_down_to_whole_latent_frames() -> None:
    shape = shape_of("cogvideox-5b", frames=52)
    assert (shape.frames, shape.latent_frames) == (49, 13)
    assert "52 frames run as 49" in shape.notes[0].message
    assert shape_of("mochi-1", frames=90).frames == 85
    assert shape_of("ltx-video-2b", frames=128).frames == 121


def test_cogvideox_1_5_makes_latent_frames_even() -> None:
    shape = shape_of("cogvideox1.5-5b", frames=81)
    # 21 latent frames and one more; pairs of them, 48 x 85 patches.
    assert (shape.latent_frames, shape.video_tokens) == (22, 11 * 48 * 85)


def test_an_image_model_makes_one_frame() -> None:
    from perfmodel.errors import BadInput

    with pytest.raises(BadInput, match="makes images"):
        shape_of("sana-1.6b", frames=9)


def test_ltx_2_runs_four_passes_and_sound() -> None:
    model, shape = load_model("ltx-2"), shape_of("ltx-2", frames=121)
    assert (shape.branches, shape.forwards) == (4, 160)
    assert ltx2.sound_tokens(model, shape) == 126
    one = shape_of("ltx-2", frames=121, guidance=1.0)
    assert (one.branches, one.forwards) == (1, 40)
    assert sum(isinstance(op, Conv) for op in family(model).sound_decode(model, shape)) > 20
    assert [part.name for part in family(model).components(model)] == [
        "text_encoder",
        "connectors",
        "transformer",
        "vae",
        "audio_vae",
        "vocoder",
    ]


@pytest.mark.parametrize(("frames", "chunks"), [(1, 1), (33, 1), (34, 2), (132, 4), (133, 5)])
def test_helios_runs_whole_chunks(frames: int, chunks: int) -> None:
    shape = shape_of("helios-base", frames=frames)
    assert shape.frames == 33 * chunks
    assert shape.latent_frames == 9 * chunks
    assert (shape.steps, shape.forwards) == (50 * chunks, 100 * chunks)
    # Near history 2 frames at full size; 2 folded by two and 16 by four, 24 x 40 patches.
    assert shape.extra_tokens == 2 * 960 + 240 + 4 * 60
    model = load_model("helios-base")
    once = flops_by_kind(helios.vae_decode(model, 9, 48, 80, TRAITS))["conv"]
    whole = flops_by_kind(helios.vae_decode(model, 9 * chunks, 48, 80, TRAITS))["conv"]
    assert whole == pytest.approx(chunks * once)


def test_a_step_of_the_helios_pyramid_is_a_forward_at_each_size() -> None:
    base, pyramid = load_model("helios-base"), load_model("helios-mid")
    shape = shape_of("helios-mid", frames=33)
    assert (shape.steps, shape.forwards) == (10, 20)
    work = family(pyramid).denoise(pyramid, shape, TRAITS)
    whole = flops_by_kind(work.per_forward)
    history = 2 * 24 * 40 + 12 * 20 + 4 * 6 * 10
    total = dict.fromkeys(whole, 0.0)
    for level in range(3):
        # The chunk shrinks; its history is read at full size.
        tokens = 9 * (24 >> level) * (40 >> level)
        one = replace(shape, video_tokens=tokens, extra_tokens=history)
        alone = family(base).denoise(base, one, TRAITS).per_forward
        for kind, flop in flops_by_kind(alone).items():
            total[kind] += flop
    assert whole["gemm"] == pytest.approx(total["gemm"], rel=1e-12)
    assert whole["attention"] == pytest.approx(total["attention"], rel=1e-12)
    assert whole["conv"] < total["conv"]
    assert work.blocks == 3 * 40


@pytest.mark.parametrize(
    ("frames", "chunks"), [(1, 1), (49, 1), (93, 1), (94, 2), (185, 2), (186, 3)]
)
def test_cosmos_transfer_runs_whole_chunks_that_share_a_frame(frames: int, chunks: int) -> None:
    shape = shape_of("cosmos-transfer2.5-2b", frames=frames)
    assert (shape.frames, shape.latent_frames) == (frames, 24 * chunks)
    assert (shape.steps, shape.forwards) == (36 * chunks, 72 * chunks)
    # One chunk of 93 frames in a forward; both of its clips are encoded.
    assert shape.tokens == 24 * 44 * 80
    model = load_model("cosmos-transfer2.5-2b")
    whole = family(model).vae_encode(model, shape.condition_frames, 704, 1280, TRAITS)
    plain = family(load_model("cosmos-predict2.5-2b")).vae_encode(model, 93, 704, 1280, TRAITS)
    ratio = flops_by_kind(whole)["conv"] / flops_by_kind(plain)["conv"]
    assert ratio == pytest.approx(2 * chunks)


def test_the_original_cosmos_predict_closes_with_a_clean_step() -> None:
    model = load_model("cosmos-predict2-2b-v2w")
    traits = Traits(closing_steps=1, modulation_per_frame=True)
    shape = family(model).shape(model, Workload(task="i2v"), traits)
    assert (shape.steps, shape.forwards, shape.condition_frames) == (36, 72, 93)
    assert shape.request_steps == 35
    plain = family(model).shape(model, Workload(task="i2v"), TRAITS)
    each, frame = (
        flops_by_kind(family(model).denoise(model, plain, t).per_forward)["gemm"]
        for t in (TRAITS, traits)
    )
    spec = model.transformer
    # Down to 256 and up to three vectors, three times a block; the last norm has two vectors.
    a_row = 2 * 256 * spec.hidden * (spec.layers * 3 * (1 + 3) + 1 + 2)
    assert each - frame == pytest.approx(a_row * (plain.tokens - plain.latent_frames), rel=1e-9)


@pytest.mark.parametrize("slug", SLUGS)
def test_columns_equal_single_shapes(slug: str) -> None:
    model = load_model(slug)
    base = shape_of(slug)
    frames = (17, 49, 97) if base.frames > 1 else (1, 1, 1)
    sizes = [(640, 384, frames[0]), (960, 544, frames[1]), (1280, 768, frames[2])]
    columns = family(model).shape_columns(
        model, base, *(np.array(side) for side in zip(*sizes, strict=True))
    )
    ops = family(model).denoise(model, columns, TRAITS).per_forward
    for row, (width, height, length) in enumerate(sizes):
        asked = {} if base.frames == 1 else {"frames": length}
        single = shape_of(slug, width=width, height=height, **asked)
        assert columns.tokens[row] == single.tokens
        mine = sum(np.broadcast_to(flops(op) * np.asarray(op.count), 3)[row] for op in ops)
        alone = sum(float(flops(op) * np.asarray(op.count)) for op in forward(slug, single))
        assert mine == pytest.approx(alone, rel=1e-12)


@settings(max_examples=20, deadline=None)
@given(slug=st.sampled_from(SLUGS), scale=st.integers(2, 4))
def test_attention_grows_with_the_square_and_linear_attention_does_not(
    slug: str, scale: int
) -> None:
    model = load_model(slug)
    one = shape_of(slug, width=512, height=512)
    wide = shape_of(slug, width=512 * scale, height=512)
    ratio = wide.tokens / one.tokens
    found = [
        sum(
            float(flops(op) * np.asarray(op.count))
            for op in forward(slug, shape)
            if isinstance(op, Attention) and op.role is Role.SELF and op.prefix_q == 0
        )
        for shape in (one, wide)
    ]
    if model.family == "sana":
        assert found == [0, 0]
    elif found[0]:
        assert found[1] == pytest.approx(found[0] * ratio**2)


@pytest.mark.parametrize("slug", SLUGS)
def test_tensor_and_sequence_parallelism_divide_what_they_name(slug: str) -> None:
    model = load_model(slug)
    shape = shape_of(slug)
    work = family(model).denoise(model, shape, TRAITS)

    class Table:
        ulysses_copies = 2
        pad_masked = False
        hsdp_breaks_graph = False
        fused_quantise = False
        patch_warmup_steps = None
        attention_backend = ring_attention_backend = cross_attention_backend = "TORCH_SDPA"

    layouts = Layouts.of([ParallelConfig(), ParallelConfig(ulysses=2), ParallelConfig(tp=2)])
    for op in work.per_forward:
        if not isinstance(op, (Gemm, Conv)):
            continue
        placed = place_op(op, work, layouts, Table(), Options())[0]
        alone, sequence, tensor = np.broadcast_to(flops(placed), 3)
        assert alone == flops(op)
        if op.rows is Rows.TOKENS and not getattr(op, "fixed_rows", 0):
            assert sequence == pytest.approx(alone / 2, rel=0.01)
        if op.split is not Split.NONE:
            assert tensor == pytest.approx(alone / 2, rel=0.04)


@pytest.mark.parametrize("branches", [1, 2, 4])
def test_branches_that_run_together_are_a_larger_batch(branches: int) -> None:
    shape = shape_of("ltx-2", guidance=3.0 if branches > 1 else 1.0)
    from dataclasses import replace

    shape = replace(shape, branches=branches, forwards=40 * branches)
    degrees = [c for c in (1, 2, 4) if branches % c == 0]
    layouts = Layouts.of([ParallelConfig(cfg=c) for c in degrees])
    batched = together(shape, layouts)
    assert list(batched.batch) == [branches // c for c in degrees]
    assert list(forwards_of_a_rank(batched, layouts)) == [40] * len(degrees)
    assert list(guided_steps(batched)) == [40 if c > 1 else 0 for c in degrees]
    before = shape.batch * forwards_of_a_rank(shape, layouts)
    assert list(batched.batch * forwards_of_a_rank(batched, layouts)) == list(before)
