"""Models with joint attention and their encoders against traces of the published modules."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.catalog import load_model
from perfmodel.ops import Attention, Gemm, Op, Pointwise
from perfmodel.shapes import Shape
from perfmodel.spec.workload import Workload
from perfmodel.stages import family, text_encoder
from perfmodel.stages.base import Traits
from perfmodel.stages.summary import flops_by_kind

TRACES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "traces_image.jsonl").read_text().splitlines()
]
IDS = [trace["id"] for trace in TRACES]
TRANSFORMERS = [trace for trace in TRACES if trace["component"] != "text_encoder"]


def shape_of(trace: dict[str, Any], traits: Traits) -> Shape:
    model = load_model(trace["model"])
    edited = "ref" in trace["component"] or "edit" in trace["model"]
    workload = Workload(
        task="i2i" if edited else None,
        input_images=1 if edited else None,
        width=trace["width"],
        height=trace["height"],
        frames=trace["frames"] if trace["frames"] > 1 else None,
        batch=trace["batch"],
        text_tokens=trace["text_tokens"],
    )
    return family(model).shape(model, workload, traits)


def ops_of(trace: dict[str, Any]) -> Iterable[Op]:
    if trace["component"] == "text_encoder":
        return text_encoder.encode(trace["model"], 1, trace["tokens"])
    model, traits = load_model(trace["model"]), Traits(fused_qkv=False)
    return family(model).denoise(model, shape_of(trace, traits), traits).per_forward


def dense_flops(ops: Iterable[Op]) -> dict[str, float]:
    ops = list(ops)
    total = flops_by_kind(ops)
    causal = [op for op in ops if isinstance(op, Attention) and op.causal]
    total["attention"] += flops_by_kind(causal)["attention"]
    return total


@pytest.mark.parametrize("trace", TRACES, ids=IDS)
def test_flops_and_eager_traffic_agree_with_the_trace(trace: dict[str, Any]) -> None:
    ops = list(ops_of(trace))
    assert dense_flops(ops) == pytest.approx(trace["flops"], rel=1e-6)
    moved = calls = 0.0
    for op in ops:
        if isinstance(op, Pointwise):
            each = op.bytes_moved if op.eager_bytes is None else op.eager_bytes
            launches = op.launches if op.eager_launches is None else op.eager_launches
            moved += float(np.sum(np.asarray(each) * op.count))
            calls += launches * float(np.max(op.count))
    assert moved == pytest.approx(trace["pointwise_bytes"], rel=0.07)
    assert calls == pytest.approx(trace["pointwise_calls"], rel=0.12, abs=10)


@pytest.mark.parametrize("trace", TRACES, ids=IDS)
def test_every_product_and_attention_is_in_the_trace(trace: dict[str, Any]) -> None:
    products: Counter[tuple[int, ...]] = Counter()
    calls: Counter[tuple[object, ...]] = Counter()
    for op in ops_of(trace):
        if isinstance(op, Gemm) and op.batch == 1:
            products[int(op.m), int(op.n), int(op.k)] += int(op.count)
        elif isinstance(op, Attention):
            key = (op.batch, op.heads, op.kv_heads, op.seq_q, op.seq_kv, op.head_dim, op.causal)
            calls[key] += int(op.count)
    assert products == {tuple(row[:3]): row[3] for row in trace["gemms"]}
    assert calls == {tuple(row[:7]): row[7] for row in trace["attention"]}


PARAMS = {(trace["model"], trace["component"]): trace["params"] for trace in TRACES}


@pytest.mark.parametrize(("name", "component"), sorted(PARAMS))
def test_parameters_are_those_of_the_module(name: str, component: str) -> None:
    if component == "text_encoder":
        found = text_encoder.params(text_encoder.ENCODERS[name])
    else:
        model = load_model(name)
        parts = family(model).components(model)
        found = next(part.params for part in parts if part.name == "transformer")
    assert found == PARAMS[name, component]


@pytest.mark.parametrize("trace", TRANSFORMERS, ids=[t["id"] for t in TRANSFORMERS])
def test_latent_tokens_are_those_of_the_trace(trace: dict[str, Any]) -> None:
    shape = shape_of(trace, Traits())
    text = shape.extra_tokens if trace["model"].startswith("z-image") else 0
    assert shape.tokens - text == trace["tokens"]
