"""Attention backends that engines other than vLLM-Omni pick, by device."""

from __future__ import annotations

from perfmodel.engines.plain.facts import DeviceLike
from perfmodel.engines.vllm_omni.attention import platform_of


def torch_sdpa(device: DeviceLike) -> str:
    """``torch.nn.functional.scaled_dot_product_attention``."""
    return "TORCH_SDPA" if platform_of(device.family) != "npu" else "FLASH_ATTN"


def flash_2(device: DeviceLike) -> str:
    """FlashAttention 2 whatever the device: programs that import the package ``flash_attn``."""
    return "FLASH_ATTN_2"


def cudnn(device: DeviceLike) -> str:
    """The fused attention of cuDNN, which TransformerEngine calls."""
    return "CUDNN_ATTN"


def flash(device: DeviceLike) -> str:
    """FlashAttention of the generation that the device has (2, 3 or 4; AITER on AMD)."""
    return "FLASH_ATTN"


def flash_but_workstation(device: DeviceLike) -> str:
    """FlashAttention; torch SDPA on capability 12.x (SGLang 0.5.23 ``platforms/cuda.py``)."""
    major = (device.compute_capability or "").partition(".")[0]
    return "TORCH_SDPA" if major == "12" else "FLASH_ATTN"


def flash_hopper_else_cudnn(device: DeviceLike) -> str:
    """FlashAttention 3 on Hopper, AITER on AMD, else cuDNN.

    xDiT 0.7.0 takes FlashAttention 4, then 3, then cuDNN, then FlashAttention 2, whichever is
    installed (``core/distributed/runtime_state.py``); 3 exists for Hopper, and 4 is not one of its
    dependencies.
    """
    platform = platform_of(device.family)
    if platform != "cuda":
        return "FLASH_ATTN"
    return "FLASH_ATTN" if device.family == "hopper" else "CUDNN_ATTN"
