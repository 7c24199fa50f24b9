"""When nothing fits: the nearest miss, and the least change that would fit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.memory.table import FITS, NO, PARTS, STATUS, WEIGHTS, MemoryTable
from perfmodel.memory.weights import PHASES
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import GATHERED, Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Miss:
    """The configuration that comes closest to fitting.

    Attributes:
        index: its row; config: its degrees.
        phase: where it needs most; over_bytes: how much too much.
        part: the largest part there, and its bytes.
        weights_alone: the weights of this rank exceed the memory by themselves, so that a
            smaller or shorter video does not help.
        needs: axes and options that reduce what is too large, most direct first.
    """

    index: int
    config: ParallelConfig
    phase: str
    required_bytes: float
    over_bytes: float
    part: str
    part_bytes: float
    weights_alone: bool
    needs: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """One change that makes a request fit.

    Attributes:
        change: what changes, e.g. ``vae_tiling=on`` or ``offload=layerwise``.
        options: the options with the change.
        index, config: the best configuration under it.
        peak_bytes: of one device; status: ``fits`` or ``tight``.
        host_bytes: host memory of one host; None where the change needs no more than before.
    """

    change: str
    options: Options
    index: int
    config: ParallelConfig
    peak_bytes: float
    status: str
    host_bytes: float | None


def nearest_miss(table: MemoryTable, layouts: Layouts) -> Miss:
    """The configuration that needs least, and why it still does not fit.

    Ties go to the fewest ranks, then to the first row.
    """
    required = table.required_bytes
    order = np.lexsort((np.arange(len(layouts)), layouts.world_size, np.round(required)))
    index = int(order[0])
    live = table.by_phase_bytes[:, index] - table.slack_bytes[:, index]
    phase = int(live.argmax())
    column = table.parts_bytes[phase, :, index]
    weights = float(column[list(WEIGHTS)].sum())
    largest = int(column.argmax())
    return Miss(
        index=index,
        config=layouts.row(index),
        phase=PHASES[phase],
        required_bytes=float(required[index]),
        over_bytes=float(required[index] - table.capacity_bytes),
        part=PARTS[largest],
        part_bytes=float(column[largest]),
        weights_alone=weights > table.capacity_bytes,
        needs=_needs(PHASES[phase], weights / max(float(live[phase]), 1.0)),
    )


def _needs(phase: str, weights_share: float) -> tuple[str, ...]:
    """Axes that reduce the phase: weights by sharding or offload, the VAE by tiling."""
    tiling = ("vae_tiling", "vae_patch") if phase in ("vae_decode", "vae_encode") else ()
    sharding = ("tp", "hsdp", "offload")
    tokens = ("ulysses", "tp") if phase == "denoise" else ()
    return (*sharding, *tiling) if weights_share > 0.5 else (*tiling, *tokens, "offload")


def remedies(
    estimate: Callable[[Options], MemoryTable],
    layouts: Layouts,
    options: Options,
    legal: Callable[[Options], NDArray[np.bool_]] | None = None,
) -> tuple[Remedy, ...]:
    """Option changes under which something fits, least change first; empty when none helps.

    Args:
        estimate: memory of `layouts` under other options.
        layouts: the configurations that were refused.
        options: the options under which nothing fits.
        legal: which layouts the engine allows under other options; None: all.
    """
    found = []
    for change, changed in _changes(options):
        table = estimate(changed)
        status = table.fit_status
        if legal is not None:
            status = np.where(legal(changed), status, NO)
        if np.all(status == NO):
            continue
        order = np.lexsort((table.required_bytes, layouts.world_size, status))
        index = int(order[0])
        pinned = float(table.pinned_bytes[index])
        found.append(
            Remedy(
                change=change,
                options=changed,
                index=index,
                config=layouts.row(index),
                peak_bytes=float(table.peak_bytes[index]),
                status=STATUS[int(status[index])],
                host_bytes=float(table.host_bytes[index]) if pinned else None,
            )
        )
        # Which way of streaming is faster depends on the links: both are shown.
        if status[index] == FITS and changed.offload != GATHERED:
            break
    return tuple(found)


def _changes(options: Options) -> Iterator[tuple[str, Options]]:
    """Changes in order: tiling keeps the speed; offload modes by what waits on the host."""
    if options.vae_tiling == "auto":
        yield "vae_tiling=on", options.model_copy(update={"vae_tiling": "on"})
    if options.offload in ("none", "auto"):
        for mode in ("text-encoder", "model", "layerwise-gather", "layerwise"):
            change = {"offload": mode}
            yield f"offload={mode}", options.model_copy(update=change)
            if options.vae_tiling == "auto":
                both = {**change, "vae_tiling": "on"}
                yield f"offload={mode} vae_tiling=on", options.model_copy(update=both)
