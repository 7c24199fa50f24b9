"""SGLang Diffusion (``sglang serve`` / ``sglang generate``)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perfmodel.engines.base import Residency
from perfmodel.engines.described.attention import (
    flash,
    flash_but_workstation,
    flash_or_cudnn,
    refused_by_sglang,
)
from perfmodel.engines.described.engine import DescribedEngine
from perfmodel.engines.described.facts import Earlier, Era, Facts, ModelFacts
from perfmodel.engines.sglang_diffusion.commands import (
    BACKENDS,
    QUANTISED,
    STORED,
    read_launch,
    render,
)
from perfmodel.engines.sglang_diffusion.rules import RULES

_WHEEL = "https://pypi.org/project/sglang/0.5.23/ sglang/multimodal_gen/"
_AXES = frozenset({"cfg", "ulysses", "ring", "allgather", "tp", "hsdp", "vae_patch"})


# The auto mode keeps all components on a device that holds the weights of a rank twice over (a
# transformer loaded from another path, as quantised ones are, never counts as such); else the
# encoders come layer by layer, and the image transformer and the VAE stay. An encoder as wide as
# T5-XXL is divided over all ranks that reach each other; narrower ones are not worth it.
_AUTO = Residency(resident_multiple=2.0, streamed=True, fold_min_width=4096)
_HALF = replace(_AUTO, text_encoder_bits=16, vae_bits=16)


def _model(pipeline: str, residency: Residency = _AUTO, **facts: object) -> ModelFacts:
    """Hand-written fused kernels run eagerly; T5 in fp32; the VAE in bands of rows."""
    facts = {"timers_wait": False, "encode_mode": "whole", **facts}
    return ModelFacts(
        pipeline=pipeline,
        axes=_AXES,
        fused_blocks=True,
        banded_vae=True,
        vae_everywhere=True,
        residency=residency,
        offload_modes=("none", "auto", "text-encoder", "layerwise"),
        **facts,  # type: ignore[arg-type]
    )


_HUNYUAN = _model(
    "HunyuanVideoPipeline",
    _HALF,
    valid_text_only=True,
    text_split=True,
    vae_tiled=True,
    vae_autocast=True,
)
_VAE = "sglang/multimodal_gen/runtime/models/vaes/"


def _wan_vae(pipeline: str, residency: Residency = _AUTO, **facts: object) -> ModelFacts:
    """Weights in the layout of the kernels, norms and activations fused, copies joined."""
    facts = {"vae_fast_path": "channels_last", "streams_frames": True, **facts}
    return _model(pipeline, residency, **facts)


_WAN22: dict[str, Any] = {
    "text_bits": 32,
    "vae_bits": 32,
    "encode_bits": 32,
    "encode_mode": "band",
}
# Precisions: configs/pipeline_configs/*.py (vae_decode_precision, text_encoder_precisions).
FACTS = Facts(
    name="sglang-diffusion",
    title="SGLang Diffusion",
    terms="sglang-diffusion",
    releases={
        "0.5.13": "2026-06-11",
        "0.5.14": "2026-06-26",
        "0.5.16": "2026-07-25",
        "0.5.17": "2026-08-08",
        "0.5.18": "2026-08-21",
        "0.5.19": "2026-09-04",
        "0.5.21": "2026-10-01",
        "0.5.22": "2026-10-16",
        "0.5.23": "2026-10-30",
    },
    models=(
        # Its stages read the timestep of each step and the clip on the host.
        (r"cosmos3", _wan_vae("Cosmos3Pipeline", runs_ahead=False)),
        # pipeline_configs/wan.py Wan2_2_T2V_A14B_Config: flow_shift 12, as in Wan's own code.
        (r"wan2\.2-t2v", _wan_vae("WanPipeline-2.2", flow_shift=12.0, **_WAN22)),
        (r"(wan2\.2|fastwan2\.2)", _wan_vae("WanPipeline-2.2", **_WAN22)),
        (
            r"(wan(?!.*vace)|fastwan)",
            _wan_vae("WanPipeline", text_bits=32, encode_bits=32, encode_mode="band"),
        ),
        (r"(fast)?hunyuan", _HUNYUAN),
        (r"qwen-image", _model("Pipeline", _HALF, text_split=True)),
        (r"flux\.?1", _model("Pipeline", _HALF, text_split=True, vae_autocast=True)),
        (r"flux", _model("Pipeline", _HALF, text_split=True)),
        (r"z-image(?!.*controlnet)", _model("Pipeline", _HALF, vae_autocast=True)),
        # pipeline_configs/minimax_h3.py: the video VAE's weights and encodes in fp32.
        (r"minimax-h3", _model("MiniMaxH3Pipeline", encode_bits=32, vae_tiled=True)),
        # runtime/models/dits/ltx_2.py: gather_context_kv_for_sp gathers keys and values.
        (r"(ltx|helios|sana|sd3)", _model("Pipeline", sound_reads="keys")),
    ),
    earlier=(
        Earlier(
            before="2026-10-16",
            models=r".*",
            changes={"streams_frames": False},
            source="runtime/pipelines_core/stages/encode_while_decoding.py since 0.5.22",
        ),
        Earlier(
            before="2026-08-21",
            models=r".*",
            changes={"vae_fast_path": "off"},
            source=f"{_VAE}wan_vae_cuda_opt.py, in 0.5.18 and not in 0.5.17",
        ),
        Earlier(
            before="2026-08-08",
            models=r"(wan2\.1|fastwan2\.1)",
            changes={"vae_bits": 32},
            source="configs/pipeline_configs/wan.py: vae_decode_precision since 0.5.17",
        ),
        Earlier(
            before="2026-06-26",
            models=r"(cosmos3|wan|fastwan)",
            changes={"vae_over_sequence": True},
            source=f"{_VAE}parallel/wan_dist_utils.py: bands over the sequence group in 0.5.13, "
            "over all ranks in 0.5.14",
        ),
    ),
    platforms=("cuda", "rocm", "npu"),
    attention=flash_or_cudnn,
    attentions=tuple(BACKENDS),
    dtypes=("fp16", *QUANTISED, *STORED),
    # server_args.py _adjust_attention_backend: a ring takes "fa" when nothing is named.
    ring_attention=flash,
    refused=refused_by_sglang,
    eras=(
        # platforms/interface.py: cuDNN since 0.5.17; default on capability 10.x since 0.5.18.
        Era(
            until="2026-08-08",
            terms="sglang-diffusion",
            attention=flash_but_workstation,
            attentions=tuple(name for name in BACKENDS if name != "CUDNN_ATTN"),
        ),
        Era(until="2026-08-21", terms="sglang-diffusion", attention=flash_but_workstation),
    ),
    server=True,
    aliases={"FA": "FLASH_ATTN", "AITER": "FLASH_ATTN"},
    sources=(
        f"{_WHEEL}runtime/server_args/server_args.py",
        f"{_WHEEL}runtime/server_args/auto_tune.py (weights held twice over stay on the device)",
        f"{_WHEEL}runtime/models/encoders/base.py (encoders of width 4096 divided over ranks)",
        f"{_WHEEL}runtime/platforms/cuda.py",
        f"{_WHEEL}configs/pipeline_configs/wan.py, cosmos3.py",
        f"{_WHEEL}runtime/models/vaes/wanvae.py (bands of rows over all ranks)",
        f"{_WHEEL}configs/sample/sampling_params.py (quality lossless: fused VAE kernels)",
        f"{_WHEEL}runtime/loader/component_loaders/vae_loader.py (channels-last weights)",
        f"{_WHEEL}runtime/pipelines_core/stages/decoding.py (autocast)",
        f"{_WHEEL}runtime/utils/perf_logger.py (stage timers leave queued work to a later stage)",
    ),
)
ENGINE = DescribedEngine(facts=FACTS, starter=render, reader=read_launch, extra_rules=RULES)
