"""What is built and what is predicted for it: a request, possibly reduced, on one configuration."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.api.session import Session
from perfmodel.api.table import build_table, search_space
from perfmodel.engines.legality import violations
from perfmodel.errors import BadInput, Problem
from perfmodel.ops import Conv, Op
from perfmodel.pipeline.denoise import denoise_stage
from perfmodel.pipeline.job import Job
from perfmodel.pipeline.lines import Line, cost_lines
from perfmodel.placement.denoise import place_denoise
from perfmodel.placement.precision import widened
from perfmodel.shapes import Shape, round_up
from perfmodel.spec.model import ModelSpec, TransformerSpec
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Workload

FAMILIES = ("cosmos3", "wan")
"""Families whose blocks can be built."""

VAE_KINDS = ("wan", "qwen_image")
LEAST_CHANNELS = 8
LEAST_TEXT = 8
OTHER_AXES = ("allgather", "pp", "dp", "hsdp")
_SLICE = re.compile(r"(?P<phase>.*): conv (?P<label>L\d+ (?P<channels>\d+)x\d+) to (?P=label) k333")


@dataclass(frozen=True)
class Predicted:
    """One operator as the model sees it.

    Attributes:
        count: executions in a request on one rank.
        total_s: time of all of them, not hidden behind anything.
    """

    name: str
    kind: str
    count: float
    total_s: float
    bound: str
    provenance: str


@dataclass(frozen=True)
class Question:
    """The request that is built.

    Attributes:
        job: model, shape, behaviour and machine, after the reduction.
        config: degrees.
        scale: what sides, heads and widths are divided by; 1 is the request itself.
        compiled: chains of small kernels are fused.
    """

    job: Job
    config: ParallelConfig
    scale: int
    compiled: bool

    @property
    def layouts(self) -> Layouts:
        """The configuration as columns of one row."""
        return Layouts.of([self.config])

    @property
    def grid(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns, padded to the patch."""
        shape, patch = self.job.shape, self.job.model.transformer.patch
        sides = (shape.latent_frames, shape.latent_height, shape.latent_width)
        frames, rows, columns = (
            int(round_up(side, step)) for side, step in zip(sides, patch, strict=True)
        )
        return frames, rows, columns

    @property
    def outputs_together(self) -> int:
        """Outputs of a request that run as one batch (Cosmos3 runs them one after the other)."""
        return 1 if self.job.model.family == "cosmos3" else int(self.job.shape.batch)

    def denoise(self) -> dict[str, Predicted]:
        """Operators of the denoise stage, messages at their full time."""
        job = self.job
        work = job.family.denoise(job.model, job.shape, job.behaviour.traits)
        placed = place_denoise(work, job.shape, self.layouts, job.behaviour, job.behaviour.options)
        return by_name(cost_lines(placed.ops, "denoise", 1, job.machine, compiled=self.compiled))

    def stage_lines(self) -> Sequence[Line]:
        """Lines of the denoise stage as a request sees them: overlaps, gaps and waiting."""
        job = self.job
        return denoise_stage(
            lambda case: job.family.denoise(job.model, case, job.behaviour.traits),
            job.shape,
            self.layouts,
            job.behaviour,
            job.behaviour.options,
            job.machine,
            compiled=self.compiled,
        ).lines

    def block_runs(self) -> float:
        """Blocks that one rank runs in a request."""
        job = self.job
        work = job.family.denoise(job.model, job.shape, job.behaviour.traits)
        placed = place_denoise(work, job.shape, self.layouts, job.behaviour, job.behaviour.options)
        apart = int(job.shape.batch) if self.outputs_together == 1 else 1
        return float(work.blocks * apart * placed.forwards[0])

    def piece(self) -> tuple[int, int, int]:
        """Latent frames, rows and columns that one rank decodes at a time: a tile or the whole."""
        shape, behaviour = self.job.shape, self.job.behaviour
        rows, columns = int(shape.latent_height), int(shape.latent_width)
        if self.config.vae_patch > 1 or self.config.vae_tiling:
            tile = max(behaviour.vae_tile_px // self.job.model.vae.spatial_ratio // self.scale, 1)
            rows, columns = min(rows, tile), min(columns, tile)
        return int(shape.latent_frames), rows, columns

    def vae_ops(self) -> tuple[Op, ...]:
        """Operators of one decode of a piece by the published module."""
        job = self.job
        traits = replace(job.behaviour.traits, vae_fast_path="off")
        return widened(job.family.vae_decode(job.model, *self.piece(), traits), traits.vae_bits)

    def vae(self) -> dict[str, Predicted]:
        """The same, predicted, for each name."""
        return by_name(
            cost_lines(self.vae_ops(), "vae_decode", 1, self.job.machine, compiled=False)
        )

    def vae_slice(self) -> tuple[str, str, Conv] | None:
        """Phase, label of the maps and convolution of the residual block with most work."""
        if self.job.model.vae.kind not in VAE_KINDS:
            return None
        found = [
            (match["phase"], match["label"], op)
            for op in self.vae_ops()
            if isinstance(op, Conv) and (match := _SLICE.fullmatch(op.name))
        ]
        times = self.vae()
        return max(found, key=lambda item: times[item[2].name].total_s, default=None)


def by_name(lines: Iterable[Line]) -> dict[str, Predicted]:
    """Lines with the same name as one."""
    found: dict[str, Predicted] = {}
    for line in lines:
        count, total = float(line.count[0]), float(line.total_s[0])
        if count * total <= 0:
            continue
        old = found.get(line.name)
        one = Predicted(line.name, line.kind, count, total, line.bound, line.provenance)
        if old is not None:
            one = replace(one, count=count + old.count, total_s=total + old.total_s)
        found[line.name] = one
    return found


def ask(session: Session, config: ParallelConfig, scale: int = 1) -> Question:
    """The question that is built for `session` and `config`.

    Raises:
        BadInput: a family or a degree that cannot be built here, or a scale that leaves nothing.
    """
    job = session.job
    refuse_unbuildable(session.model, config, *([_bad_scale(scale)] if scale < 1 else []))
    compiled = job.behaviour.compiled or job.behaviour.fused_blocks
    if scale > 1:
        job = reduced(session, config, scale)
    return Question(job, config, scale, compiled)


def reduced(session: Session, config: ParallelConfig, scale: int) -> Job:
    """The job with sides, text, heads and widths divided by `scale`."""
    job, shape, model = session.job, session.job.shape, session.model
    small = model.model_copy(
        update={
            "transformer": _narrow(model.transformer, config, scale),
            "vae": model.vae.model_copy(
                update={
                    name: max(getattr(model.vae, name) // scale, LEAST_CHANNELS)
                    for name in ("encoder_width", "decoder_width")
                }
            ),
        }
    )
    step = model.size_multiple
    workload = Workload(
        model=model.slug,
        task=shape.task,
        width=_side(int(shape.width), step, scale),
        height=_side(int(shape.height), step, scale),
        frames=int(shape.frames),
        fps=shape.fps,
        steps=shape.request_steps,
        guidance=shape.guidance,
        batch=int(shape.batch),
    )
    little: Shape = job.family.shape(small, workload, job.behaviour.traits)
    text = max(int(shape.text_tokens) // scale, LEAST_TEXT)
    return replace(job, model=small, shape=replace(little, text_tokens=text))


def _side(pixels: int, step: int, scale: int) -> int:
    return max(round(pixels / scale / step), 1) * step


def _narrow(spec: TransformerSpec, config: ParallelConfig, scale: int) -> TransformerSpec:
    """Fewer heads of the same size; key heads still divide over the ranks that share them."""
    shared = config.ulysses * config.tp
    kv_heads = max(spec.kv_heads // scale // shared, 1) * shared
    kv_heads = min(kv_heads, spec.kv_heads)
    heads = kv_heads * (spec.heads // spec.kv_heads)
    share = heads / spec.heads
    unit = 2 * config.tp
    ffn = max(int(spec.ffn * share) // unit, 1) * unit
    hidden = max(int(spec.hidden * share) // unit, 1) * unit
    image = max(spec.image_tokens // scale, LEAST_TEXT) if spec.image_tokens else 0
    return spec.model_copy(
        update={
            "heads": heads,
            "kv_heads": kv_heads,
            "hidden": hidden,
            "ffn": ffn,
            "image_tokens": image,
        }
    )


def refuse_unbuildable(model: ModelSpec, config: ParallelConfig | None, *more: Problem) -> None:
    """Refuse a family, or a degree of a configuration, that has no block here.

    Raises:
        BadInput: all of them, and `more`.
    """
    problems = list(more)
    if model.family not in FAMILIES:
        message = (
            f"--live builds blocks of {', '.join(FAMILIES)}, not of {model.family} "
            f"({model.slug}); try --model cosmos3-nano, or --serve with the real model"
        )
        problems.append(Problem("live-family", message, "--model", model.slug, FAMILIES))
    on = [axis for axis in OTHER_AXES if config and getattr(config, axis) > 1]
    if config and on:
        message = (
            f"--live divides a block over cfg, ulysses, ring and tp, not over {', '.join(on)}; "
            "leave these out of --parallel, or use --serve"
        )
        problems.append(Problem("live-axis", message, "--parallel", config.config_id))
    if problems:
        raise BadInput(*problems)


def _bad_scale(scale: int) -> Problem:
    return Problem("live-scale", f"--scale {scale} is no whole number from 1", "--scale")


def pick(session: Session, ranks: int, overlook: tuple[str, ...]) -> ParallelConfig:
    """The fastest configuration of `ranks` devices that can be built here.

    Args:
        session: the question.
        ranks: devices.
        overlook: first letters of rules that do not count.

    Raises:
        BadInput: no buildable configuration of so many devices is legal.
    """
    layouts = search_space(session)
    open_rows = layouts.world_size == ranks
    for axis in OTHER_AXES:
        open_rows = open_rows & (getattr(layouts, axis) == 1)
    for rule, broken in violations(session.engine.rules(), session.context, layouts).items():
        if not rule.startswith(overlook):
            open_rows = open_rows & ~broken
    if not open_rows.any():
        message = f"no configuration of {ranks} devices can be built; try --parallel single"
        raise BadInput(Problem("live-ranks", message, "--ranks", str(ranks)))
    chosen = layouts.take(open_rows)
    table = build_table(session, chosen)
    seconds = table.evaluation.latency_s
    if table.memory.fits.any():
        seconds = np.where(table.memory.fits, seconds, np.inf)
    return chosen.row(int(seconds.argmin()))
