"""Arguments of a denoiser's forward, from the names that diffusers gives them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from perfmodel.stages.imports.trace.fit import Point

LATENTS = ("hidden_states", "x", "sample", "latents")
WIDTHS = (
    "caption_channels",
    "joint_attention_dim",
    "text_embed_dim",
    "cap_feat_dim",
    "text_dim",
    "in_text_dim",
    "context_in_dim",
    "text_hidden_dim",
    "text_states_dim",
    "cross_attention_dim",
    "encoder_hidden_states_channels",
)
TEXT = re.compile(r"(text|cap|caption|joint|cross|context|encoder|prompt)\w*_(dim|channels|size)$")
RATIO = 16
"""Pixels a token, where a class asks for sizes in pixels."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a class takes its latent: axes in order, ``n`` all tokens in one."""

    axes: str
    patch: tuple[int, int, int]

    def sides(self, channels: int, at: Point) -> tuple[int, ...]:
        """Shape of the latent."""
        frames, rows, columns = self.latent(at)
        sizes = {"b": at.b, "c": channels, "f": frames, "h": rows, "w": columns}
        return tuple({**sizes, "n": at.f * at.h * at.w}[axis] for axis in self.axes)

    def latent(self, at: Point) -> tuple[int, int, int]:
        """Latent frames, rows and columns."""
        return at.f * self.patch[0], at.h * self.patch[1], at.w * self.patch[2]


@dataclass(frozen=True, slots=True)
class Guess:
    """One way to call a class.

    Attributes:
        layout: of the latent.
        text_width: of the text states; 0 without text.
        time: dtype of the timestep.
        every: arguments with a default are given too, where they are known.
    """

    layout: Layout
    text_width: int
    time: Any
    every: bool


class UnknownArgument(Exception):
    """A required argument that no name here describes."""


def guesses(cls: type, config: Mapping[str, Any]) -> Iterator[Guess]:
    """Ways to call a class, likeliest first."""
    names = set(inspect.signature(cls.forward).parameters)  # type: ignore[attr-defined]
    widths = (text_widths(config) or [1]) if "encoder_hidden_states" in names else [0]
    for layout, width, every, time in product(
        layouts(cls, config, names), widths, (False, True), (torch.bfloat16, torch.int64)
    ):
        yield Guess(layout, width, time, every)


def layouts(cls: type, config: Mapping[str, Any], names: set[str]) -> list[Layout]:
    """Layouts of the latent, likeliest first."""
    sides = _patch(config)
    flat, deep = (1, sides[1], sides[2]), sides
    ones = (1, 1, 1)
    packed = [Layout("bnc", (1, 2, 2)), Layout("bnc", ones)] if sides == ones else []
    packed = packed or [Layout("bnc", deep)]
    image = [Layout("bchw", flat)]
    video = [Layout("bcfhw", deep), Layout("bfchw", deep), Layout("bfhwc", deep)]
    if "img_ids" in names:
        return packed
    return [*video, *packed] if "3D" in cls.__name__ else [*image, *packed, *video]


def text_widths(config: Mapping[str, Any]) -> list[int]:
    """Widths that text states may have, likeliest first."""
    named = [config.get(name) for name in WIDTHS]
    others = [value for name, value in config.items() if TEXT.match(name)]
    found = dict.fromkeys(value for value in (*named, *others) if _is_size(value))
    return list(found)


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _patch(config: Mapping[str, Any]) -> tuple[int, int, int]:
    side = config.get("patch_size", 1)
    if isinstance(side, (list, tuple)):
        sides = [value for value in side if _is_size(value)]
        time, rows, columns = (1, 1, 1, *sides)[-3:]
        return time, rows, columns
    time = config.get("patch_size_t") or 1
    return (int(time), int(side or 1), int(side or 1))


def arguments(
    cls: type, config: Mapping[str, Any], channels: int, guess: Guess, at: Point
) -> dict[str, Any]:
    """Arguments of one forward at a shape.

    Raises:
        UnknownArgument: a required argument whose name is not known here.
    """
    known = builders(config, channels, guess, at)
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(cls.forward).parameters.items():  # type: ignore[attr-defined]
        required = parameter.default is inspect.Parameter.empty
        if name == "self" or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name == "return_dict":
            found[name] = False
        elif name in known and (required or guess.every or name in ALWAYS):
            found[name] = known[name]()
        elif required:
            raise UnknownArgument(name)
    return found


def left_out(
    cls: type, config: Mapping[str, Any], channels: int, guess: Guess, at: Point
) -> tuple[str, ...]:
    """Arguments that keep their default, those for hooks and switches left out."""
    given = arguments(cls, config, channels, guess, at)
    named = inspect.signature(cls.forward).parameters  # type: ignore[attr-defined]
    return tuple(
        name
        for name, parameter in named.items()
        if parameter.default is None and name not in given and not name.endswith("kwargs")
    )


