"""Which measured attention kernel stands behind an engine's backend name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.cost.fits import Law
from perfmodel.cost.machine import Machine
from perfmodel.cost.partition import WIDE_HEAD_ROWS
from perfmodel.cost.result import as_float
from perfmodel.ops import Attention

BACKEND_KERNELS: dict[str, tuple[str, ...]] = {
    "FLASH_ATTN": ("flash_attn", "fa4", "fa3", "fa2", "flash_attention"),
    "FLASH_ATTN_4": ("fa4",),
    "FLASH_ATTN_3": ("fa3",),
    "FLASH_ATTN_2": ("fa2", "flash_attention"),
    "FLASHINFER": ("flashinfer",),
    "FLASHINFER_ATTN": ("flashinfer",),
    "TRTLLM_ATTN": ("trtllm",),
    "TRITON_ATTN": ("triton",),
    "CUDNN_ATTN": ("cudnn",),
    "TORCH_SDPA": ("sdpa_flash", "sdpa_cudnn", "sdpa_default"),
    "SDPA": ("sdpa_flash", "sdpa_cudnn", "sdpa_default"),
    "SDPA_EFFICIENT": ("sdpa_efficient",),
    "XFORMERS": ("xformers", "sdpa_efficient"),
    "ASCEND": ("FusedInferAttentionScore",),
    "ASCEND_ATTN": ("FusedInferAttentionScore",),
    "ASCEND_FA": ("FusedInferAttentionScore",),
}
"""Parts of kernel names in preference order; a backend that is absent here is a named prior."""

KERNEL_PARTS = tuple(dict.fromkeys(part for parts in BACKEND_KERNELS.values() for part in parts))
"""What the name of a kernel holds that stands behind a backend."""


def stands_behind_a_backend(kernel: str) -> bool:
    """Whether predictions know a backend by the kernel of this name."""
    return any(part.lower() in kernel.lower() for part in KERNEL_PARTS)


PRIOR_BACKENDS = {
    "CUDNN_ATTN": "attention_rate_cudnn",
    "TORCH_SDPA": "attention_rate_torch_sdpa",
    "SDPA": "attention_rate_torch_sdpa",
    "FLASH_ATTN_2": "attention_rate_fa2",
    "SAGE_ATTN": "attention_rate_sage",
    "XFORMERS": "attention_rate_sdpa_efficient",
    "SDPA_EFFICIENT": "attention_rate_sdpa_efficient",
}
"""Backends that the shipped records do not hold: a factor on the device's best measured kernel.

