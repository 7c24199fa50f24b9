"""Families with attention to text, and two streams of sound and video, against traces.

The traces are of the published modules (``tests/data/README.md``), at full depth.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from perfmodel.catalog import load_model
from perfmodel.ops import Attention, Op
from perfmodel.spec.workload import Workload
from perfmodel.stages import family, text_encoder
from perfmodel.stages.base import Traits
from perfmodel.stages.summary import flops_by_kind

TRACES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "traces_other.jsonl").read_text().splitlines()
]
TRANSFORMERS = [trace for trace in TRACES if trace["component"] == "transformer"]
ENCODERS = [trace for trace in TRACES if trace["component"] == "text_encoder"]
TOLERANCE = 1e-6


def dense_flops(ops: Iterable[Op]) -> dict[str, float]:
    ops = list(ops)
    total = flops_by_kind(ops)
    causal = [op for op in ops if isinstance(op, Attention) and op.causal]
    total["attention"] += flops_by_kind(causal)["attention"]
    return total


@pytest.mark.parametrize("trace", TRANSFORMERS, ids=[trace["id"] for trace in TRANSFORMERS])
def test_a_forward_does_the_work_of_the_trace(trace: dict[str, Any]) -> None:
    model, traits = load_model(trace["model"]), Traits(fused_qkv=False)
    workload = Workload(width=trace["width"], height=trace["height"], frames=trace["frames"])
    shape = family(model).shape(model, workload, traits)
    latent = [shape.latent_frames, shape.latent_height, shape.latent_width]
    # CogVideoX lays a latent out as frames before channels.
    channels = model.transformer.out_channels
    expected = [side for side in trace["latent_shape"][1:] if side != channels][-3:]
    assert sorted(latent) == sorted(expected)
    assert shape.video_tokens == trace["tokens"]
    assert shape.text_tokens == trace["text_tokens"]
    work = family(model).denoise(model, shape, traits)
    assert dense_flops(work.per_forward) == pytest.approx(trace["flops"], rel=TOLERANCE)


@pytest.mark.parametrize("trace", TRANSFORMERS, ids=[trace["id"] for trace in TRANSFORMERS])
def test_parameters_equal_those_of_the_trace(trace: dict[str, Any]) -> None:
    model = load_model(trace["model"])
    found = {part.name: part.params for part in family(model).components(model)}
    assert found["transformer"] == trace["params"]


@pytest.mark.parametrize("trace", ENCODERS, ids=[trace["id"] for trace in ENCODERS])
def test_text_encoders_do_the_work_of_the_trace(trace: dict[str, Any]) -> None:
    name, tokens = trace["model"], trace["tokens"]
    ops = text_encoder.encode(name, 1, tokens)
    assert dense_flops(ops) == pytest.approx(trace["flops"], rel=TOLERANCE)
    assert text_encoder.component(name).params == trace["params"]
