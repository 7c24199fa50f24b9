"""Norms, rotary embeddings, activations, residuals, copies: memory traffic only.

    time = launches * kernel_floor_s + bytes / (bandwidth * fraction)

Compiled or fused code moves `bytes_moved` in `launches` kernels; eager code moves `eager_bytes`
in `eager_launches` kernels.  Strided reductions and transposes compute an address for every
element, so the multiprocessors issue them at

    bytes per second = strided_bytes_per_clock * multiprocessors * clock

where that is less than the memory gives to copies: it binds on devices whose memory is fast for
their number of multiprocessors, and only where these compute addresses in threads: transfer engines
walk strides at the memory's rate.  So do kernels of eager code that multiply or add a 16-bit vector
broadcast over rows (`scattered_frac` of its bytes); torch runs what is contiguous with several
elements a load (torch 2.6 ``ATen/native/cuda/CUDALoops.cuh``).

A norm of eager torch, and vLLM's, gives a block of 128 threads to each row, however short (torch
2.6 ``ATen/native/cuda/layer_norm_kernel.cu``): heads of 64 elements keep 16 of them busy, and the
rows take

    rows * norm_block_s / (multiprocessors * blocks that one holds)

where that is longer than their bytes do.
"""

from __future__ import annotations

import math

import numpy as np

from perfmodel.cost.fits import Law, Parameter, values_of
from perfmodel.cost.machine import Machine
from perfmodel.cost.result import LATENCY, MEMORY, Costed, FloatArray, as_float, outside
from perfmodel.ops import Ints, Pointwise

PARAMETERS = (
    Parameter(
        "kernel_floor_s", 3.5e-6, 3e-7, 5e-5, "shortest kernel and the gap after it", log=True
    ),
    Parameter("memory_frac", 0.8, 0.1, 1.0, "achieved over datasheet memory bandwidth"),
    Parameter("copy_frac", 0.8, 0.1, 1.0, "the same for copies and layout changes"),
)


ISSUED = "strided_bytes_per_clock"
SIMT_VENDORS = ("NVIDIA", "AMD")
CUDA_VENDOR = "NVIDIA"
"""Vendors whose multiprocessors compute addresses in threads; others have transfer engines."""
THREADS = {"ada": 1536, "blackwell-rtx": 1536}
MOST_THREADS, BLOCK_THREADS = 2048, 128
"""Threads of a multiprocessor (CUDA programming guide, compute capabilities) and of a block."""
L2_COPIES = {"ampere": 2, "hopper": 2, "blackwell": 2}
"""Partitions of the last-level cache that keep copies of their own (NVIDIA A100 and H100 white
papers: each caches for the multiprocessors that are connected to it)."""


def pointwise_time_s(
    floor_s: float, bandwidth_bytes_per_s: float, launches: Ints, moved_bytes: FloatArray
) -> FloatArray:
    """``launches * floor + bytes / bandwidth``."""
    return launches * floor_s + as_float(moved_bytes) / bandwidth_bytes_per_s


def memory_traffic(kernel_bytes: FloatArray, machine: Machine) -> FloatArray:
    """Bytes of a kernel that reach device memory: what its neighbours leave in cache does not.

    ``bytes * (1 - hit_frac / (1 + (bytes / L2)^2))``: a chain of kernels over tensors that fit the
    last-level cache finds part of its inputs there.  A cache in two partitions holds a copy in each
    of what multiprocessors of both sides use.
    """
    capacity = machine.rates.l2_bytes / L2_COPIES.get(machine.rates.family, 1)
    relative = as_float(kernel_bytes) / max(capacity, 1.0)
    hits = machine.term("cache_hit_frac", 0.0) / (1.0 + relative**2)
    return as_float(kernel_bytes * (1.0 - hits))