ALWAYS = frozenset(
    (
        *LATENTS,
        "encoder_hidden_states",
        "encoder_hidden_states_t5",
        "timestep",
        "pooled_projections",
        "img_ids",
        "txt_ids",
        "num_frames",
        "height",
        "width",
        "img_shapes",
        "rope_interpolation_scale",
    )
)
"""Arguments that pipelines always give, though some classes have a default for them."""


def builders(
    config: Mapping[str, Any], channels: int, guess: Guess, at: Point
) -> dict[str, Callable[[], Any]]:
    """How every known argument is made."""
    layout = guess.layout
    frames, rows, columns = layout.latent(at)
    tokens, pixels = at.f * at.h * at.w, (at.h * RATIO, at.w * RATIO)
    head = _head(config)

    def latent() -> Any:
        return _meta(*layout.sides(channels, at))

    def states(width: object) -> Any:
        return _meta(at.b, at.t, int(width) if isinstance(width, int) else 0)

    def mask(dtype: Any) -> Any:
        return torch.ones(at.b, at.t, dtype=dtype)

    def pair(values: tuple[int, int]) -> Any:
        return torch.tensor([values] * at.b, dtype=torch.bfloat16).to("meta")

    whole_time = torch.zeros(at.b, dtype=guess.time, device="meta")
    return {
        **dict.fromkeys(LATENTS, latent),
        "encoder_hidden_states": lambda: states(guess.text_width),
        "encoder_hidden_states_t5": lambda: states(_first(config, T5_WIDTHS) or guess.text_width),
        "timestep": lambda: whole_time,
        "timesteps": lambda: whole_time,
        "t": lambda: whole_time,
        "guidance": lambda: _meta(at.b) if config.get("guidance_embeds") else None,
        "pooled_projections": lambda: _meta(at.b, _first(config, POOLED_WIDTHS) or 1),
        "pooled_embeds": lambda: _meta(at.b, _first(config, POOLED_WIDTHS) or 1),
        "img_ids": lambda: _meta(tokens, _axes(config)),
        "txt_ids": lambda: _meta(at.t, _axes(config)),
        "encoder_attention_mask": lambda: mask(torch.int64),
        "encoder_mask": lambda: mask(torch.int64),
        "encoder_hidden_states_mask": lambda: mask(torch.int64),
        "text_embedding_mask": lambda: mask(torch.int64),
        "text_embedding_mask_t5": lambda: mask(torch.int64),
        "image_rotary_emb": lambda: (_meta(tokens, head), _meta(tokens, head)),
        "original_size": lambda: pair(pixels),
        "target_size": lambda: pair(pixels),
        "crop_coords": lambda: pair((0, 0)),
        "class_labels": lambda: torch.zeros(at.b, dtype=torch.int64, device="meta"),
        "num_frames": lambda: frames,
        "height": lambda: rows,
        "width": lambda: columns,
        "rope_interpolation_scale": lambda: (1.0, 1.0, 1.0),
        "fps": lambda: 24,
        "img_shapes": lambda: [[(at.f, at.h, at.w)]] * at.b,
        "visual_rope_pos": lambda: [torch.arange(n, device="meta") for n in (at.f, at.h, at.w)],
        "text_rope_pos": lambda: torch.arange(at.t, device="meta"),
        "added_cond_kwargs": lambda: {
            "resolution": _meta(at.b, 2),
            "aspect_ratio": _meta(at.b, 1),
        },
        "cross_attention_kwargs": dict,
        "joint_attention_kwargs": dict,
        "attention_kwargs": dict,
    }


T5_WIDTHS = ("cross_attention_dim_t5", "text_embed_dim_t5")
POOLED_WIDTHS = ("pooled_projection_dim", "pooled_dim", "in_text_dim2", "text_embed_2_dim")


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    return next((config[name] for name in names if _is_size(config.get(name))), None)


def _axes(config: Mapping[str, Any]) -> int:
    """Axes of a position: those of the rotary embedding."""
    for name in ("axes_dims_rope", "axes_dim", "axes_dims"):
        value = config.get(name)
        if isinstance(value, (list, tuple)) and value:
            return len(value)
    return 3


def _head(config: Mapping[str, Any]) -> int:
    width = _first(config, ("attention_head_dim", "head_dim"))
    heads = _first(config, ("num_attention_heads",))
    hidden = _first(config, ("hidden_size", "inner_dim"))
    return width or (hidden // heads if hidden and heads else 64)


def _meta(*sides: int) -> Any:
    return torch.zeros(sides, dtype=torch.bfloat16, device="meta")
