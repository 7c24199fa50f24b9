"""Parameters of the collective laws, and which protocol a library picks.

Which protocol a library picks (`tuner`) follows its own expectation, not the time: NCCL compares
``base + step * steps + bytes`` with constants of its source (`LIBRARY_S`), of which only the
expected rate depends on the machine.  With it as a time, ``switch_s`` (step difference of first
and second over the difference of their seconds a link byte), first and second are equal at

    passes * W = switch_s * B * (0.64 + steps)

and the changes to and from the middle protocol follow from the same constants: large groups use
it, pairs never.  Or a library compares the size a rank with a number set by hand, ``switch_s * B``,
half of it for all_gather and an eighth for groups that leave the host (HCCL); those skip the
plateau.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.cost.fits import Parameter
from perfmodel.cost.result import FloatArray, as_float

HCCL_ONLY = ("stream_frac", "rounds_frac")
"""Parameters of all_to_all that describe HCCL; 1 for NCCL."""

OWN_PARAMETERS = (
    Parameter("small_s", 6e-6, 5e-7, 2e-4, "latency of two ranks", log=True),
    Parameter("rank_s", 1e-6, 2e-8, 2e-5, "latency of each further rank", log=True),
    Parameter("small_frac", 0.3, 0.01, 1.5, "rate of the first protocol over the link", log=True),
    Parameter("fill_s", 2e-5, 1e-7, 3e-4, "filling the pipeline of chunks", log=True),
    Parameter("wire_frac", 0.8, 0.1, 1.2, "rate on the wire over the link", log=True),
    Parameter("copy_frac", 0.9, 0.05, 4.0, "local passes over the buffer, link times", log=True),
)
SWITCH_S = 1.43e-6
"""What NCCL's constants give for its change where it expects 0.8 of the link rate, as on NVLink of
A100, H100 and B200, and 0.39 of that of its first protocol.  Its constants for PCIe (5.7 and 1.0 us
a step, 24 of 32 GB/s, half of it for the first protocol) give 3.5 us; the L40S is fitted to 3.6."""
RING_SWITCH_GRID = tuple(SWITCH_S * 2 ** (third / 3) for third in range(-3, 10))
PAIR_SWITCH_GRID = tuple(SWITCH_S * 2 ** (half / 2) for half in range(-12, 7))
BY_COST, BY_COST_WITH_MIDDLE, BY_SIZE = 0, 1, 2


def _shared(grid: tuple[float, ...], default: float) -> tuple[Parameter, ...]:
    return (
        Parameter("short_frac", 0.1, 0.0, 0.5, "latency that messages of a few KiB save"),
        Parameter("small_power", 0.0, 0.0, 1.2, "how the first protocol gains from more links"),
        Parameter("fill_bytes", 8e6, 3e5, 1e8, "size where the pipeline is half full", log=True),
        Parameter("plateau_s", 1.5e-5, 1e-6, 5e-4, "shortest second protocol, fixed", log=True),
        Parameter("plateau_step_s", 3e-6, 1e-8, 6e-5, "the same for each step: a chunk", log=True),
        Parameter("pair_frac", 1.0, 0.3, 1.2, "rate of two ranks over that of more", log=True),
        Parameter(
            "switch_s",
            default,
            grid[0],
            grid[-1],
            "link time of the size a rank where the protocol changes",
            log=True,
            grid=grid,
        ),
    )


RING_OPS = ("all_gather", "reduce_scatter", "all_reduce")
RING_SHARED = (
    *_shared(RING_SWITCH_GRID, SWITCH_S),
    Parameter(
        "tuner",
        BY_COST,
        BY_COST,
        BY_SIZE,
        "picks by cost of 2 protocols (0), of 3 (1), by size (2)",
        grid=(BY_COST, BY_COST_WITH_MIDDLE, BY_SIZE),
        pull=0.5,
    ),
    Parameter("middle_s", 8e-6, 1e-6, 1e-4, "what the middle protocol takes to start", log=True),
    Parameter("middle_frac", 0.9, 0.3, 1.2, "its rate over the second's", log=True),
    Parameter("far_s", 1e-4, 1e-6, 1e-3, "filling the network's pipeline", log=True),
    Parameter("far_bytes", 8e6, 3e5, 1e8, "size where that is half full", log=True),
    Parameter("far_frac", 1.0, 0.2, 1.2, "rate over the network over that in the host", log=True),
    Parameter("in_switch_frac", 0.65, 0.3, 1.2, "rate of the reduction inside the switch"),
    Parameter("in_switch_s", 3e-5, 1e-6, 1e-4, "starting it", log=True),
)
RING_PARAMETERS = (
    *RING_SHARED,
    *(
        replace(p, name=f"{op}.{p.name}", meaning=f"{op}: {p.meaning}")
        for op in RING_OPS
        for p in OWN_PARAMETERS
    ),
)
PAIR_PARAMETERS = (
    *_shared(PAIR_SWITCH_GRID, PAIR_SWITCH_GRID[len(PAIR_SWITCH_GRID) // 2]),
    Parameter("stream_frac", 1.0, 0.0, 1.0, "share of the latency that streams do not hide"),
    Parameter(
        "rounds_frac", 1.0, 0.3, 1.2, "rate of exchanges in rounds over that of smaller ones"
    ),
    *(
        replace(p, name=f"all_to_all.{p.name}", meaning=f"all_to_all: {p.meaning}")
        for p in OWN_PARAMETERS
    ),
)


def parameters_of(law_name: str) -> tuple[Parameter, ...]:
    """Parameters of the law ``collective/ring`` or ``collective/all_to_all``."""
    return RING_PARAMETERS if law_name.endswith("ring") else PAIR_PARAMETERS


def passes_of(op: str) -> float:
    """Times that the buffer goes round: an all_reduce is a reduce_scatter and an all_gather."""
    return 2.0 if op == "all_reduce" else 1.0


BUFFER_BYTES = 200e6
"""Size from which HCCL exchanges in rounds, each of what its buffer holds (``HCCL_BUFFSIZE``).

