"""Requests to models with joint attention: rounding, branches, text, condition images, messages."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_slugs import JOINT as SLUGS

from perfmodel.api.session import open_session
from perfmodel.catalog import load_model, parse_gpus
from perfmodel.errors import BadInput
from perfmodel.ops import Attention, Gemm, Op, Rows, flops
from perfmodel.pipeline.evaluate import evaluate
from perfmodel.shapes import Shape
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Options, Workload
from perfmodel.stages import family, text_encoder, vision_tower
from perfmodel.stages.base import Traits
from perfmodel.stages.summary import flops_by_kind


def shape_of(slug: str, traits: Traits | None = None, **fields: object) -> Shape:
    model = load_model(slug)
    workload = Workload.model_validate({"model": slug, **fields})
    return family(model).shape(model, workload, traits or Traits())


def total(ops: tuple[Op, ...]) -> float:
    return float(sum(np.sum(np.asarray(op.count) * flops(op)) for op in ops))


def test_all_models_are_here() -> None:
    assert len(SLUGS) >= 19


@pytest.mark.parametrize("slug", SLUGS)
def test_columns_equal_single_shapes(slug: str) -> None:
    model = load_model(slug)
    found, traits = family(model), Traits()
    widths, heights = np.array([512, 1000, 1280]), np.array([768, 640, 720])
    frames = np.array([1, 1, 1]) if model.tasks[model.default_task].frames == 1 else 33
    base = shape_of(slug)
    many = found.shape_columns(model, base, widths, heights, np.broadcast_to(frames, 3))
    work = found.denoise(model, many, traits).per_forward
    for row in range(3):
        size = (int(widths[row]), int(heights[row]), int(np.broadcast_to(frames, 3)[row]))
        one = found.shape_columns(model, base, *size)
        assert many.tokens[row] == one.tokens  # type: ignore[index]
        alone = found.denoise(model, one, traits).per_forward
        assert [op.name for op in work] == [op.name for op in alone]
        for column, single in zip(work, alone, strict=True):
            assert np.broadcast_to(flops(column), 3)[row] == pytest.approx(
                float(flops(single)), rel=1e-12
            )


@pytest.mark.parametrize("slug", SLUGS)
def test_a_fused_projection_is_the_same_work_and_weights(slug: str) -> None:
    model, shape = load_model(slug), shape_of(slug)
    fused, apart = (
        family(model).denoise(model, shape, Traits(fused_qkv=fused)).per_forward
        for fused in (True, False)
    )
    assert flops_by_kind(fused) == pytest.approx(flops_by_kind(apart), rel=1e-12)


@pytest.mark.parametrize("slug", SLUGS)
def test_outputs_of_a_batch_multiply_the_work_of_the_blocks(slug: str) -> None:
    model = load_model(slug)
    one, four = (
        total(family(model).denoise(model, shape_of(slug, batch=n), Traits()).per_forward)
        for n in (1, 4)
    )
    assert four == pytest.approx(4 * one, rel=1e-9)


@pytest.mark.parametrize("slug", ["flux.1-dev", "qwen-image", "sd3.5-large", "z-image"])
def test_image_models_refuse_clips_and_sound(slug: str) -> None:
    with pytest.raises(BadInput, match="makes images"):
        shape_of(slug, frames=81)
    with pytest.raises(BadInput, match="no sound"):
        shape_of(slug, sound=True)


def test_an_embedded_scale_is_one_branch_and_a_negative_prompt_is_two() -> None:
    assert shape_of("flux.1-dev", guidance=3.5).branches == 1
    assert shape_of("flux.2-dev", guidance=4.0).branches == 1
    assert shape_of("hunyuanvideo", guidance=6.0).branches == 1
    assert shape_of("qwen-image", guidance=4.0).forwards == 100
    assert shape_of("flux.2-klein-4b", guidance=4.0).branches == 1
    assert shape_of("flux.2-klein-base-4b", guidance=4.0).branches == 2
    assert shape_of("hunyuanvideo-1.5-distilled", guidance=6.0).branches == 1


def test_condition_images_add_tokens() -> None:
    plain = shape_of("flux.2-dev")
    edited = shape_of("flux.2-dev", task="i2i", input_images=2)
    assert (plain.tokens, edited.tokens) == (4096, 3 * 4096)
    # A small output keeps its condition small in FLUX.2; Qwen scales to a megapixel.
    assert shape_of("flux.2-dev", task="i2i", width=512, height=512).tokens == 2 * 1024
    assert shape_of("qwen-image-edit", width=512, height=512).tokens == 1024 + 4096


@given(st.integers(16, 2048), st.integers(16, 2048), st.integers(1, 512))
def test_z_image_pads_both_lengths_to_32(width: int, height: int, text: int) -> None:
    shape = shape_of("z-image", width=width, height=height, text_tokens=text)
    raw = (width // 16) * (height // 16)
    assert shape.video_tokens % 32 == shape.extra_tokens % 32 == 0
    assert 0 <= shape.video_tokens - raw < 32
    assert 0 <= shape.extra_tokens - text < 32


def test_hunyuan_text_is_cut_by_engines_that_drop_its_padding() -> None:
    padded = shape_of("hunyuanvideo-1.5")
    valid = shape_of("hunyuanvideo-1.5", Traits(valid_text_only=True), text_tokens=90)
    image = shape_of("hunyuanvideo-1.5-i2v", Traits(valid_text_only=True), text_tokens=90)
    assert (padded.text_tokens, valid.text_tokens, image.text_tokens) == (1985, 90, 819)
    model = load_model("hunyuanvideo-1.5")
    for traits, masked in ((Traits(), True), (Traits(valid_text_only=True), False)):
        ops = family(model).denoise(model, padded, traits).per_forward
        joint = next(op for op in ops if op.name == "joint attention")
        assert isinstance(joint, Attention)
        assert joint.masked is masked


def test_gathered_single_blocks_keep_the_work_but_divide_less() -> None:
    for slug, gathers in (("flux.1-dev", 1), ("flux.2-dev", 2)):
        model, shape = load_model(slug), shape_of(slug)
        row, gather = (
            family(model).denoise(model, shape, Traits(single_stream_tensor=how))
            for how in ("row", "gather")
        )
        assert total(row.per_forward) == pytest.approx(total(gather.per_forward), rel=1e-12)
        assert (len(row.width_gathers), len(gather.width_gathers)) == (0, gathers)


def test_text_rows_of_a_joined_stream_are_marked() -> None:
    model, shape = load_model("flux.1-dev"), shape_of("flux.1-dev")
    ops = family(model).denoise(model, shape, Traits()).per_forward
    joined = [op for op in ops if isinstance(op, Gemm) and op.name.startswith("single ")]
    rows = {(op.m, op.fixed_rows) for op in joined if op.name != "single modulation"}
    assert rows == {(4096 + 512, 512)}


def test_encoders_run_once_a_branch() -> None:
    model = load_model("sd3.5-large")
    one, two = (
        total(family(model).text_encode(model, shape_of("sd3.5-large", guidance=g), Traits()))
        for g in (1.0, 4.5)
    )
    assert two == pytest.approx(2 * one, rel=1e-12)


def test_padded_prompts_say_so() -> None:
    notes = shape_of("hunyuanvideo", text_tokens=77).notes
    assert [note.rule_id for note in notes] == ["text-padding"]


def test_editing_runs_the_vision_tower_once_a_branch() -> None:
    model = load_model("qwen-image-edit")
    assert vision_tower.params() == text_encoder.ENCODERS["qwen2.5-vl-7b-lm"].idle_params
    shape = shape_of("qwen-image-edit")
    ops = family(model).text_encode(model, shape, Traits())
    tower = total(tuple(op for op in ops if op.name.startswith("vision ")))
    # Two branches of 5476 patches: every weight twice, and attention over 64 or all patches.
    patches, blocks = 5476, 32 * (4 * 1280**2 + 3 * 1280 * 3420)
    products = 2 * patches * (blocks + 1176 * 1280) + 2 * 1369 * (5120**2 + 5120 * 3584)
    windows = -(-patches // 64) * 64**2
    pairs = 4 * 16 * 80 * (4 * patches**2 + 28 * windows)
    assert tower == pytest.approx(2 * (products + pairs), rel=1e-12)
    plain = family(model).text_encode(load_model("qwen-image"), shape_of("qwen-image"), Traits())
    assert not any(op.name.startswith("vision ") for op in plain)


@pytest.mark.parametrize("side", [1, 4, 13, 16, 36, 37, 40])
def test_windows_of_the_vision_tower(side: int) -> None:
    vision_utils = pytest.importorskip("transformers.vision_utils")
    torch = pytest.importorskip("torch")
    grid = torch.tensor([[1, 2 * side, 2 * side]])
    ends = vision_utils.get_vision_window_index(grid, 2, 112, 14)[1]
    assert vision_tower.windows(side**2) == len(ends) - 1


def test_each_window_costs_host_time_where_they_are_a_loop() -> None:
    """One megapixel has 37 x 37 tokens, so 10 x 10 windows in each of 28 blocks."""

    def calls(engine: str) -> float:
        work = Workload(model="qwen-image-edit", task="i2i", guidance=1.0)
        session = open_session(work, parse_gpus("1xH200"), engine=engine, options=Options())
        stage = evaluate(session.job, Layouts.of([ParallelConfig()])).stages["text_encode"]
        named = [line.total_s[0] for line in stage.lines if line.name == "vision window calls"]
        return float(sum(named))

    assert calls("vllm-omni") == pytest.approx(2800 * 2e-5)
    assert calls("sglang-diffusion") == 0.0


def test_engines_that_divide_the_text_keep_none_of_it() -> None:
    model, shape = load_model("flux.1-dev"), shape_of("flux.1-dev")
    kept, split = (
        family(model).denoise(model, shape, Traits(text_split=text_split)).per_forward
        for text_split in (False, True)
    )
    assert total(kept) == pytest.approx(total(split), rel=1e-12)
    assert any(op.fixed_rows for op in kept if isinstance(op, Gemm))
    assert not any(op.fixed_rows for op in split if isinstance(op, Gemm))
    assert {op.prefix_q for op in split if isinstance(op, Attention)} == {0}
    assert not any(op.rows is Rows.TEXT for op in split if isinstance(op, Gemm))


@pytest.mark.parametrize("seconds", [0.01, 1.0, 2.0])
@pytest.mark.parametrize("slug", ["qwen-image", "sana-1.6b"])
def test_an_image_has_no_length_in_seconds(slug: str, seconds: float) -> None:
    """Whether or not a rate makes one frame of it; the flag that was typed is named."""
    with pytest.raises(BadInput, match=f"not a video of {seconds:g} s; drop --seconds") as error:
        shape_of(slug, seconds=seconds)
    (problem,) = error.value.problems
    assert problem.field == "--seconds"
    assert "--frames" not in problem.message
