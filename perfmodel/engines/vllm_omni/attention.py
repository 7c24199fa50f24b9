"""Attention backends of vLLM-Omni: the names of each release, the devices that have the kernels.

Read in the wheels of 0.14.0 to 0.30.0: ``diffusion/attention/backends/registry.py`` (names),
``platforms/{cuda,rocm,npu}/platform.py get_diffusion_attn_backend_cls`` (devices, defaults) and
``get_supported_head_sizes`` of each backend.  A release that warns and runs torch's attention in
place of a named backend does not have it here.
"""

from __future__ import annotations

from perfmodel.engines.base import Version
from perfmodel.engines.releases import Release
from perfmodel.engines.vllm_omni.pipelines import Pipeline
from perfmodel.engines.vllm_omni.versions import has, lacks
from perfmodel.spec.hardware import Device

BACKENDS: dict[str, Release] = {
    "FLASH_ATTN": (0, 14, 0),
    "TORCH_SDPA": (0, 14, 0),
    "SAGE_ATTN": (0, 14, 0),
    "SAGE_ATTN_3": (0, 22, 0),
    "CUDNN_ATTN": (0, 22, 0),
    "FLASHINFER_ATTN": (0, 22, 0),
    "FLASH_ATTN_HUB": (0, 26, 0),
    "FLASH_ATTN_3_HUB": (0, 26, 0),
    "TRTLLM_ATTN": (0, 26, 0),
    "FASTVIDEO_VSA": (0, 28, 0),
    "RAINFUSION_ATTN": (0, 28, 0),
}
"""Names and the first wheel that knows each."""
HEAD_DIMS = {
    "SAGE_ATTN_3": frozenset({64, 128, 256}),
    "FLASHINFER_ATTN": frozenset({64, 128, 256}),
    "TRTLLM_ATTN": frozenset({128}),
    "CUDNN_ATTN": frozenset(range(8, 257, 8)),
}
"""Head widths of backends that have few."""
FLASH_ON_BLACKWELL: Release = (0, 22, 0)
"""Before, FLASH_ATTN ran torch's attention above compute capability 9.x."""
MASK_BACKENDS = frozenset(
    {
        "FLASH_ATTN",
        "TORCH_SDPA",
        "CUDNN_ATTN",
        "FLASHINFER_ATTN",
        "FLASH_ATTN_HUB",
        "FLASH_ATTN_3_HUB",
    }
)
RING_BACKENDS = frozenset({"FLASH_ATTN", "TORCH_SDPA"})
SPARSE_BACKENDS = frozenset({"FASTVIDEO_VSA"})
"""Backends that leave products out by default (64 blocks of 256 keys: ``fastvideo_vsa.py``)."""

_SHORT_NAMES = {
    "FA": "FLASH_ATTN",
    "FA3": "FLASH_ATTN",
    "FLASH": "FLASH_ATTN",
    "SDPA": "TORCH_SDPA",
    "TORCH": "TORCH_SDPA",
    "CUDNN": "CUDNN_ATTN",
    "FLASHINFER": "FLASHINFER_ATTN",
    "TRTLLM": "TRTLLM_ATTN",
    "SAGE": "SAGE_ATTN",
}


def platform_of(family: str) -> str:
    """``cuda``, ``rocm`` or ``npu``; "" when the engine has no platform for the family."""
    if family.startswith(("blackwell", "hopper", "ada", "ampere")):
        return "cuda"
    if family.startswith(("cdna", "rdna")):
        return "rocm"
    return "npu" if family.startswith("davinci") else ""


def capability_major(device: Device) -> int:
    """The first number of the compute capability; 0 when it is not known."""
    text = (device.compute_capability or "").partition(".")[0]
    return int(text) if text.isdecimal() else 0


def is_datacenter_blackwell(device: Device) -> bool:
    """Compute capability 10.x: the trtllm-gen kernels exist (B200, B300, GB200, GB300)."""
    major = capability_major(device)
    return major == 10 or (major == 0 and device.family == "blackwell")


def backend_name(text: str) -> str:
    """The engine's spelling of an attention backend: ``cudnn`` -> ``CUDNN_ATTN``."""
    name = text.strip().upper().replace("-", "_")
    return _SHORT_NAMES.get(name, name)


def device_backends(device: Device) -> tuple[str, ...]:
    """Backends that have a kernel for the device (packages assumed installed)."""
    platform, major = platform_of(device.family), capability_major(device)
    if platform == "npu":
        return ("FLASH_ATTN", "TORCH_SDPA", "RAINFUSION_ATTN")
    if platform != "cuda":
        # AITER has kernels for gfx942 and gfx950 only; elsewhere torch runs in its place.
        return ("TORCH_SDPA",) if device.family.startswith("rdna") else ("FLASH_ATTN", "TORCH_SDPA")
    names = ["FLASH_ATTN", "TORCH_SDPA", "FLASHINFER_ATTN", "CUDNN_ATTN"]
    if device.family.startswith("blackwell"):
        names.append("SAGE_ATTN_3")
        if is_datacenter_blackwell(device):
            names += ["TRTLLM_ATTN", "FASTVIDEO_VSA"]
    else:
        names.append("FLASH_ATTN_HUB")
    if device.family == "hopper":
        names.append("FLASH_ATTN_3_HUB")
    if not is_datacenter_blackwell(device) and major != 11:
        names.append("SAGE_ATTN")
    return tuple(names)


def available_backends(device: Device, version: Version, head_dim: int) -> tuple[str, ...]:
    """Backends of `version` that have a kernel of this head width for the device."""

    def there(name: str) -> bool:
        since = BACKENDS[name]
        if name == "FLASH_ATTN" and device.family.startswith("blackwell"):
            since = FLASH_ON_BLACKWELL
        return not lacks(since, version) and head_dim in HEAD_DIMS.get(name, (head_dim,))

    return tuple(name for name in device_backends(device) if there(name))


def default_backend(
    device: Device, pipeline: Pipeline | None, head_dim: int, version: Version
) -> str:
    """What the engine picks when nothing is asked for (its packages installed)."""
    platform = platform_of(device.family)
    if platform == "rocm":
        return "FLASH_ATTN" if device.family.startswith("cdna") else "TORCH_SDPA"
    if platform != "cuda" or not device.family.startswith("blackwell"):
        return "FLASH_ATTN"
    mask_free = pipeline is not None and pipeline.on(version).mask_free
    trtllm = mask_free and head_dim == 128 and is_datacenter_blackwell(device)
    if trtllm and has("trtllm_default", version):
        return "TRTLLM_ATTN"
    # Before, FlashAttention was refused above compute capability 9.x.
    return "CUDNN_ATTN" if has("cudnn_default", version) else "TORCH_SDPA"


def ring_backend(device: Device, backend: str) -> str:
    """What a chunk of ring attention runs on: only Flash, AITER and SDPA have a ring kernel.

    Source: ``diffusion/attention/parallel/ring.py``.
    """
    if backend == "FLASH_ATTN" and platform_of(device.family) != "npu":
        return "FLASH_ATTN"
    return "TORCH_SDPA"


def ring_kernel(device: Device, backend: str) -> str:
    """Kernel family of ring chunks: with torch's attention the memory-efficient one on CUDA.

    Source: ``attention/backends/ring_pytorch_attn.py`` (``op_type="efficient"``).
    """
    named = ring_backend(device, backend)
    torch_on_cuda = named == "TORCH_SDPA" and platform_of(device.family) == "cuda"
    return "SDPA_EFFICIENT" if torch_on_cuda else named
