"""Which parallel axes each vLLM-Omni pipeline really implements (read in the wheels to 0.30.0).

Sources inside the wheels, below ``vllm_omni/diffusion``: ``registry.py`` (pipelines), ``_sp_plan``
and ``_hsdp_shard_conditions`` of each transformer, ``PipelineParallelMixin`` and
``Distributed*`` VAEs of each pipeline, ``model_metadata.py`` (attention without masks).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from perfmodel.engines.base import Version
from perfmodel.engines.releases import Release
from perfmodel.engines.vllm_omni.versions import RELEASES, lacks

_OLDEST = min(RELEASES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One pipeline class of the engine.

    Attributes:
        name: class name in the engine's registry.
        first: the first wheel whose registry has it.
        later: attributes of this class that are axes or `mask_free`, and the first wheel in which
            they hold, where that is a later one.
        auto_pad: feature that brought padding of uneven sequences; "" if never.
        pad_masked: padding builds an attention mask (else padded keys stay unmasked).
        mask_free: never passes a mask, so Blackwell may default to TRTLLM_ATTN.
        sound_padded: adds sound frames until the tokens divide.
        vae_broadcast: a distributed decode is sent to all ranks, not kept on rank 0.
        valid_text_only: feature that brought cutting padded text to its real tokens before the
            blocks; "" if never.
        single_stream_tensor: how tensor parallelism treats single-stream blocks (see `Traits`).
        hsdp_since: feature that brought weight sharding to the pipeline; "" if always there.
        sp, cfg, tp, hsdp, pp, vae_patch, spatial_shard, text_encoder_tp: axes that do something.
        legal_degrees: degrees that the pipeline accepts, for axes that it limits by name.
        component_offload: single components can be chosen for offload (Cosmos3: never).
        vae_bits: of the VAE's weights and activations.
        vae_half: feature that brought 16 bits there, 32 before; "" if it was always so.
    """

    name: str
    first: Release = _OLDEST
    later: tuple[tuple[str, Release], ...] = ()
    auto_pad: str = "always"
    pad_masked: bool = False
    mask_free: bool = False
    sound_padded: bool = False
    vae_broadcast: bool = False
    valid_text_only: str = ""
    single_stream_tensor: str = "row"
    sp: bool = True
    cfg: bool = True
    tp: bool = True
    hsdp: bool = True
    hsdp_since: str = "hsdp"
    pp: bool = False
    vae_patch: bool = True
    spatial_shard: bool = False
    text_encoder_tp: bool = False
    legal_degrees: tuple[tuple[str, tuple[int, ...]], ...] = ()
    component_offload: bool = True
    vae_bits: int = 16
    vae_half: str = ""

    def on(self, version: Version) -> Pipeline:
        """This pipeline as a release has it: without what came later."""
        missing = {name: False for name, since in self.later if lacks(since, version)}
        return replace(self, **missing) if missing else self  # type: ignore[arg-type]


_COSMOS3 = Pipeline(
    name="Cosmos3OmniDiffusersPipeline",
    first=(0, 22, 0),
    auto_pad="cosmos3_auto_pad",
    pad_masked=True,
    sound_padded=True,
    spatial_shard=True,
    component_offload=False,
)


def _wan(name: str, *, pp: bool = True, first: Release = _OLDEST) -> Pipeline:
    return Pipeline(
        name=name,
        first=first,
        auto_pad="wan_auto_pad",
        mask_free=True,
        pp=pp,
        spatial_shard=True,
        vae_half="wan_vae_half",
    )


def _qwen(name: str, *, vae_patch: bool = True) -> Pipeline:
    """The edit pipelines load the VAE of diffusers, which no ranks share."""
    later = (("hsdp", (0, 20, 0)),)
    return Pipeline(name=name, vae_broadcast=True, vae_patch=vae_patch, later=later)


def _hunyuan(name: str) -> Pipeline:
    # models/hunyuan_video/pipeline_hunyuan_video_1_5.py: torch_dtype=torch.float32
    return Pipeline(
        name=name,
        first=(0, 18, 0),
        later=(("sp", (0, 22, 0)), ("vae_patch", (0, 22, 0))),
        vae_broadcast=True,
        valid_text_only="valid_text",
        vae_bits=32,
    )


# Frames are divided, so shards may be uneven; linear attention has no ring to merge.
# Source: models/sana_video/transformer_sana_video.py validate_sana_video_parallel_config.
_SANA_VIDEO = Pipeline(
    name="SanaVideoPipeline",
    first=(0, 28, 0),
    later=(("sp", (0, 30, 0)), ("cfg", (0, 30, 0)), ("tp", (0, 30, 0))),
    hsdp=False,
    vae_bits=32,  # with the Wan VAE: pipeline_sana_video.py _resolve_vae_class_and_dtype
    legal_degrees=(
        ("tp", (1, 2)),
        ("cfg", (1, 2)),
        ("ulysses", (1, 2, 4)),
        ("ring", (1,)),
        ("allgather", (1,)),
    ),
)

# Its layers name no parallel split at all; guidance branches may run apart.
# Source: models/ovis_image (disable_tp, no _sp_plan, no _hsdp_shard_conditions in 0.30.0).
_OVIS_IMAGE = Pipeline(
    name="OvisImagePipeline",
    sp=False,
    hsdp_since="ovis_hsdp",
    vae_patch=False,
    legal_degrees=(("tp", (1,)),),
)

