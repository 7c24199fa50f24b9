"""Attention backends that engines other than vLLM-Omni pick, by device."""

from __future__ import annotations

from perfmodel.engines.described.facts import Use
from perfmodel.engines.vllm_omni.attention import (
    capability_major,
    is_datacenter_blackwell,
    platform_of,
)
from perfmodel.spec.hardware import Device


def torch_sdpa(device: Device) -> str:
    """``torch.nn.functional.scaled_dot_product_attention``."""
    return "TORCH_SDPA" if platform_of(device.family) != "npu" else "FLASH_ATTN"


def flash_2(device: Device) -> str:
    """FlashAttention 2 whatever the device: programs that import the package ``flash_attn``."""
    return "FLASH_ATTN_2"


def cudnn_or_torch(device: Device) -> str:
    """CuDNN on capabilities 9.0 and 10.0, torch's flash kernel on others.

    Source: cosmos-predict2 1.0.9 ``module/attention.py`` (``minimal_a2a``, its default backend).
    """
    native = getattr(device, "compute_capability", None) in ("9.0", "10.0")
    return "CUDNN_ATTN" if native else "TORCH_SDPA"


def refused_by_cosmos(device: Device, use: Use) -> frozenset[str]:
    """The device decides; on Hopper FlashAttention 3 replaces cuDNN where it is installed."""
    del use
    here = {cudnn_or_torch(device)}
    if getattr(device, "compute_capability", None) == "9.0":
        here.add("FLASH_ATTN")
    return frozenset({"CUDNN_ATTN", "TORCH_SDPA", "FLASH_ATTN"} - here)


def flash(device: Device) -> str:
    """FlashAttention of the generation that the device has (2, 3 or 4; AITER on AMD)."""
    return "FLASH_ATTN"


def flash_but_workstation(device: Device) -> str:
    """FlashAttention; torch SDPA on capability 12.x (SGLang ``platforms/cuda.py``)."""
    return "TORCH_SDPA" if capability_major(device) == 12 else "FLASH_ATTN"


def flash_or_cudnn(device: Device) -> str:
    """As before, and cuDNN on capability 10.x (SGLang since 0.5.18, DYNAMIC_CUDNN_SDPA).

    B300 keeps FlashAttention 4 for long self-attention since 0.5.23, within 2 % of cuDNN
    (``layers/attention/backends/sdpa.py``).
    """
    return "CUDNN_ATTN" if is_datacenter_blackwell(device) else flash_but_workstation(device)


def refused_by_sglang(device: Device, use: Use) -> frozenset[str]:
    """FlashAttention on capability 12.x runs as SDPA; a ring needs FlashAttention or Sage."""
    names = {"FLASH_ATTN"} if capability_major(device) == 12 else set()
    if use == "ring":
        names |= {"FLASH_ATTN_2", "TORCH_SDPA", "CUDNN_ATTN"}
    return frozenset(names)


def refused_by_xdit(device: Device, use: Use) -> frozenset[str]:
    """SDPA, FlashAttention 4 (Blackwell) and FlyDSL (RDNA 4) return no sums for a ring.

    Source: ``runtime_state.py _check_if_backend_compatible_with_current_configuration``.
    """
    if use != "ring":
        return frozenset()
    flash = {"FLASH_ATTN"} if device.family in ("blackwell", "rdna4") else set()
    return frozenset({"TORCH_SDPA", *flash})


def refused_by_diffusers(device: Device, use: Use) -> frozenset[str]:
    """Without context parallelism: xFormers, memory-efficient SDPA, FlashAttention 4.

    A ring also needs the sums of the exponentials, which ``native`` and ``_native_npu`` do not
    return (diffusers 0.42.1 ``models/attention_dispatch.py``).
    """
    if use == "alone":
        return frozenset()
    names = {"XFORMERS", "SDPA_EFFICIENT"}
    if is_datacenter_blackwell(device):
        names.add("FLASH_ATTN")
    if use == "ring":
        names |= {"TORCH_SDPA", *({"FLASH_ATTN"} if platform_of(device.family) == "npu" else ())}
    return frozenset(names)


def cudnn_on_cuda(device: Device) -> str:
    """cuDNN, where torch has it; else what torch picks."""
    return "CUDNN_ATTN" if platform_of(device.family) == "cuda" else torch_sdpa(device)


def flash_hopper_else_cudnn(device: Device) -> str:
    """FlashAttention 3 on Hopper, AITER on AMD, else cuDNN.

    xDiT 0.7.0 takes FlashAttention 4, then 3, then cuDNN, then FlashAttention 2, whichever is
    installed (``core/distributed/runtime_state.py``); 3 exists for Hopper, and 4 is not one of its
    dependencies.
    """
    platform = platform_of(device.family)
    if platform != "cuda":
        return "FLASH_ATTN"
    return "FLASH_ATTN" if device.family == "hopper" else "CUDNN_ATTN"
