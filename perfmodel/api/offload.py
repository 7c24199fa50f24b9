"""``--offload auto``: nothing waits on the host that fits on the devices."""

from __future__ import annotations

from perfmodel.api.session import Session
from perfmodel.api.table import legality, memory_of
from perfmodel.memory import MemoryTable
from perfmodel.spec.hardware import System
from perfmodel.spec.parallel import Layouts
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
        if mode in session.behaviour.offload_modes and not (alone and mode == "layerwise-gather")
    ]
    tried = (_under(session, mode) for mode in modes)
    found = next((one for one in tried if _something_fits(one, layouts)), None)
    return found or _under(session, "none")


def host_needs(system: System, host_bytes: float) -> str:
    """Host RAM that a change needs, beside what is known of the host's."""
    need = f"{host_bytes / GIB:,.0f} GiB host RAM"
    if system.host_ram_bytes is None:
        return f"{need}, pass --host-ram"
    if host_bytes > system.host_ram_bytes:
        return f"{need}, the host has {system.host_ram_bytes / GIB:,.0f}"
    return need


def _under(session: Session, mode: str) -> Session:
    return session.with_options(session.options.model_copy(update={"offload": mode}))


def _something_fits(session: Session, layouts: Layouts) -> bool:
    if not len(layouts):
        return False
    found = legality(session, layouts)
    if not found.legal.any():
        return False
    return _some_run(session.system, memory_of(session, found.layouts.take(found.legal)))


def _some_run(system: System, memory: MemoryTable) -> bool:
    host = system.host_ram_bytes
    enough = memory.fits if host is None else memory.fits & (memory.host_bytes <= host)
    return bool(enough.any())
