"""One rank of the equality tests: whole steps over a mesh against a single process.

``python live_ranks.py CASES RANK RANKS MEETING``: prints a JSON object, the largest difference and
the largest value of each case.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import torch
import torch.distributed as dist

from perfmodel.catalog import load_model
from perfmodel.spec.parallel import ParallelConfig, parse_parallel
from perfmodel.verify.live.denoiser import KINDS, Size, guided
from perfmodel.verify.live.mesh import Mesh, join
from perfmodel.verify.live.parts import Weights
from perfmodel.verify.live.tape import Tape

MODELS = {"cosmos3": "cosmos3-nano", "wan": "wan2.1-i2v-14b"}
NARROW = {
    "hidden": 64,
    "heads": 8,
    "head_dim": 16,
    "ffn": 96,
    "image_tokens": 9,
    "in_channels": 4,
    "out_channels": 4,
}
BLOCKS = 2
BRANCHES = 2


def size(family: str, grid: tuple[int, int, int]) -> Size:
    """Small widths; Cosmos3 shares each key head among two query heads."""
    spec = load_model(MODELS[family]).transformer
    kv_heads = 4 if family == "cosmos3" else 8
    return Size(spec.model_copy(update={**NARROW, "kv_heads": kv_heads}), 1, grid, 7)


def step(family: str, grid: tuple[int, int, int], mesh: Mesh, tape: Tape) -> torch.Tensor:
    """One guided step with all blocks in fp32."""
    weights = Weights(torch.device("cpu"), torch.float32, mesh)
    model = KINDS[family](size(family, grid), weights, BLOCKS)
    return guided(model, tape, model.latent(), BRANCHES)


def main(cases: list[list], rank: int) -> None:
    alone = Mesh(ParallelConfig())
    found = {}
    for family, identity, grid in cases:
        mesh = join(replace(parse_parallel(identity)[0]), rank)
        whole = step(family, tuple(grid), mesh, Tape())
        single = step(family, tuple(grid), alone, Tape())
        found[f"{family} {identity} {grid}"] = [
            float((whole - single).abs().max()),
            float(single.abs().max()),
        ]
    print(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    number, ranks = int(sys.argv[2]), int(sys.argv[3])
    dist.init_process_group(
        "gloo", init_method=f"file://{sys.argv[4]}", rank=number, world_size=ranks
    )
    with torch.inference_mode():
        main(json.loads(sys.argv[1]), number)
    dist.destroy_process_group()