def _fraction(op: Pointwise, machine: Machine, law: Law | None) -> tuple[float, str]:
    """Achieved bandwidth fraction of this kind of traffic and its provenance."""
    contiguous, provenance = _contiguous_fraction(op.is_copy or op.strided, machine, law)
    if not op.strided:
        return contiguous, provenance
    issued = _issued_bytes_per_s(machine) / machine.rates.memory_bytes_per_s
    if issued < contiguous:
        return issued, machine.term_provenance(ISSUED)
    return contiguous, provenance


def _issued_bytes_per_s(machine: Machine) -> float:
    """Rate of kernels that compute an address for each 16-bit element; no limit if unknown."""
    device = machine.device
    if device.vendor not in SIMT_VENDORS or device.compute.multiprocessors is None:
        return math.inf
    return machine.term(ISSUED) * machine.rates.multiprocessors * machine.rates.clock_hz


def _with_scattered(
    op: Pointwise, machine: Machine, moved: FloatArray, reached: FloatArray, bandwidth: float
) -> FloatArray:
    """Bytes at `bandwidth` that take as long as `reached`, of which kernels moved `moved`."""
    if not np.any(op.scattered_frac):
        return reached
    issued = np.maximum(reached, moved * (bandwidth / _issued_bytes_per_s(machine)))
    return as_float(reached + op.scattered_frac * (issued - reached))


def _rowwise_s(
    op: Pointwise, machine: Machine, moved: FloatArray, bandwidth: float
) -> FloatArray | float:
    """What blocks of short rows take beyond their bytes (kernels move `moved`); 0 if unknown."""
    device = machine.device
    known = device.vendor == CUDA_VENDOR and device.compute.multiprocessors is not None
    if not known or not np.any(op.rowwise_frac):
        return 0.0
    held = THREADS.get(machine.rates.family, MOST_THREADS) // BLOCK_THREADS
    row_bytes = np.maximum(op.row_bytes, 1.0)
    block_s = machine.term("norm_block_s") / (machine.rates.multiprocessors * held)
    each_s = np.maximum(block_s - row_bytes / bandwidth, 0.0)
    return as_float(moved * op.rowwise_frac / row_bytes * each_s)


def _contiguous_fraction(is_copy: bool, machine: Machine, law: Law | None) -> tuple[float, str]:
    if law is not None:
        return values_of(PARAMETERS, law)["copy_frac" if is_copy else "memory_frac"], law.provenance
    name = "copy_memory_frac" if is_copy else "pointwise_memory_frac"
    return machine.term(name, 0.8), machine.term_provenance(name)


def cost_pointwise(
    op: Pointwise, machine: Machine, *, compiled: bool, sustained: bool = True
) -> Costed:
    """Cost of one execution; eager numbers when not compiled."""
    eager = not compiled
    kernels_move = as_float(
        op.eager_bytes if eager and op.eager_bytes is not None else op.bytes_moved
    )
    moved = kernels_move
    launches = op.eager_launches if eager and op.eager_launches is not None else op.launches
    law = machine.laws.get("pointwise")
    if not op.strided:
        kernels = np.maximum(launches, 1)
        moved = memory_traffic(moved / kernels, machine) * kernels
    frac, provenance = _fraction(op, machine, law)
    floor_s = values_of(PARAMETERS, law)["kernel_floor_s"]
    slow = machine.sustained("pointwise") if sustained else 1.0
    bandwidth = machine.rates.memory_bytes_per_s * frac * slow
    runs = (np.asarray(op.count) > 0) & (moved > 0)
    roof = moved / machine.rates.roof_memory_bytes_per_s * runs
    timed = _with_scattered(op, machine, kernels_move, moved, bandwidth) if eager else moved
    rows_s = _rowwise_s(op, machine, kernels_move, bandwidth) if eager else 0.0
    time = np.maximum(pointwise_time_s(floor_s, bandwidth, launches, timed) + rows_s, roof) * runs
    code = np.where(launches * floor_s > 0.5 * time, LATENCY, MEMORY).astype(np.int8)
    return Costed(
        time,
        roof,
        code,
        np.zeros_like(moved),
        moved,
        provenance,
        outside(law.range if law else {}, {"bytes_moved": moved}),
        "pointwise",
    )
