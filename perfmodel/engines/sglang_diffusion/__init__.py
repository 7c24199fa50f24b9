"""SGLang Diffusion (``sglang serve`` / ``sglang generate``)."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.engines.base import Residency
from perfmodel.engines.plain.attention import flash_but_workstation
from perfmodel.engines.plain.engine import PlainEngine
from perfmodel.engines.plain.facts import Facts, ModelFacts
from perfmodel.engines.sglang_diffusion.commands import read_launch, render
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
    return ModelFacts(
        pipeline=pipeline,
        axes=_AXES,
        fused_blocks=True,
        banded_vae=True,
        vae_everywhere=True,
        vae_fast_path="lossless",
        residency=residency,
        offload_modes=("none", "auto", "text-encoder", "layerwise"),
        **facts,  # type: ignore[arg-type]
    )


_HUNYUAN = _model(
    "HunyuanVideoPipeline", _HALF, valid_text_only=True, text_split=True, vae_tiled=True
)

# Precisions: configs/pipeline_configs/*.py (vae_decode_precision, text_encoder_precisions).
FACTS = Facts(
    name="sglang-diffusion",
    title="SGLang Diffusion",
    terms="sglang-diffusion",
    releases={"0.5.23": "2026-10-30"},
    models=(
        (r"cosmos3", _model("Cosmos3Pipeline")),
        (
            r"(wan2\.2|fastwan2\.2)",
            _model("WanPipeline-2.2", text_bits=32, vae_bits=32, encode_bits=32),
        ),
        (r"(wan|fastwan)", _model("WanPipeline", text_bits=32, encode_bits=32)),
        (r"(fast)?hunyuan", _HUNYUAN),
        (r"(qwen-image|flux)", _model("Pipeline", _HALF, text_split=True)),
        (r"z-image(?!.*controlnet)", _model("Pipeline", _HALF)),
        # runtime/models/dits/ltx_2.py: gather_context_kv_for_sp gathers keys and values.
        (r"(ltx|helios|sana|sd3)", _model("Pipeline", sound_reads="keys")),
    ),
    platforms=("cuda", "rocm", "npu"),
    attention=flash_but_workstation,
    server=True,
    aliases={"FA": "FLASH_ATTN", "FA2": "FLASH_ATTN", "AITER": "FLASH_ATTN"},
    sources=(
        f"{_WHEEL}runtime/server_args/server_args.py",
        f"{_WHEEL}runtime/server_args/auto_tune.py (weights held twice over stay on the device)",
        f"{_WHEEL}runtime/models/encoders/base.py (encoders of width 4096 divided over ranks)",
        f"{_WHEEL}runtime/platforms/cuda.py",
        f"{_WHEEL}configs/pipeline_configs/wan.py, cosmos3.py",
        f"{_WHEEL}runtime/models/vaes/wanvae.py (bands of rows over all ranks)",
        f"{_WHEEL}configs/sample/sampling_params.py (quality lossless: fused VAE kernels)",
    ),
)
ENGINE = PlainEngine(facts=FACTS, starter=render, reader=read_launch, extra_rules=RULES)
