"""What the examples of cosmos-predict2 can be asked for: sizes, clips and steps are not free."""

from __future__ import annotations

import numpy as np

from perfmodel.engines.base import Context
from perfmodel.engines.legality import BoolColumn, Rule, mask
from perfmodel.engines.nearest import refusal, words
from perfmodel.errors import Problem
from perfmodel.spec.parallel import Layouts, ParallelConfig

_WHEEL = "https://pypi.org/project/cosmos-predict2/1.0.9/ cosmos_predict2/"
STEPS = 35
"""``num_sampling_step`` of the pipelines; no flag of the examples sets it."""
FRAMES = {10: 61, 16: 93}
"""Frames by the rate of ``--fps``: 16 and 24 latent frames (``state_t``)."""
_720 = {
    "1:1": (960, 960),
    "4:3": (960, 704),
    "3:4": (704, 960),
    "16:9": (1280, 704),
    "9:16": (704, 1280),
}
_480 = {
    "1:1": (480, 480),
    "4:3": (640, 480),
    "3:4": (480, 640),
    "16:9": (768, 432),
    "9:16": (432, 768),
}
_1024 = {
    "1:1": (1024, 1024),
    "4:3": (1168, 880),
    "3:4": (880, 1168),
    "16:9": (1360, 768),
    "9:16": (768, 1360),
}
VIDEO_SIZES = {"720": _720, "480": _480}
"""Sides [px] by ``--resolution`` and ``--aspect_ratio``."""
IMAGE_SIZES = {"1024": _1024}
"""Sides [px] by the resolution of the text-to-image checkpoints and ``--aspect_ratio``."""


def is_example(model_id: str) -> bool:
    """Whether the examples of cosmos-predict2 load the model."""
    return model_id.startswith("cosmos-predict2-")


def _sizes(ctx: Context) -> dict[str, dict[str, tuple[int, int]]]:
    return IMAGE_SIZES if ctx.task == "t2i" else VIDEO_SIZES


def flags_of_size(ctx: Context) -> tuple[str, str] | None:
    """``--resolution`` and ``--aspect_ratio`` of the request; None where none say its size."""
    return next(
        (
            (resolution, ratio)
            for resolution, by_ratio in _sizes(ctx).items()
            for ratio, size in by_ratio.items()
            if size == (ctx.width, ctx.height)
        ),
        None,
    )


def _unset(ctx: Context) -> tuple[str, str, tuple[str, ...]] | None:
    """Flag, value and legal values of what the program cannot be asked for; None: all it can."""
    if not is_example(ctx.model_id):
        return None
    if flags_of_size(ctx) is None:
        sizes = (size for by_ratio in _sizes(ctx).values() for size in by_ratio.values())
        return "--size", f"{ctx.width}x{ctx.height}", tuple(f"{w}x{h}" for w, h in sizes)
    if ctx.task != "t2i" and ctx.fps not in FRAMES:
        return "--fps", f"{ctx.fps:g}", tuple(map(str, FRAMES))
    if ctx.task != "t2i" and ctx.frames != FRAMES[int(ctx.fps)]:
        return "--frames", str(ctx.frames), (str(FRAMES[int(ctx.fps)]),)
    if ctx.steps != STEPS:
        return "--steps", str(ctx.steps), (str(STEPS),)
    return None


def _request(ctx: Context, layouts: Layouts) -> BoolColumn:
    return np.full(len(layouts), _unset(ctx) is not None)


def _request_problem(ctx: Context, config: ParallelConfig) -> Problem:
    flag, given, have = _unset(ctx) or ("", "", ("",))
    typed = f"{flag} {have[0]}"
    at = f" at {ctx.fps:g} fps" if flag == "--frames" else ""
    return Problem(
        "program-request",
        f"{flag} {given}: no flag of the program makes {ctx.model} run it{at}; "
        f"legal: {words(have)}; try {typed}",
        field=flag,
        value=given,
        legal_values=have,
        suggestions=(typed,),
    )


def _latent_frames(ctx: Context) -> int:
    return (ctx.frames - 1) // 4 + 1


def _split(ctx: Context, layouts: Layouts) -> BoolColumn:
    uneven = _latent_frames(ctx) % np.maximum(layouts.ulysses, 1) != 0
    return mask(uneven & (layouts.ulysses > 1))


def _split_problem(ctx: Context, config: ParallelConfig) -> Problem:
    count = _latent_frames(ctx)
    clash = f"ulysses={config.ulysses} does not divide the {count} latent frames that ranks share"
    legal = [n for n in range(1, min(count, ctx.num_gpus) + 1) if count % n == ctx.heads % n == 0]
    return refusal("cosmos-frames", ctx, config, "ulysses", clash, legal)


RULES: tuple[Rule, ...] = (
    Rule(
        id="program-request",
        per_layout=False,
        title="The program must have a flag, or a default, for what is asked.",
        violated=_request,
        problem=_request_problem,
        source=f"{_WHEEL}datasets/utils.py, configs/base/config_video2world.py (state_t), "
        "pipelines/video2world.py (num_sampling_step)",
    ),
    Rule(
        id="cosmos-frames",
        title="Context parallelism divides whole latent frames over the ranks.",
        violated=_split,
        problem=_split_problem,
        source=f"{_WHEEL}utils/context_parallel.py split_inputs_cp (seq_dim 2)",
    ),
)
