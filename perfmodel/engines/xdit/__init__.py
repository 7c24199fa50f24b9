"""xDiT (package xfuser): Ulysses, ring, guidance and weight sharding around diffusers pipelines."""

from __future__ import annotations

from perfmodel.engines.described.attention import (
    flash_2,
    flash_hopper_else_cudnn,
    refused_by_xdit,
)
from perfmodel.engines.described.engine import DescribedEngine
from perfmodel.engines.described.facts import Earlier, Era, Facts, ModelFacts
from perfmodel.engines.xdit.commands import BACKENDS, read_launch, render
from perfmodel.engines.xdit.rules import RULES

_WHEEL = "https://pypi.org/project/xfuser/0.7.0/ xfuser/"
_RUNNER = frozenset({"cfg", "ulysses", "ring", "hsdp", "vae_patch"})


def _model(pipeline: str, axes: frozenset[str] = _RUNNER, **facts: object) -> ModelFacts:
    """A model of the runner: eager diffusers modules, rows of the decoder over all ranks."""
    facts = {"encode_mode": "whole", "dtypes": ("fp8",), **facts}
    return ModelFacts(
        pipeline=pipeline,
        axes=axes,
        banded_vae=True,
        tiles_over_ranks=True,
        vae_everywhere=True,
        offload_modes=("none", "auto", "model", "layerwise"),
        **facts,  # type: ignore[arg-type]
    )


# ``ModelCapabilities`` without use_cfg_parallel: --use_cfg_parallel is an error there.
_NO_GUIDANCE = _RUNNER - {"cfg"}
# With use_fp4_gemms too; --gemm_quantization is an error without them.
_FP4 = ("fp8", "nvfp4")
# Pipelines that pass the latent in patches through the stages: model_executor/pipelines/*.py.
_PATCHES = frozenset({"pp"})
_EXAMPLE = _RUNNER | {"tp"}
# Capabilities of each runner model: model_executor/models/runner_models/*.py.
FACTS = Facts(
    name="xdit",
    title="xDiT",
    terms="xdit",
    # Days of the files inside the wheels.
    releases={
        "0.4.0": "2024-12-05",
        "0.4.1": "2025-01-01",
        "0.4.2": "2025-03-03",
        "0.4.3": "2025-03-20",
        "0.4.4": "2025-07-25",
        "0.4.5": "2025-11-12",
        "0.5.0": "2026-08-31",
        "0.6.0": "2026-09-01",
        "0.7.0": "2026-09-25",
    },
    models=(
        (
            r"cosmos3-(nano|super)$",
            _model(
                "xFuserCosmos3OmniPipeline", text_each_forward=True, whole_clip=True, dtypes=_FP4
            ),
        ),
        (r"wan.*i2v", _model("xFuserWanImageToVideoPipeline", encode_mode="band", dtypes=_FP4)),
        (r"wan.*vace", _model("xFuserWanVACEPipeline", _NO_GUIDANCE, encode_mode="band")),
        # runner_models/wan.py xFuserWan21T2VModel: flow_shift 12, as in Wan's own code.
        (
            r"wan2\.2-t2v",
            _model(
                "xFuserWanPipeline",
                _NO_GUIDANCE,
                encode_mode="band",
                flow_shift=12.0,
                dtypes=_FP4,
            ),
        ),
        (
            r"wan2\.1-t2v",
            _model("xFuserWanPipeline", _NO_GUIDANCE, encode_mode="band", dtypes=_FP4),
        ),
        (r"wan", _model("xFuserWanPipeline", encode_mode="band", dtypes=_FP4)),
        (
            r"hunyuanvideo-?1\.5",
            _model("xFuserHunyuanVideo15Pipeline", _NO_GUIDANCE - {"hsdp"}, text_split=True),
        ),
        (
            r"(fast)?hunyuan",
            _model(
                "xFuserHunyuanVideoPipeline", _NO_GUIDANCE, valid_text_only=True, text_split=True
            ),
        ),
        (r"flux.*kontext", _model("xFuserFluxPipeline", _NO_GUIDANCE, text_split=True)),
        (
            r"flux\.?2-dev",
            _model("xFuserFluxPipeline", _NO_GUIDANCE | _PATCHES, text_split=True, dtypes=_FP4),
        ),
        (
            r"flux\.?[12]",
            _model("xFuserFluxPipeline", _NO_GUIDANCE | _PATCHES, text_split=True),
        ),
        (r"qwen-image-edit", _model("xFuserQwenImageEditPipeline", text_split=True)),
        (r"qwen-image", _model("xFuserQwenImagePipeline", _NO_GUIDANCE, text_split=True)),
        (r"z-image(?!.*controlnet)", _model("xFuserZImagePipeline", dtypes=("fp8", "int8"))),
        # models/transformers/transformer_ltx2.py: gather_kv gathers the states.
        (r"ltx-2$", _model("xFuserLTX2Pipeline", _NO_GUIDANCE, sound_reads="states")),
        (r"ltx", _model("xFuserLTX2Pipeline", _NO_GUIDANCE, sound_reads="states", dtypes=())),
        (
            r"(sd3|stable-diffusion-3)",
            _model("xFuserStableDiffusion3Pipeline", _EXAMPLE | _PATCHES),
        ),
        # Older pipelines, started by the programs in the repository's examples/.
        (
            r"(pixart|hunyuan-?dit|sana-1)",
            _model("xFuserPipeline", _EXAMPLE | _PATCHES, dtypes=()),
        ),
        (r"(cogvideox|sana|latte)", _model("xFuserPipeline", _EXAMPLE, dtypes=())),
    ),
    earlier=(
        Earlier(
            before="2026-08-31",
            models=r".*",
            changes={},
            without=frozenset({"hsdp"}),
            source="xfuser/config/args.py: --fully_shard_degree in 0.5.0, not in 0.4.5",
        ),
    ),
    platforms=("cuda", "rocm", "npu"),
    refused=refused_by_xdit,
    attention=flash_hopper_else_cudnn,
    attentions=tuple(BACKENDS),
    torch_norms=True,
    # Wheels to 0.4.1: every layer inside a wrapper, attention of the package flash_attn.
    eras=(Era(until="2025-11-12", terms="xdit-wrappers", attention=flash_2),),
    copies=2,
    patch_warmup_steps=1,
    aliases={"FLASH_3": "FLASH_ATTN", "FLASH_4": "FLASH_ATTN", "AITER": "FLASH_ATTN"},
    sources=(
        f"{_WHEEL}config/config.py, config/args.py",
        f"{_WHEEL}core/distributed/parallel_state.py (rank order tp, sp, pp, cfg, dp)",
        f"{_WHEEL}model_executor/layers/usp.py (q, k and v in one exchange)",
        f"{_WHEEL}model_executor/models/runner_models/",
        f"{_WHEEL}model_executor/models/runner_models/vae_manager.py (encoders of Wan in rows too)",
        f"{_WHEEL}model_executor/models/runner_models/vae_manager.py (whole tiles)",
        f"{_WHEEL}config/args.py (--warmup_steps 1)",
    ),
)
ENGINE = DescribedEngine(facts=FACTS, starter=render, reader=read_launch, extra_rules=RULES)
