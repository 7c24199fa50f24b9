"""Requests become shapes: defaults, rounding, latent grid, tokens, forwards, experts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.catalog import load_model, model_ids
from perfmodel.errors import BadInput
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import family
from perfmodel.stages.base import Traits
from perfmodel.stages.schedule import expert_steps, flow_timesteps, forwards, steps_within

NANO = load_model("cosmos3-nano")


def shape_of(name: str, traits: Traits | None = None, **request: Any) -> Shape:
    model = load_model(name)
    return family(model).shape(model, Workload(**request), traits or Traits())


def rules(shape: Shape) -> set[str]:
    return {note.rule_id for note in shape.notes}


@pytest.mark.parametrize("name", model_ids())
def test_every_model_runs_with_its_defaults_alone(name: str) -> None:
    model = load_model(name)
    for task, defaults in model.tasks.items():
        shape = shape_of(name, task=task)
        assert (shape.width, shape.height, shape.frames) == (
            defaults.width,
            defaults.height,
            defaults.frames,
        )
        assert rules(shape) <= {"patch-padding", "chunks"}
        assert shape.video_tokens > 0
        work = family(model).denoise(model, shape, Traits())
        assert work.per_forward
        # A forward of a pyramid runs every block at each of its sizes.
        blocks = work.blocks // model.pyramid
        assert work.block_params * blocks < sum(c.params for c in family(model).components(model))


@pytest.mark.parametrize("name", model_ids())
def test_a_model_is_found_by_its_checkpoint_and_every_alias(name: str) -> None:
    model = load_model(name)
    for other in (model.hf_id, model.title, *model.aliases):
        assert load_model(other).slug == name


def test_the_headline_request_is_720p_189_frames() -> None:
    shape = shape_of("cosmos3-nano", frames=189)
    assert (shape.task, shape.width, shape.height) == ("t2v", 1280, 720)
    assert (shape.steps, shape.guidance, shape.fps) == (35, 6.0, 24.0)
    assert (shape.latent_frames, shape.latent_height, shape.latent_width) == (48, 45, 80)
    # 45 latent rows make 23 token rows: 48 * 23 * 40.
    assert shape.video_tokens == 44_160
    assert shape.forwards == 70
    assert "frames" not in shape.assumed
    assert {"width", "height", "steps", "guidance", "text_tokens"} <= set(shape.assumed)
    assert rules(shape) == {"patch-padding"}


@pytest.mark.parametrize(
    ("name", "asked", "ran"),
    [
        ("cosmos3-nano", 189, 189),
        ("cosmos3-nano", 190, 193),
        ("cosmos3-nano", 188, 189),
        ("cosmos3-nano", 2, 5),
        ("wan2.2-t2v-a14b", 189, 189),
        ("wan2.2-t2v-a14b", 190, 189),
        ("wan2.2-t2v-a14b", 188, 189),
        ("wan2.2-t2v-a14b", 3, 1),
    ],
)
def test_frames_run_rounded_and_that_is_said(name: str, asked: int, ran: int) -> None:
    shape = shape_of(name, frames=asked)
    assert shape.frames == ran
    assert ("frame-rounding" in rules(shape)) == (asked != ran)
    assert all(note.severity == "warning" for note in shape.notes)


def test_sizes_are_floored_and_that_is_said() -> None:
    ti2v = shape_of("wan2.2-ti2v-5b", width=1280, height=720)
    assert (ti2v.width, ti2v.height) == (1280, 704)
    assert "1280x720 runs as 1280x704" in ti2v.notes[0].message
    t2v = shape_of("wan2.2-t2v-a14b", width=854, height=480)
    assert (t2v.width, t2v.height) == (848, 480)


def test_image_to_video_refuses_a_size_that_it_would_have_to_round() -> None:
    with pytest.raises(BadInput) as refusal:
        shape_of("wan2.2-i2v-a14b", width=854, height=480)
    assert refusal.value.problems[0].suggestions == ("--size 848x480",)


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"task": "t2w"}, "--task"),
        ({"task": "t2i", "sound": True}, "--sound"),
        ({"frames": 10, "seconds": 2.0}, "--seconds"),
    ],
)
def test_impossible_requests_are_refused_with_a_way_out(
    request_: dict[str, Any], field: str
) -> None:
    with pytest.raises(BadInput) as refusal:
        shape_of("cosmos3-nano", **request_)
    problem = refusal.value.problems[0]
    assert problem.field == field
    assert problem.suggestions


def test_wan_makes_no_sound() -> None:
    with pytest.raises(BadInput):
        shape_of("wan2.2-t2v-a14b", sound=True)


def test_one_frame_is_an_image_where_the_model_has_that_task() -> None:
    assert shape_of("cosmos3-nano", frames=1).task == "t2i"
    assert shape_of("wan2.2-t2v-a14b", frames=1).task == "t2v"
    assert shape_of("cosmos3-nano", input_images=1).task == "i2v"
    assert shape_of("wan2.2-ti2v-5b", task="ti2v").task == "i2v"


def test_seconds_set_the_length() -> None:
    # 5 s at 16 fps are 80 frames, which run as 81.
    assert shape_of("wan2.1-t2v-14b", seconds=5.0).frames == 81


def test_sound_adds_25_tokens_a_second() -> None:
    # 189 frames at 24 fps are 7.875 s, 196.9 tokens.
    shape = shape_of("cosmos3-nano", frames=189, sound=True)
    assert shape.extra_tokens == 197
    assert shape.tokens == 44_160 + 197
    assert family(NANO).sound_decode(NANO, shape)
    assert family(NANO).sound_decode(NANO, shape_of("cosmos3-nano")) == ()


def test_what_the_vae_encodes() -> None:
    assert shape_of("cosmos3-nano", task="t2v").condition_frames == 0
    assert shape_of("cosmos3-nano", task="i2v").condition_frames == 1
    before = Traits(condition_whole_clip=True)
    assert shape_of("cosmos3-nano", before, task="i2v").condition_frames == 189
    assert shape_of("cosmos3-nano", task="v2v").condition_frames == 5
    assert shape_of("wan2.2-i2v-a14b", frames=33).condition_frames == 33
    assert shape_of("wan2.2-ti2v-5b", task="i2v").condition_frames == 1


def test_guidance_of_an_image_runs_in_part_of_the_steps() -> None:
    # 50 conditional forwards and 41 unconditional ones, at 400 <= t <= 1000 and shift 3.
    assert shape_of("cosmos3-nano", task="t2i").forwards == 91
    assert shape_of("cosmos3-nano", task="t2i", guidance=1.0).forwards == 50
    assert shape_of("cosmos3-nano", task="t2i", steps=10).forwards == 19


def test_a_distilled_model_has_one_branch_whatever_is_asked() -> None:
    shape = shape_of("nvidia/Cosmos3-Super-Image2Video-4Step", guidance=6.0)
    assert (shape.branches, shape.forwards, shape.steps) == (1, 4, 4)
    assert "distilled-guidance" in rules(shape)


@pytest.mark.parametrize(
    ("steps", "shift", "boundary", "split"),
    [
        (40, 5.0, 0.875, (17, 23)),
        (40, 12.0, 0.875, (26, 14)),
        (40, 3.0, 0.875, (12, 28)),
        (40, 5.0, 0.9, (15, 25)),
        (50, 5.0, 0.875, (21, 29)),
    ],
)
def test_expert_steps_are_those_of_the_scheduler(
    steps: int, shift: float, boundary: float, split: tuple[int, int]
) -> None:
    assert expert_steps(steps, shift, boundary) == split


def test_the_engine_boundary_wins_over_the_checkpoint() -> None:
    from perfmodel.stages import wan

    model = load_model("wan2.2-i2v-a14b")
    shape = shape_of(model.slug)
    assert wan.experts(model, shape, Traits()) == (15, 25)
    assert wan.experts(model, shape, Traits(boundary_ratio=0.875)) == (17, 23)
    single = load_model("wan2.1-t2v-14b")
    assert wan.experts(single, shape_of(single.slug), Traits()) == (40, 0)


@given(steps=st.integers(1, 200), shift=st.floats(0.5, 20))
def test_timesteps_fall_from_the_top(steps: int, shift: float) -> None:
    timesteps = flow_timesteps(steps, shift)
    assert len(timesteps) == steps
    assert np.all(np.diff(timesteps) < 0)
    assert 0 < timesteps[-1] <= timesteps[0] < 1000
    assert steps_within(steps, shift, 0.0, 1000.0) == steps


@given(steps=st.integers(1, 100), shift=st.floats(0.5, 20))
def test_forwards_lie_between_one_and_all_branches(steps: int, shift: float) -> None:
    count = forwards(steps, 2, shift, (400.0, 1000.0))
    assert steps <= count <= 2 * steps == forwards(steps, 2, shift, None)
    column = forwards(np.array([steps, 50]), 2, shift, (400.0, 1000.0))
    assert list(column) == [count, forwards(50, 2, shift, (400.0, 1000.0))]


def columns_of(model: ModelSpec, base: Shape, rows: list[tuple[int, int, int]]) -> Shape:
    width, height, frames = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    return family(model).shape_columns(model, base, width, height, frames)


@pytest.mark.parametrize(
    ("name", "task", "sound"),
    [
        ("cosmos3-nano", "t2v", True),
        ("cosmos3-nano", "v2v", False),
        ("wan2.2-i2v-a14b", "i2v", False),
        ("wan2.2-ti2v-5b", "t2v", False),
    ],
)
@given(
    rows=st.lists(
        st.tuples(st.integers(4, 80), st.integers(4, 80), st.integers(2, 300)),
        min_size=1,
        max_size=6,
    )
)
def test_columns_of_shapes_are_the_single_shapes(
    name: str, task: str, sound: bool, rows: list[tuple[int, int, int]]
) -> None:
    model = load_model(name)
    sizes = [(16 * w, 16 * h, frames) for w, h, frames in rows]
    base = shape_of(name, task=task, sound=sound)
    many = columns_of(model, base, sizes)
    for index, (width, height, frames) in enumerate(sizes):
        one = shape_of(name, task=task, sound=sound, width=width, height=height, frames=frames)
        for key in ("width", "height", "frames", "latent_frames", "latent_height", "latent_width"):
            assert getattr(many, key)[index] == getattr(one, key), key
        assert many.video_tokens[index] == one.video_tokens
        assert np.broadcast_to(many.extra_tokens, len(sizes))[index] == one.extra_tokens
        assert np.broadcast_to(many.condition_frames, len(sizes))[index] == one.condition_frames
