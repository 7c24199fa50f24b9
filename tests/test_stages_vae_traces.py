"""VAE operators against traces of the published modules (``tests/data/README.md``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_counts import convolutions, traced_convolutions
from vae_specs import SPECS

from perfmodel.ops import Op, Pointwise
from perfmodel.placement.tiles import Tiling, edges
from perfmodel.stages import vae as dispatch
from perfmodel.stages.base import Traits
from perfmodel.stages.summary import flops_by_kind

TRACES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "traces_vae.jsonl").read_text().splitlines()
]
IDS = [trace["id"] for trace in TRACES]
FLOP_TOLERANCE = 1e-9
BYTES_TOLERANCE = 0.10
CALLS_TOLERANCE = 0.12
# What the tracer cannot see: layout changes and bias passes inside a convolution call, and the
# first pass of a group norm.
UNTRACED = ("layout conversion", ": bias", "group norm statistics")
# It counts the broadcast indices that a mask of HunyuanVideo compares (4 bytes each) as if they
# were read for every pair, and two calls a row of the mask of 1.5 where a device has one.
MASK_INDEX_BYTES = 8


def maps(trace: dict[str, Any]) -> list[tuple[int, int, int]]:
    spec = SPECS[trace["model"]]
    latent = trace["latent_shape"]
    frames, height, width = (1, *latent[2:]) if len(latent) == 4 else latent[2:]
    unit = spec.spatial_ratio
    if "encode" in trace["component"]:
        frames, height, width, unit = trace["frames"], trace["height"], trace["width"], 1
    if not trace["component"].endswith("tiled"):
        return [(frames, height, width)]
    tiling = Tiling(spec.tile_px // unit, spec.tile_stride_px // unit)
    return [(frames, h, w) for h in edges(height, tiling) for w in edges(width, tiling)]


def ops_of(trace: dict[str, Any]) -> list[Op]:
    spec = SPECS[trace["model"]]
    kind = dispatch.kind(spec)
    run = kind.decode if "decode" in trace["component"] else kind.encode
    return [op for size in maps(trace) for op in run(spec, *size, Traits())]


@pytest.mark.parametrize("trace", TRACES, ids=IDS)
def test_flops_agree_with_the_trace(trace: dict[str, Any]) -> None:
    expected = dict(trace["flops"])
    # The middle layers of some are linear layers, those of others convolutions.
    found = flops_by_kind(ops_of(trace))
    for name, value in expected.items():
        assert found.get(name, 0.0) == pytest.approx(value, rel=FLOP_TOLERANCE)


@pytest.mark.parametrize("trace", TRACES, ids=IDS)
def test_eager_traffic_agrees_with_the_trace(trace: dict[str, Any]) -> None:
    moved = calls = 0.0
    for op in ops_of(trace):
        if isinstance(op, Pointwise) and not any(word in op.name for word in UNTRACED):
            moved += float(np.sum(np.asarray(op.bytes_moved) * op.count))
            calls += float(np.sum(op.launches * np.asarray(op.count)))
    if trace["model"] == "hunyuanvideo-vae":
        pairs = sum(row[3] * row[4] * row[7] for row in trace["attention"])
        moved += MASK_INDEX_BYTES * pairs
    if trace["model"] == "hunyuanvideo-1.5-vae":
        calls += sum(row[3] * row[7] for row in trace["attention"])
    if trace["component"].endswith("tiled"):
        return  # the trace holds the blending of tiles, which is placed apart
    assert moved == pytest.approx(trace["pointwise_bytes"], rel=BYTES_TOLERANCE)
    assert calls == pytest.approx(trace["pointwise_calls"], rel=CALLS_TOLERANCE)


WITH_CONVOLUTIONS = [trace for trace in TRACES if "convs" in trace]


@pytest.mark.parametrize("trace", WITH_CONVOLUTIONS, ids=[t["id"] for t in WITH_CONVOLUTIONS])
def test_every_convolution_is_in_the_trace(trace: dict[str, Any]) -> None:
    assert convolutions(ops_of(trace)) == traced_convolutions(trace)


@pytest.mark.parametrize("name", sorted({trace["model"] for trace in TRACES}))
def test_parameters_are_those_of_the_module(name: str) -> None:
    traced = {t["component"]: t["params"] for t in TRACES if t["model"] == name}
    encoder, decoder = dispatch.kind(SPECS[name]).params(SPECS[name])
    assert (encoder, decoder) == (traced["vae_encode"], traced["vae_decode"])
