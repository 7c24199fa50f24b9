"""Operators of the families against traces of the published modules (``tests/data/README.md``)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_counts import convolutions, traced_convolutions

from perfmodel.catalog import load_model
from perfmodel.ops import Attention, Gemm, Op, Pointwise
from perfmodel.spec.workload import Workload
from perfmodel.stages import family, sound_decoder, text_encoder
from perfmodel.stages.base import Traits
from perfmodel.stages.summary import flops_by_kind

TRACES = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "traces.jsonl").read_text().splitlines()
]
VAE_OF = {"wan2.1-vae": "wan2.1-t2v-14b", "wan2.2-vae": "cosmos3-nano"}
ENCODERS = {"text:umt5-xxl": "umt5-xxl", "text:clip-vit-h14-vision": "clip-vit-h14"}
FLOP_TOLERANCE = 1e-6
BYTES_TOLERANCE = 0.10
# What the tracer cannot see: layout changes and bias passes inside a convolution call, and the
# key norm that Edge applies outside the traced tower.  It counts no real kernel for the embedding.
UNTRACED = ("layout conversion", ": bias", "text k norm for the video tower", "text embedding")


def edges(extent: int, size: int, stride: int) -> list[int]:
    return [min(size, extent - start) for start in range(0, extent, stride)]


def vae_maps(trace: dict[str, Any]) -> list[tuple[int, int, int]]:
    vae = load_model(VAE_OF[trace["model"]]).vae
    frames, height, width = trace["latent_shape"][2:]
    if trace["component"] == "vae_decode":
        return [(frames, height, width)]
    if trace["component"] == "vae_encode":
        return [(trace["frames"], trace["height"], trace["width"])]
    if trace["component"] == "vae_decode_tiled":
        size, stride = (n // vae.spatial_ratio for n in (vae.tile_px, vae.tile_stride_px))
        fold, length = 1, frames
    else:
        # diffusers tiles the folded map with the pixel numbers, so tiles are twice as wide.
        size, stride, fold, length = (
            vae.tile_px,
            vae.tile_stride_px,
            vae.pixel_patch,
            trace["frames"],
        )
        height, width = trace["height"] // fold, trace["width"] // fold
    return [
        (length, h * fold, w * fold)
        for h in edges(height, size, stride)
        for w in edges(width, size, stride)
    ]


def vae_ops(trace: dict[str, Any]) -> list[Op]:
    model = load_model(VAE_OF[trace["model"]])
    run = family(model).vae_decode if "decode" in trace["component"] else family(model).vae_encode
    return [op for size in vae_maps(trace) for op in run(model, *size, Traits())]


def denoise_ops(trace: dict[str, Any], *, fused_qkv: bool = False) -> tuple[Op, ...]:
    model = load_model(trace["model"])
    diffusers = trace["component"] == "transformer_full_diffusers"
    traits = Traits(fused_qkv=fused_qkv, understanding_each_forward=diffusers)
    image = "i2v" in model.tasks and "t2v" not in model.tasks
    workload = Workload(
        task="i2v" if image or "expand" in trace["component"] else "t2v",
        width=trace["width"] or None,
        height=trace["height"] or None,
        frames=trace["frames"] or None,
        batch=trace["batch"],
        text_tokens=trace["text_tokens"],
        sound=bool(trace.get("sound_tokens")),
    )
    shape = family(model).shape(model, workload, traits)
    if trace["height"]:
        assert shape.video_tokens == trace["tokens"]
        assert shape.extra_tokens == trace.get("sound_tokens", 0)
        latent = [shape.latent_frames, shape.latent_height, shape.latent_width]
        assert latent == trace["latent_shape"][2:]
    work = family(model).denoise(model, shape, traits)
    return work.per_request if trace["component"] == "und_tower_prefill" else work.per_forward


def ops_of(trace: dict[str, Any]) -> Iterable[Op]:
    if trace["model"] in VAE_OF:
        return vae_ops(trace)
    if trace["model"] in ENCODERS:
        return text_encoder.encode(ENCODERS[trace["model"]], 1)
    if trace["model"] == "cosmos3-sound-tokenizer":
        return sound_decoder.decode(trace["tokens"])
    return denoise_ops(trace)


def dense_flops(ops: Iterable[Op]) -> dict[str, float]:
    ops = list(ops)
    total = flops_by_kind(ops)
    causal = [op for op in ops if isinstance(op, Attention) and op.causal]
    total["attention"] += flops_by_kind(causal)["attention"]
    return total


def eager(ops: Iterable[Op]) -> tuple[float, float]:
    moved = calls = 0.0
    for op in ops:
        if isinstance(op, Pointwise) and not any(word in op.name for word in UNTRACED):
            each = op.bytes_moved if op.eager_bytes is None else op.eager_bytes
            launches = op.launches if op.eager_launches is None else op.eager_launches
            moved += float(np.sum(np.asarray(each) * op.count))
            calls += float(np.sum(launches * np.asarray(op.count)))
    return moved, calls


@pytest.mark.parametrize("trace", TRACES, ids=[trace["id"] for trace in TRACES])
def test_flops_and_eager_traffic_agree_with_the_trace(trace: dict[str, Any]) -> None:
    ops = list(ops_of(trace))
    assert dense_flops(ops) == pytest.approx(trace["flops"], rel=FLOP_TOLERANCE)
    moved, calls = eager(ops)
    assert moved == pytest.approx(trace["pointwise_bytes"], rel=BYTES_TOLERANCE)
    if trace["component"] != "transformer_full_diffusers":
        assert calls == pytest.approx(trace["pointwise_calls"], rel=0.12, abs=20)


SINGLE = [
    trace
    for trace in TRACES
    if trace["gemms"] and trace["component"] != "transformer_full_diffusers"
]


@pytest.mark.parametrize("trace", SINGLE, ids=[trace["id"] for trace in SINGLE])
def test_every_matrix_product_and_attention_is_in_the_trace(trace: dict[str, Any]) -> None:
    ops = list(ops_of(trace))
    products: Counter[tuple[int, ...]] = Counter()
    calls: Counter[tuple[object, ...]] = Counter()
    for op in ops:
        if isinstance(op, Gemm):
            products[int(op.m), int(op.n), int(op.k)] += int(op.count)
        elif isinstance(op, Attention):
            key = (op.batch, op.heads, op.kv_heads, op.seq_q, op.seq_kv, op.head_dim, op.causal)
            calls[key] += int(op.count)
    assert products == {tuple(row[:3]): row[3] for row in trace["gemms"]}
    assert calls == {tuple(row[:7]): row[7] for row in trace["attention"]}


WITH_CONVOLUTIONS = [trace for trace in TRACES if "convs" in trace]


@pytest.mark.parametrize("trace", WITH_CONVOLUTIONS, ids=[t["id"] for t in WITH_CONVOLUTIONS])
def test_every_convolution_of_the_vae_is_in_the_trace(trace: dict[str, Any]) -> None:
    assert convolutions(vae_ops(trace)) == traced_convolutions(trace)


def test_a_fused_projection_is_the_same_work() -> None:
    trace = next(t for t in TRACES if t["id"].startswith("wan2.2-t2v-a14b/transformer/H720"))
    fused = denoise_ops(trace, fused_qkv=True)
    assert dense_flops(fused) == pytest.approx(trace["flops"], rel=1e-12)
    widths = [op.n for op in fused if isinstance(op, Gemm)]
    assert 3 * 5120 in widths
    assert len(fused) == len(denoise_ops(trace)) - 2


PARAMS = {
    trace["model"]: trace["params"]
    for trace in TRACES
    if trace["component"] in ("transformer", "transformer_full_diffusers", "text_encoder")
}


@pytest.mark.parametrize("name", sorted(PARAMS))
def test_parameters_are_those_of_the_module(name: str) -> None:
    if name in ENCODERS:
        assert text_encoder.params(text_encoder.ENCODERS[ENCODERS[name]]) == PARAMS[name]
        return
    model = load_model(name)
    found = {c.name: c.params for c in family(model).components(model)}
    if model.family == "wan":
        assert found["transformer"] == PARAMS[name]
        return
    # The traced module also holds lm_head, which has the shape of the embedding.
    parts = ("understanding", "embeddings", "embeddings", "transformer", "time_embedder")
    assert sum(found[part] for part in parts) == PARAMS[name]


@pytest.mark.parametrize(
    ("name", "loaded"),
    [
        ("cosmos3-nano", 14_551_339_264),
        ("cosmos3-super", 63_241_824_512),
        ("cosmos3-edge", 3_101_221_568),
    ],
)
def test_cosmos3_loads_what_vllm_omni_loads(name: str, loaded: int) -> None:
    model = load_model(name)
    parts = [c for c in family(model).components(model) if c.kind != "vae"]
    assert sum(part.params for part in parts) == loaded


@pytest.mark.parametrize("name", sorted(VAE_OF))
def test_vae_parameters_are_those_of_the_module(name: str) -> None:
    traced = {t["component"]: t for t in TRACES if t["model"] == name}
    model = load_model(VAE_OF[name])
    vae = next(c for c in family(model).components(model) if c.name == "vae")
    assert vae.params == traced["vae_decode"]["params_total"]
    parts = traced["vae_decode"]["params"] + traced["vae_encode"]["params"]
    assert vae.params == pytest.approx(parts, rel=0.005)
