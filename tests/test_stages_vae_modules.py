"""VAE operators, parameters and live memory against fresh runs of the published classes.

Independent of the traces: the classes are built here, at other shapes (up to 17 frames).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import numpy as np
import pytest

from perfmodel.ops import Attention, Conv, Gemm, Op, flops
from perfmodel.stages import vae as dispatch
from perfmodel.stages.base import Traits

pytest.importorskip("diffusers")
torch = pytest.importorskip("torch")

from vae_modules import Work, build, run  # noqa: E402
from vae_specs import IMAGE_KINDS, SPECS  # noqa: E402

KL: dict[str, Any] = {
    "down_block_types": ["DownEncoderBlock2D"] * 4,
    "up_block_types": ["UpDecoderBlock2D"] * 4,
    "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2,
}
FLUX1: dict[str, Any] = {
    **KL, "latent_channels": 16, "use_quant_conv": False, "use_post_quant_conv": False,
}  # fmt: skip
LTX: dict[str, Any] = {
    "block_out_channels": (128, 256, 512, 1024, 2048),
    "down_block_types": ("LTXVideo095DownBlock3D",) * 4,
    "decoder_block_out_channels": (256, 512, 1024),
    "layers_per_block": (4, 6, 6, 2, 2),
    "decoder_layers_per_block": (5, 5, 5, 5),
    "spatio_temporal_scaling": (True,) * 4,
    "decoder_spatio_temporal_scaling": (True,) * 3,
    "decoder_inject_noise": (False,) * 4,
    "downsample_type": ("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
    "upsample_residual": (True,) * 3,
    "upsample_factor": (2, 2, 2),
    "timestep_conditioning": True,
    "decoder_causal": False,
}
VIT = ["ResBlock"] * 3 + ["EfficientViTBlock"] * 3
LTX23: dict[str, Any] = {
    "block_out_channels": (256, 512, 1024, 1024),
    "decoder_block_out_channels": (256, 512, 512, 1024),
    "layers_per_block": (4, 6, 4, 2, 2),
    "decoder_layers_per_block": (4, 6, 4, 2, 2),
    "decoder_spatio_temporal_scaling": (True,) * 4,
    "decoder_inject_noise": (False,) * 5,
    "upsample_type": ("spatiotemporal", "spatiotemporal", "temporal", "spatial"),
    "upsample_residual": (False,) * 4,
    "upsample_factor": (2, 2, 1, 2),
}
SANA: dict[str, Any] = {
    "encoder_block_types": VIT,
    "decoder_block_types": VIT,
    "downsample_block_type": "conv",
    "upsample_block_type": "interpolate",
}
CLASSES: dict[str, tuple[str, dict[str, Any]]] = {
    "flux1-vae": ("AutoencoderKL", FLUX1),
    "sdxl-vae": ("AutoencoderKL", KL),
    "flux2-vae": ("AutoencoderKLFlux2", {}),
    "qwen-image-vae": ("AutoencoderKLQwenImage", {}),
    "hunyuanvideo-vae": ("AutoencoderKLHunyuanVideo", {}),
    "hunyuanvideo-1.5-vae": ("AutoencoderKLHunyuanVideo15", {}),
    "cogvideox-vae": ("AutoencoderKLCogVideoX", {}),
    "ltx-vae": ("AutoencoderKLLTXVideo", LTX),
    "ltx2-vae": ("AutoencoderKLLTX2Video", {}),
    "ltx2.3-vae": ("AutoencoderKLLTX2Video", LTX23),
    "minimax-h3-vae": ("AutoencoderKLMiniMaxH3", {}),
    "mochi-vae": ("AutoencoderKLMochi", {}),
    "sana-vae": ("AutoencoderDC", SANA),
}
# Latent frames, rows and columns; odd, non-square and single-frame maps among them.
IMAGES = ((1, 24, 40), (1, 17, 9), (1, 33, 64))
CLIPS = ((1, 8, 12), (3, 6, 11), (5, 10, 8))
SHAPES = {
    "hunyuanvideo-1.5-vae": ((1, 6, 9), (3, 4, 7), (4, 6, 5)),
    "cogvideox-vae": ((1, 8, 12), (2, 9, 11), (5, 10, 8)),
    "ltx-vae": ((1, 4, 6), (2, 3, 5), (3, 4, 4)),
    "ltx2-vae": ((1, 4, 6), (2, 3, 5), (3, 4, 4)),
    "ltx2.3-vae": ((1, 4, 6), (2, 3, 5), (3, 4, 4)),
    "minimax-h3-vae": ((7, 4, 6), (12, 3, 5), (17, 4, 4)),
    "mochi-vae": ((1, 8, 12), (2, 6, 11), (3, 10, 8)),
    "sana-vae": ((1, 8, 12), (1, 9, 5), (1, 16, 16)),
    "qwen-image-vae": (*IMAGES, (3, 9, 8)),
}
FLOP_TOLERANCE = 1e-9
# The walk over layers says which maps live together; small maps beside them are left out.
PEAK_TOLERANCE = 0.05
# The first chunk of a Wan encode is counted with the past frames of all layers.
# A first frame that is cut off stays alive; it weighs most in a clip of one.
PEAK_TOLERANCES = {("qwen-image-vae", "encode"): 0.25, ("ltx2.3-vae", "decode"): 0.06}
# Attention over time on meta tensors is computed in fp32, step by step; devices have a kernel.
PEAK_UNKNOWN = {("mochi-vae", "encode"), ("minimax-h3-vae", "decode")}


def cases(part: str) -> list[Any]:
    found = []
    for name, spec in SPECS.items():
        for shape in SHAPES.get(name, IMAGES if spec.kind in IMAGE_KINDS else CLIPS):
            found.append(pytest.param(name, part, shape, id=f"{name}-{part}-{shape}"))
    return found


@lru_cache(maxsize=1)
def module_of(name: str) -> Any:
    import diffusers

    kind, config = CLASSES[name]
    return build(getattr(diffusers, kind), **config)


@cache
def measured(name: str, part: str, shape: tuple[int, int, int]) -> Work:
    spec, module = SPECS[name], module_of(name)
    call: Callable[[Any], Any] | None = None
    if name == "ltx-vae" and part == "decode":
        timestep = torch.zeros(1, dtype=torch.bfloat16, device="meta")
        call = lambda z: module.decode(z, timestep)  # noqa: E731
    frames, height, width = shape
    channels = spec.z_channels
    if part == "encode":
        channels = 3
        frames, height, width = pixels_of(name, shape)
    clip = () if spec.kind in IMAGE_KINDS else (frames,)
    return run(module, part, (1, channels, *clip, height, width), call)


def pixels_of(name: str, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    spec = SPECS[name]
    side = spec.spatial_ratio
    if spec.kind == "minimax_h3":
        return (shape[0] - 2) // 5 * 17 + 5, shape[1] * side, shape[2] * side
    return (shape[0] - 1) * spec.temporal_ratio + 1, shape[1] * side, shape[2] * side


def ops_of(name: str, part: str, shape: tuple[int, int, int]) -> tuple[Op, ...]:
    spec = SPECS[name]
    if part == "decode":
        return dispatch.kind(spec).decode(spec, *shape, Traits())
    return dispatch.kind(spec).encode(spec, *pixels_of(name, shape), Traits())


def total(ops: tuple[Op, ...], kinds: tuple[type[Op], ...]) -> float:
    """FLOP, causal attention counted in full as the module's counter does."""
    dense = [2.0 if isinstance(op, Attention) and op.causal else 1.0 for op in ops]
    return sum(
        float(np.sum(factor * flops(op) * np.asarray(op.count)))
        for op, factor in zip(ops, dense, strict=True)
        if isinstance(op, kinds)
    )


