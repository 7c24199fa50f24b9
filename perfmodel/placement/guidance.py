"""Guidance branches over ranks: how many forwards one rank runs, and what it exchanges.

With ``F`` forwards over ``b`` branches in ``n`` steps, guidance is active in
``g = (F - n)/(b - 1)`` steps; a rank of ``c`` runs ``F - g * b + g * ceil(b / c)`` forwards.  After
each guided step the noise predictions are gathered and every rank takes the scheduler step itself
(vLLM-Omni 0.30.0, ``distributed/cfg_parallel.py``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from perfmodel.ops import Collective, Floats, Ints, dtype_bytes
from perfmodel.placement.groups import guidance_group
from perfmodel.shapes import Shape, ceil_div
from perfmodel.spec.parallel import Layouts


def guided_steps(shape: Shape) -> Ints:
    """Steps in which more than one branch runs."""
    branches = np.asarray(shape.branches)
    guided = (shape.forwards - shape.steps) // np.maximum(branches - 1, 1) * (branches > 1)
    return np.asarray(np.clip(guided, 0, shape.steps), np.int64)


def together(shape: Shape, layouts: Layouts) -> Shape:
    """`shape` where a rank runs its branches of a step as one batch, not one after the other.

    Of `b` branches over `c` ranks each takes ``ceil(b / c)``: as many times the batch, and one
    branch for each rank.  Numbers become columns as long as `layouts`.
    """
    batched = branches_of_a_rank(shape, layouts)
    ranks = ceil_div(shape.branches, batched)
    return replace(
        shape,
        batch=shape.batch * batched,
        branches=cast("int", ranks),
        forwards=shape.forwards * ranks // shape.branches,
    )


def branches_of_a_rank(shape: Shape, layouts: Layouts) -> NDArray[np.int64]:
    """Branches that the busiest guidance rank runs, ``ceil(b / cfg)``."""
    return np.asarray(ceil_div(shape.branches, layouts.cfg))


def forwards_of_a_rank(shape: Shape, layouts: Layouts) -> NDArray[np.int64]:
    """Transformer forwards of the busiest rank in one request."""
    guided = guided_steps(shape)
    alone = shape.forwards - guided * shape.branches
    return np.asarray(alone + guided * branches_of_a_rank(shape, layouts))


def velocity_gather(elements: Floats, shape: Shape, layouts: Layouts) -> Collective:
    """All-gather of the noise predictions of all branches, once a guided step."""
    group = guidance_group(layouts)
    one_bytes = np.asarray(elements, float) * shape.batch * dtype_bytes("bf16")
    all_bytes = one_bytes * group.ranks
    return group.message("guidance exchange", "all_gather", all_bytes, guided_steps(shape))
