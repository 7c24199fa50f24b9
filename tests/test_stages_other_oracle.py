"""Families with attention to text against the diffusers classes themselves.

A published transformer is built on torch's meta device with a few blocks of each kind and run under
torch's FLOP counter at three shapes; parameters are compared at full depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from meta_modules import counted_calls, eager, ids, run, shallow, table, tensor

from perfmodel.catalog import load_model
from perfmodel.shapes import Shape
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Workload
from perfmodel.stages import family, ltx2, minimax_h3
from perfmodel.stages.base import Traits
from perfmodel.stages.summary import flops_by_kind

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")

TRAITS = Traits(fused_qkv=False)


def grid(shape: Shape) -> tuple[int, int, int]:
    return shape.latent_frames, shape.latent_height, shape.latent_width


def pixart(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    sized = model.transformer.size_conditions
    sizes = {"resolution": tensor(1, 2), "aspect_ratio": tensor(1, 1)}
    return dict(
        hidden_states=tensor(1, 4, *grid(shape)[1:]),
        encoder_hidden_states=tensor(1, shape.text_tokens, 4096),
        timestep=ids(1),
        added_cond_kwargs=sizes if sized else dict.fromkeys(sizes),
    )


def latte(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    return dict(
        hidden_states=tensor(1, 4, *grid(shape)),
        timestep=ids(1),
        encoder_hidden_states=tensor(1, shape.text_tokens, 4096),
    )


def hunyuan_dit(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    return dict(
        hidden_states=tensor(1, 4, *grid(shape)[1:]),
        timestep=tensor(1),
        encoder_hidden_states=tensor(1, 77, 1024),
        text_embedding_mask=tensor(1, 77),
        encoder_hidden_states_t5=tensor(1, 256, 2048),
        text_embedding_mask_t5=tensor(1, 256),
        image_rotary_emb=table(shape.tokens, 88),
    )


def ltx(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    frames, height, width = grid(shape)
    return dict(
        hidden_states=tensor(1, shape.tokens, 128),
        encoder_hidden_states=tensor(1, shape.text_tokens, 4096),
        timestep=ids(1),
        encoder_attention_mask=tensor(1, shape.text_tokens),
        num_frames=frames,
        height=height,
        width=width,
        rope_interpolation_scale=(1, 1, 1),
    )


def ltx_two(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    frames, height, width = grid(shape)
    sound, text = ltx2.sound_tokens(model, shape), shape.text_tokens
    apart = model.transformer.text_width is None
    return dict(
        hidden_states=tensor(1, shape.tokens, 128),
        audio_hidden_states=tensor(1, sound, 128),
        encoder_hidden_states=tensor(1, text, 4096 if apart else 3840),
        audio_encoder_hidden_states=tensor(1, text, 2048 if apart else 3840),
        timestep=ids(1),
        sigma=tensor(1) if apart else None,
        encoder_attention_mask=tensor(1, text),
        audio_encoder_attention_mask=tensor(1, text),
        num_frames=frames,
        height=height,
        width=width,
        fps=24.0,
        audio_num_frames=sound,
    )


def cogvideo(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    frames, height, width = grid(shape)
    return dict(
        hidden_states=tensor(1, frames, 16, height, width),
        encoder_hidden_states=tensor(1, shape.text_tokens, 4096),
        timestep=ids(1),
        image_rotary_emb=table(shape.tokens, 64) if model.transformer.rotary else None,
    )


def cosmos(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    spec, size = model.transformer, grid(shape)
    states = spec.raw_text_width or 1024
    video = model.tasks[shape.task].per_token_timestep
    return dict(
        hidden_states=tensor(1, 16, *size),
        timestep=tensor(1, 1, size[0], 1, 1) if video else tensor(1),
        encoder_hidden_states=tensor(1, shape.text_tokens, states),
        condition_mask=tensor(1, 1, *size) if video else None,
        padding_mask=tensor(1, 1, shape.height, shape.width),
        fps=16,
    )


def minimax(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    sound, text = minimax_h3.sound_rows(model, shape), shape.text_tokens
    kinds = {"video": shape.video_tokens, "audio": sound, "text": text}
    return dict(
        hidden_states=tensor(1, shape.video_tokens, 96),
        audio_hidden_states=tensor(1, sound, 32),
        encoder_hidden_states=tensor(1, text, 5120),
        timestep=tensor(2),
        timestep_indices=ids(shape.tokens),
        token_tags=ids(shape.tokens),
        position_ids=ids(shape.tokens, 3),
        **{f"{name}_indices": ids(count) for name, count in kinds.items()},
    )


def mochi(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    return dict(
        hidden_states=tensor(1, 12, *grid(shape)),
        encoder_hidden_states=tensor(1, shape.text_tokens, 4096),
        timestep=ids(1),
        encoder_attention_mask=tensor(1, shape.text_tokens, dtype=torch.bool),
    )


def sana(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    channels, size = model.transformer.in_channels, grid(shape)
    video = model.vae.temporal_ratio > 1
    return dict(
        hidden_states=tensor(1, channels, *(size if video else size[1:])),
        encoder_hidden_states=tensor(1, shape.text_tokens, 2304),
        timestep=ids(1),
    )


def helios(shape: Shape, model: ModelSpec) -> dict[str, Any]:
    size = grid(shape)[1:]
    history = {"short": 2, "mid": 2, "long": 16}
    return dict(
        hidden_states=tensor(1, 16, 9, *size),
        timestep=ids(1),
        encoder_hidden_states=tensor(1, shape.text_tokens, 4096),
        indices_hidden_states=ids(1, 9),
        **{f"indices_latents_history_{name}": ids(1, count) for name, count in history.items()},
        **{f"latents_history_{name}": tensor(1, 16, n, *size) for name, n in history.items()},
    )


@dataclass(frozen=True)
class Case:
    """A published class: how it is configured, its inputs, the shapes to run, blocks that run."""

    slug: str
    cls: str
    config: dict[str, Any]
    inputs: Callable[[Shape, ModelSpec], dict[str, Any]]
    shapes: tuple[dict[str, int], ...]
    few: int = 2


SQUARES = ({}, {"width": 512, "height": 768}, {"width": 2048, "height": 2048})
CLIPS = ({"frames": 17}, {"frames": 33, "width": 640, "height": 352}, {"frames": 49})
COSMOS = dict(text_embed_dim=1024, extra_pos_embed_type=None)
REDUCED = dict(
    use_crossattn_projection=True,
    crossattn_proj_in_channels=100_352,
    encoder_hidden_states_channels=1024,
)
FIVE_B = dict(num_attention_heads=48, use_rotary_positional_embeddings=True)
TWO_FRAMES = dict(patch_size_t=2, patch_bias=False, max_text_seq_length=224)
DIT = dict(
    attention_head_dim=88,
    cross_attention_dim=1024,
    cross_attention_dim_t5=2048,
    hidden_size=1408,
    in_channels=4,
    mlp_ratio=4.3637,
    num_attention_heads=16,
    patch_size=2,
    sample_size=128,
    use_style_cond_and_image_meta_size=False,
)
SANA15 = dict(qk_norm="rms_norm_across_heads")
LTX23 = dict(
    gated_attn=True,
    cross_attn_mod=True,
    audio_gated_attn=True,
    audio_cross_attn_mod=True,
    use_prompt_embeddings=False,
)
WIDE_LTX = dict(attention_head_dim=128, cross_attention_dim=4096)
PIXART = dict(caption_channels=4096, sample_size=128)
CASES = (
    Case("pixart-alpha-xl-1024", "PixArtTransformer2DModel", PIXART, pixart, SQUARES),
    Case(
        "pixart-sigma-xl-1024",
        "PixArtTransformer2DModel",
        PIXART | {"use_additional_conditions": False},
        pixart,
        SQUARES,
    ),
    Case("hunyuan-dit-1.2", "HunyuanDiT2DModel", DIT, hunyuan_dit, SQUARES, 4),
    Case("ltx-video-2b", "LTXVideoTransformer3DModel", {}, ltx, CLIPS),
    Case("ltx-video-13b", "LTXVideoTransformer3DModel", WIDE_LTX, ltx, CLIPS),
    Case("ltx-2", "LTX2VideoTransformer3DModel", {}, ltx_two, CLIPS),
    Case("ltx-2.3", "LTX2VideoTransformer3DModel", LTX23, ltx_two, CLIPS),
    Case(
        "cogvideox-2b", "CogVideoXTransformer3DModel", {"num_attention_heads": 30}, cogvideo, CLIPS
    ),
    Case("cogvideox-5b", "CogVideoXTransformer3DModel", FIVE_B, cogvideo, CLIPS),
    Case("cogvideox1.5-5b", "CogVideoXTransformer3DModel", FIVE_B | TWO_FRAMES, cogvideo, CLIPS),
    Case(
        "cosmos-predict2-2b-v2w",
        "CosmosTransformer3DModel",
        COSMOS | {"in_channels": 17, "num_attention_heads": 16},
        cosmos,
        CLIPS,
    ),
    Case(
        "cosmos-predict2-14b-v2w",
        "CosmosTransformer3DModel",
        COSMOS | {"in_channels": 17, "num_attention_heads": 40},
        cosmos,
        CLIPS,
    ),
    Case(
        "cosmos-predict2-2b-t2i",
        "CosmosTransformer3DModel",
        COSMOS | {"in_channels": 16, "num_attention_heads": 16},
        cosmos,
        SQUARES,
    ),
    Case(
        "cosmos-predict2-14b-t2i",
        "CosmosTransformer3DModel",
        COSMOS | {"in_channels": 16, "num_attention_heads": 40},
        cosmos,
        SQUARES,
    ),
    Case(
        "cosmos-predict2.5-2b",
        "CosmosTransformer3DModel",
        COSMOS | REDUCED | {"in_channels": 17, "num_attention_heads": 16},
        cosmos,
        CLIPS,
    ),
    Case(
        "cosmos-predict2.5-14b",
        "CosmosTransformer3DModel",
        COSMOS | REDUCED | {"in_channels": 17, "num_attention_heads": 40},
        cosmos,
        CLIPS,
    ),
    Case(
        "latte-1",
        "LatteTransformer3DModel",
        PIXART
        | dict(
            attention_head_dim=72,
            in_channels=4,
            out_channels=8,
            cross_attention_dim=1152,
            attention_bias=True,
            sample_size=64,
            patch_size=2,
            activation_fn="gelu-approximate",
            num_embeds_ada_norm=1000,
            norm_type="ada_norm_single",
            norm_elementwise_affine=False,
            norm_eps=1e-6,
        ),
        latte,
        ({}, {"width": 256, "height": 384}, {"width": 768}),
    ),
    Case("minimax-h3", "MiniMaxH3Transformer3DModel", {}, minimax, CLIPS),
    Case("mochi-1", "MochiTransformer3DModel", {}, mochi, CLIPS, 3),
    Case("sana-1.6b", "SanaTransformer2DModel", {}, sana, SQUARES),
    Case("sana-1.5-1.6b", "SanaTransformer2DModel", SANA15, sana, SQUARES),
    Case("sana-1.5-4.8b", "SanaTransformer2DModel", SANA15, sana, SQUARES),
    Case("sana-video-2b", "SanaVideoTransformer3DModel", {"mlp_ratio": 3.0}, sana, CLIPS),
    Case("helios-base", "HeliosTransformer3DModel", {}, helios, CLIPS),
)
NAMES = [case.slug for case in CASES]


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return counted_calls(monkeypatch)


@cache
def module(slug: str, layers: int) -> Any:
    case = CASES[NAMES.index(slug)]
    with torch.device("meta"):
        built = getattr(diffusers, case.cls)(**case.config, num_layers=layers)
    return built.to(torch.bfloat16).eval()


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("slug", NAMES)
def test_a_forward_does_the_work_of_the_class(slug: str, place: int, calls: list[float]) -> None:
    case = CASES[NAMES.index(slug)]
    model = shallow(load_model(slug), case.few)
    shape = family(model).shape(model, Workload(**case.shapes[place]), TRAITS)
    ran, _ = run(module(slug, case.few), case.inputs(shape, model), calls)
    mine = flops_by_kind(family(model).denoise(model, shape, TRAITS).per_forward)
    if model.family == "sana":
        # 1x1 convolutions are written as products here.
        for work in (mine, ran):
            work["gemm"] += work.pop("conv")
    assert mine == pytest.approx(ran, rel=3e-6)


@pytest.mark.parametrize("slug", NAMES)
def test_eager_kernels_of_a_block_are_those_of_the_class(slug: str, calls: list[float]) -> None:
    case = CASES[NAMES.index(slug)]
    totals = []
    for layers in (case.few, case.few + 2):
        model = shallow(load_model(slug), layers)
        shape = family(model).shape(model, Workload(**case.shapes[0]), TRAITS)
        _, kernels = run(module(slug, layers), case.inputs(shape, model), calls)
        mine = eager(family(model).denoise(model, shape, TRAITS).per_forward)
        totals.append((*mine, kernels.moved, float(kernels.calls)))
    moved, launched, published_bytes, published_calls = np.subtract(totals[1], totals[0])
    assert moved == pytest.approx(published_bytes, rel=0.10)
    assert launched == pytest.approx(published_calls, rel=0.15)


@pytest.mark.parametrize("slug", NAMES)
def test_parameters_equal_those_of_the_class(slug: str) -> None:
    model = load_model(slug)
    spec = model.transformer
    found = {part.name: part for part in family(model).components(model)}["transformer"]
    published = sum(p.numel() for p in module(slug, spec.layers).parameters())
    assert found.params == published
    assert found.block_params < found.params
    assert found.tp_params <= found.block_params