@pytest.mark.parametrize(("name", "part", "shape"), [*cases("decode"), *cases("encode")])
def test_the_work_is_that_of_the_class(name: str, part: str, shape: tuple[int, int, int]) -> None:
    work, ops = measured(name, part, shape), ops_of(name, part, shape)
    assert total(ops, (Conv,)) == pytest.approx(work.flops["conv"], rel=FLOP_TOLERANCE)
    products = total(ops, (Gemm, Attention))
    assert products == pytest.approx(work.flops["product"], rel=FLOP_TOLERANCE)
    encoder, decoder = dispatch.kind(SPECS[name]).params(SPECS[name])
    assert (decoder if part == "decode" else encoder) == work.params
    expected = pixels_of(name, shape) if part == "decode" else shape
    sides = expected[-2:]
    assert work.output[-2:] == sides
    causal = not (name == "cogvideox-vae" and shape[0] % 2 == 0)  # even chunks double throughout
    if causal and SPECS[name].kind not in IMAGE_KINDS:
        assert work.output[2] == expected[0]


WITH_PEAK = [
    case for case in (*cases("decode"), *cases("encode")) if case.values[:2] not in PEAK_UNKNOWN
]


@pytest.mark.parametrize(("name", "part", "shape"), WITH_PEAK)
def test_live_memory_is_that_of_the_class(
    name: str, part: str, shape: tuple[int, int, int]
) -> None:
    spec = SPECS[name]
    kind = dispatch.kind(spec)
    if part == "decode":
        ours = kind.decode_peak_bytes(spec, *shape)
    else:
        ours = kind.encode_peak_bytes(spec, *pixels_of(name, shape))
    tolerance = PEAK_TOLERANCES.get((name, part), PEAK_TOLERANCE)
    assert float(ours) == pytest.approx(measured(name, part, shape).peak_bytes, rel=tolerance)
