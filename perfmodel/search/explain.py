"""Why the winner wins, and where its speed-up goes, in milliseconds of named terms."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from perfmodel.pipeline.evaluate import STAGES, Evaluation
from perfmodel.pipeline.lines import DEVICE_KINDS, Column, Line
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.units import MS_PER_S

NAMED_MS = 1.0
"""Differences below this many milliseconds, or below a thousandth of the request, are not named
(a thousandth of the request in milliseconds is its latency in seconds)."""

AXIS_NAMES = {
    "ulysses": "all-to-all",
    "ring": "ring transfers",
    "tp": "all-reduce",
    "cfg": "guidance exchange",
    "hsdp": "weight gathers",
    "pp": "pipeline hand-over",
    "allgather": "key gathers",
    "sequence": "exit gather",
}


def terms_s(evaluation: Evaluation) -> dict[str, Column]:
    """Request time by named term, ``[N]`` each; the terms sum to the latency."""
    denoise = evaluation.stages["denoise"]
    terms = {
        "attention": denoise.part_s(("attention",)),
        "matrix products": denoise.part_s(("gemm",)),
        "small kernels": denoise.part_s(("pointwise",)),
        "layout copies": denoise.part_s(("copy",)),
        "host gaps": denoise.part_s(("host",)),
        "waiting for the slowest rank": denoise.part_s(("wait",)),
    }
    for axis, name in AXIS_NAMES.items():
        terms[name] = denoise.part_s(("collective",), axis)
    for stage, name in (
        ("text_encode", "text encode"),
        ("vae_encode", "VAE encode"),
        ("vae_decode", "VAE decode"),
        ("transfer", "output copy"),
        ("video_encode", "MP4 encode"),
    ):
        terms[name] = evaluation.stages[stage].total_s
    return terms


def why(evaluation: Evaluation, winner: int, others: Iterable[int]) -> str:
    """One paragraph: what the winner does, and what it saves against each of `others`."""
    terms = terms_s(evaluation)
    sentences = [describe(evaluation.layouts.row(winner))]
    comparisons = [text for other in others if (text := _against(evaluation, terms, winner, other))]
    if comparisons:
        text = "; ".join(comparisons) + "."
        sentences.append(text[0].upper() + text[1:])
    return " ".join(sentences)


def describe(config: ParallelConfig) -> str:
    """What a layout does, in a sentence."""
    sequence = config.ulysses * config.ring * config.allgather
    if config.world_size == 1:
        return "One GPU runs everything."
    parts = []
    if config.cfg > 1:
        parts.append(f"{config.cfg} guidance branches run at once")
    if sequence > 1:
        parts.append(f"the tokens of each branch are split over {sequence} GPUs")
    if config.tp > 1:
        parts.append(f"each layer is split over {config.tp} GPUs")
    if config.pp > 1:
        parts.append(f"the layers are spread over {config.pp} stages")
    if config.hsdp > 1:
        parts.append(f"block weights are sharded over {config.hsdp} GPUs")
    if config.vae_patch > 1:
        parts.append(f"{config.vae_patch} GPUs decode VAE tiles")
    if config.dp > 1:
        parts.append(f"{config.dp} replicas serve requests side by side")
    text = ", ".join(parts) + "."
    return text[0].upper() + text[1:]


def _against(
    evaluation: Evaluation, terms: dict[str, Column], winner: int, other: int
) -> str | None:
    saved = {name: float(t[other] - t[winner]) * MS_PER_S for name, t in terms.items()}
    floor = max(NAMED_MS, abs(float(evaluation.latency_s[winner])))
    gains = sorted((-ms, name) for name, ms in saved.items() if ms > floor)[:2]
    costs = sorted((ms, name) for name, ms in saved.items() if ms < -floor)[:2]
    if not gains:
        return None
    name = evaluation.layouts.row(other).config_id
    text = f"against {name} this saves " + " and ".join(f"{-ms:,.0f} ms of {n}" for ms, n in gains)
    if costs:
        text += " for " + " and ".join(f"{-ms:,.0f} ms more {n}" for ms, n in costs)
    return text


def contrasts(layouts: Layouts, order: NDArray[np.intp], winner: int, count: int = 2) -> list[int]:
    """Places worth comparing with: the same number of GPUs, each another kind of layout."""
    world = layouts.world_size
    seen = {_kind(layouts.row(winner))}
    chosen: list[int] = []
    for row in order:
        kind = _kind(layouts.row(int(row)))
        if world[row] == world[winner] and kind not in seen:
            seen.add(kind)
            chosen.append(int(row))
        if len(chosen) == count:
            break
    return chosen


def _kind(config: ParallelConfig) -> tuple[bool, ...]:
    return (
        config.cfg > 1,
        config.ulysses > 1,
        config.ring > 1,
        config.tp > 1,
        config.pp > 1,
        config.hsdp > 1,
    )


def speedup_loss_s(evaluation: Evaluation, row: int, single: int) -> dict[str, float]:
    """What leads from ``single / world`` to the latency of `row`; the values sum to the gap.

    Undivided work is what a kernel does beyond its part, ``1 / world`` of one GPU's, at
    its own rate; smaller kernels are what is left: lower rates, and kernels that one GPU has not.

    Args:
        evaluation: holds both rows.
        row: the configuration.
        single: the row of one GPU.
    """
    world = int(evaluation.layouts.world_size[row])
    config = evaluation.layouts.row(row)
    if world == 1:
        return {}
    losses: dict[str, float] = {}
    for name in STAGES:
        if name == "denoise":
            continue
        total = evaluation.stages[name].total_s
        loss = float(total[row] - total[single] / world)
        divided = config.vae_patch > 1 and name in ("vae_encode", "vae_decode")
        losses["vae_overlap_and_launches" if divided else f"not_split_{name}"] = (
            losses.get("vae_overlap_and_launches", 0.0) + loss if divided else loss
        )
    denoise = evaluation.stages["denoise"]

    def excess(kinds: tuple[str, ...]) -> float:
        part = denoise.part_s(kinds)
        return float(part[row] - part[single] / world)

    losses["collectives"] = excess(("collective",))
    losses["waiting_and_host_gaps"] = excess(("wait", "host"))
    undivided_s = sum(
        _undivided_s(line, denoise.index, row, single, world) for line in denoise.lines
    )
    losses["undivided_work"] = undivided_s
    losses["smaller_kernels"] = excess(DEVICE_KINDS) - undivided_s
    return {name: value for name, value in losses.items() if value != 0.0}


def _undivided_s(line: Line, index: NDArray[np.intp], row: int, single: int, world: int) -> float:
    """Time [s] of what `line` computes (or moves) in `row` beyond ``1 / world`` of its work."""
    if line.kind not in DEVICE_KINDS:
        return 0.0
    here, alone = index[row], index[single]
    each = line.flops if line.flops[alone] else line.bytes
    part, own = line.count[alone] * each[alone] / world, line.count[here] * each[here]
    return float(line.total_s[here] * (1 - part / own)) if 0 < part < own else 0.0
