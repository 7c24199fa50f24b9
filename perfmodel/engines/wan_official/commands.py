"""``generate.py`` commands, written and read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.engines.base import Commands, Context, Launch
from perfmodel.engines.described.commands import (
    PROMPT,
    hosts_of,
    launcher,
    not_set,
    output_name,
    without_server,
)
from perfmodel.engines.described.launch import Grammar, read
from perfmodel.spec.parallel import ParallelConfig

_TASKS = {
    "wan2.1-t2v-1.3b": "t2v-1.3B",
    "wan2.1-t2v-14b": "t2v-14B",
    "wan2.1-i2v-14b": "i2v-14B",
    "wan2.2-t2v-a14b": "t2v-A14B",
    "wan2.2-i2v-a14b": "i2v-A14B",
    "wan2.2-ti2v-5b": "ti2v-5B",
}


_OWN_GUIDANCE = {
    "wan2.2-t2v-a14b": "4 on the high-noise and 3 on the low-noise transformer",
    "wan2.2-i2v-a14b": "3.5",
    "wan2.2-ti2v-5b": "5",
    "wan2.1-t2v-1.3b": "5",
    "wan2.1-t2v-14b": "5",
}
"""``sample_guide_scale`` of ``wan/configs``, where it is not the catalogue's."""


@cache
def known_flags() -> dict[str, dict[str, Any]]:
    """Flags of ``generate.py``, by spelling."""
    loaded = json.loads((Path(__file__).parent / "flags.json").read_text(encoding="utf-8"))
    flags: dict[str, dict[str, Any]] = loaded["flags"]
    return flags


def words(ctx: Context, config: ParallelConfig) -> list[str]:
    """``generate.py`` and its flags."""
    checkpoint = ctx.hf_id.rsplit("/", 1)[-1].removesuffix("-Diffusers") or ctx.model_id
    found = ["generate.py", "--task", _TASKS[ctx.model_id]]
    found += ["--size", f"{ctx.width}*{ctx.height}", "--frame_num", str(ctx.frames)]
    found += ["--ckpt_dir", f"./{checkpoint}", "--sample_steps", str(ctx.steps)]
    found += ["--sample_guide_scale", f"{ctx.guidance:g}", "--base_seed", str(ctx.seed)]
    if ctx.flow_shift is not None:
        found += ["--sample_shift", f"{ctx.flow_shift:g}"]
    if ctx.has_input_image:
        found += ["--image", "input.png"]
    if config.hsdp > 1:
        found += ["--dit_fsdp", "--t5_fsdp"]
    if config.ulysses > 1:
        found += ["--ulysses_size", str(config.ulysses)]
    if config.ring > 1:
        found += ["--ring_size", str(config.ring)]
    offloads = ctx.behaviour.options.offload == "model"
    found += ["--offload_model", str(offloads)]
    if config.hsdp == 1 and ctx.model_id.startswith("wan2.2"):
        found.append("--convert_model_dtype")
    return [*found, "--save_file", output_name(ctx), "--prompt", PROMPT]


def render(ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
    """Commands of one run of ``generate.py``."""
    del predicted_s
    ranks = config.world_size // config.dp
    argv = launcher(words(ctx, config), ranks, hosts_of(ctx, ranks))
    note = f"checkpoint: https://huggingface.co/{ctx.hf_id.removesuffix('-Diffusers')}"
    notes = [note, *not_set(ctx, attention=False)]
    own = _OWN_GUIDANCE.get(ctx.model_id, f"{ctx.guidance:g}")
    if own != f"{ctx.guidance:g}":
        notes.append(f"without --sample_guide_scale its own guidance runs: {own}")
    return without_server(ctx, config, argv, notes=notes)


def read_launch(argv: Sequence[str]) -> Launch:
    """Read ``torchrun ... generate.py ...`` as typed; on one GPU it offloads unless told not to."""
    grammar = Grammar(
        engine="wan-official",
        programs=("generate.py",),
        flags=known_flags(),
        degrees={"--ulysses_size": "ulysses", "--ring_size": "ring"},
        switches={
            "--dit_fsdp": ("hsdp", -1),
            "--offload_model": ("option:offload", "model"),
        },
        model=("--ckpt_dir",),
        models={"--task": {task: slug for slug, task in _TASKS.items()}},
        request={
            "--size": "size",
            "--frame_num": "frames",
            "--sample_steps": "steps",
            "--sample_guide_scale": "guidance",
        },
        hints={"--task": "--model MODEL"},
    )
    launch = read(grammar, argv)
    told = any(word.startswith("--offload_model") for word in argv)
    if told or launch.parallel.world_size > 1:
        return launch
    return replace(launch, options={"offload": "model", **launch.options})
