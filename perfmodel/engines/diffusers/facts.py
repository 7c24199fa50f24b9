"""diffusers: what its pipelines do (read in the 0.42.1 wheel)."""

from __future__ import annotations

from perfmodel.engines.described.attention import cudnn_on_cuda, refused_by_diffusers, torch_sdpa
from perfmodel.engines.described.facts import Facts, ModelFacts
from perfmodel.engines.diffusers.commands import BACKENDS, DTYPES

_WHEEL = "https://pypi.org/project/diffusers/0.42.1/ diffusers/"
SOURCES = (
    f"{_WHEEL}pipelines/wan/pipeline_wan.py (one branch after the other, fp32 VAE)",
    f"{_WHEEL}pipelines/cosmos/pipeline_cosmos3_omni.py (image repeated over all frames)",
    f"{_WHEEL}models/transformers/transformer_cosmos3.py (text tower inside forward)",
    f"{_WHEEL}models/_modeling_parallel.py (ulysses and ring degrees, no guidance parallelism)",
)
OFFLOADS = ("none", "auto", "model", "layerwise")
# Context parallelism needs a plan in the transformer (`_cp_plan`); tokens must divide.
_PARALLEL = frozenset({"ulysses", "ring"})

COSMOS3 = ModelFacts(
    pipeline="Cosmos3OmniPipeline",
    text_each_forward=True,
    whole_clip=True,
    offload_modes=OFFLOADS,
)
WAN = ModelFacts(
    pipeline="WanPipeline",
    axes=_PARALLEL,
    auto_pad=False,
    vae_bits=32,
    encode_bits=32,
    offload_modes=OFFLOADS,
)
JOINT = ModelFacts(
    pipeline="DiffusionPipeline",
    axes=_PARALLEL,
    auto_pad=False,
    text_split=True,
    offload_modes=OFFLOADS,
)
# Any class of the library, with a context-parallel plan of one's own where it has none; the
# branches of a step, which most pipelines join to one batch, may be divided over two processes.
TRACED = ModelFacts(
    pipeline="DiffusionPipeline",
    axes=_PARALLEL | {"cfg"},
    auto_pad=False,
    offload_modes=OFFLOADS,
)
PLAIN = ModelFacts(pipeline="DiffusionPipeline", offload_modes=OFFLOADS)

MODELS: tuple[tuple[str, ModelFacts], ...] = (
    (r"cosmos3", COSMOS3),
    (r"(wan|fastwan)", WAN),
    (r"(flux|qwen-image|ltx|helios)", JOINT),
    # LongCat-Video has no class in diffusers 0.42.1.
    (r"(?!longcat-video)", PLAIN),
)

FACTS = Facts(
    name="diffusers",
    title="diffusers",
    terms="diffusers",
    releases={"0.42.1": "2026-10-27"},
    models=MODELS,
    platforms=("cuda", "rocm", "npu"),
    attention=torch_sdpa,
    attentions=tuple(BACKENDS),
    ring_attention=cudnn_on_cuda,
    refused=refused_by_diffusers,
    torch_norms=True,
    torchao=True,
    dtypes=DTYPES,
    aliases={"NATIVE": "TORCH_SDPA", "SDPA": "TORCH_SDPA"},
    sources=SOURCES,
    weight_only=("fp8wo", "int8wo", "fp8cast", "nf4"),
    traced=TRACED,
)
