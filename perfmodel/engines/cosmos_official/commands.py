"""Commands of the Cosmos programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from perfmodel.engines.base import Commands, Context, Launch
from perfmodel.engines.cosmos_official.rules import (
    FRAMES,
    IMAGE_SIZES,
    VIDEO_SIZES,
    flags_of_size,
)
from perfmodel.engines.described.commands import (
    PROMPT,
    hosts_of,
    is_image,
    launcher,
    not_here,
    not_set,
    output_name,
    without_server,
)
from perfmodel.engines.described.launch import Grammar, read
from perfmodel.errors import Problem
from perfmodel.spec.parallel import ParallelConfig

_SWITCH = {"action": "store_true"}
FLAGS: dict[str, dict[str, str]] = {
    "--model_size": {},
    "--prompt": {},
    "--negative_prompt": {},
    "--input_path": {},
    "--num_gpus": {},
    "--num_conditional_frames": {},
    "--guidance": {},
    "--seed": {},
    "--resolution": {},
    "--fps": {},
    "--aspect_ratio": {},
    "--save_path": {},
    "--dit_path": {},
    "--batch_input_json": {},
    "--disable_guardrail": _SWITCH,
    "--disable_prompt_refiner": _SWITCH,
    "--offload_guardrail": _SWITCH,
    "--offload_prompt_refiner": _SWITCH,
    "--benchmark": _SWITCH,
    "--natten": _SWITCH,
}
"""Flags of ``examples/video2world.py`` and ``examples/text2image.py`` of cosmos-predict2."""

_ELSEWHERE = (
    ("cosmos3", "https://github.com/NVIDIA/cosmos-framework"),
    ("cosmos-predict2.5", "https://github.com/nvidia-cosmos/cosmos-predict2.5"),
)
"""Models, by a part of their id, and the repository whose program loads them."""


def render(ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
    """Commands of one run; of a model that the examples of Predict2 do not load, where it runs.

    The examples choose their checkpoint by size, so they would run another model.
    """
    del predicted_s
    home = next((home for part, home in _ELSEWHERE if part in ctx.model_id), None)
    if home is not None:
        return not_here(f"{ctx.model} runs in {home}: see its guide")
    ranks = config.world_size // config.dp
    image = is_image(ctx)
    program = "examples/text2image.py" if image else "examples/video2world.py"
    words = [program, "--model_size", "14B" if "14b" in ctx.model_id else "2B"]
    words += ["--prompt", PROMPT, "--guidance", f"{ctx.guidance:g}", "--seed", str(ctx.seed)]
    if not image:
        words += ["--input_path", "input.png", "--num_gpus", str(ranks)]
        words += ["--fps", f"{ctx.fps:g}"]
    words += _size_words(ctx)
    if ctx.behaviour.options.attention_density < 1:
        words.append("--natten")
    if not ctx.behaviour.options.guardrails:
        words.append("--disable_guardrail")
    if not image:
        words.append("--disable_prompt_refiner")
    words += ["--save_path", output_name(ctx)]
    argv = launcher(words, ranks, hosts_of(ctx, ranks))
    return without_server(ctx, config, argv, notes=not_set(ctx, attention=False))


def _size_words(ctx: Context) -> list[str]:
    """The flags that make the size; images have one resolution."""
    found = flags_of_size(ctx)
    if found is None:
        return []
    resolution, ratio = found
    chosen = [] if is_image(ctx) else ["--resolution", resolution]
    return [*chosen, "--aspect_ratio", ratio]


def _value(argv: Sequence[str], flag: str, default: str) -> str:
    """What follows the last `flag` of a command, or what it is set to."""
    found = default
    for word, following in pairwise([*argv, ""]):
        name, equals, _ = word.replace("-", "_").partition("=")
        if name.lstrip("_") == flag:
            found = word.partition("=")[2] if equals else following
    return found


def _request_of(argv: Sequence[str], *, image: bool) -> dict[str, float]:
    """Size and frames, which the programs take from a resolution, a ratio and a rate."""
    sizes = IMAGE_SIZES if image else VIDEO_SIZES
    resolution = _value(argv, "resolution", next(iter(sizes)))
    size = sizes.get(resolution, {}).get(_value(argv, "aspect_ratio", "16:9"))
    found: dict[str, float] = dict(zip(("width", "height"), size or (), strict=False))
    if not image:
        rate = _value(argv, "fps", "16")
        found |= {"frames": FRAMES[int(rate)]} if rate in map(str, FRAMES) else {}
    return found


def _alone(processes: int | None, shared: int) -> tuple[Problem, ...]:
    """A line where more processes are started than share a request."""
    if (processes or 1) <= shared:
        return ()
    message = (
        f"{processes} processes of which {shared} share a request: each of the others makes the "
        "same again, and one request is predicted; start one on each GPU with a seed of its own"
    )
    return (
        Problem(
            "launch-processes",
            message,
            field="--nproc_per_node",
            value=str(processes),
            severity="warning",
        ),
    )


def read_launch(argv: Sequence[str]) -> Launch:
    """Read ``torchrun ... examples/video2world.py ...`` as typed.

    Without a size the programs load their 2B model, as the package's own configurations do.
    """
    image = any("text2image.py" in word for word in argv)
    kind = "t2i" if image else "v2w"
    sizes = {size: f"cosmos-predict2-{size.lower()}-{kind}" for size in ("2B", "14B")}
    grammar = Grammar(
        engine="cosmos-official",
        programs=("video2world.py", "text2image.py"),
        flags=FLAGS,
        degrees={} if image else {"--num_gpus": "ulysses"},
        model=("--dit_path",),
        models={"--model_size": sizes},
        request={"--guidance": "guidance", "--fps": "fps"},
        hints={"--model_size": "--model MODEL"},
        switches={"--natten": ("option:attention_backend", "NATTEN")},
    )
    launch = read(grammar, argv)
    shared = launch.parallel.world_size
    return replace(
        launch,
        model=launch.model or sizes["2B"],
        num_gpus=launch.num_gpus if shared > 1 else None,
        request={**_request_of(argv, image=image), **launch.request},
        problems=(*launch.problems, *_alone(launch.num_gpus, shared)),
    )
