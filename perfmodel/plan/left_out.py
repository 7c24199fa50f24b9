"""Why the other configurations are not run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from perfmodel.api.records import Table
from perfmodel.pipeline.uncertainty import REPEAT_FRAC
from perfmodel.plan.belief import Matrix
from perfmodel.report.plan_answer import LeftOut
from perfmodel.search.explain import terms_s
from perfmodel.spec.parallel import Layouts
from perfmodel.units import PERCENT

SHOWN = 5
SMALL_TERM_FRAC = 0.05
TERMS = {
    "cfg": "guidance exchange",
    "ulysses": "all-to-all",
    "tp": "all-reduce",
    "hsdp": "weight gathers",
}
BoolColumn = NDArray[np.bool_]


def left_out(
    table: Table, rows: NDArray[np.intp], draws: Matrix, runs: Sequence[int]
) -> tuple[LeftOut, ...]:
    """Kinds of configurations that no run has, the likeliest to win first.

    Args:
        table: all predictions.
        rows: rows of the drawn configurations.
        draws: of them, ``[D, len(rows)]``.
        runs: positions of the chosen runs in `rows`.
    """
    layouts = table.evaluation.layouts.take(rows)
    chosen = list(runs)
    floor = draws[:, chosen].min(axis=1)
    found = []
    for name, mask in kinds(layouts, table.session.system.num_gpus).items():
        if not mask.any() or mask[chosen].any():
            continue
        own = draws[:, mask]
        slower = float((own.min(axis=1) > floor).mean())
        loss = float(np.maximum(1 - own.min(axis=1) / floor, 0.0).mean())
        nearest = int(np.flatnonzero(mask)[np.argmin(draws[:, mask].mean(axis=0))])
        found.append(
            LeftOut(
                what=name,
                config_id=table.config_id(int(rows[nearest])),
                slower_share=slower,
                reason=_reason(table, name, int(rows[chosen[0]]), slower, loss),
            )
        )
    found.sort(key=lambda item: item.slower_share or 0.0)
    return tuple(found[:SHOWN])


def kinds(layouts: Layouts, num_gpus: int) -> dict[str, BoolColumn]:
    """Named groups of configurations."""
    world = layouts.world_size
    sharded = layouts.hsdp > 1
    degrees = sorted(set(layouts.vae_patch.tolist()) - {1})
    groups: dict[str, BoolColumn] = {
        "CFG parallel": layouts.cfg > 1,
        "Ulysses": layouts.ulysses > 1,
        "ring": layouts.ring > 1,
        "TP": layouts.tp > 1,
        "PP": layouts.pp > 1,
        "HSDP": sharded,
        "VAE on one GPU": layouts.vae_patch == 1,
        **{f"vaepp{degree}": layouts.vae_patch == degree for degree in degrees},
    }
    if num_gpus > 1:
        groups["fewer GPUs"] = world < num_gpus
    return groups


def _reason(table: Table, name: str, reference: int, slower: float, loss: float) -> str:
    if slower >= 1 - REPEAT_FRAC / 2:
        text = "slower in all draws"
    else:
        text = f"slower in {slower * PERCENT:.0f} % of draws"
    if slower < 1 / 2:
        # it wins often, but by little: a run would not pay
        return f"would gain {loss * PERCENT:.1f} % on average"
    if name == "HSDP" and table.memory.fits.all():
        return f"{text}; all fits without"
    if name == "ring":
        share = _share(table, reference, "ulysses")
        if 0 < share < SMALL_TERM_FRAC:
            return f"{text}; all-to-all is {share * PERCENT:.1f} % only"
    return text


def _share(table: Table, row: int, axis: str) -> float:
    terms = terms_s(table.evaluation)
    return float(terms[TERMS[axis]][row] / table.evaluation.latency_s[row])
