"""Convolutions of operators and of a trace (``data/traces.jsonl``), counted by their shape."""

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np

from perfmodel.ops import Conv, Op

Shapes = Counter[tuple[int, ...]]


def convolutions(ops: Iterable[Op]) -> Shapes:
    """Executions by (channels out and in, kernel, frames, rows and columns out)."""
    found: Shapes = Counter()
    for op in ops:
        if isinstance(op, Conv) and np.all(np.asarray(op.count) > 0):
            out = (int(op.out_t), int(op.out_h), int(op.out_w))
            found[(op.out_channels, op.in_channels, *op.kernel, *out)] += int(op.count)
    return found


def traced_convolutions(trace: dict[str, Any]) -> Shapes:
    """The same of the module that was run."""
    found: Shapes = Counter()
    for weight, out, count in trace["convs"]:
        if len(weight) == 4:  # a 2-D layer: frames are its batch
            weight, out = [*weight[:2], 1, *weight[2:]], [1, out[1], out[0], *out[2:]]
        found[(*weight, *out[2:])] += count
    return found