General knowledge of its default, borne out by rows: between 195 and 244 MB four ranks of an Ascend
910B fall from 48 to 36 GB/s and eight from 93 to 72, to stay there to 8 GB; two ranks do not."""

LIBRARY_S = {"first": (6.6e-6, 0.6e-6), "middle": (14.0e-6, 1.9e-6), "second": (8.4e-6, 3.4e-6)}
"""Seconds that NCCL expects of a ring over NVLink, fixed and a step, by LL, LL128 and Simple.

Source: the tuning tables inside libnccl.so.2 of https://pypi.org/project/nvidia-nccl-cu12/2.32.3/
(6.6, 14.0, 8.4 and 0.6, 1.9, 3.4 us)."""
LIBRARY_FRAC = {"first": 0.39, "middle": 0.92, "second": 1.0}
"""Rates it expects over that of its second protocol: 141 (same tables) of 360 GB/s; of 128 bytes
LL128 sends 120 of data."""
GATHER_ENTRY_FRAC, FAR_ENTRY_FRAC = 0.5, 0.125
"""Sizes set by hand, over those of the other operations inside a host."""


def switch_sizes(
    values: Mapping[str, float],
    op: str,
    ranks: FloatArray,
    link_bytes_per_s: FloatArray | float,
    far: NDArray[np.bool_] | bool = False,
) -> tuple[FloatArray, FloatArray]:
    """Full sizes in bytes from which the second (or middle), and the second protocol, run.

    The two are equal where the middle protocol is not used.
    """
    unit = as_float(values["switch_s"] * link_bytes_per_s)
    tuner = round(values.get("tuner", BY_COST))
    if tuner == BY_SIZE:
        gather = GATHER_ENTRY_FRAC if op == "all_gather" else 1.0
        entry = as_float(unit * ranks * gather * np.where(far, FAR_ENTRY_FRAC, 1.0))
        return entry, entry
    steps = passes_of(op) * np.maximum(ranks - 1.0, 1.0)
    sent = steps / ranks
    direct = as_float(_equal(unit, steps, "first", "second") / sent)
    if tuner != BY_COST_WITH_MIDDLE:
        return direct, direct
    to_middle = _equal(unit, steps, "first", "middle") / sent
    from_middle = _equal(unit, steps, "middle", "second") / sent
    used = to_middle < direct
    return np.where(used, to_middle, direct), np.where(used, from_middle, direct)


def _equal(unit: FloatArray, steps: FloatArray, low: str, high: str) -> FloatArray:
    """Bytes sent from which a library expects protocol `high` to be faster than `low`.

    `unit` is a step's difference of first and second over that of their seconds a byte.
    """

    def slower_s(one: str, other: str) -> float:
        return 1.0 / LIBRARY_FRAC[one] - 1.0 / LIBRARY_FRAC[other]

    fixed_s, step_s = (LIBRARY_S[high][part] - LIBRARY_S[low][part] for part in (0, 1))
    own_s = LIBRARY_S["second"][1] - LIBRARY_S["first"][1]
    relative = slower_s("first", "second") / slower_s(low, high)
    return as_float(unit * relative * (fixed_s + step_s * steps) / own_s)
