"""Bus bandwidths that were measured on a device, where its collective laws are lent.

A family lends its laws with what the links of its members lose.  Cards below one root complex, or
a mesh whose pairs have one link each, lose something else, which the figures of the device show:

    link'(n) = link x busbw measured / busbw of the lent law in a full host, of n ranks

The logarithm of the ratio is linear in that of the ranks between group sizes that were measured,
and constant beyond them.  What crossing between the CPUs of a host costs is in the figures, so
`link` leaves it out.  A rate of large messages says nothing of latency: that stays lent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.cost.result import FloatArray, as_float

if TYPE_CHECKING:
    from perfmodel.spec.hardware import Device

SEEN_BYTES = 512.0 * 2.0**20
"""Message of the figures."""
MEASURED = "measured"
SEEN_OF = {"broadcast": "all_gather", "p2p": "all_to_all"}
"""Figures of operations that are derived from others; a send is half an exchange of two ranks."""


def figures(device: Device, op: str) -> Mapping[int, float]:
    """Measured bus bandwidth of `op` by group size [B/s]; empty where none was measured."""
    table = device.measured.collectives
    if table is None or table.kind != MEASURED:
        return {}
    return table.busbw_bytes_per_s.get(SEEN_OF.get(op, op), {})


def seen_ratio(
    device: Device,
    op: str,
    ranks: FloatArray,
    lent_bytes_per_s: Callable[[str, FloatArray], FloatArray],
) -> FloatArray:
    """Measured over lent bus bandwidth of `op` in groups of `ranks`.

    Args:
        device: with `figures` of the operation.
        op: operation.
        ranks: group sizes.
        lent_bytes_per_s: bus bandwidth of a measured operation in a full host, by group size.
    """
    seen = sorted(figures(device, op).items())
    counts, rates = (np.asarray(column, float) for column in zip(*seen, strict=True))
    logs = np.log(rates / lent_bytes_per_s(SEEN_OF.get(op, op), counts))
    of = np.full(np.shape(ranks), 2.0) if op == "p2p" else np.maximum(as_float(ranks), 1.0)
    return as_float(np.exp(np.interp(np.log2(of), np.log2(counts), logs)))
