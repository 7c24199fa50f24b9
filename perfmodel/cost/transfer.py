"""Bytes over the host link or between processes of the host.

    time = latency + bytes / rate

h2d and d2h run at a fraction of the host link (pageable memory is far below it); ipc is a copy
through shared memory including its serialisation.  All are named priors until a bench or an
engine's runs replace them.
"""

from __future__ import annotations

import numpy as np

from perfmodel.cost.fits import Parameter, values_of
from perfmodel.cost.machine import Machine
from perfmodel.cost.result import HOST, LINK, Costed, as_float
from perfmodel.ops import Transfer

PARAMETERS = (
    Parameter("latency_s", 1e-5, 5e-7, 1e-3, "time of an empty transfer", log=True),
    Parameter("link_frac", 0.5, 0.005, 1.0, "achieved over nominal host link rate"),
)


def _rate(op: Transfer, machine: Machine) -> tuple[float, float, str]:
    """Rate, latency and provenance of a direction."""
    link = machine.rates.host_link_bytes_per_s
    if op.direction == "ipc":
        name = "ipc_bytes_per_s"
        return (
            machine.term(name, 1e9),
            machine.term("ipc_latency_s", 1e-3),
            (machine.term_provenance(name)),
        )
    law = machine.laws.get(f"transfer/{op.direction}")
    name = "pinned_link_frac" if op.pinned else f"{op.direction}_link_frac"
    if law is not None and name not in machine.terms:
        values = values_of(PARAMETERS, law)
        return link * values["link_frac"], values["latency_s"], law.provenance
    frac = machine.term(name, 0.5)
    return link * frac, machine.term("transfer_latency_s", 1e-5), machine.term_provenance(name)


def cost_transfer(op: Transfer, machine: Machine) -> Costed:
    """Cost of one transfer; its roof is the host link (none for ipc)."""
    rate, latency_s, provenance = _rate(op, machine)
    moved = as_float(op.bytes_moved)
    runs = (np.asarray(op.count) > 0) & (moved > 0)
    roof = np.zeros_like(moved)
    if op.direction != "ipc":
        roof = moved / machine.rates.host_link_bytes_per_s * runs
    time = np.maximum(latency_s + moved / rate, roof) * runs
    code = np.asarray(HOST if op.direction == "ipc" else LINK, np.int8)
    return Costed(time, roof, code, np.zeros(()), moved, provenance, np.zeros((), bool), "transfer")
