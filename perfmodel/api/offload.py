"""``--offload auto``: nothing waits on the host that fits on the devices."""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from perfmodel.api.session import Session
from perfmodel.api.table import build_table, legality, memory_of
from perfmodel.memory import MemoryTable
from perfmodel.spec.hardware import System
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.workload import GATHERED
from perfmodel.units import GIB

MODES = ("none", "text-encoder", "model", "layerwise-gather", "layerwise")
"""By how much waits on the host, least first; gathering takes more than one device."""


def settled(session: Session, layouts: Layouts) -> Session:
    """`session` with ``offload=auto`` replaced by the least mode under which something fits.

    Where nothing fits under any mode that the engine has, nothing is offloaded.  Host RAM counts
    where it is known.
    """
    if session.options.offload != "auto":
        return session
    alone = session.system.num_gpus == 1
    modes = [
        mode
        for mode in MODES
        if mode in session.behaviour.offload_modes and not (alone and mode == GATHERED)
    ]
    tried = (_under(session, mode) for mode in modes)
    found = next((one for one in tried if _something_fits(one, layouts)), None)
    if found is not None and found.options.offload == GATHERED:
        # Both stream the same blocks; which is faster depends on the links.
        plain = _under(session, "layerwise")
        found = min(plain, found, key=lambda one: _fastest(one, layouts))
    return found or _under(session, "none")


def host_needs(system: System, host_bytes: float) -> str:
    """Host RAM that a change needs, beside what is known of the host's."""
    need = f"{host_bytes / GIB:,.0f} GiB host RAM"
    if system.host_ram_bytes is None:
        return f"{host_bytes / GIB:,.0f} GiB --host-ram"
    if host_bytes > system.host_ram_bytes:
        return f"{need}, the host has {system.host_ram_bytes / GIB:,.0f}"
    return need


def _under(session: Session, mode: str) -> Session:
    return session.with_options(session.options.model_copy(update={"offload": mode}))


def _fastest(session: Session, layouts: Layouts) -> tuple[bool, float]:
    """Of what is legal and fits, as it is ranked: whether all of it is tight, least time [s]."""
    found = legality(session, layouts)
    if not found.legal.any():
        return True, inf
    table = build_table(session, found.layouts.take(found.legal))
    fits = enough(session.system, table.memory)
    easy = fits & ~table.memory.tight
    chosen = easy if easy.any() else fits
    seconds = float(np.min(table.evaluation.latency_s, where=chosen, initial=inf))
    return not easy.any(), seconds


def _something_fits(session: Session, layouts: Layouts) -> bool:
    if not len(layouts):
        return False
    found = legality(session, layouts)
    if not found.legal.any():
        return False
    memory = memory_of(session, found.layouts.take(found.legal))
    return bool(enough(session.system, memory).any())


def enough(system: System, memory: MemoryTable) -> NDArray[np.bool_]:
    """Where device memory suffices, and host RAM as far as it is known."""
    host = system.host_ram_bytes
    return np.asarray(memory.fits if host is None else memory.fits & (memory.host_bytes <= host))
