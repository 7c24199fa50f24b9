"""VAE classes of diffusers: the kind that describes each, and its dimensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perfmodel.stages.imports.read import Config, refuse

Fields = dict[str, Any]
RESAMPLING = frozenset({"spatial", "temporal", "spatiotemporal"})


def _wan(config: Config) -> Fields:
    width = config.number("base_dim")
    decoder = config.maybe("decoder_base_dim") if "decoder_base_dim" in config.values else None
    fields: Fields = {
        "z_channels": config.number("z_dim"),
        "encoder_width": width,
        "decoder_width": decoder or width,
        "multipliers": config.numbers("dim_mult"),
        "resnets": config.number("num_res_blocks", most=64),
    }
    if config.cls == "AutoencoderKLWan":
        fields["residual"] = config.flag("is_residual")
        fields["pixel_patch"] = config.maybe("patch_size") or 1
        fields["spatial_ratio"] = config.number("scale_factor_spatial", most=256)
        fields["temporal_ratio"] = config.number("scale_factor_temporal", most=64)
    return fields


def _levels(config: Config, name: str = "block_out_channels") -> tuple[int, tuple[int, ...]]:
    """Widths of the levels as one width and multipliers.

    Raises:
        BadInput: widths that are no multiples of the first.
    """
    widths = config.numbers(name)
    if any(width % widths[0] for width in widths):
        what = f"{name}: {widths} are not multiples of the first, as the {config.cls} here needs"
        raise refuse(str(config.path), what)
    return widths[0], tuple(width // widths[0] for width in widths)


def _kl(config: Config) -> Fields:
    width, multipliers = _levels(config)
    fields: Fields = {
        "z_channels": config.number("latent_channels"),
        "encoder_width": width,
        "decoder_width": width,
        "multipliers": multipliers,
    }
    fields["resnets"] = config.number("layers_per_block", most=64)
    if config.cls == "AutoencoderKL":
        fields["quant_convs"] = config.flag("use_quant_conv")
        fields["spatial_ratio"] = 2 ** (len(config.numbers("block_out_channels")) - 1)
    return fields


def _ltx(config: Config) -> Fields:
    steps = config.values.get("downsample_type")
    if not isinstance(steps, list) or not set(map(str, steps)) <= RESAMPLING:
        legal = ", ".join(sorted(RESAMPLING))
        what = f"downsample_type: {str(steps)[:40]}: only {legal} are described"
        raise refuse(str(config.path), f"{what} (LTX-Video 0.9.5 and later)")
    width, multipliers = _levels(config)
    decoder, decoder_multipliers = _levels(config, "decoder_block_out_channels")
    return {
        **_without_shortcuts(config),
        "z_channels": config.number("latent_channels"),
        "encoder_width": width,
        "multipliers": multipliers,
        "decoder_width": decoder,
        "decoder_multipliers": decoder_multipliers,
        "layers": config.numbers("layers_per_block"),
        "decoder_layers": config.numbers("decoder_layers_per_block"),
        "down": tuple(steps),
        "pixel_patch": config.number("patch_size", most=64),
    }


def _without_shortcuts(config: Config) -> Fields:
    """What each up-sampling doubles, pixels first, where none has a shortcut (LTX-2.3)."""
    steps, shortcuts = (config.values.get(f"upsample_{name}") for name in ("type", "residual"))
    every = shortcuts if isinstance(shortcuts, list) else [shortcuts]
    if config.cls != "AutoencoderKLLTX2Video" or any(every) or not isinstance(steps, list):
        return {}
    return {"up": tuple(reversed(steps))}


def _two_widths(config: Config) -> Fields:
    """Levels of an encoder and a decoder of their own widths, with the same multipliers."""
    width, multipliers = _levels(config, "encoder_block_out_channels")
    return {
        "z_channels": config.number("latent_channels"),
        "encoder_width": width,
        "multipliers": multipliers,
        "decoder_width": _levels(config, "decoder_block_out_channels")[0],
    }


def _mochi(config: Config) -> Fields:
    return {
        **_two_widths(config),
        "layers": config.numbers("layers_per_block"),
        "temporal_steps": config.numbers("temporal_expansions"),
        "attention_levels": config.flags("add_attention_block"),
    }


def _dcae(config: Config) -> Fields:
    return {
        **_two_widths(config),
        "layers": config.numbers("encoder_layers_per_block"),
        "decoder_layers": config.numbers("decoder_layers_per_block"),
    }


CLASSES: dict[str, tuple[str, Callable[[Config], Fields]]] = {
    "AutoencoderDC": ("dcae", _dcae),
    "AutoencoderKL": ("kl2d", _kl),
    "AutoencoderKLCogVideoX": ("cogvideox", _kl),
    "AutoencoderKLFlux2": ("flux2", _kl),
    "AutoencoderKLHunyuanVideo": ("hunyuanvideo", _kl),
    "AutoencoderKLHunyuanVideo15": ("hunyuanvideo15", _kl),
    "AutoencoderKLLTX2Video": ("ltx2", _ltx),
    "AutoencoderKLLTXVideo": ("ltx", _ltx),
    "AutoencoderKLMochi": ("mochi", _mochi),
    "AutoencoderKLQwenImage": ("qwen_image", _wan),
    "AutoencoderKLWan": ("wan", _wan),
}
