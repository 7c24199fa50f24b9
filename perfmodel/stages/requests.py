"""From a request and a model's defaults to the shape that runs: tasks, rounding, latent grid."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches

from perfmodel.errors import BadInput, Problem
from perfmodel.ops import Ints
from perfmodel.shapes import Shape, causal_latent_frames, ceil_div
from perfmodel.spec.model import ModelSpec, TaskDefaults
from perfmodel.spec.workload import Workload
from perfmodel.stages.layers import rounding
from perfmodel.stages.schedule import forwards

MOST_SECONDS = 3600
ASSUMED_FIELDS = ("task", "width", "height", "frames", "fps", "steps", "guidance", "text_tokens")


@dataclass(frozen=True, slots=True)
class Request:
    """A request with every default filled in.

    Attributes:
        task, defaults: the task and its defaults.
        width, height, frames: as asked for, before rounding.
        assumed: fields that came from the defaults.
        notes: warnings about rounding.
    """

    task: str
    defaults: TaskDefaults
    width: int
    height: int
    frames: int
    fps: float
    steps: int
    guidance: float
    text_tokens: int
    assumed: tuple[str, ...]
    notes: tuple[Problem, ...] = ()


def resolve(model: ModelSpec, workload: Workload) -> Request:
    """Fill in the model's defaults for the task.

    Raises:
        BadInput: a task that the model does not have, images that it does not take (or lacks), a
            length given twice or too long.
    """
    task = choose_task(model, workload)
    defaults = model.tasks[task]
    _check_images(model, workload, task)
    fps = workload.fps or defaults.fps
    frames = workload.frames
    if workload.seconds is not None:
        if frames is not None:
            raise BadInput(_two_lengths(workload))
        frames = max(1, round(workload.seconds * fps))
    _check_length(frames or defaults.frames, fps, defaults.fps)
    given = {
        "task": workload.task,
        "width": workload.width,
        "height": workload.height,
        "frames": frames,
        "fps": workload.fps,
        "steps": workload.steps,
        "guidance": workload.guidance,
        "text_tokens": workload.text_tokens,
    }
    guidance = defaults.guidance if workload.guidance is None else workload.guidance
    return Request(
        task=task,
        defaults=defaults,
        width=workload.width or defaults.width,
        height=workload.height or defaults.height,
        frames=frames or defaults.frames,
        fps=fps,
        steps=workload.steps or defaults.steps,
        guidance=1.0 if model.distilled else guidance,
        text_tokens=workload.text_tokens or defaults.text_tokens,
        assumed=tuple(name for name in ASSUMED_FIELDS if given[name] is None),
        notes=_distilled_notes(model, workload),
    )


def choose_task(model: ModelSpec, workload: Workload) -> str:
    """The task that runs: the one named, the image task for one frame, or the model's default.

    An image-to-video request for a model without that task but with ``ti2v`` (and the reverse)
    takes the other name.

    Raises:
        BadInput: the model has no such task.
    """
    tasks = model.tasks
    if workload.task is None:
        if workload.frames == 1 and "t2i" in tasks:
            return "t2i"
        if workload.input_images and "i2v" in tasks:
            return "i2v"
        return model.default_task
    task = workload.task.lower()
    if task == "ti2v" and task not in tasks:
        task = "i2v" if workload.input_images != 0 else "t2v"
    if task in tasks:
        return task
    near = get_close_matches(task, tasks, n=1) or [model.default_task]
    raise BadInput(
        Problem(
            "task",
            f'task "{workload.task}" does not exist for {model.slug}; it has '
            f"{', '.join(tasks)}; try --task {near[0]}",
            field="--task",
            value=workload.task,
            legal_values=tuple(tasks),
            suggestions=(f"--task {near[0]}",),
        )
    )


def round_frames(request: Request, rule: str, stride: int) -> tuple[int, tuple[Problem, ...]]:
    """Frames that run: see `rounded_frames`."""
    frames = request.frames
    ran = int(rounded_frames(frames, rule, stride))
    if ran == frames:
        return ran, ()
    message = f"{frames} frames run as {ran} (a multiple of {stride}, plus 1)"
    return ran, (rounding("frame-rounding", message, "--frames"),)


def rounded_frames(frames: Ints, rule: str, stride: int) -> Ints:
    """``up`` or ``down`` to ``stride*k + 1``, or ``floor``: ``F // stride * stride + 1``."""
    if rule == "up":
        return ceil_div(frames - 1, stride) * stride + 1
    if rule == "down":
        return (frames - 1) // stride * stride + 1
    return frames // stride * stride + 1


def round_size(
    request: Request, model: ModelSpec, multiple: int
) -> tuple[int, int, tuple[Problem, ...]]:
    """Width and height floored to `multiple`, with a warning.

    Raises:
        BadInput: the size is smaller than `multiple`, or the task refuses to round.
    """
    width = request.width // multiple * multiple
    height = request.height // multiple * multiple
    if (width, height) == (request.width, request.height):
        return width, height, ()
    asked = f"{request.width}x{request.height}"
    if min(width, height) == 0 or request.task in model.size_strict:
        raise BadInput(_bad_size(model, request.task, asked, multiple, width, height))
    message = f"{asked} runs as {width}x{height} (multiples of {multiple})"
    return width, height, (rounding("size-rounding", message, "--size"),)


