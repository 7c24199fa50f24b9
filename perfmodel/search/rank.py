"""Order and ties: which configurations are worth running."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.pipeline.evaluate import Evaluation
from perfmodel.pipeline.lines import Column
from perfmodel.pipeline.queue import copies, wave
from perfmodel.pipeline.uncertainty import difference_halfwidth_s
from perfmodel.spec.parallel import Layouts

Indices = NDArray[np.intp]

LAYOUT_AXES = (
    "cfg",
    "ulysses",
    "ring",
    "allgather",
    "tp",
    "pp",
    "dp",
    "hsdp",
    "hsdp_replicate",
)
VAE_AXES = ("vae_patch", "vae_tiling")


@dataclass(frozen=True, slots=True)
class Ranking:
    """Configurations in order of the objective.

    Attributes:
        order: row of each place, best first; one row for each denoise layout.
        tied: whether that place is a tie with the best (the first is one).
        score: objective of all rows (smaller is better).
    """

    order: Indices
    tied: NDArray[np.bool_]
    score: Column


def score(
    evaluation: Evaluation,
    peak_bytes: Column,
    objective: str,
    num_gpus: int,
    in_flight: int = 1,
) -> Column:
    """What the objective minimises, for each row.

    latency: seconds a request, on average over those `in_flight`, on copies that fill the machine
    while they have work.  throughput: device-seconds a request when the machine is filled
    with replicas.  cost: device-seconds of the devices used.  memory: peak bytes a device.
    """
    world = evaluation.layouts.world_size
    if objective == "latency":
        return evaluation.latency_s * mean_stay(evaluation.layouts, num_gpus, in_flight)
    if objective == "throughput":
        replicas = np.maximum(num_gpus // world, 1)
        return evaluation.latency_s / replicas
    if objective == "cost":
        return evaluation.latency_s * world
    return peak_bytes


def mean_stay(layouts: Layouts, num_gpus: int, in_flight: int) -> Column:
    """Mean stay of the requests in flight, in times of one alone, ``[N]``."""
    return wave(in_flight, copies(in_flight, num_gpus, layouts) * layouts.dp)[0]


def longest_stay(layouts: Layouts, num_gpus: int, in_flight: int) -> Column:
    """Stay of the last of the requests in flight, in times of one alone, ``[N]``."""
    return wave(in_flight, copies(in_flight, num_gpus, layouts) * layouts.dp)[1]


def denoise_layouts(layouts: Layouts) -> NDArray[np.intp]:
    """A number for each distinct layout of the denoiser (VAE choices share it)."""
    table = np.stack([getattr(layouts, axis) for axis in LAYOUT_AXES], axis=1)
    return np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)


MEMORY_GRAIN_BYTES = 2.0**30
"""Peaks closer than this do not order ties."""

MEMORY_WORTH_FRAC = 0.02
"""What a tie may lose to the fastest of them and still go first for its memory."""

SCARCE_FRAC = 0.8
"""Memory orders ties beyond this share of a device's: below it, what is free is of no use."""

EQUAL_FRAC = 1e-6
"""Scores closer than this are equal: the same work, summed in another order."""


def rank(
    evaluation: Evaluation,
    allowed: NDArray[np.bool_],
    scores: Column,
    peak_bytes: Column,
    tight: NDArray[np.bool_] | None = None,
    capacity_bytes: float = 0.0,
) -> Ranking:
    """Order the allowed rows: the best of each denoise layout, ties decided by memory.

    A row is tied with the best when the error of the *difference* of the two predictions exceeds
    it (errors they share cancel), and no other such row beats it by more than the error of theirs;
    a layout with sharded weights ties with nothing where the same layout without is as fast.
    Of ties within `MEMORY_WORTH_FRAC` of the fastest, that with least memory beyond `SCARCE_FRAC`
    of `capacity_bytes` goes first, the rest by their scores.  Rows that may run out of memory
    (`tight`) come after all that fit.
    """
    rows = np.flatnonzero(allowed)
    if rows.size == 0:
        return Ranking(rows, np.zeros(0, bool), scores)
    late = np.zeros(len(scores), bool) if tight is None else tight
    rows = rows[np.lexsort((peak_bytes[rows], _grains(scores[rows]), late[rows]))]
    groups = denoise_layouts(evaluation.layouts)[rows]
    _, first = np.unique(groups, return_index=True)
    rows = rows[np.sort(first)]
    best = int(rows[0])
    peers = late[rows] == late[best]
    tied = np.zeros(len(rows), bool)
    tied[peers] = _tied(evaluation, rows[peers], best, scores, peak_bytes)
    ahead = _first(rows, tied, scores, peak_bytes, capacity_bytes)
    moved = np.concatenate([[ahead], np.delete(np.arange(len(rows)), ahead)])
    return Ranking(rows[moved], tied[moved], scores)