Records of `perfmodel bench` do hold them (``sdpa_*``); then the measured factor is used.
"""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """Kernels that may run an attention; the fastest at each shape does.

    Attributes:
        options: (rate factor, factor on the exponentials) of each.
        provenance: of the factors.
        measured: records hold these kernels, so their tiles are known.
        padded: head width that the heads are padded to; 0 is their own.
        rows: query rows of the tiles of a kernel that never splits keys; 0 for the others.
    """

    options: tuple[tuple[float, float], ...]
    provenance: str
    measured: bool = False
    padded: int = 0
    rows: float = 0.0

    def arguments(self) -> Iterator[dict[str, Any]]:
        """Keyword arguments of `attention_time_s` for each kernel."""
        width = {"head_dim": as_float(self.padded)} if self.padded else {}
        for rate, exp_rate in self.options:
            factors = {"kernel_rate": as_float(rate), "kernel_exp": as_float(exp_rate)}
            yield {**factors, **width, "measured": self.measured, "rows": self.rows}

    def scaled(self, factor: float, provenance: str) -> KernelChoice:
        """The same kernels, all faster by `factor`."""
        options = tuple((rate * factor, exp) for rate, exp in self.options)
        return replace(self, options=options, provenance=provenance, measured=False)


def kernel_choice(machine: Machine, law: Law | None, op: Attention) -> KernelChoice:
    """The kernels that run `op` on `machine` under its backend.

    A backend that no record holds is a named factor on the device's best measured kernel.
    Non-causal heads of 128 were never measured: they rest on the causal law, whose kernels keep
    their factors.  A backend that was measured at narrower heads alone takes the best kernel of
    the next width, to which any head can be padded: FlashAttention 4 at 80 runs at 0.6 of the rate
    of what was measured at 128.
    """
    backend = (op.backend or default_backend(machine)).upper()
    named = [_named(law, part) for part in BACKEND_KERNELS.get(backend, ())] if law else []
    for names in named:
        if law is not None and (found := _telling(law, names, op.head_dim)):
            return KernelChoice(_factors(law, found), "fitted", measured=True)
    names, padded = _at_width(law, op.head_dim, narrower=any(named))
    best = KernelChoice(_factors(law, names) if law else ((1.0, 1.0),), "prior", padded=padded)
    if op.head_dim > WIDEST_FLASH and backend in TORCH and machine.device.vendor == "NVIDIA":
        backend, best = "SDPA_EFFICIENT", replace(best, rows=WIDE_HEAD_ROWS)
    if backend in PRIOR_BACKENDS:
        name = PRIOR_BACKENDS[backend]
        factor = machine.term(name, 1.0)
        return best.scaled(factor, machine.term_provenance(name))
    return best


def _named(law: Law, part: str) -> list[str]:
    """Kernels whose name holds `part`."""
    return [name for name in law.kernels if part.lower() in name.lower()]


def _telling(law: Law, names: list[str], head_dim: int) -> list[str]:
    """Those of `names` measured at this width; all of them if measured on both sides of it."""
    asked = _inside(law, head_dim)
    widths = [width for name in names for width in law.kernel_dims.get(name, ())]
    if not widths or min(widths) <= asked <= max(widths):
        return [name for name in names if asked in law.kernel_dims.get(name, ())] or names
    return []


def _at_width(law: Law | None, head_dim: int, *, narrower: bool) -> tuple[list[str], int]:
    """The kernels to take the best of, and the width that heads are padded to.

    Kernels measured at this width, or at the nearest to one beyond all; else all, those of the
    next width for a backend whose own kernels are `narrower`.
    """
    if law is None:
        return [], 0
    asked = _inside(law, head_dim)
    known = sorted({width for widths in law.kernel_dims.values() for width in widths})
    if asked not in known and not narrower:
        return list(law.kernels), 0
    width = next((width for width in known if width >= asked), asked)
    names = [name for name in law.kernels if width in law.kernel_dims.get(name, ())]
    return names or list(law.kernels), width if width != asked else 0


def _inside(law: Law, head_dim: int) -> int:
    """The width, held between the narrowest and the widest that any kernel was measured at."""
    known = [width for widths in law.kernel_dims.values() for width in widths]
    return min(max(head_dim, min(known)), max(known)) if known else head_dim


def _factors(law: Law, names: list[str]) -> tuple[tuple[float, float], ...]:
    pairs = {(law.kernels[name], law.kernel_exps.get(name, 1.0)) for name in names}
    return tuple(sorted(pairs)) or ((1.0, 1.0),)


TORCH = frozenset({"TORCH_SDPA", "SDPA"})
WIDEST_FLASH = 256
"""Widest head of the fast kernels behind torch's attention, which runs wider ones (the single head
of an image VAE) in its memory-efficient kernel: ``check_head_dim_size_flash`` in torch 2.10
``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``."""

EIGHT_BIT_BACKENDS = frozenset({"SAGE_ATTN"})
"""Backends that multiply in 8 bits, whatever the tensors are."""


def kernel_dtype(op: Attention, machine: Machine) -> str:
    """The type that the kernel of `op` multiplies in: fp8 (else int8) for SageAttention 2.

    A device without an 8-bit rate keeps the type of the tensors, which are read and written in it
    whatever the kernel multiplies in.
    """
    if (op.backend or "").upper() not in EIGHT_BIT_BACKENDS:
        return op.dtype
    rates = machine.rates.peak_flop_per_s
    return next((name for name in ("fp8", "int8") if rates.get(name)), op.dtype)


def default_backend(machine: Machine) -> str:
    """What torch picks on the device when the engine names nothing."""
    return "ASCEND" if machine.rates.family.startswith("davinci") else "TORCH_SDPA"
