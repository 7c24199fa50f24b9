"""Options and behaviour of one vLLM-Omni version for one model on one device."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from perfmodel.engines.base import Behaviour, Residency, Version
from perfmodel.engines.torch_days import attention_kernel
from perfmodel.engines.vllm_omni.pipelines import Pipeline, pipeline_of
from perfmodel.engines.vllm_omni.versions import has
from perfmodel.ops import DTYPE_BITS
from perfmodel.spec.workload import Options
from perfmodel.stages.base import Traits


class _Transformer(Protocol):
    @property
    def head_dim(self) -> int:
        """Width of a head."""


class _Vae(Protocol):
    @property
    def tile_px(self) -> int:
        """Side of a tile."""

    @property
    def tile_stride_px(self) -> int:
        """Distance of tiles."""


class ModelLike(Protocol):
    """What is read of a model here."""

    @property
    def slug(self) -> str:
        """Catalogue id."""

    @property
    def traced(self) -> object | None:
        """Operators of a class without a family, which the engine does not know."""

    @property
    def experts(self) -> int:
        """Full transformers of the pipeline."""

    @property
    def transformer(self) -> _Transformer:
        """The denoiser."""

    @property
    def vae(self) -> _Vae:
        """The VAE."""


class DeviceLike(Protocol):
    """What is read of a device here."""

    @property
    def family(self) -> str:
        """Architecture family."""

    @property
    def compute_capability(self) -> str | None:
        """CUDA compute capability, e.g. ``10.3``."""


SOURCES = (
    "https://pypi.org/project/vllm-omni/0.30.0/ vllm_omni/diffusion/data.py",
    "https://pypi.org/project/vllm-omni/0.30.0/ vllm_omni/platforms/*/platform.py",
    "https://pypi.org/project/vllm-omni/0.30.0/ vllm_omni/diffusion/registry.py",
    "https://pypi.org/project/vllm-omni/0.30.0/ vllm_omni/diffusion/attention/parallel/",
)

HALF = DTYPE_BITS["bf16"]

BACKENDS = (
    "FLASH_ATTN",
    "TORCH_SDPA",
    "SAGE_ATTN",
    "SAGE_ATTN_3",
    "CUDNN_ATTN",
    "FLASHINFER_ATTN",
    "FASTVIDEO_VSA",
    "FLASH_ATTN_HUB",
    "FLASH_ATTN_3_HUB",
    "TRTLLM_ATTN",
    "RAINFUSION_ATTN",
)
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


def _major(device: DeviceLike) -> int:
    text = (device.compute_capability or "").partition(".")[0]
    return int(text) if text.isdecimal() else 0


def is_datacenter_blackwell(device: DeviceLike) -> bool:
    """Compute capability 10.x: the trtllm-gen kernels exist (B200, B300, GB200, GB300)."""
    return _major(device) == 10 or (_major(device) == 0 and device.family == "blackwell")


def backend_name(text: str) -> str:
    """The engine's spelling of an attention backend: ``cudnn`` -> ``CUDNN_ATTN``."""
    name = text.strip().upper().replace("-", "_")
    return _SHORT_NAMES.get(name, name)


def available_backends(device: DeviceLike) -> tuple[str, ...]:
    """Backends that have a kernel for the device (packages assumed installed)."""
    platform, major = platform_of(device.family), _major(device)
    if platform == "npu":
        return ("FLASH_ATTN", "TORCH_SDPA", "RAINFUSION_ATTN")
    if platform != "cuda":
        return ("FLASH_ATTN", "TORCH_SDPA")
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


def default_backend(
    device: DeviceLike, pipeline: Pipeline | None, head_dim: int, version: Version
) -> str:
    """What the engine picks when nothing is asked for (its packages installed).

    Source: ``platforms/{cuda,rocm,npu}/platform.py get_diffusion_attn_backend_cls``.
    """
    platform = platform_of(device.family)
    if platform == "rocm":
        return "FLASH_ATTN" if device.family.startswith("cdna") else "TORCH_SDPA"
    if platform != "cuda" or not device.family.startswith("blackwell"):
        return "FLASH_ATTN"
    mask_free = pipeline is not None and pipeline.mask_free
    trtllm = mask_free and head_dim == 128 and is_datacenter_blackwell(device)
    if trtllm and has("trtllm_default", version):
        return "TRTLLM_ATTN"
    # Before, FlashAttention was refused above compute capability 9.x.
    return "CUDNN_ATTN" if has("cudnn_default", version) else "TORCH_SDPA"


def ring_backend(device: DeviceLike, backend: str) -> str:
    """What a chunk of ring attention runs on: only Flash, AITER and SDPA have a ring kernel.

    Source: ``diffusion/attention/parallel/ring.py``.
    """
    if backend == "FLASH_ATTN" and platform_of(device.family) != "npu":
        return "FLASH_ATTN"
    return "TORCH_SDPA"


def ring_kernel(device: DeviceLike, backend: str) -> str:
    """Kernel family of ring chunks: with torch's attention the memory-efficient one on CUDA.

    Source: ``attention/backends/ring_pytorch_attn.py`` (``op_type="efficient"``).
    """
    named = ring_backend(device, backend)
    torch_on_cuda = named == "TORCH_SDPA" and platform_of(device.family) == "cuda"
    return "SDPA_EFFICIENT" if torch_on_cuda else named


