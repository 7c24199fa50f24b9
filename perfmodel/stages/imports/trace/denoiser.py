"""A denoiser class without a family: built on the meta device, called, and described."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch

from perfmodel.ops import Role, Rows
from perfmodel.spec.forms import parse
from perfmodel.spec.traced import AnyOp, TracedAttention, TracedGemm, TracedSpec
from perfmodel.stages.imports.read import Config, refuse
from perfmodel.stages.imports.trace.assemble import Irregular, operators
from perfmodel.stages.imports.trace.fit import Point
from perfmodel.stages.imports.trace.inputs import (
    Guess,
    UnknownArgument,
    arguments,
    guesses,
    left_out,
)
from perfmodel.stages.imports.trace.points import fitter, points
from perfmodel.stages.imports.trace.record import Trace, traced
from perfmodel.stages.traced_ops import divisible, role_of, rows_of

MOST = (("layers", 1000), ("blocks", 1000), ("depth", 1000), ("sample_", 512))
LARGEST = 1 << 24
LONGEST = 1000
FRAME_NAMES = ("video_length", "sample_frames", "num_frames")
TEXT_NAMES = ("text_len", "max_text_seq_length", "max_sequence_length")
FURTHEST = 2
"""Attempts that ran most operators before they failed: they are made again with fixed numbers."""
LEAST_SHARE = 0.02
"""Of the parameters, for a list of modules to count as blocks."""
ROUTES = "describe the model in a file instead: see models/README.md"


@dataclass(frozen=True, slots=True)
class Denoiser:
    """A traced denoiser.

    Attributes:
        spec: its operators.
        dims: fields of `TransformerSpec` read off them.
        video: it takes frames.
        packed: its pipeline folds positions of the latent into the channels of a token.
        left_out: arguments that kept their defaults.
    """

    spec: TracedSpec
    dims: dict[str, Any]
    video: bool
    packed: bool
    left_out: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Call:
    """A way of calling that works: the guess, and what takes one value only."""

    guess: Guess
    batched: bool
    frames: int | None
    text: int | None
    grid: tuple[int, int] | None

    @property
    def points(self) -> list[Point]:
        """Shapes to trace."""
        return points(
            video="f" in self.guess.layout.axes,
            batched=self.batched,
            frames=self.frames,
            grid=self.grid,
            text=self.text,
        )


def trace_denoiser(cls: type, library: str, config: Config) -> Denoiser:
    """Operators of a class.

    Raises:
        BadInput: it cannot be built or called from what is known, or is no polynomial.
    """
    module = build(cls, config)
    channels = module.config.get("in_channels") or 4
    settings = dict(module.config)
    call, found = _working(module, settings, channels, config.path)
    video = "f" in call.guess.layout.axes
    shapes = call.points
    found += [_forward(module, settings, channels, call.guess, at) for at in shapes[len(found) :]]
    try:
        ops = operators([trace.events for trace in found], fitter(shapes))
    except Irregular as error:
        what = f"{config.cls}: {error}, so it cannot be traced; {ROUTES}"
        raise refuse(str(config.path), what, value=config.cls) from None
    return Denoiser(
        _spec(module, config.cls, library, call, ops),
        _dims(module, call.guess, channels, found[0], ops),
        video,
        "n" in call.guess.layout.axes,
        left_out(cls, settings, channels, call.guess, shapes[0]),
    )


def build(cls: type, config: Config) -> Any:
    """The module of a configuration, without weights, in bf16.

    Raises:
        BadInput: the class does not take the configuration.
    """
    _check_keys(cls, config)
    _check_sizes(config)
    values = {name: config.values[name] for name in config.given}
    try:
        with torch.device("meta"):
            module = cls.from_config(values)  # type: ignore[attr-defined]
        return module.to("meta", torch.bfloat16).eval()
    except Exception as error:
        what = f"{config.cls} cannot be built from it: {one_line(error)}"
        raise refuse(str(config.path), what, value=config.cls) from None


def _check_keys(cls: type, config: Config) -> None:
    """A key that the class does not have is a mistake, as for classes of a family."""
    known = [name for name in inspect.signature(cls).parameters if name not in ("args", "kwargs")]
    for key in sorted(config.given):
        if key not in known:
            near = get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f'; did you mean "{near[0]}"?' if near else ""
            what = f'unknown key "{key}" for {config.cls}{hint}'
            raise refuse(str(config.path), what, value=key, suggestions=tuple(near))


def _check_sizes(config: Config) -> None:
    """A class is built for real, only without weights: what would take for ever is refused."""
    for key in sorted(config.given):
        value = config.values[key]
        most = next((most for part, most in MOST if part in key), LARGEST)
        if isinstance(value, int) and value > most:
            config.number(key, most=most)
        if isinstance(value, (list, dict)) and len(value) > LONGEST:
            what = f"{key}: has {len(value):,} entries; at most {LONGEST} are read"
            raise refuse(str(config.path), what)


def one_line(error: Exception) -> str:
    """What a library complained about, shortened to a line."""
    text = " ".join((str(error) or type(error).__name__).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def _working(
    module: Any, settings: Mapping[str, Any], channels: int, path: Path
) -> tuple[_Call, list[Trace]]:
    """The first way of calling that the class takes and answers in the shape of its input.

    Returns:
        It, and the traces of the first two shapes.

    Raises:
        BadInput: there is none; the complaint of the attempt that came furthest is given.
    """
    name = type(module).__name__
    failed: list[tuple[int, str, Guess]] = []

    def attempt(call: _Call) -> list[Trace] | None:
        try:
            few = call.points[:2]
            return [_forward(module, settings, channels, call.guess, at) for at in few]
        except UnknownArgument as error:
            what = f'argument "{error}" of {name}.forward is not known here; {ROUTES}'
            raise refuse(str(path), what, value=str(error)) from None
        except Exception as error:
            failed.append((getattr(error, "operators", 0), one_line(error), call.guess))
            return None

    for guess in guesses(type(module), settings):
        call = _Call(guess, True, None, None, None)
        found = attempt(call)
        if found is not None:
            return call, found
    failed.sort(key=lambda item: -item[0])
    furthest, complaint = [guess for _, _, guess in failed[:FURTHEST]], failed[0][1]
    for batched in (True, False):
        for guess in furthest:
            for pins in _pins(settings, guess):
                call = _Call(guess, batched, *pins)
                found = attempt(call)
                if found is not None:
                    return call, found
    what = f"{name} does not run on inputs made from its configuration ({complaint}); {ROUTES}"
    raise refuse(str(path), what, value=name)


def _pins(
    settings: Mapping[str, Any], guess: Guess
) -> Iterator[tuple[int | None, int | None, tuple[int, int] | None]]:
    """Nothing fixed; then the numbers that a configuration states."""
    frames = [None, *_numbers(settings, FRAME_NAMES)] if "f" in guess.layout.axes else [None]
    texts = [None, *_numbers(settings, TEXT_NAMES)] if guess.text_width else [None]
    side = settings.get("sample_size")
    grids: list[tuple[int, int] | None] = [None]
    if isinstance(side, int) and not isinstance(side, bool):
        grids.append((side // guess.layout.patch[1], side // guess.layout.patch[2]))
    for grid in grids:
        for text in texts:
            for frame in frames:
                yield frame, text, grid


def _numbers(settings: Mapping[str, Any], names: tuple[str, ...]) -> list[int]:
    found = (settings.get(name) for name in names)
    return [value for value in found if isinstance(value, int) and 0 < value < 1 << 12]


def _forward(
    module: Any, settings: Mapping[str, Any], channels: int, guess: Guess, at: Point
) -> Trace:
    given = arguments(type(module), settings, channels, guess, at)
    trace = traced(module, lambda: module(**given))
    result = trace.result[0] if isinstance(trace.result, (tuple, list)) else trace.result
    _check_result(result, guess, channels, at)
    return trace


def _check_result(result: Any, guess: Guess, channels: int, at: Point) -> None:
    """The output is a latent too: as large as the input in all but the channels."""
    axes, sides = guess.layout.axes, list(guess.layout.sides(channels, at))
    place = axes.index("c")
    shape = list(result.shape) if torch.is_tensor(result) else []
    if axes == "bfhwc" and len(shape) == len(sides) - 1 and at.b == 1:
        shape.insert(0, 1)
    if len(shape) != len(sides) or shape[:place] != sides[:place]:
        raise ValueError("its output is no latent")
    if shape[place + 1 :] != sides[place + 1 :]:
        raise ValueError("its output is no latent")


def _spec(module: Any, name: str, library: str, call: _Call, ops: list[AnyOp]) -> TracedSpec:
    params = sum(tensor.numel() for tensor in module.parameters())
    blocks, inside = blocks_of(module, params)
    products = [op for op in ops if isinstance(op, TracedGemm)]
    inner = [op.k for op in products if rows_of(parse(op.m)) is Rows.TOKENS and op.weight]
    linears = [child for child in module.modules() if isinstance(child, torch.nn.Linear)]
    return TracedSpec(
        class_name=name,
        library=library,
        params=params,
        blocks=blocks,
        block_params=inside // max(blocks, 1),
        weight_params=sum(linear.weight.numel() for linear in linears),
        inner_width=max((width for width in inner if isinstance(width, int)), default=1),
        frames=call.frames and call.frames * call.guess.layout.patch[0],
        text_tokens=call.text,
        grid=call.grid,
        sequence_parallel=divisible(ops),
        ops=tuple(ops),
    )


def blocks_of(module: Any, params: int) -> tuple[int, int]:
    """Repeated blocks, and the parameters inside them."""
    blocks = inside = 0
    for child in module.children():
        if isinstance(child, torch.nn.ModuleList) and len(child) > 1:
            held = sum(tensor.numel() for tensor in child.parameters())
            if held >= LEAST_SHARE * params:
                blocks, inside = blocks + len(child), inside + held
    return blocks, inside


def _dims(
    module: Any, guess: Guess, channels: int, trace: Trace, ops: list[AnyOp]
) -> dict[str, Any]:
    """Dimensions of the blocks, as the largest attention over the grid shows them."""
    attentions = [op for op in ops if isinstance(op, TracedAttention)]
    over_grid = [op for op in attentions if role_of(op) is Role.SELF] or attentions
    largest = max(over_grid, key=lambda op: op.heads * op.head_dim, default=None)
    heads, kv_heads, width = (
        (largest.heads, largest.kv_heads, largest.head_dim) if largest else (1, 1, 1)
    )
    result = trace.result[0] if isinstance(trace.result, (tuple, list)) else trace.result
    patch = guess.layout.patch
    place = guess.layout.axes.index("c") - len(guess.layout.axes)
    packed = patch[0] * patch[1] * patch[2] if "n" in guess.layout.axes else 1
    inner = [
        (op.k, op.count)
        for op in ops
        if isinstance(op, TracedGemm) and op.weight and rows_of(parse(op.m)) is Rows.TOKENS
    ]
    blocks, _ = blocks_of(module, sum(tensor.numel() for tensor in module.parameters()))
    return {
        "hidden": heads * width,
        "layers": max(blocks, 1),
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": width,
        "ffn": max((k for k, _ in inner if isinstance(k, int)), default=heads * width),
        "activation": "gelu",
        "in_channels": max(channels // packed, 1),
        "out_channels": max(result.shape[place] // packed, 1),
        "patch": patch,
        "text_width": guess.text_width or None,
    }
