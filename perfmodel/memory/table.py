"""The answer of the memory model: bytes by phase, part and configuration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Column = NDArray[np.float64]
Cube = NDArray[np.float64]

PARTS = (
    "weights",
    "text_encoder",
    "vae",
    "activations",
    "workspace",
    "collectives",
    "runtime",
)
WEIGHTS = (0, 1, 2)
"""Rows of `PARTS` that are weights."""
FITS, TIGHT, NO = 0, 1, 2
STATUS = ("fits", "tight", "no")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryTable:
    """Memory of the rank that needs most (rank 0: it holds the first blocks and the clip).

    Attributes:
        parts_bytes: what the driver shows [phase, part, configuration]; ``runtime`` is context,
            allocator slack and cached blocks, ``collectives`` gathered weights, exchange buffers
            and the communicators.
        slack_bytes: the part of it that the allocator gives back before it fails
            [phase, configuration].
        outside_bytes: context and communicators, outside torch's allocator.
        host_bytes: host memory of the ranks of one host: workers, offloaded weights, loading.
        pinned_bytes: the part of it that stays pinned for offload.
        upper_bytes: upper end of the 80 % range of the peak.
        capacity_bytes: usable memory of one device.
    """

    parts_bytes: Cube
    slack_bytes: Column
    outside_bytes: Column
    host_bytes: Column
    pinned_bytes: Column
    upper_bytes: Column
    capacity_bytes: float

    @property
    def by_phase_bytes(self) -> Column:
        """What the driver shows, by phase and configuration."""
        return np.asarray(self.parts_bytes.sum(axis=1), np.float64)

    @property
    def peak_phase(self) -> NDArray[np.intp]:
        """Index into `PHASES` of the highest phase."""
        return np.asarray(self.by_phase_bytes.argmax(axis=0), np.intp)

    @property
    def peak_rank(self) -> NDArray[np.intp]:
        """Global rank of the peak: always 0."""
        return np.zeros(self.parts_bytes.shape[2], np.intp)

    @property
    def peak_parts_bytes(self) -> Column:
        """The parts at the peak phase [part, configuration]; they sum to `peak_bytes`."""
        columns = np.arange(self.parts_bytes.shape[2])
        return np.asarray(self.parts_bytes[self.peak_phase, :, columns].T, np.float64)

    @property
    def peak_bytes(self) -> Column:
        """The highest of the phases."""
        return np.asarray(self.peak_parts_bytes.sum(axis=0), np.float64)

    @property
    def required_bytes(self) -> Column:
        """The least memory that a request runs in: without what the allocator can give back."""
        return np.asarray((self.by_phase_bytes - self.slack_bytes).max(axis=0), np.float64)

    @property
    def reserved_bytes(self) -> Column:
        """What torch reserves on rank 0 (vLLM-Omni prints it as X-Peak-Memory-MB, in MiB)."""
        return self.peak_bytes - self.outside_bytes

    @property
    def fit_status(self) -> NDArray[np.int8]:
        """``FITS``, ``TIGHT`` (the upper end exceeds the capacity) or ``NO``; see `STATUS`."""
        over = self.required_bytes > self.capacity_bytes
        tight = self.upper_bytes > self.capacity_bytes
        return np.where(over, NO, np.where(tight, TIGHT, FITS)).astype(np.int8)

    @property
    def fits(self) -> NDArray[np.bool_]:
        """True where a request runs (tight included)."""
        return np.asarray(self.fit_status != NO)

    @property
    def tight(self) -> NDArray[np.bool_]:
        """True where a request may run out of memory."""
        return np.asarray(self.fit_status == TIGHT)

    def take(self, index: NDArray[np.intp] | NDArray[np.bool_]) -> MemoryTable:
        """The selected configurations."""
        return MemoryTable(
            parts_bytes=self.parts_bytes[:, :, index],
            slack_bytes=self.slack_bytes[:, index],
            outside_bytes=self.outside_bytes[index],
            host_bytes=self.host_bytes[index],
            pinned_bytes=self.pinned_bytes[index],
            upper_bytes=self.upper_bytes[index],
            capacity_bytes=self.capacity_bytes,
        )
