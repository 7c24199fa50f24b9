"""NVIDIA's own Cosmos programs: Predict2 examples and the Cosmos3 framework.

Sources: https://github.com/nvidia-cosmos/cosmos-predict2 (examples/, documentations/performance.md)
and https://github.com/NVIDIA/cosmos-framework.
"""

from __future__ import annotations

from perfmodel.engines.cosmos_official.commands import read_launch, render
from perfmodel.engines.plain.attention import cudnn
from perfmodel.engines.plain.engine import PlainEngine
from perfmodel.engines.plain.facts import Facts, ModelFacts

# Context parallelism over all processes: heads against tokens by all-to-all.
_PARALLEL = frozenset({"ulysses"})

FACTS = Facts(
    name="cosmos-official",
    title="Cosmos",
    terms="cosmos-official",
    releases={"main": "2026-06-01"},
    models=(
        (r"cosmos3", ModelFacts(pipeline="cosmos-framework", offload_modes=("none", "auto"))),
        (
            r"cosmos-predict2",
            ModelFacts(
                pipeline="Video2WorldPipeline",
                axes=_PARALLEL,
                fused_blocks=True,
                modulation_per_frame=True,
                closing_steps=1,
                auto_pad=False,
                offload_modes=("none", "auto", "text-encoder"),
            ),
        ),
    ),
    platforms=("cuda",),
    attention=cudnn,
    sources=(
        "https://github.com/nvidia-cosmos/cosmos-predict2 documentations/inference_video2world.md",
        "https://github.com/nvidia-cosmos/cosmos-predict2 networks/ (TransformerEngine kernels)",
        "https://github.com/NVIDIA/cosmos-framework",
    ),
)
ENGINE = PlainEngine(facts=FACTS, starter=render, reader=read_launch)
