"""Laws that a family lends to a device without records, adapted to its units and power.

Three things differ between a device and the relatives its laws were fitted on:

    density   FLOP a clock and multiprocessor.  A part whose matrix units are cut in half keeps
              the other units of the multiprocessor, so what held the lender below its peak (the
              start of a tile, operand traffic, exponentials between products) holds it less:
              rate_frac = min(most of peak, lent / density), ramps, merges of parts and what
              smaller tiles lose times density
    power     at the limit, clock and voltage fall together, so the rate goes with the square
              root of the watts a FLOP/s.  Running a share u of the peak slows the device by
              max(1, lent slowdown x sqrt(u / lent share x lender's budget / its budget))
              and a device with clock to spare keeps its rate in a long run
    best      a rate measured on the device: the burst is at least that over the lender's own
              best, and what long products sustain is not above it

Two dies of an Ascend 910C share one link to each other; a pair on a mesh or in slots does not.

A law that was fitted on the device itself is left alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from perfmodel.cost.fits import Law, NamedPrior

if TYPE_CHECKING:
    from perfmodel.spec.hardware import Device, Figure

REFERENCE_DTYPE = "bf16"
MOST_OF_PEAK = 0.95
"""Share of the datasheet peak that the best kernels reach where nothing else limits them."""
RAMPS = ("ramp_kv", "split_kv")
"""Losses in units of matrix work: a time of the other units of a multiprocessor."""
TILE_FRACS = ("small_tile_frac", "middle_tile_frac")
"""Rates of smaller tiles: what they lose is such a time too."""
SLOWDOWN = "throttle_frac"
HEADROOM = 0.05
"""Clock to spare from which on a device is not slowed by being busy for long."""
PAIR = "pair_frac"
"""Rate of two ranks over that of more; the topology holds what a pair has of a mesh."""
SAME_UNITS = "NVIDIA"
"""Vendor whose multiprocessors are alike but for their matrix units."""


def adapt(
    laws: Mapping[str, Law], named: Mapping[str, NamedPrior], device: Device
) -> dict[str, Law]:
    """`laws` with those that a family lent adapted to `device`; the others as they are."""
    adapters = {"gemm": _adapted, "attention": _adapted, "collective": _linked}
    return {
        name: adapters[kind](law, named, device)
        if law.provenance == "prior" and (kind := name.split("/")[0]) in adapters
        else law
        for name, law in laws.items()
    }


def _linked(law: Law, named: Mapping[str, NamedPrior], device: Device) -> Law:
    """Two ranks that share a link of the lender have one, or a slot, where this is no switch."""
    pair = law.values.get(PAIR, 1.0)
    if device.link.topology == "switch" or pair >= 1.0 or not law.of_family:
        return law
    return replace(law, values={**law.values, PAIR: 1.0})


def _adapted(law: Law, named: Mapping[str, NamedPrior], device: Device) -> Law:
    lender = law.origin.removeprefix("family ")
    values = dict(law.values)
    if "rate_frac" not in values:
        return law
    lent = values["rate_frac"]
    density = _density(named, device, lender)
    fastest = max(law.kernels.values(), default=1.0)
    best, lenders_best = _best(law, named, device, lender)
    share = lent / density
    if best is not None and lenders_best is not None:
        share = max(share, lent * best / lenders_best)
    share = max(min(share, MOST_OF_PEAK / fastest), lent)
    slowdown, limited = 1.0 + values.get(SLOWDOWN, 0.0), 1.0
    budget = _budget_ratio(named, device, lender)
    if budget is not None:
        wanted = slowdown * math.sqrt(share / lent / budget)
        limited = min(1.0, max(0.0, 1.0 - (1.0 - wanted) / HEADROOM))
        slowdown = max(1.0, wanted)
    if best is not None and law.name.startswith("gemm"):
        slowdown = max(slowdown, share / best)
    values["rate_frac"] = share
    for name in RAMPS:
        if name in values:
            values[name] *= density
    for name in TILE_FRACS:
        if name in values:
            values[name] = 1.0 / (1.0 + density * (1.0 / values[name] - 1.0))
    if SLOWDOWN in values:
        values[SLOWDOWN] = slowdown - 1.0
    return replace(law, values=values, power_limited_frac=limited)


def _density(named: Mapping[str, NamedPrior], device: Device, lender: str) -> float:
    """FLOP a clock and multiprocessor over the lender's, at most 1; powers of two."""
    base = named.get(f"matrix_density.{lender}")
    units, clock = _value(device.compute.multiprocessors), _value(device.compute.boost_hz)
    peak = _value(device.peak_flop_per_s.get(REFERENCE_DTYPE))
    if base is None or not units or not clock or not peak or device.vendor != SAME_UNITS:
        return 1.0
    own = 2.0 ** round(math.log2(peak / units / clock))
    return min(1.0, own / base.value)


def _budget_ratio(named: Mapping[str, NamedPrior], device: Device, lender: str) -> float | None:
    """Watts a peak FLOP/s over the lender's, by what the family needs of them; None if unknown."""
    base = named.get(f"power_budget.{lender}")
    tdp_w = _value(device.compute.tdp_w)
    peak = _value(device.peak_flop_per_s.get(REFERENCE_DTYPE))
    if base is None or not tdp_w or not peak:
        return None
    need = named.get(f"power_need.{device.family}")
    return tdp_w / peak / base.value / (1.0 if need is None else need.value)


def _best(
    law: Law, named: Mapping[str, NamedPrior], device: Device, lender: str
) -> tuple[float | None, float | None]:
    """Best measured bf16 rate over the peak, of the device and of the lender."""
    kind = law.name.split("/")[0]
    table = getattr(device.measured, f"{kind}_flop_per_s")
    measured, peak = (
        _value(table.get(REFERENCE_DTYPE)),
        _value(device.peak_flop_per_s.get(REFERENCE_DTYPE)),
    )
    base = named.get(f"best_{kind}_frac.{lender}")
    return (measured / peak if measured and peak else None), base.value if base else None


def _value(figure: Figure | None) -> float | None:
    return figure.value if figure is not None else None
