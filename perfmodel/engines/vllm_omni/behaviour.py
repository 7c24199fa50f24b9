"""Options and behaviour of one vLLM-Omni version for one model on one device."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.engines.base import Behaviour, Residency, Version
from perfmodel.engines.torch_days import attention_kernel
from perfmodel.engines.vllm_omni.attention import (
    available_backends,
    backend_name,
    default_backend,
    platform_of,
    ring_backend,
    ring_kernel,
)
from perfmodel.engines.vllm_omni.pipelines import Pipeline, pipeline_of
from perfmodel.engines.vllm_omni.versions import has, lacks
from perfmodel.ops import DTYPE_BITS
from perfmodel.spec.hardware import Device
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Options
from perfmodel.stages.base import Traits

SOURCES = (
    "https://pypi.org/project/vllm-omni/0.30.0/ vllm_omni/diffusion/data.py",
    "https://pypi.org/project/vllm-omni/0.30.0/ vllm_omni/platforms/*/platform.py",
    "https://pypi.org/project/vllm-omni/0.30.0/ vllm_omni/diffusion/registry.py",
    "https://pypi.org/project/vllm-omni/0.30.0/ vllm_omni/diffusion/attention/parallel/",
    "https://pypi.org/project/vllm-omni/0.14.0/ to 0.28.0, the same files",
)

HALF = DTYPE_BITS["bf16"]


def resolve_options(
    pipeline: Pipeline | None, head_dim: int, device: Device, version: Version, options: Options
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
    model: ModelSpec, device: Device, version: Version, options: Options
) -> Behaviour:
    """How `version` runs `model` on `device`, options resolved."""
    pipeline = pipeline_of(model.slug) if model.traced is None else None
    if pipeline is not None:
        pipeline = None if lacks(pipeline.first, version) else pipeline.on(version)
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
        attention_available=available_backends(device, version, model.transformer.head_dim),
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
        vae_fast_paths=("off", "lossless", "channels_last")
        if has("vae_fast_path", version)
        else ("off",),
        options=resolved,
        assumed=assumed,
        sources=SOURCES,
    )
    if pipeline is None:
        return replace(base, has_sp=False, has_cfg=False, has_hsdp=False, has_vae_patch=False)
    return _with_pipeline(base, pipeline, model, version)


def _with_pipeline(
    base: Behaviour, pipeline: Pipeline, model: ModelSpec, version: Version
) -> Behaviour:
    cosmos = pipeline.name.startswith("Cosmos3")
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
            clip_on_host=cosmos and not has("clip_on_device", version),
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
        cfg_on_distilled_refused=cosmos and has("distilled_refused", version),
        has_sp=pipeline.sp,
        has_cfg=pipeline.cfg,
        has_tp=pipeline.tp,
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
            if (
                mode != "text-encoder"
                or (pipeline.component_offload and has("component_offload", version))
            )
            and (mode != "layerwise-gather" or has("layerwise_gather", version))
        ),
    )