def base_shape(
    request: Request,
    workload: Workload,
    size: tuple[int, int, int],
    branches: int,
    *,
    padded_text: int | None = None,
    condition_frames: int = 0,
    extra_tokens: int = 0,
    notes: tuple[Problem, ...] = (),
) -> Shape:
    """The shape of a request, its latent grid left empty (`grid` fills it).

    Args:
        request: with every default filled in.
        workload: as asked.
        size: width, height and frames as they run.
        branches: guidance branches that run.
        padded_text: text tokens that every prompt is padded to; None: as many as it has.
        condition_frames: pixel frames that the VAE encodes.
        extra_tokens: latent tokens besides those of the video.
        notes: what was rounded.
    """
    width, height, frames = size
    defaults, assumed = request.defaults, request.assumed
    if padded_text is not None:
        assumed = tuple(name for name in assumed if name != "text_tokens")
    return Shape(
        task=request.task,
        batch=workload.batch,
        width=width,
        height=height,
        frames=frames,
        fps=request.fps,
        request_steps=request.steps,
        steps=request.steps,
        guidance=request.guidance,
        branches=branches,
        forwards=forwards(request.steps, branches, defaults.flow_shift, defaults.guidance_interval),
        latent_frames=0,
        latent_height=0,
        latent_width=0,
        video_tokens=0,
        extra_tokens=extra_tokens,
        text_tokens=request.text_tokens if padded_text is None else padded_text,
        condition_frames=condition_frames,
        assumed=assumed,
        notes=(*request.notes, *notes, *_text_notes(workload, padded_text)),
    )


def grid(model: ModelSpec, base: Shape, width: Ints, height: Ints, frames: Ints) -> Shape:
    """`base` at other sizes: rounding, latent grid and tokens of the output (columns or ints)."""
    spec, multiple = model.vae, model.size_multiple
    frames = rounded_frames(frames, model.frame_rounding, spec.temporal_ratio)
    width, height = width // multiple * multiple, height // multiple * multiple
    latent_frames = causal_latent_frames(frames, spec.temporal_ratio)
    latent_height, latent_width = height // spec.spatial_ratio, width // spec.spatial_ratio
    _, rows, columns = model.transformer.patch
    return replace(
        base,
        width=width,
        height=height,
        frames=frames,
        latent_frames=latent_frames,
        latent_height=latent_height,
        latent_width=latent_width,
        video_tokens=latent_frames * (latent_height // rows) * (latent_width // columns),
    )


def refuse_sound(model: ModelSpec, workload: Workload) -> None:
    """For a model that makes none.

    Raises:
        BadInput: the request asks for sound.
    """
    if workload.sound:
        message = f"{model.slug} makes no sound; drop --sound or use --model cosmos3-nano"
        raise BadInput(
            Problem("sound", message, field="--sound", suggestions=("--model cosmos3-nano",))
        )


def _text_notes(workload: Workload, padded: int | None) -> tuple[Problem, ...]:
    if padded is None or workload.text_tokens in (None, padded):
        return ()
    message = f"prompts are padded (or cut) to {padded} tokens, not {workload.text_tokens}"
    return (rounding("text-padding", message, "--text-tokens"),)


def _bad_size(
    model: ModelSpec, task: str, asked: str, multiple: int, width: int, height: int
) -> Problem:
    legal = f"{max(width, multiple)}x{max(height, multiple)}"
    return Problem(
        "size",
        f"{model.slug} {task} needs width and height in multiples of {multiple}, not {asked}; "
        f"try --size {legal}",
        field="--size",
        value=asked,
        legal_values=(f"multiples of {multiple}",),
        suggestions=(f"--size {legal}",),
    )


def _two_lengths(workload: Workload) -> Problem:
    return Problem(
        "length",
        f"--frames {workload.frames} and --seconds {workload.seconds} both set the length; "
        "give one of them",
        field="--seconds",
        value=str(workload.seconds),
        suggestions=(f"--frames {workload.frames}",),
    )


def _check_images(model: ModelSpec, workload: Workload, task: str) -> None:
    """A task with a condition image needs one, a task without takes none."""
    images, condition = workload.input_images, model.tasks[task].condition
    if images is None or (images > 0) == (condition in ("image", "clip")):
        return
    if condition == "video" or (images == 0 and condition == "none"):
        return
    takes = "takes none" if images else "needs 1 or more"
    others = [n for n, t in model.tasks.items() if images and t.condition in ("image", "clip")]
    hint = f"try --task {others[0]}" if others else "leave out --input-images"
    message = f"--input-images {images}: {model.slug} {task} {takes}; {hint}"
    again = tuple(f"--task {name}" for name in others)
    legal = ("0",) if images else ("1 or more",)
    raise BadInput(Problem("input-images", message, "--input-images", str(images), legal, again))


def _check_length(frames: int, fps: float, usual_fps: float) -> None:
    """As long as --seconds may be, at most."""
    if frames / fps <= MOST_SECONDS:
        return
    message = (
        f"{frames} frames at --fps {fps:g} last {frames / fps:.4g} s; legal: up to "
        f"{MOST_SECONDS:,} s; try --fps {usual_fps:g}"
    )
    again = (f"--fps {usual_fps:g}",)
    raise BadInput(Problem("fps", message, "--fps", f"{fps:g}", suggestions=again))


def _distilled_notes(model: ModelSpec, workload: Workload) -> tuple[Problem, ...]:
    if not model.distilled or workload.guidance is None or workload.guidance <= 1:
        return ()
    message = f"{model.slug} is distilled: guidance {workload.guidance:g} is ignored (one branch)"
    return (rounding("distilled-guidance", message, "--guidance"),)
