"""Contexts for the engine tests, written by hand: no catalogue is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from perfmodel.engines import engine
from perfmodel.engines.base import Context
from perfmodel.spec.workload import Options

ENGINE = engine("vllm-omni")


@dataclass(frozen=True)
class FakeTransformer:
    head_dim: int = 128


@dataclass(frozen=True)
class FakeVae:
    tile_px: int = 256
    tile_stride_px: int = 192


@dataclass(frozen=True)
class FakeModel:
    slug: str
    experts: int = 1
    transformer: FakeTransformer = FakeTransformer()
    vae: FakeVae = FakeVae()
    traced: None = None


@dataclass(frozen=True)
class FakeDevice:
    family: str = "blackwell"
    compute_capability: str | None = "10.3"


B300 = FakeDevice()
H100 = FakeDevice("hopper", "9.0")
A100 = FakeDevice("ampere", "8.0")
RTX_PRO = FakeDevice("blackwell-rtx", "12.0")
MI300X = FakeDevice("cdna3", None)
ASCEND = FakeDevice("davinci", None)


def cosmos_tokens(width: int, height: int, frames: int) -> int:
    """(F-1)/4+1 latent frames after rounding up to 4k+1, 16 x 16 pixels, 2 x 2 patches padded."""
    latent = -(-(frames - 1) // 4) + 1
    return latent * -(-(width // 16) // 2) * -(-(height // 16) // 2)


def ti2v_tokens(width: int, height: int, frames: int) -> int:
    """Wan2.2 TI2V: F//4*4+1 frames, sides floored to 32 pixels, one token each 32 x 32."""
    return (frames // 4 + 1) * (width // 32) * (height // 32)


MODELS: dict[str, dict[str, Any]] = {
    "cosmos3-nano": dict(
        model="Cosmos3-Nano", hf_id="nvidia/Cosmos3-Nano", heads=32, kv_heads=8, hidden=4096,
        ffn_width=12288, layers=36, tokens=44160, frames=189, guidance=6.0, steps=35,
        tokens_at=cosmos_tokens,
    ),
    "wan2.1-t2v-1.3b": dict(
        model="Wan2.1-T2V-1.3B", hf_id="Wan-AI/Wan2.1-T2V-1.3B-Diffusers", heads=12, kv_heads=12,
        hidden=1536, ffn_width=8960, layers=30, tokens=32760, frames=81, width=832, height=480,
        fps=16.0, guidance=5.0, steps=50,
    ),
    "wan2.1-t2v-14b": dict(
        model="Wan2.1-T2V-14B", hf_id="Wan-AI/Wan2.1-T2V-14B-Diffusers", heads=40, kv_heads=40,
        hidden=5120, ffn_width=13824, layers=40, tokens=75600, frames=81, fps=16.0, guidance=5.0,
        steps=50,
    ),
    "wan2.2-i2v-a14b": dict(
        model="Wan2.2-I2V-A14B", hf_id="Wan-AI/Wan2.2-I2V-A14B-Diffusers", heads=40, kv_heads=40,
        hidden=5120, ffn_width=13824, layers=40, tokens=75600, frames=81, fps=16.0, guidance=3.5,
        steps=40, task="i2v", input_images=1, flow_shift=5.0,
    ),
    "wan2.2-ti2v-5b": dict(
        model="Wan2.2-TI2V-5B", hf_id="Wan-AI/Wan2.2-TI2V-5B-Diffusers", heads=24, kv_heads=24,
        hidden=3072, ffn_width=14336, layers=30, tokens=ti2v_tokens(700, 480, 81), frames=81,
        width=672, height=480, guidance=5.0, steps=50, tokens_at=ti2v_tokens,
    ),
}  # fmt: skip


def context(
    slug: str = "cosmos3-nano",
    *,
    version: str | None = None,
    on: FakeDevice = B300,
    options: Options | None = None,
    **changes: Any,
) -> Context:
    """A request of a known model on 4 devices, with `changes`."""
    facts = MODELS.get(slug, MODELS["cosmos3-nano"])
    experts = 2 if "a14b" in slug else 1
    behaviour = ENGINE.behaviour(
        FakeModel(slug, experts), on, ENGINE.version(version), options or Options()
    )
    base: dict[str, Any] = dict(
        behaviour=behaviour, model_id=slug, branches=2, num_gpus=4, gpus_per_node=8,
        device="b300-sxm", peak_dtypes=frozenset({"bf16", "fp8", "nvfp4"}),
    )  # fmt: skip
    return Context(**{**base, **facts, **changes})
