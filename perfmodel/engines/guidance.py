"""What a request says so that the guidance branches run that were predicted: names and values.

Sources, in the wheels: ``pipeline_qwenimage*.py`` of diffusers 0.42.1 and ``qwen_image`` of
vllm-omni 0.30.0 run a second branch with ``true_cfg_scale`` above 1 and a negative prompt, while
their ``guidance_scale`` is of models that are distilled for guidance; ``z_image`` of both, of
sglang 0.5.23 and of xfuser 0.7.0 runs two branches at every scale above 0, not above 1.
"""

from __future__ import annotations

from perfmodel.engines.base import Context

NEGATIVE_PROMPT = " "
"""What the published examples of Qwen-Image give: an empty one may count as none."""


def scale(ctx: Context) -> float:
    """``guidance_scale`` that runs the branches of the question."""
    if ctx.family in ("z_image", "z_image_control") and ctx.branches == 1:
        return 0.0
    return ctx.guidance


def true_guidance(ctx: Context) -> bool:
    """Whether the model's second branch hangs on ``true_cfg_scale`` and a negative prompt."""
    return ctx.family == "qwen_image"


def negative_prompt(ctx: Context) -> str | None:
    """The negative prompt to send; None where the engine takes one of its own."""
    if ctx.negative_prompt is None and true_guidance(ctx) and ctx.branches > 1:
        return NEGATIVE_PROMPT
    return ctx.negative_prompt


def fields(ctx: Context) -> dict[str, float | str]:
    """Guidance by the names of diffusers, which vLLM-Omni's routes have too."""
    name = "true_cfg_scale" if true_guidance(ctx) else "guidance_scale"
    found: dict[str, float | str] = {name: scale(ctx)}
    negative = negative_prompt(ctx)
    return found if negative is None else {**found, "negative_prompt": negative}
