"""Commands of the Cosmos programs."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.engines.base import Commands, Context, Launch
from perfmodel.engines.plain.commands import (
    PROMPT,
    is_image,
    launcher,
    output_name,
    without_server,
)
from perfmodel.engines.plain.launch import Grammar, read
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


def render(ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
    """Commands of one run."""
    del predicted_s
    ranks = config.world_size // config.dp
    image = is_image(ctx)
    program = "examples/text2image.py" if image else "examples/video2world.py"
    words = [program, "--model_size", "14B" if "14b" in ctx.model_id else "2B"]
    words += ["--prompt", PROMPT, "--guidance", f"{ctx.guidance:g}", "--seed", str(ctx.seed)]
    if not image:
        words += ["--input_path", "input.png", "--num_gpus", str(ranks)]
        words += ["--resolution", str(ctx.height), "--fps", f"{ctx.fps:g}"]
    if ctx.behaviour.options.attention_density < 1:
        words.append("--natten")
    words += ["--disable_guardrail", "--disable_prompt_refiner", "--save_path", output_name(ctx)]
    notes: tuple[str, ...] = ()
    if ctx.family == "cosmos3":
        notes = ("Cosmos3 runs in https://github.com/NVIDIA/cosmos-framework: see its guide",)
    return without_server(ctx, config, launcher(words, ranks), notes=notes)


def read_launch(argv: Sequence[str]) -> Launch:
    """Read ``torchrun ... examples/video2world.py ...`` as typed."""
    grammar = Grammar(
        engine="cosmos-official",
        programs=("video2world.py", "text2image.py"),
        flags=FLAGS,
        degrees={"--num_gpus": "ulysses"},
        model=("--dit_path",),
        request={"--guidance": "guidance", "--fps": "fps"},
        hints={"--model_size": "--model MODEL", "--resolution": "--size WxH"},
        switches={"--natten": ("option:attention_backend", "NATTEN")},
    )
    return read(grammar, argv)
