"""Axes that place weights: hybrid sharding (HSDP) and pipeline stages.

HSDP: one all-gather of a block's parameters before every block of every forward,
``block_bytes * (n - 1)/n`` received by each rank; nothing is reduced (vLLM-Omni 0.30.0,
``distributed/hsdp.py``, FSDP2 with ``reshard_after_forward``).  The gathered block is copied out of
the flat buffer.  Pipeline: a request passes the stages one after the other, so its compute is not
divided; the hidden state is handed on ``pp - 1`` times a forward.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from perfmodel.ops import Collective, HostWork, Ints, Op, Pointwise, dtype_bytes
from perfmodel.placement.groups import pipeline_group, shard_group
from perfmodel.placement.sequence import local_tokens
from perfmodel.shapes import Shape
from perfmodel.spec.parallel import Layouts


def shard_messages(block_params: int, blocks: Ints, dtype: str, layouts: Layouts) -> list[Op]:
    """Weight gathers of one forward, the copies out of the flat buffer, and the hooks around them.

    Args:
        block_params: parameters of one block.
        blocks: blocks that one forward runs.
        dtype: storage dtype of the weights.
        layouts: the configurations.
    """
    group = shard_group(layouts)
    block_bytes = np.full(len(layouts), block_params * dtype_bytes(dtype))
    gather = group.message("HSDP weight gather", "all_gather", block_bytes, blocks)
    gather = replace(gather, overlaps="denoise compute")
    copies = Pointwise(
        name="HSDP copy out",
        count=gather.count,
        bytes_moved=2 * block_bytes,
        launches=2,
        is_copy=True,
    )
    return [gather, copies, HostWork(name="HSDP hooks", count=gather.count, term="hsdp_hook_s")]


def stage_hand_over(hidden: int, shape: Shape, layouts: Layouts) -> Collective:
    """Hidden state sent from stage to stage, ``pp - 1`` times a forward."""
    group = pipeline_group(layouts)
    tokens = local_tokens(shape.tokens, layouts)
    state_bytes = np.asarray(shape.batch, float) * tokens * hidden * dtype_bytes("bf16")
    return group.message("pipeline hand-over", "p2p", state_bytes, group.ranks - 1)