def resolve_options(
    pipeline: Pipeline | None, head_dim: int, device: DeviceLike, version: Version, options: Options
) -> tuple[Options, tuple[str, ...]]:
    """The user's options with the engine's defaults filled in, and the names that were filled."""
    platform = platform_of(device.family)
    wan_vae = pipeline is not None and pipeline.spatial_shard
    fast_path = options.vae_fast_path
    if fast_path is None:
        fast_path = "lossless" if has("vae_fast_path", version) else "off"
    if platform != "cuda" or options.vae_mode != "tile" or not wan_vae:
        fast_path = "off"
    chosen = options.attention_backend
    backend = (
        backend_name(chosen) if chosen else default_backend(device, pipeline, head_dim, version)
    )
    # Ascend has no inductor: the engine logs that and runs eager.
    default = has("compiles", version)
    compiled = platform != "npu" and (default if options.compile is None else options.compile)
    filled = tuple(
        name
        for name in ("attention_backend", "compile", "vae_fast_path")
        if getattr(options, name) is None
    )
    update = {"attention_backend": backend, "compile": compiled, "vae_fast_path": fast_path}
    return options.model_copy(update=update), filled


def resolve_behaviour(
    model: object, device: object, version: Version, options: Options
) -> Behaviour:
    """How `version` runs `model` (a `ModelSpec`) on `device` (a `Device`)."""
    return _resolve(model, device, version, options)  # type: ignore[arg-type]


def _resolve(model: ModelLike, device: DeviceLike, version: Version, options: Options) -> Behaviour:
    pipeline = pipeline_of(model.slug) if model.traced is None else None
    if (
        pipeline is not None
        and pipeline.since
        and version.release
        and not has(pipeline.since, version)
    ):
        pipeline = None
    resolved, assumed = resolve_options(
        pipeline, model.transformer.head_dim, device, version, options
    )
    backend = resolved.attention_backend or "TORCH_SDPA"
    base = Behaviour(
        engine="vllm-omni",
        version=version.label,
        date=version.date,
        terms="vllm-omni",
        attention_backend=backend,
        cross_attention_backend=backend,
        ring_attention_backend=ring_backend(device, backend),
        ring_attention_kernel=ring_kernel(device, backend),
        torch_attention_kernel=attention_kernel(device.family, version.date),
        attention_explicit=options.attention_backend is not None,
        attention_available=available_backends(device),
        platform=platform_of(device.family),
        compiled=bool(resolved.compile),
        ulysses_mode=options.ulysses_mode,
        vae_patch_below_world_legal=has("vae_patch_below_world", version),
        cfg_on_distilled_refused=False,
        vae_tile_px=model.vae.tile_px,
        vae_tile_stride_px=model.vae.tile_stride_px,
        vae_tiling_default=options.vae_tiling == "on",
        # entrypoints/openai/serving_video.py encodes inside a coroutine, without an executor.
        encodes_in_turn=True,
        options=resolved,
        assumed=assumed,
        sources=SOURCES,
    )
    if pipeline is None:
        return replace(base, has_sp=False, has_cfg=False, has_hsdp=False, has_vae_patch=False)
    return _with_pipeline(base, pipeline, model, version)


def _with_pipeline(
    base: Behaviour, pipeline: Pipeline, model: ModelLike, version: Version
) -> Behaviour:
    cosmos = pipeline.since == "cosmos3"
    two_experts = model.experts > 1
    auto_pad = pipeline.auto_pad == "always" or (
        bool(pipeline.auto_pad) and has(pipeline.auto_pad, version)
    )
    cut = bool(pipeline.valid_text_only) and has(pipeline.valid_text_only, version)
    wide = bool(pipeline.vae_half) and not has(pipeline.vae_half, version)
    vae_bits = 2 * HALF if wide else pipeline.vae_bits
    return replace(
        base,
        pipeline=pipeline.name,
        traits=Traits(
            fused_qkv=not cosmos,
            condition_whole_clip=not has("one_frame_condition", version) if cosmos else None,
            vae_fast_path=base.options.vae_fast_path or "off",
            # The checkpoint's own value is not read; both A14B pipelines fall back on this one.
            boundary_ratio=0.875 if two_experts else None,
            valid_text_only=cut,
            # vLLM's RMSNorm and RotaryEmbedding, or its own: one custom kernel each.
            fused_norm_rope=base.platform != "",
            ragged_attention=base.attention_backend == "FLASH_ATTN" and base.platform == "cuda",
            guidance_passes=None if has("guidance_passes", version) else 2,
            branches_apart=not has("guidance_passes", version),
            single_stream_tensor=pipeline.single_stream_tensor,
            vae_bits=vae_bits,
            vae_encode_bits=vae_bits,
        ),
        checks_frames=cosmos and base.options.guardrails and has("no_guardrails", version),
        auto_pad=auto_pad,
        pad_masked=pipeline.pad_masked,
        tokens_padded_to_degree=pipeline.sound_padded and has("sound_padded", version),
        exit_gather_hidden=pipeline.exit_hidden,
        cfg_on_distilled_refused=cosmos and has("distilled_refused", version),
        has_sp=pipeline.sp,
        has_cfg=pipeline.cfg,
        has_allgather=pipeline.sp and has("allgather", version),
        has_ring=dict(pipeline.legal_degrees).get("ring") != (1,),
        legal_degrees=pipeline.legal_degrees,
        has_pp=pipeline.pp and has("pipeline_parallel", version),
        has_hsdp=pipeline.hsdp and has(pipeline.hsdp_since, version),
        has_vae_patch=pipeline.vae_patch and has("vae_patch", version),
        has_text_encoder_tp=pipeline.text_encoder_tp and has("text_encoder_tp", version),
        has_spatial_shard=pipeline.spatial_shard and has("spatial_shard", version),
        vae_result_on_rank0=not pipeline.vae_broadcast,
        residency=Residency(vae_bits=pipeline.vae_bits) if pipeline.vae_bits > HALF else None,
        offload_modes=tuple(
            mode
            for mode in base.offload_modes
            if (pipeline.component_offload or mode != "text-encoder")
            and (mode != "layerwise-gather" or has("layerwise_gather", version))
        ),
    )