def _first(
    rows: Indices,
    tied: NDArray[np.bool_],
    scores: Column,
    peak_bytes: Column,
    capacity_bytes: float,
) -> int:
    """Place of the tie that goes first: with least memory where that is scarce, else the fastest.

    The others stay in the order of their scores.
    """
    close = np.flatnonzero(tied & (scores[rows] <= scores[rows[0]] * (1 + MEMORY_WORTH_FRAC)))
    scarce = np.maximum(peak_bytes[rows[close]], SCARCE_FRAC * capacity_bytes)
    grains = np.floor((scarce - scarce.min()) / MEMORY_GRAIN_BYTES)
    return int(close[np.lexsort((scores[rows[close]], grains))[0]])


def _grains(scores: Column) -> Column:
    """Scores in steps of `EQUAL_FRAC` of the least, so that equal ones are equal."""
    return np.asarray(np.round(scores / (EQUAL_FRAC * max(float(scores.min()), EQUAL_FRAC))))


def needless_sharding(layouts: Layouts, rows: Indices, scores: Column) -> dict[int, int]:
    """Places in `rows` with sharded weights, to that of the same layout without that is as fast.

    Sharding adds gathers to the same work: of such a pair it is known which is faster.
    """
    axes = [axis for axis in (*LAYOUT_AXES, *VAE_AXES) if not axis.startswith("hsdp")]
    keys = list(zip(*(getattr(layouts, axis)[rows].tolist() for axis in axes), strict=True))
    sharded = (layouts.hsdp[rows] > 1).tolist()
    whole = {key: place for place, key in enumerate(keys) if not sharded[place]}
    pairs = ((place, whole.get(key)) for place, key in enumerate(keys) if sharded[place])
    return {
        place: plain
        for place, plain in pairs
        if plain is not None and scores[rows[plain]] <= scores[rows[place]]
    }


def _tied(
    evaluation: Evaluation, rows: Indices, best: int, scores: Column, peak_bytes: Column
) -> NDArray[np.bool_]:
    if np.array_equal(scores, peak_bytes):
        return np.asarray(scores[rows] <= scores[best])
    weight = scores / np.maximum(evaluation.latency_s, np.finfo(float).tiny)
    front = np.array([best], np.intp)
    tied = np.ones(len(rows), bool)
    for _ in range(2):
        margin = difference_halfwidth_s(evaluation, rows, front, weight)
        behind = scores[rows][:, None] - scores[front]
        tied = np.all(behind <= margin, axis=1)
        front = rows[tied]
    reach = rows[: int(np.flatnonzero(tied)[-1]) + 1]
    tied[list(needless_sharding(evaluation.layouts, reach, scores))] = False
    return tied


def best_by_world(
    evaluation: Evaluation, allowed: NDArray[np.bool_], tight: NDArray[np.bool_]
) -> dict[int, int]:
    """Fastest allowed row of each number of devices; `tight` ones only where nothing else runs."""
    result: dict[int, int] = {}
    rows = np.flatnonzero(allowed)
    for row in rows[np.lexsort((evaluation.latency_s[rows], tight[rows]))]:
        result.setdefault(int(evaluation.layouts.world_size[row]), int(row))
    return dict(sorted(result.items()))
