"""The VAEs of the families, by name."""

from __future__ import annotations

from typing import Any

from perfmodel.spec.vae import VaeSpec


def _spec(name: str, kind: str, z: int, ratio: tuple[int, int], width: int, **more: Any) -> VaeSpec:
    return VaeSpec(
        name=name,
        kind=kind,
        z_channels=z,
        spatial_ratio=ratio[0],
        temporal_ratio=ratio[1],
        encoder_width=width,
        **{"decoder_width": width, **more},
    )


LTX: dict[str, Any] = {
    "multipliers": (1, 2, 4, 8),
    "decoder_multipliers": (1, 2, 4),
    "layers": (4, 6, 6, 2, 2),
    "decoder_layers": (5, 5, 5, 5),
    "down": ("spatial", "temporal", "spatiotemporal", "spatiotemporal"),
    "pixel_patch": 4,
}
LTX23: dict[str, Any] = {
    **LTX,
    "multipliers": (1, 2, 4, 4),
    "decoder_multipliers": (1, 2, 2, 4),
    "layers": (4, 6, 4, 2, 2),
    "decoder_layers": (4, 6, 4, 2, 2),
    "up": LTX["down"],
}

SPECS = {
    spec.name: spec
    for spec in (
        _spec("flux1-vae", "kl2d", 16, (8, 1), 128),
        _spec("sdxl-vae", "kl2d", 4, (8, 1), 128, quant_convs=True),
        _spec("flux2-vae", "flux2", 32, (8, 1), 128),
        _spec("qwen-image-vae", "qwen_image", 16, (8, 4), 96),
        _spec(
            "hunyuanvideo-vae", "hunyuanvideo", 16, (8, 4), 128,
            tile_frames=16, tile_stride_frames=12,
        ),
        _spec(
            "hunyuanvideo-1.5-vae", "hunyuanvideo15", 32, (16, 4), 128,
            multipliers=(1, 2, 4, 8, 8), temporal=(False, False, True, True),
        ),
        _spec(
            "cogvideox-vae", "cogvideox", 16, (8, 4), 128,
            multipliers=(1, 2, 2, 4), resnets=3, temporal=(True, True, False),
        ),
        _spec("ltx-vae", "ltx", 128, (32, 8), 256, **LTX),
        _spec("ltx2-vae", "ltx2", 128, (32, 8), 256, **LTX),
        _spec("ltx2.3-vae", "ltx2", 128, (32, 8), 256, **LTX23),
        _spec(
            "minimax-h3-vae", "minimax_h3", 24, (16, 4), 128, decoder_width=2048,
            multipliers=(1, 2, 2, 4, 4, 8),
        ),
        _spec(
            "mochi-vae", "mochi", 12, (8, 6), 64, decoder_width=128, multipliers=(1, 2, 4, 6),
            layers=(3, 3, 4, 6, 3), temporal_steps=(1, 2, 3),
            attention_levels=(False, True, True, True, True),
        ),
        _spec(
            "sana-vae", "dcae", 32, (32, 1), 128, multipliers=(1, 2, 4, 4, 8, 8),
            layers=(2, 2, 2, 3, 3, 3), decoder_layers=(3, 3, 3, 3, 3, 3),
            attention_levels=(False, False, False, True, True, True),
        ),
    )
}  # fmt: skip
IMAGE_KINDS = ("kl2d", "flux2", "dcae")
