"""Transformers with a control network beside them, against the diffusers classes of both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from meta_modules import counted_calls, eager, ids, run, tensor

from perfmodel.catalog import load_model
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import family
from perfmodel.stages.base import Traits
from perfmodel.stages.summary import flops_by_kind

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

TRAITS = Traits(fused_qkv=False)
FEW = 2


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return counted_calls(monkeypatch)


@dataclass(frozen=True)
class Case:
    """A model: its two modules at some depth, and how they run one after the other."""

    slug: str
    build: Callable[[ModelSpec], tuple[Any, Any]]
    forward: Callable[[tuple[Any, Any], Shape, ModelSpec], None]
    shapes: tuple[dict[str, int], ...]


def cosmos_modules(model: ModelSpec) -> tuple[Any, Any]:
    spec = model.transformer
    shared = dict(
        num_attention_heads=16,
        img_context_dim_in=spec.image_width,
        use_crossattn_projection=True,
        crossattn_proj_in_channels=100_352,
        extra_pos_embed_type=None,
    )
    control = diffusers.CosmosControlNetModel(n_controlnet_blocks=spec.control_layers, **shared)
    main = diffusers.CosmosTransformer3DModel(
        in_channels=17,
        num_layers=spec.layers,
        controlnet_block_every_n=spec.layers // spec.control_layers,
        **shared,
    )
    return control, main


def cosmos_forward(modules: tuple[Any, Any], shape: Shape, model: ModelSpec) -> None:
    control, main = modules
    size = (24, shape.latent_height, shape.latent_width)
    text = (tensor(1, 512, 100_352), tensor(1, 256, model.transformer.image_width))
    shared = dict(
        timestep=tensor(1, 1, size[0], 1, 1),
        encoder_hidden_states=text,
        condition_mask=tensor(1, 1, *size),
        padding_mask=tensor(1, 1, shape.height, shape.width),
        return_dict=False,
    )
    added = control(controls_latents=tensor(1, 16, *size), latents=tensor(1, 16, *size), **shared)
    main(hidden_states=tensor(1, 16, *size), block_controlnet_hidden_states=added[0], **shared)


def z_image_modules(model: ModelSpec) -> tuple[Any, Any]:
    spec = model.transformer
    main = diffusers.ZImageTransformer2DModel(n_layers=spec.layers)
    control = diffusers.ZImageControlNetModel(
        control_layers_places=list(range(spec.control_layers)),
        control_refiner_layers_places=[0, 1],
        control_in_dim=spec.control_channels,
        add_control_noise_refiner="control_noise_refiner",
    )
    return diffusers.ZImageControlNetModel.from_transformer(control, main), main


def z_image_forward(modules: tuple[Any, Any], shape: Shape, model: ModelSpec) -> None:
    control, main = modules
    size = (1, shape.latent_height, shape.latent_width)
    shared = dict(t=tensor(1), cap_feats=[tensor(shape.text_tokens, 2560)])
    added = control(x=[tensor(16, *size)], control_context=[tensor(33, *size)], **shared)
    main(x=[tensor(16, *size)], controlnet_block_samples=added, **shared)


def vace_modules(model: ModelSpec) -> tuple[Any, Any]:
    spec = model.transformer
    main = diffusers.WanVACETransformer3DModel(
        num_attention_heads=spec.heads,
        ffn_dim=spec.ffn,
        num_layers=spec.layers,
        vace_layers=list(range(spec.control_layers)),
    )
    return None, main


def vace_forward(modules: tuple[Any, Any], shape: Shape, model: ModelSpec) -> None:
    size = (shape.latent_frames, shape.latent_height, shape.latent_width)
    modules[1](
        hidden_states=tensor(1, 16, *size),
        timestep=ids(1),
        encoder_hidden_states=tensor(1, 512, 4096),
        control_hidden_states=tensor(1, 96, *size),
    )


CLIPS = ({"frames": 17}, {"frames": 33, "width": 640, "height": 352}, {"frames": 49})
CASES = (
    Case("wan2.1-vace-1.3b", vace_modules, vace_forward, CLIPS),
    Case("wan2.1-vace-14b", vace_modules, vace_forward, CLIPS),
    Case(
        "z-image-turbo-controlnet",
        z_image_modules,
        z_image_forward,
        ({"width": 512, "height": 768}, {"width": 1024, "height": 1024}, {}),
    ),
    Case(
        "cosmos-transfer2.5-2b",
        cosmos_modules,
        cosmos_forward,
        ({"width": 640, "height": 352}, {"width": 832, "height": 480}, {}),
    ),
)
BY_SLUG = {case.slug: case for case in CASES}


def at_depth(model: ModelSpec, layers: int, control: int) -> ModelSpec:
    changed = {"layers": layers, "control_layers": control}
    spec = model.transformer.model_copy(update=changed)
    return model.model_copy(update={"transformer": spec})


@cache
def modules(slug: str, layers: int, control: int) -> tuple[Any, Any]:
    model = at_depth(load_model(slug), layers, control)
    with torch.device("meta"):
        built = BY_SLUG[slug].build(model)
    control, main = (module and module.to(torch.bfloat16).eval() for module in built)
    return control, main


def one_forward(slug: str, depth: tuple[int, int], asked: dict[str, int]) -> tuple[Any, Any]:
    """Operators of a forward here, and a call of the classes that does the same."""
    model = at_depth(load_model(slug), *depth)
    shape = family(model).shape(model, Workload(**asked), TRAITS)
    ops = family(model).denoise(model, shape, TRAITS).per_forward
    built = modules(slug, *depth)

    def published(**_: Any) -> None:
        BY_SLUG[slug].forward(built, shape, model)

    return ops, published


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("slug", BY_SLUG)
def test_a_forward_does_the_work_of_both_classes(slug: str, place: int, calls: list[float]) -> None:
    ops, published = one_forward(slug, (2 * FEW, FEW), BY_SLUG[slug].shapes[place])
    ran, _ = run(published, {}, calls)
    assert flops_by_kind(ops) == pytest.approx(ran, rel=3e-6)


# The blocks of Wan are those of its traces, norms kernel by kernel.
@pytest.mark.parametrize("slug", [slug for slug in BY_SLUG if not slug.startswith("wan")])
def test_eager_kernels_of_the_blocks_are_those_of_the_classes(
    slug: str, calls: list[float]
) -> None:
    totals = []
    for depth in ((2 * FEW, FEW), (4 * FEW, 2 * FEW)):
        ops, published = one_forward(slug, depth, BY_SLUG[slug].shapes[0])
        _, kernels = run(published, {}, calls)
        totals.append((*eager(ops), kernels.moved, float(kernels.calls)))
    moved, launched, published_bytes, published_calls = np.subtract(totals[1], totals[0])
    assert moved == pytest.approx(published_bytes, rel=0.10)
    assert launched == pytest.approx(published_calls, rel=0.15)


@pytest.mark.parametrize("slug", BY_SLUG)
def test_parameters_equal_those_of_both_classes(slug: str) -> None:
    model = load_model(slug)
    spec = model.transformer
    control, main = modules(slug, spec.layers, spec.control_layers)
    found = {part.name: part for part in family(model).components(model)}
    assert found["transformer"].params == sum(p.numel() for p in main.parameters())
    if control:
        shared = {id(p) for p in main.parameters()}
        own = sum(p.numel() for p in control.parameters() if id(p) not in shared)
        assert found["controlnet"].params == own
    for name in ("controlnet", "transformer") if control else ("transformer",):
        assert found[name].tp_params <= found[name].block_params < found[name].params
