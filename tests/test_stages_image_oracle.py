"""Models with joint attention against the diffusers classes themselves, at shapes of no trace.

The published transformer is built on torch's meta device and run under its FLOP counter, with two
blocks of each kind; parameters are compared at full depth.  On that device torch would write
attention out as two batched products, so the call is intercepted and its operands counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from perfmodel.catalog import load_model
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import family
from perfmodel.stages.base import Traits
from perfmodel.stages.summary import flops_by_kind

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

META = {"device": "meta", "dtype": torch.bfloat16}
FEW = 2
TRAITS = Traits(fused_qkv=False)
PRODUCTS = {"aten.mm", "aten.addmm"}


def tensor(*size: int, dtype: Any = None) -> Any:
    return torch.zeros(size, device="meta", dtype=dtype or torch.bfloat16)


def ids(*size: int) -> Any:
    return torch.zeros(size, device="meta", dtype=torch.int64)


def flux(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    spec = model.transformer
    batch, tokens, text = shape.batch, shape.tokens, shape.text_tokens
    axes = 3 if spec.pooled_width else 4
    rows = () if spec.pooled_width else (batch,)
    inputs = dict(
        hidden_states=tensor(batch, tokens, spec.patch_width_in),
        encoder_hidden_states=tensor(batch, text, spec.text_width),
        timestep=tensor(batch),
        img_ids=tensor(*rows, tokens, axes),
        txt_ids=tensor(*rows, text, axes),
        guidance=tensor(batch) if spec.guidance_embedded else None,
    )
    return {**inputs, "pooled_projections": tensor(batch, 768)} if spec.pooled_width else inputs


def ovis(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    return dict(
        hidden_states=tensor(shape.batch, shape.tokens, 64),
        encoder_hidden_states=tensor(shape.batch, shape.text_tokens, 2048),
        timestep=tensor(shape.batch),
        img_ids=tensor(shape.tokens, 3),
        txt_ids=tensor(shape.text_tokens, 3),
    )


def qwen(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    spec = model.transformer
    text = shape.text_tokens
    sides = (1, shape.latent_height // 2, shape.latent_width // 2)
    return dict(
        hidden_states=tensor(shape.batch, shape.tokens, spec.patch_width_in),
        encoder_hidden_states=tensor(shape.batch, text, spec.text_width),
        encoder_hidden_states_mask=None,
        timestep=tensor(shape.batch),
        img_shapes=[[sides]] * shape.batch,
    )


def sd3(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    return dict(
        hidden_states=tensor(shape.batch, 16, shape.latent_height, shape.latent_width),
        encoder_hidden_states=tensor(shape.batch, shape.text_tokens, 4096),
        pooled_projections=tensor(shape.batch, 2048),
        timestep=tensor(shape.batch),
    )


def video(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    spec, batch = model.transformer, shape.batch
    grid = (shape.latent_frames, shape.latent_height, shape.latent_width)
    latent = tensor(batch, spec.in_channels, *grid)
    return dict(
        hidden_states=latent,
        timestep=ids(batch),
        encoder_hidden_states=tensor(batch, 256, 4096),
        encoder_attention_mask=ids(batch, 256),
        pooled_projections=tensor(batch, 768),
        guidance=tensor(batch),
    )


def z_image(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    latent = tensor(16, 1, shape.latent_height, shape.latent_width)
    return dict(
        x=[latent] * shape.batch,
        t=tensor(shape.batch),
        cap_feats=[tensor(shape.text_tokens, 2560)] * shape.batch,
    )


@dataclass(frozen=True)
class Case:
    """A published class: its configuration at some depth, its inputs, the shapes to run."""

    slug: str
    cls: str
    config: dict[str, Any]
    inputs: Callable[[Shape, ModelSpec], dict[str, Any]]
    depth: tuple[str, ...] = ("num_layers", "num_single_layers")


SD3 = dict(attention_head_dim=64, joint_attention_dim=4096, pooled_projection_dim=2048)
KLEIN = dict(guidance_embeds=False)
CASES = (
    Case("flux.1-dev", "FluxTransformer2DModel", dict(guidance_embeds=True), flux),
    Case("flux.1-schnell", "FluxTransformer2DModel", dict(guidance_embeds=False), flux),
    Case("flux.1-kontext-dev", "FluxTransformer2DModel", dict(guidance_embeds=True), flux),
    Case(
        "flux.1-fill-dev",
        "FluxTransformer2DModel",
        dict(guidance_embeds=True, in_channels=384, out_channels=64),
        flux,
    ),
    Case("flux.2-dev", "Flux2Transformer2DModel", {}, flux),
    Case(
        "flux.2-klein-4b",
        "Flux2Transformer2DModel",
        dict(num_attention_heads=24, joint_attention_dim=7680, **KLEIN),
        flux,
    ),
    Case(
        "flux.2-klein-9b",
        "Flux2Transformer2DModel",
        dict(num_attention_heads=32, joint_attention_dim=12288, **KLEIN),
        flux,
    ),
    Case("ovis-image", "OvisImageTransformer2DModel", {}, ovis),
    Case("qwen-image", "QwenImageTransformer2DModel", {}, qwen, ("num_layers",)),
    Case(
        "sd3.5-large",
        "SD3Transformer2DModel",
        dict(
            num_attention_heads=38,
            caption_projection_dim=2432,
            pos_embed_max_size=192,
            qk_norm="rms_norm",
            **SD3,
        ),
        sd3,
        ("num_layers",),
    ),
    Case(
        "sd3.5-medium",
        "SD3Transformer2DModel",
        dict(
            num_attention_heads=24,
            caption_projection_dim=1536,
            pos_embed_max_size=384,
            qk_norm="rms_norm",
            dual_attention_layers=tuple(range(13)),
            **SD3,
        ),
        sd3,
        ("num_layers",),
    ),
    Case(
        "sd3-medium",
        "SD3Transformer2DModel",
        dict(num_attention_heads=24, caption_projection_dim=1536, pos_embed_max_size=192, **SD3),
        sd3,
        ("num_layers",),
    ),
    Case("z-image", "ZImageTransformer2DModel", {}, z_image, ("n_layers",)),
    Case("hunyuanvideo", "HunyuanVideoTransformer3DModel", {}, video),
    Case("hunyuanvideo-1.5", "HunyuanVideo15Transformer3DModel", {}, video, ("num_layers",)),
)
BY_SLUG = {case.slug: case for case in CASES}
# Reads values of its masks, which meta tensors do not have: only traces and parameters.
WORK = sorted(BY_SLUG.keys() - {"hunyuanvideo-1.5"})
IMAGE_SHAPES = ((768, 512, 1), (1216, 832, 2), (640, 1920, 1))
VIDEO_SHAPES = ((640, 368, 1, 9), (848, 480, 1, 25), (720, 1280, 1, 5))


def build(case: Case, layers: int, single: int) -> Any:
    depth = dict(zip(case.depth, (layers, single), strict=False))
    with torch.device("meta"):
        return getattr(diffusers, case.cls)(**case.config, **depth).to(torch.bfloat16)


def few(model: ModelSpec) -> ModelSpec:
    """The model with two blocks of each kind."""
    spec = model.transformer
    smaller = spec.model_copy(
        update={
            "layers": FEW,
            "single_layers": min(spec.single_layers, FEW),
            "dual_attention_layers": min(spec.dual_attention_layers, FEW),
        }
    )
    return model.model_copy(update={"transformer": smaller})


@cache
def small_module(slug: str) -> Any:
    spec = few(load_model(slug)).transformer
    return build(BY_SLUG[slug], spec.layers, spec.single_layers)


def counted(module: Any, inputs: dict[str, Any], patch: pytest.MonkeyPatch) -> dict[str, float]:
    total = dict(gemm=0.0, attention=0.0, conv=0.0)

    def attend(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        batch, heads, queries, width = query.shape
        total["attention"] += 2.0 * batch * heads * queries * key.shape[2] * width
        total["attention"] += 2.0 * batch * heads * queries * key.shape[2] * value.shape[3]
        return query.new_empty((batch, heads, queries, value.shape[3]))

    patch.setattr(torch.nn.functional, "scaled_dot_product_attention", attend)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(**inputs)
    for op, flops in counter.get_flop_counts()["Global"].items():
        assert str(op) in {*PRODUCTS, "aten.convolution"}, op
        total["conv" if "conv" in str(op) else "gemm"] += flops
    return total


@pytest.mark.parametrize("slug", WORK)
@pytest.mark.parametrize("index", range(len(IMAGE_SHAPES)))
def test_work_at_fresh_shapes(slug: str, index: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = few(load_model(slug))
    size = (VIDEO_SHAPES if slug.startswith("hunyuan") else IMAGE_SHAPES)[index]
    width, height, batch = size[:3]
    workload = Workload(
        width=width, height=height, batch=batch, frames=size[3] if len(size) > 3 else None
    )
    shape = family(model).shape(model, workload, TRAITS)
    mine = flops_by_kind(family(model).denoise(model, shape, TRAITS).per_forward)
    inputs = BY_SLUG[slug].inputs(shape, model)
    theirs = counted(small_module(slug), inputs, monkeypatch)
    assert theirs["attention"] > 0
    assert mine == pytest.approx(theirs, rel=0.003)


@pytest.mark.parametrize("slug", sorted(BY_SLUG))
def test_parameters_at_full_depth(slug: str) -> None:
    model = load_model(slug)
    spec = model.transformer
    module = build(BY_SLUG[slug], spec.layers, spec.single_layers)
    whole = next(c for c in family(model).components(model) if c.name == "transformer")
    assert whole.params == sum(p.numel() for p in module.parameters())
    names = ("transformer_blocks", "single_transformer_blocks", "layers")
    names += ("noise_refiner", "context_refiner")
    blocks = [m for name, m in module.named_children() if name in names]
    inside = sum(p.numel() for m in blocks for p in m.parameters())
    # Refiners of HunyuanVideo are inside its embedder.
    assert whole.block_params == pytest.approx(inside, rel=0.05)
