"""Weights that live on the host and are copied to the device for a request.

``model``: the text encoder, then each full transformer, is copied in before its stage and (a share
``offload_return_frac`` of it) back to the host after.  ``text-encoder``: that component alone.
``layerwise``: every transformer block is streamed in for every forward, beside the compute of the
block before: the stage takes ``max(compute, copies) + (1 - overlap) * min(compute, copies)``.
Pipeline stages divide none of it: they take turns, or each runs its blocks once a patch.
Where an engine streams separate encoders too (``layerwise_encoders_frac``), their weights come in
once for each prompt, beside the text encode.
``layerwise-gather``: each rank streams in its share of the block, ``1 / ranks``, and the ranks
gather the rest before the next block starts, so the gather counts with the copies (vLLM-Omni
0.30.0, ``diffusion/offloader/distributed_layerwise_backend.py prefetch_layer``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.machine import Machine
from perfmodel.ops import DTYPE_BITS, Collective, Floats, Op, Transfer
from perfmodel.pipeline.lines import Column, Stage, cost_lines, expose, total_s
from perfmodel.placement import guidance
from perfmodel.placement.groups import offload_group
from perfmodel.placement.precision import QUANTISED
from perfmodel.shapes import Shape, ceil_div
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.workload import GATHERED, LAYERWISE, WEIGHT_ONLY
from perfmodel.stages.base import Component

BITS_PER_BYTE = 8
PROMPTS = 2
"""Encodes of a guided request at most: the prompt and the negative one."""
RETURN_FRAC = "offload_return_frac"
OVERLAP_FRAC = "offload_overlap_frac"
ENCODERS_FRAC = "layerwise_encoders_frac"


def stored_bytes(component: Component, params: int, dtype: str) -> float:
    """Bytes of `params` of the component's parameters, the quantisable share in `dtype`."""
    width = float(component.bits)
    if dtype in (*QUANTISED, *WEIGHT_ONLY) and component.params:
        share = min(1.0, component.quantizable_params / component.params)
        width = width * (1 - share) + share * DTYPE_BITS[dtype]
    return params * width / BITS_PER_BYTE


def copied(component: Component, mode: str, encoders: bool = False) -> str:
    """Stage before which `mode` copies the component to the device; "" when it stays there.

    `encoders`: layerwise offload streams separate encoders too.
    """
    encoder = component.kind == "text_encoder" and "denoise" not in component.when
    if encoder and encoders and mode in LAYERWISE:
        return "text_encode"
    denoiser = component.kind == "transformer" and component.blocks > 0
    if encoder and mode in ("model", "text-encoder"):
        return "text_encode"
    return "denoise" if denoiser and mode in ("model", *LAYERWISE) else ""


def with_offload(
    stages: Mapping[str, Stage],
    components: tuple[Component, ...],
    shape: Shape,
    layouts: Layouts,
    mode: str,
    dtype: str,
    machine: Machine,
) -> dict[str, Stage]:
    """`stages` with the copies of an offload mode added; unchanged where it moves nothing."""
    result = dict(stages)
    encoders = machine.term(ENCODERS_FRAC, 0.0) > 0
    for name in ("text_encode", "denoise"):
        moved = tuple(part for part in components if copied(part, mode, encoders) == name)
        if moved and result[name].lines:
            ops = tuple(_copies(moved, shape, layouts, mode, dtype, machine))
            result[name] = _added(result[name], ops, len(layouts), mode, machine)
    return result


def _added(stage: Stage, ops: tuple[Op, ...], size: int, mode: str, machine: Machine) -> Stage:
    """A stage over all configurations with `ops` beside (layerwise) or between its kernels."""
    lines = [line.at(stage.index) for line in stage.lines]
    copies = cost_lines(ops, stage.name, size, machine, compiled=False)
    if mode in LAYERWISE:
        title = "layers to device" if stage.name == "text_encode" else "blocks to device"
        together = replace(copies[0], name=title, total_s=total_s(copies, size))
        busy_s = total_s(lines, size)
        copies = [expose(together, busy_s, machine.term(OVERLAP_FRAC, 0.9))]
    return Stage(stage.name, (*lines, *copies), np.arange(size), size)


def _copies(
    moved: tuple[Component, ...],
    shape: Shape,
    layouts: Layouts,
    mode: str,
    dtype: str,
    machine: Machine,
) -> Iterator[Op]:
    back = machine.term(RETURN_FRAC, 1.0)
    for part in moved:
        title = part.name.replace("_", " ")
        divided = layouts.tp * layouts.hsdp if part.blocks else np.ones(len(layouts))
        if mode in LAYERWISE and part.kind == "text_encoder":
            share = machine.term(ENCODERS_FRAC, 0.0)
            yield Transfer(
                name=f"{title} layers to device",
                count=min(shape.branches, PROMPTS),
                bytes_moved=stored_bytes(part, part.params, dtype) * share,
                direction="h2d",
                pinned=True,
            )
            continue
        if mode in LAYERWISE:
            streamed = stored_bytes(part, part.block_params, dtype) / divided
            turns = _taking_turns(part, moved)
            yield from _streamed(part, streamed, turns, shape, layouts, mode)
            continue
        whole = stored_bytes(part, part.params, dtype) * _largest_stage(part, layouts) / divided
        yield Transfer(name=f"{title} to device", bytes_moved=whole, direction="h2d")
        if back > 0:
            yield Transfer(name=f"{title} to host", bytes_moved=whole * back, direction="d2h")


def _streamed(
    part: Component, whole_bytes: Column, turns: int, shape: Shape, layouts: Layouts, mode: str
) -> Iterator[Op]:
    """Copies of the blocks of `part`, `whole_bytes` of a tensor rank, and their gathers."""
    title = part.name.replace("_", " ")
    runs = _runs(part, shape, layouts)
    group = offload_group(layouts)
    shares = group.ranks if mode == GATHERED else np.ones_like(group.ranks)
    yield Transfer(
        name=f"{title} blocks to device",
        count=runs,
        bytes_moved=whole_bytes / (shares * turns),
        direction="h2d",
        pinned=True,
    )
    yield Collective(
        name=f"{title} blocks gathered",
        count=runs * part.blocks // turns,
        op="all_gather",
        full_bytes=whole_bytes / part.blocks,
        ranks=shares,
        stride=group.stride,
        groups=group.count,
        axis="offload",
    )


def _largest_stage(part: Component, layouts: Layouts) -> Floats:
    """Share of the component in the largest pipeline stage, ``ceil(blocks / pp) / blocks``."""
    return ceil_div(part.blocks, layouts.pp) / part.blocks if part.blocks else 1.0


def _runs(part: Component, shape: Shape, layouts: Layouts) -> NDArray[np.int64]:
    """Times that a rank streams the blocks of `part`."""
    if part.name == "understanding":
        return guidance.branches_of_a_rank(shape, layouts)
    return guidance.forwards_of_a_rank(shape, layouts)


def _taking_turns(part: Component, moved: tuple[Component, ...]) -> int:
    """Transformers of one shape that share the forwards: a forward streams one of them."""
    if part.name == "understanding":
        return 1
    return max(1, sum(other.name.startswith("transformer") for other in moved))
