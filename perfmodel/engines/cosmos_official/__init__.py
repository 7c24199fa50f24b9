"""NVIDIA's own Cosmos programs: Predict2 examples and the Cosmos3 framework.

Sources: https://github.com/nvidia-cosmos/cosmos-predict2 (examples/, documentations/performance.md)
and https://github.com/NVIDIA/cosmos-framework.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.engines.base import Residency
from perfmodel.engines.cosmos_official.commands import read_launch, render
from perfmodel.engines.cosmos_official.rules import RULES
from perfmodel.engines.described.attention import cudnn_or_torch, refused_by_cosmos
from perfmodel.engines.described.engine import DescribedEngine
from perfmodel.engines.described.facts import Facts, ModelFacts

# Context parallelism over all processes: heads against tokens by all-to-all.
_PARALLEL = frozenset({"ulysses"})

_PREDICT2 = ModelFacts(
    pipeline="Video2WorldPipeline",
    axes=_PARALLEL,
    fused_norm_rope=True,
    # T5 keeps the fp32 of its checkpoint (imaginaire/auxiliary/text_encoder.py).
    text_bits=32,
    residency=Residency(text_encoder_bits=32),
    modulation_per_frame=True,
    closing_steps=1,
    compile_flag=False,
    auto_pad=False,
    tiles_vae=False,
    offload_modes=("none", "auto", "text-encoder"),
)


def _density(blocks: dict[tuple[int, int], int]) -> float:
    """Mean share of the keys inside windows of rows x columns over all frames, by block."""
    rows, columns = 44, 80
    seen = sum(count * height * width for (height, width), count in blocks.items())
    return seen / (sum(blocks.values()) * rows * columns)


NATTEN_2B = _density({(4, 16): 2, (12, 16): 3, (12, 24): 7, (20, 40): 15, (28, 56): 1})
NATTEN_14B = _density(
    {(4, 16): 11, (12, 16): 2, (12, 24): 10, (20, 40): 6, (28, 56): 6, (44, 80): 1}
)
"""Windows of ``--natten`` by block: cosmos-predict2 1.0.9 ``configs/base/config_natten.py``.

They grow with the map, and their strides are those of the kernel's tiles, so that the share of
the keys is the share of the work.
"""

FACTS = Facts(
    name="cosmos-official",
    title="Cosmos",
    terms="cosmos-official",
    releases={"main": "2026-06-01"},
    models=(
        (
            r"cosmos3",
            ModelFacts(
                pipeline="cosmos-framework", tiles_vae=False, offload_modes=("none", "auto")
            ),
        ),
        (r"cosmos-predict2-2b-v2w", replace(_PREDICT2, sparse_attention={"NATTEN": NATTEN_2B})),
        (r"cosmos-predict2-14b-v2w", replace(_PREDICT2, sparse_attention={"NATTEN": NATTEN_14B})),
        # pipelines/text2image.py: "Always disable context parallelism for text2image".
        (
            r"cosmos-predict2.*-t2i",
            replace(_PREDICT2, pipeline="Text2ImagePipeline", axes=frozenset()),
        ),
        (r"cosmos-predict2", _PREDICT2),
    ),
    platforms=("cuda",),
    attention=cudnn_or_torch,
    attentions=("CUDNN_ATTN", "TORCH_SDPA", "FLASH_ATTN"),
    refused=refused_by_cosmos,
    dtypes=(),
    sources=(
        "https://github.com/nvidia-cosmos/cosmos-predict2 documentations/inference_video2world.md",
        "https://github.com/nvidia-cosmos/cosmos-predict2 networks/ (TransformerEngine kernels)",
        "https://pypi.org/project/cosmos-predict2/1.0.9/ configs/base/config_natten.py",
        "https://pypi.org/project/cosmos-predict2/1.0.9/ models/text2image_dit.py (eager blocks)",
        "https://github.com/NVIDIA/cosmos-framework",
    ),
)
ENGINE = DescribedEngine(facts=FACTS, starter=render, reader=read_launch, extra_rules=RULES)
