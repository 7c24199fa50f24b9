"""Laws of the unsharded operators: scaling, tags, arrays, fast paths, memory of the VAE."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.catalog import load_model, model_ids
from perfmodel.ops import Attention, Conv, Gemm, Op, Pointwise, Role, Rows, Split, flops
from perfmodel.shapes import Shape
from perfmodel.spec.workload import Workload
from perfmodel.stages import family, vae
from perfmodel.stages.base import DenoiseWork, Traits
from perfmodel.stages.summary import flops_by_kind, request_flops

VAES = {name: load_model(name) for name in ("cosmos3-nano", "wan2.1-t2v-14b")}
PATHS = ("off", "lossless", "channels_last")


def shape_of(name: str, **request: Any) -> Shape:
    model = load_model(name)
    return family(model).shape(model, Workload(**request), Traits())


def work_of(name: str, **request: Any) -> DenoiseWork:
    model = load_model(name)
    return family(model).denoise(model, shape_of(name, **request), Traits())


def moved(ops: Iterable[Op]) -> float:
    return float(
        sum(
            np.sum(op.bytes_moved * np.asarray(op.count)) for op in ops if isinstance(op, Pointwise)
        )
    )


def launches(ops: Iterable[Op]) -> int:
    return int(sum(np.sum(op.launches * np.asarray(op.count)) for op in ops))


def decode(name: str, frames: Any, height: Any, width: Any, path: str = "off") -> tuple[Op, ...]:
    model = VAES[name]
    return family(model).vae_decode(model, frames, height, width, Traits(vae_fast_path=path))


@pytest.mark.parametrize("name", ["cosmos3-nano", "wan2.1-t2v-14b", "wan2.2-ti2v-5b"])
def test_attention_grows_with_the_square_and_products_with_the_tokens(name: str) -> None:
    model = load_model(name)
    base = shape_of(name)

    def work(factor: int) -> DenoiseWork:
        shape = replace(
            base, latent_frames=base.latent_frames * factor, video_tokens=base.video_tokens * factor
        )
        return family(model).denoise(model, shape, Traits())

    def self_attention(work: DenoiseWork) -> float:
        found = [op for op in work.per_forward if getattr(op, "role", None) is Role.SELF]
        pairs = sum(float(flops(op)) * float(op.count) for op in found)
        prefix = sum(
            float(flops(replace(op, seq_kv=op.prefix_kv))) * float(op.count)
            for op in found
            if isinstance(op, Attention)
        )
        return pairs - prefix

    def token_products(work: DenoiseWork) -> float:
        rows = (Rows.TOKENS, Rows.FULL)
        return flops_by_kind(
            op for op in work.per_forward if isinstance(op, Gemm) and op.rows in rows
        )["gemm"]

    one, eight = work(1), work(8)
    assert self_attention(eight) == pytest.approx(64 * self_attention(one), rel=1e-9)
    assert token_products(eight) == pytest.approx(8 * token_products(one), rel=1e-9)


@given(height=st.integers(2, 40), width=st.integers(2, 40), factor=st.integers(2, 5))
@settings(max_examples=20, deadline=None)
def test_convolutions_grow_with_the_voxels(height: int, width: int, factor: int) -> None:
    one = flops_by_kind(decode("cosmos3-nano", 5, height, width))
    more = flops_by_kind(decode("cosmos3-nano", 5, height * factor, width))
    assert more["conv"] == pytest.approx(factor * one["conv"], rel=1e-9)
    assert more["attention"] == pytest.approx(factor**2 * one["attention"], rel=1e-9)


def test_each_later_chunk_adds_the_same_work() -> None:
    five, six, nine = (flops_by_kind(decode("wan2.1-t2v-14b", n, 30, 52)) for n in (5, 6, 9))
    chunk = six["conv"] - five["conv"]
    assert nine["conv"] - five["conv"] == pytest.approx(4 * chunk, rel=1e-9)
    # The first chunk skips the temporal up-sampling, so it is the cheaper one.
    assert five["conv"] - 4 * chunk < chunk / 2


@pytest.mark.parametrize("name", sorted(VAES))
@pytest.mark.parametrize("path", PATHS)
def test_a_column_of_maps_is_the_single_maps(name: str, path: str) -> None:
    frames, height, width = np.array([1, 3, 9]), np.array([16, 8, 12]), np.array([16, 16, 5])
    many = decode(name, frames, height, width, path)
    for index in range(3):
        one = decode(name, int(frames[index]), int(height[index]), int(width[index]), path)
        assert [op.name for op in one] == [op.name for op in many]
        for single, column in zip(one, many, strict=True):
            assert np.broadcast_to(column.count, 3)[index] == single.count
            assert np.broadcast_to(flops(column), 3)[index] == pytest.approx(flops(single))
            if isinstance(single, Pointwise) and isinstance(column, Pointwise):
                value = np.broadcast_to(column.bytes_moved, 3)[index]
                assert value == pytest.approx(single.bytes_moved)


@pytest.mark.parametrize("name", ["cosmos3-nano", "wan2.1-i2v-14b"])
def test_a_column_of_requests_is_the_single_requests(name: str) -> None:
    model = load_model(name)
    sizes = [(832, 480, 81), (1280, 720, 33), (640, 640, 5)]
    base = shape_of(name)
    columns = [np.array(column, np.int64) for column in zip(*sizes, strict=True)]
    run = family(model).denoise
    many = run(model, family(model).shape_columns(model, base, *columns), Traits())
    for index, (width, height, frames) in enumerate(sizes):
        shape = shape_of(name, width=width, height=height, frames=frames)
        one = run(model, shape, Traits())
        for single, column in zip(one.per_forward, many.per_forward, strict=True):
            assert np.broadcast_to(flops(column), 3)[index] == pytest.approx(flops(single))
        assert many.velocity_elements[index] == one.velocity_elements


@pytest.mark.parametrize("name", sorted(VAES))
def test_the_fast_path_moves_less_and_computes_the_same(name: str) -> None:
    ops = {path: decode(name, 21, 30, 52, path) for path in PATHS}
    work = [flops_by_kind(ops[path]) for path in PATHS]
    assert work[1] == pytest.approx(work[0])
    assert work[2] == pytest.approx(work[0])
    traffic = [moved(ops[path]) for path in PATHS]
    assert traffic[0] > 1.5 * traffic[1] > 1.5 * traffic[2] > 0
    counts = [launches(ops[path]) for path in PATHS]
    assert counts[0] > 1.5 * counts[1]
    assert counts[1] > counts[2]
    assert not any("layout conversion" in op.name for op in ops["channels_last"])
    assert any("layout conversion" in op.name for op in ops["lossless"])


def test_a_later_chunk_of_an_image_does_not_run() -> None:
    later = [op for op in decode("cosmos3-nano", 1, 16, 16) if "later" in op.name]
    assert later
    assert all(op.count == 0 for op in later)


@pytest.mark.parametrize(
    "name", [name for name in model_ids() if load_model(name).family in ("cosmos3", "wan")]
)
def test_tags_say_what_may_be_split(name: str) -> None:
    work = work_of(name)
    linears = [op for op in work.per_forward if isinstance(op, Gemm)]
    split = [op for op in linears if op.split is not Split.NONE]
    # Embeddings, time layers and the exit stay whole, everything in the blocks is divided.
    assert all(op.count >= work.blocks for op in split)
    assert all(op.count < work.blocks for op in linears if op.split is Split.NONE)
    assert all(op.rows is Rows.TEXT or op.rows is Rows.TOKENS for op in split)
    rows_split = {op.name for op in split if op.split is Split.ROW}
    assert len(rows_split) == (3 if load_model(name).family == "wan" else 2)
    (attention,) = [op for op in work.per_forward if getattr(op, "role", None) is Role.SELF]
    assert isinstance(attention, Attention)
    assert attention.seq_kv == attention.seq_q + attention.prefix_kv
    parts = family(load_model(name)).components(load_model(name))
    denoiser = next(part for part in parts if part.name == "transformer")
    divided = sum(op.n * op.k * op.count for op in split)
    assert divided == denoiser.tp_params == denoiser.quantizable_params


def test_cosmos3_embeds_and_projects_in_full_and_wan_projects_its_own_tokens() -> None:
    def rows(name: str, op_name: str) -> Rows:
        return next(op.rows for op in work_of(name).per_forward if op.name == op_name)

    assert rows("cosmos3-nano", "input projection") is Rows.FULL
    assert rows("cosmos3-nano", "output projection") is Rows.FULL
    assert rows("wan2.2-t2v-a14b", "output projection") is Rows.TOKENS
    assert rows("wan2.2-t2v-a14b", "text k projection") is Rows.TEXT


def test_the_text_tower_runs_once_or_at_every_forward() -> None:
    model = load_model("cosmos3-nano")
    shape = shape_of("cosmos3-nano")
    once = family(model).denoise(model, shape, Traits())
    each = family(model).denoise(model, shape, Traits(understanding_each_forward=True))
    assert any(op.name == "text self-attention" for op in once.per_request)
    assert each.per_request == ()
    assert any(op.name == "text self-attention" for op in each.per_forward)


def test_outputs_run_one_after_the_other_in_cosmos3_and_as_a_batch_in_wan() -> None:
    for name in ("cosmos3-nano", "wan2.1-t2v-1.3b"):
        one, four = work_of(name, batch=1), work_of(name, batch=4)
        # The text side of a Wan forward grows with the batch too, so all products do.
        per_token = [flops_by_kind(work.per_forward)["attention"] for work in (one, four)]
        assert per_token[1] == pytest.approx(4 * per_token[0])
    (looped,) = [op for op in work_of("cosmos3-nano", batch=4).per_forward if "gate" in op.name]
    assert isinstance(looped, Gemm)
    assert (looped.m, looped.count) == (44_160, 4 * 36)


@pytest.mark.parametrize("name", model_ids())
def test_the_summary_is_the_sum_of_the_stages(name: str) -> None:
    model, shape = load_model(name), shape_of(name)
    work = request_flops(model, shape, Traits())
    forward = flops_by_kind(family(model).denoise(model, shape, Traits()).per_forward)
    assert work["denoise"]["attention"] >= shape.forwards * forward["attention"]
    assert (sum(work["vae_encode"].values()) > 0) == (shape.condition_frames > 0)
    assert (sum(work["text_encode"].values()) > 0) == bool(model.text_encoders)


@pytest.mark.parametrize("name", sorted(VAES))
@given(
    height=st.integers(2, 60),
    width=st.integers(2, 60),
    frames=st.integers(1, 20),
    grow=st.integers(1, 8),
)
@settings(max_examples=20, deadline=None)
def test_decode_memory_grows_with_the_map(
    name: str, height: int, width: int, frames: int, grow: int
) -> None:
    model = VAES[name]
    small = vae.decode_peak_bytes(model, frames, height, width)
    assert vae.decode_peak_bytes(model, frames, height + grow, width) > small
    assert vae.decode_peak_bytes(model, frames + 20, height, width) >= small
    fast = vae.decode_peak_bytes(model, frames, height, width, fast_path="lossless")
    last = vae.decode_peak_bytes(model, frames, height, width, fast_path="channels_last")
    assert last < fast <= small


def test_decode_memory_at_720p_is_the_hand_count() -> None:
    # Worst layer: the first convolution of the last level, 512 to 256 channels, 4 + 2 frames.
    plane, padded = 360 * 640, 362 * 642
    block_input = level_input = normed = 512 * 4 * plane
    shortcut = out = converted_out = 256 * 4 * plane
    joined = padded_copy = converted_in = 512 * 6 * padded
    worst = block_input + level_input + normed + shortcut + out + converted_out
    worst += joined + padded_copy + converted_in
    # Two past frames of every causal convolution, level by level (time convolutions included).
    past = 45 * 80 * (48 + 11 * 1024) + 90 * 160 * 7 * 1024
    past += 180 * 320 * (1024 + 5 * 512) + plane * (512 + 6 * 256)
    expected = 2 * (worst + 2 * past)
    assert vae.decode_peak_bytes(VAES["cosmos3-nano"], 48, 45, 80) == expected
    # The fast path assembles and pads in one kernel; channels-last converts nothing besides.
    lossless = vae.decode_peak_bytes(VAES["cosmos3-nano"], 48, 45, 80, fast_path="lossless")
    assert lossless == expected - 2 * padded_copy


def test_encode_memory_grows_with_the_map() -> None:
    small, large = (
        vae.encode_peak_bytes(VAES["wan2.1-t2v-14b"], 81, 480, width) for width in (832, 848)
    )
    assert 0 < small < large
    assert vae.encode_peak_bytes(VAES["wan2.1-t2v-14b"], 1, 480, 832) < small


def test_convolutions_count_no_negative_work() -> None:
    for path in PATHS:
        for op in decode("wan2.1-t2v-14b", 3, 9, 7, path):
            assert np.all(np.asarray(op.count) >= 0)
            if isinstance(op, Conv):
                assert float(flops(op)) > 0
