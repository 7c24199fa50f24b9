"""What torch does by the day of its release, for engines that leave a choice to it."""

from __future__ import annotations

TORCH_2_9 = "2025-10-15"
"""Release whose ``torch.nn.RMSNorm`` is one kernel on CUDA (``_fused_rms_norm``), not a chain of
eight; https://pypi.org/project/torch/2.9.0/"""

TORCH_2_10 = "2026-01-21"
"""Release whose attention prefers cuDNN on Hopper and B200 (with cuDNN 9.15, which it brings); its
flash kernel before that is FlashAttention 2; https://pypi.org/project/torch/2.10.0/"""


def attention_kernel(family: str, day: str) -> str:
    """Kernel family behind ``scaled_dot_product_attention`` without a mask."""
    old = day < TORCH_2_10 and family in ("hopper", "blackwell")
    return "FLASH_ATTN_2" if old else "TORCH_SDPA"