# Sound reads the video by an exchange that knows neither ring nor all-gather.
# Source: models/ltx2/ltx2_runtime.py.
_LTX2 = Pipeline(
    name="LTX2Pipeline",
    first=(0, 18, 0),
    later=(("hsdp", (0, 20, 0)), ("vae_patch", (0, 26, 0))),
    auto_pad="",
    legal_degrees=(("ring", (1,)), ("allgather", (1,))),
)
_LTX23 = replace(_LTX2, first=(0, 20, 0), later=(("hsdp", (0, 20, 0)), ("vae_patch", (0, 24, 0))))

# Slug pattern -> pipeline; the first match counts.
_PIPELINES: tuple[tuple[str, Pipeline], ...] = (
    # models/cosmos3/transformer_cosmos3_edge.py.
    (r"cosmos3-edge", replace(_COSMOS3, first=(0, 26, 0))),
    (r"cosmos3", _COSMOS3),
    (r"wan.*vace", _wan("WanVACEPipeline", pp=False, first=(0, 20, 0))),
    (r"wan.*s2v", _wan("WanS2VPipeline", pp=False, first=(0, 20, 0))),
    (r"fastwan", _wan("WanDMDPipeline", first=(0, 28, 0))),
    (r"wan.*ti2v", _wan("WanPipeline")),
    (r"wan.*i2v", _wan("WanImageToVideoPipeline")),
    (r"wan", _wan("WanPipeline")),
    (r"qwen-image-edit-2", _qwen("QwenImageEditPlusPipeline", vae_patch=False)),
    (r"qwen-image-edit", _qwen("QwenImageEditPipeline", vae_patch=False)),
    (r"qwen-image", _qwen("QwenImagePipeline")),
    (
        r"flux\.?2-klein",
        Pipeline(
            name="Flux2KleinPipeline",
            later=(("sp", (0, 18, 0)), ("hsdp", (0, 18, 0))),
            vae_patch=False,
            single_stream_tensor="gather",
        ),
    ),
    (
        r"flux\.?2",
        Pipeline(
            name="Flux2Pipeline",
            first=(0, 18, 0),
            later=(("cfg", (0, 20, 0)), ("sp", (0, 22, 0)), ("vae_patch", (0, 26, 0))),
            vae_broadcast=True,
            single_stream_tensor="gather",
        ),
    ),
    (
        r"flux\.?1-kontext",
        Pipeline(
            name="FluxKontextPipeline",
            first=(0, 18, 0),
            later=(("cfg", (0, 26, 0)),),
            sp=False,
            vae_patch=False,
            single_stream_tensor="gather",
        ),
    ),
    (
        r"flux\.?1",
        Pipeline(
            name="FluxPipeline",
            later=(("cfg", (0, 16, 0)), ("hsdp", (0, 18, 0))),
            sp=False,
            vae_patch=False,
            single_stream_tensor="gather",
        ),
    ),
    (r"hunyuanvideo-?1\.5-i2v", _hunyuan("HunyuanVideo15I2VPipeline")),
    (r"hunyuanvideo-?1\.5", _hunyuan("HunyuanVideo15Pipeline")),
    (r"ltx-?2\.3", _LTX23),
    (r"ltx-?2", _LTX2),
    (
        r"z-image(?!.*controlnet)",
        Pipeline(name="ZImagePipeline", later=(("hsdp", (0, 20, 0)),), auto_pad="", cfg=False),
    ),
    # The last token is repeated until each part of the sequence divides, without a mask.
    # Its VAE is loaded in fp32 (models/helios/pipeline_helios.py).
    (
        r"helios",
        Pipeline(name="HeliosPipeline", first=(0, 18, 0), vae_patch=False, vae_bits=32),
    ),
    (r"sana-video", _SANA_VIDEO),
    (r"(sd3|stable-diffusion-3)", Pipeline(name="StableDiffusion3Pipeline", sp=False, hsdp=False)),
    (r"ovis-image", _OVIS_IMAGE),
    (r"longcat-image", Pipeline(name="LongCatImagePipeline", hsdp=False, vae_patch=False)),
    (r"bagel", Pipeline(name="BagelPipeline", sp=False)),
    (
        r"minimax-h3",
        Pipeline(
            name="MiniMaxH3Pipeline",
            first=(0, 26, 0),
            later=(("mask_free", (0, 28, 0)),),
            mask_free=True,
            cfg=False,
            text_encoder_tp=True,
        ),
    ),
)

# In the catalogue of published models but in no registry of the engine: served only through the
# generic diffusers adapter, on one GPU.
_ADAPTER_ONLY = re.compile(
    r"hunyuanvideo$|fasthunyuan|hunyuanvideo-1\.0|cogvideox|cosmos-predict|cosmos-transfer|pixart"
    r"|hunyuan-?dit|mochi|sana-1|flux\.?1-fill|ltx-video|longcat-video|latte|.*controlnet"
)


def pipeline_of(slug: str) -> Pipeline | None:
    """The pipeline that serves the model `slug`; None when the engine has none."""
    if _ADAPTER_ONLY.match(slug):
        return None
    return next((found for pattern, found in _PIPELINES if re.match(pattern, slug)), None)
