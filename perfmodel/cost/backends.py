"""Which measured attention kernel stands behind an engine's backend name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.cost.fits import Law
from perfmodel.cost.machine import Machine
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
    "ASCEND": ("FusedInferAttentionScore",),
    "ASCEND_ATTN": ("FusedInferAttentionScore",),
    "ASCEND_FA": ("FusedInferAttentionScore",),
}
"""Parts of kernel names in preference order; a backend that is absent here is a named prior."""

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
    """

    options: tuple[tuple[float, float], ...]
    provenance: str
    measured: bool = False

    def arguments(self) -> Iterator[dict[str, Any]]:
        """Keyword arguments of `attention_time_s` for each kernel."""
        for rate, exp_rate in self.options:
            factors = {"kernel_rate": as_float(rate), "kernel_exp": as_float(exp_rate)}
            yield {**factors, "measured": self.measured}

    def scaled(self, factor: float, provenance: str) -> KernelChoice:
        """The same kernels, all faster by `factor`."""
        return KernelChoice(tuple((rate * factor, exp) for rate, exp in self.options), provenance)


def kernel_choice(machine: Machine, law: Law | None, op: Attention) -> KernelChoice:
    """The kernels that run `op` on `machine` under its backend.

    A backend that no record holds is a named factor on the device's best measured kernel.
    Non-causal heads of 128 were never measured: they rest on the causal law, whose kernels keep
    their factors.
    """
    names = _at_width(law, op.head_dim)
    backend = (op.backend or default_backend(machine)).upper()
    for part in BACKEND_KERNELS.get(backend, ()):
        matches = [name for name in names if part.lower() in name.lower()]
        if law is not None and matches:
            return KernelChoice(_factors(law, matches), "fitted", measured=True)
    best = KernelChoice(_factors(law, names) if law else ((1.0, 1.0),), "prior")
    if backend in PRIOR_BACKENDS:
        name = PRIOR_BACKENDS[backend]
        factor = machine.term(name, 1.0)
        return best.scaled(factor, machine.term_provenance(name))
    return best


def _at_width(law: Law | None, head_dim: int) -> list[str]:
    """Kernels measured at this head width; all of them when none was."""
    if law is None:
        return []
    measured = [name for name in law.kernels if head_dim in law.kernel_dims.get(name, ())]
    return measured or list(law.kernels)


def _factors(law: Law, names: list[str]) -> tuple[tuple[float, float], ...]:
    pairs = {(law.kernels[name], law.kernel_exps.get(name, 1.0)) for name in names}
    return tuple(sorted(pairs)) or ((1.0, 1.0),)


EIGHT_BIT_BACKENDS = frozenset({"SAGE_ATTN"})
"""Backends that multiply in 8 bits, whatever the tensors are."""


def in_kernel_dtype(op: Attention, machine: Machine) -> Attention:
    """`op` in the type that its kernel multiplies in: fp8 (else int8) for SageAttention 2.

    A device without an 8-bit rate keeps the type of the tensors.
    """
    if (op.backend or "").upper() not in EIGHT_BIT_BACKENDS:
        return op
    rates = machine.rates.peak_flop_per_s
    dtype = next((name for name in ("fp8", "int8") if rates.get(name)), op.dtype)
    return replace(op, dtype=dtype)


def default_backend(machine: Machine) -> str:
    """What torch picks on the device when the engine names nothing."""
    return "ASCEND" if machine.rates.family.startswith("davinci") else "TORCH_SDPA"
