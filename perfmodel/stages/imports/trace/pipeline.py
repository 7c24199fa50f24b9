"""What a pipeline's own call says about requests: sizes, steps, guidance, prompt length."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

TOGETHER = re.compile(r"cat\(\s*\[latents\] \* 2|cat\(\s*\[latents, latents\]")
USUAL_SIDE = 1024
USUAL_STEPS = 50
USUAL_GUIDANCE = 5.0
USUAL_TEXT = 256
USUAL_FRAMES = 81
USUAL_FPS = 24.0


@dataclass(frozen=True, slots=True)
class Defaults:
    """Defaults of a request.

    Attributes:
        task: fields of `TaskDefaults`.
        together: the branches of a step run as one batch.
        assumed: what no code says, in words.
    """

    task: dict[str, Any]
    together: bool
    assumed: tuple[str, ...]


def defaults(
    pipeline: type | None,
    settings: Mapping[str, Any],
    ratios: tuple[int, int],
    *,
    frames: int | None,
    text: int | None,
    video: bool,
    grid_px: tuple[int, int] | None,
) -> Defaults:
    """Defaults of a request, from the signature of the pipeline's call.

    Args:
        pipeline: its class; None where the library has none of that name.
        settings: configuration of the denoiser.
        ratios: pixels a latent position, frames a latent frame.
        frames: latent frames, where the denoiser takes only one number.
        text: text tokens, where it takes only one number.
        video: the denoiser takes frames.
        grid_px: rows and columns of pixels, where it takes only these.
    """
    call = getattr(pipeline, "__call__", None)  # noqa: B004 the method, not whether it exists
    given = _signature(call)
    side, time = ratios
    stated = _Stated()
    prompt = [text, given.get("max_sequence_length")]
    task: dict[str, Any] = {
        **_sides(stated, settings, given, side, grid_px),
        "steps": int(stated("steps", [given.get("num_inference_steps")], USUAL_STEPS)),
        "guidance": float(stated("guidance", [given.get("guidance_scale")], USUAL_GUIDANCE)),
        "text_tokens": int(stated("text tokens", prompt, USUAL_TEXT)),
        "frames": 1,
        "fps": USUAL_FPS,
    }
    if video:
        latent = frames or settings.get("sample_frames")
        clip = (latent - 1) * time + 1 if isinstance(latent, int) else None
        asked = [clip if frames else None, given.get("num_frames"), given.get("video_length"), clip]
        task["frames"] = int(stated("frames", asked, USUAL_FRAMES))
        stated.assumed.append(f"{USUAL_FPS:g} frames a second")
    return Defaults(task, _together(call), tuple(stated.assumed))


@dataclass(slots=True)
class _Stated:
    """The first number of some places, else the usual one, which is then assumed."""

    assumed: list[str] = field(default_factory=list)

    def __call__(self, label: str, values: list[Any], usual: Any) -> Any:
        found = next((value for value in values if _is_number(value)), None)
        if found is None:
            self.assumed.append(f"{label} {usual}")
            return usual
        return found


def _sides(
    stated: _Stated,
    settings: Mapping[str, Any],
    given: Mapping[str, Any],
    side: int,
    grid_px: tuple[int, int] | None,
) -> dict[str, int]:
    """Height and width in pixels; a square sample is the last that is asked."""
    square = _scaled(settings.get("sample_size"), side)
    return {
        name: int(
            stated(
                name,
                [
                    grid_px and grid_px[axis],
                    given.get(name),
                    _scaled(settings.get(f"sample_{name}"), side),
                    square,
                ],
                USUAL_SIDE,
            )
        )
        for axis, name in enumerate(("height", "width"))
    }


def _signature(call: Any) -> dict[str, Any]:
    try:
        found = inspect.signature(call).parameters
    except (TypeError, ValueError):
        return {}
    return {name: parameter.default for name, parameter in found.items()}


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value > 0


def _scaled(value: object, ratio: int) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value * ratio if whole else None  # type: ignore[operator]


def _together(call: Any) -> bool:
    """Whether the code of the call joins the branches of a step to one batch."""
    try:
        return bool(TOGETHER.search(inspect.getsource(call)))
    except (TypeError, OSError):
        return False
