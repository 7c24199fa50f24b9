"""Host work that no kernel hides, and transfers over the host link."""

from __future__ import annotations

import numpy as np

from perfmodel.cost.machine import Machine
from perfmodel.cost.result import HOST, Costed, as_float
from perfmodel.ops import HostWork


def cost_host(op: HostWork, machine: Machine) -> Costed:
    """Seconds each of the engine term that the operator names."""
    seconds = as_float(machine.term(op.term))
    time = seconds * (np.asarray(op.count) > 0)
    zero = np.zeros(())
    return Costed(
        as_float(time),
        zero,
        np.asarray(HOST, np.int8),
        zero,
        zero,
        machine.term_provenance(op.term),
        np.zeros((), bool),
        "host",
    )
