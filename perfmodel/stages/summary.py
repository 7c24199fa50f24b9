"""Work of one request by stage and kind, before any placement or cost."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfmodel.ops import Attention, Conv, Gemm, Ints, Op, flops
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.stages import family as family_of
from perfmodel.stages.base import Traits

KINDS = {Attention: "attention", Gemm: "gemm", Conv: "conv"}


def flops_by_kind(ops: Iterable[Op]) -> dict[str, float]:
    """FLOP of all executions by kind (attention, gemm, conv), multiply-add = 2."""
    total = dict.fromkeys(KINDS.values(), 0.0)
    for op in ops:
        if type(op) in KINDS:
            each = np.asarray(flops(op), float) * np.asarray(op.count, float)
            total[KINDS[type(op)]] += float(each.sum())
    return total


def request_flops(model: ModelSpec, shape: Shape, traits: Traits) -> dict[str, dict[str, float]]:
    """FLOP of a request by stage, then by kind; whole maps, no tiles.

    Denoise: what runs once a guidance branch, times branches, plus a forward, times forwards.
    """
    family = family_of(model)
    work = family.denoise(model, shape, traits)
    once, each = flops_by_kind(work.per_request), flops_by_kind(work.per_forward)
    forwards = float(np.max(shape.forwards))
    decode = family.vae_decode(
        model, shape.latent_frames, shape.latent_height, shape.latent_width, traits
    )
    return {
        "text_encode": flops_by_kind(family.text_encode(model, shape, traits)),
        "vae_encode": flops_by_kind(_encode(model, shape, traits)),
        "denoise": {kind: once[kind] * shape.branches + each[kind] * forwards for kind in each},
        "vae_decode": _times(flops_by_kind(decode), shape.batch),
    }


def _encode(model: ModelSpec, shape: Shape, traits: Traits) -> tuple[Op, ...]:
    if not np.any(np.asarray(shape.condition_frames) > 0):
        return ()
    family = family_of(model)
    return family.vae_encode(model, shape.condition_frames, shape.height, shape.width, traits)


def _times(by_kind: dict[str, float], factor: Ints) -> dict[str, float]:
    return {kind: value * float(np.max(factor)) for kind, value in by_kind.items()}
