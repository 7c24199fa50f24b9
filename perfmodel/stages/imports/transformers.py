"""Transformer classes of diffusers: the family that describes each, and its dimensions.

Every function turns a configuration into fields of `TransformerSpec`; fields that a class fixes in
its code are taken over from a shipped model of the family.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perfmodel.stages.imports.read import Config, refuse

Fields = dict[str, Any]
MOST_LAYERS = 1000
PACK = 4
"""Latent positions that a pipeline folds into one token (2 x 2)."""


@dataclass(frozen=True, slots=True)
class TransformerClass:
    """How one class is described.

    Attributes:
        family: key of the family registry.
        fields: configuration to dimensions.
    """

    family: str
    fields: Callable[[Config], Fields]


def _heads(config: Config, heads: str = "num_attention_heads") -> Fields:
    count, width = config.number(heads, most=1024), config.number("attention_head_dim")
    return {"heads": count, "kv_heads": count, "head_dim": width, "hidden": count * width}


def _layers(config: Config, name: str = "num_layers") -> int:
    return config.number(name, most=MOST_LAYERS)


def _ends(config: Config) -> Fields:
    inside = config.number("in_channels")
    return {"in_channels": inside, "out_channels": config.maybe("out_channels") or inside}


def _flat(config: Config) -> Fields:
    side = config.number("patch_size", most=64)
    return {"patch": (1, side, side)}


def _wan(config: Config) -> Fields:
    image = config.maybe("image_dim")
    return {
        **_heads(config),
        **_ends(config),
        "layers": _layers(config),
        "ffn": config.number("ffn_dim"),
        "patch": config.numbers("patch_size", 3),
        "text_width": config.number("text_dim"),
        "time_width": config.number("freq_dim"),
        "image_width": image,
    }


def _helios(config: Config) -> Fields:
    return {
        **_heads(config),
        **_ends(config),
        "layers": _layers(config),
        "ffn": config.number("ffn_dim"),
        "patch": config.numbers("patch_size", 3),
        "text_width": config.number("text_dim"),
        "time_width": config.number("freq_dim"),
    }


def _cosmos3(config: Config) -> Fields:
    side = config.number("latent_patch_size", most=64)
    return {
        "hidden": config.number("hidden_size"),
        "layers": _layers(config, "num_hidden_layers"),
        "heads": config.number("num_attention_heads", most=1024),
        "kv_heads": config.number("num_key_value_heads", most=1024),
        "head_dim": config.number("head_dim"),
        "ffn": config.number("intermediate_size"),
        "in_channels": config.number("latent_channel"),
        "out_channels": config.number("latent_channel"),
        "patch": (1, side, side),
        "vocabulary": config.number("vocab_size", most=1 << 24),
    }


def _packed(config: Config) -> Fields:
    """Channels of a token that holds 2 x 2 latent positions."""
    inside = config.number("in_channels") // PACK
    return {"in_channels": inside, "out_channels": inside, "patch": (1, 2, 2)}


def _flux(config: Config) -> Fields:
    heads = _heads(config)
    return {
        **heads,
        **_packed(config),
        "layers": _layers(config),
        "single_layers": _layers(config, "num_single_layers"),
        "text_width": config.number("joint_attention_dim"),
        "pooled_width": config.number("pooled_projection_dim"),
        "guidance_embedded": config.flag("guidance_embeds"),
        "ffn": 4 * heads["hidden"],
    }


def _ovis_image(config: Config) -> Fields:
    heads = _heads(config)
    return {
        **heads,
        **_packed(config),
        "layers": _layers(config),
        "single_layers": _layers(config, "num_single_layers"),
        "text_width": config.number("joint_attention_dim"),
        "ffn": 4 * heads["hidden"],
    }


def _latte(config: Config) -> Fields:
    heads = _heads(config)
    return {
        **heads,
        **_ends(config),
        **_flat(config),
        "layers": _layers(config),
        "ffn": 4 * heads["hidden"],
        "text_width": config.number("caption_channels"),
    }


def _wan_vace(config: Config) -> Fields:
    places = config.values.get("vace_layers")
    if not isinstance(places, list) or not 0 < len(places) <= MOST_LAYERS:
        raise refuse(str(config.path), "vace_layers: a list of the blocks with control is needed")
    return {
        **_wan(config),
        "control_layers": len(places),
        "control_channels": config.number("vace_in_channels"),
    }


def _flux2(config: Config) -> Fields:
    heads = _heads(config)
    return {
        **heads,
        **_packed(config),
        "layers": _layers(config),
        "single_layers": _layers(config, "num_single_layers"),
        "text_width": config.number("joint_attention_dim"),
        "guidance_embedded": config.flag("guidance_embeds"),
        "ffn": int(heads["hidden"] * config.ratio("mlp_ratio")),
    }


def _qwen(config: Config) -> Fields:
    heads = _heads(config)
    return {
        **heads,
        **_packed(config),
        "layers": _layers(config),
        "text_width": config.number("joint_attention_dim"),
        "ffn": 4 * heads["hidden"],
    }


def _hunyuan_video(config: Config) -> Fields:
    heads = _heads(config)
    side = config.number("patch_size", most=64)
    return {
        **heads,
        **_ends(config),
        "layers": _layers(config),
        "single_layers": _layers(config, "num_single_layers"),
        "refiner_layers": _layers(config, "num_refiner_layers"),
        "ffn": int(heads["hidden"] * config.ratio("mlp_ratio")),
        "patch": (config.number("patch_size_t", most=64), side, side),
        "text_width": config.number("text_embed_dim"),
        "pooled_width": config.number("pooled_projection_dim"),
        "guidance_embedded": config.flag("guidance_embeds"),
    }


def _hunyuan_video15(config: Config) -> Fields:
    heads = _heads(config)
    side = config.number("patch_size", most=64)
    return {
        **heads,
        **_ends(config),
        "layers": _layers(config),
        "refiner_layers": _layers(config, "num_refiner_layers"),
        "ffn": int(heads["hidden"] * config.ratio("mlp_ratio")),
        "patch": (config.number("patch_size_t", most=64), side, side),
        "text_width": config.number("text_embed_dim"),
    }


def _sd3(config: Config) -> Fields:
    heads = _heads(config)
    dual = config.values.get("dual_attention_layers")
    return {
        **heads,
        **_ends(config),
        **_flat(config),
        "layers": _layers(config),
        "ffn": 4 * heads["hidden"],
        "text_width": config.number("joint_attention_dim"),
        "pooled_width": config.number("pooled_projection_dim"),
        "dual_attention_layers": len(dual) if isinstance(dual, list) else 0,
        "qk_norm": config.values.get("qk_norm") is not None,
    }


def _z_image(config: Config) -> Fields:
    hidden, heads = config.number("dim"), config.number("n_heads", most=1024)
    side = config.numbers("all_patch_size")[0]
    return {
        "hidden": hidden,
        "heads": heads,
        "kv_heads": config.number("n_kv_heads", most=1024),
        "head_dim": hidden // heads,
        "layers": _layers(config, "n_layers"),
        "refiner_layers": _layers(config, "n_refiner_layers"),
        "ffn": hidden * 8 // 3,
        "in_channels": config.number("in_channels"),
        "out_channels": config.number("in_channels"),
        "patch": (config.numbers("all_f_patch_size")[0], side, side),
        "text_width": config.number("cap_feat_dim"),
    }


def _ltx(config: Config) -> Fields:
    heads = _heads(config)
    side = config.number("patch_size", most=64)
    return {
        **heads,
        **_ends(config),
        "layers": _layers(config),
        "ffn": 4 * heads["hidden"],
        "patch": (config.number("patch_size_t", most=64), side, side),
        "text_width": config.number("caption_channels"),
    }


def _ltx2(config: Config) -> Fields:
    narrow = config.number("audio_attention_head_dim")
    own = config.flag("use_prompt_embeddings")
    return {
        **_ltx(config),
        "text_width": config.number("caption_channels") if own else None,
        "gated_attention": config.flag("gated_attn"),
        "text_modulation": config.flag("cross_attn_mod"),
        "audio_head_dim": narrow,
        "audio_hidden": config.number("audio_num_attention_heads", most=1024) * narrow,
        "sound_channels": config.number("audio_in_channels"),
    }


def _cogvideox(config: Config) -> Fields:
    heads = _heads(config)
    side = config.number("patch_size", most=64)
    return {
        **heads,
        **_ends(config),
        "layers": _layers(config),
        "ffn": 4 * heads["hidden"],
        "patch": (config.maybe("patch_size_t") or 1, side, side),
        "text_width": config.number("text_embed_dim"),
        "modulation_width": config.number("time_embed_dim"),
        "rotary": config.flag("use_rotary_positional_embeddings"),
    }


def _cosmos_predict(config: Config) -> Fields:
    if config.values.get("img_context_dim_in"):
        what = "img_context_dim_in: a transformer that goes with a control network; use"
        raise refuse(str(config.path), f"{what} --model cosmos-transfer2.5-2b")
    heads = _heads(config)
    reduced = config.flag("use_crossattn_projection")
    return {
        **heads,
        **_ends(config),
        "layers": _layers(config),
        "ffn": int(heads["hidden"] * config.ratio("mlp_ratio")),
        "patch": config.numbers("patch_size", 3),
        "text_width": config.number("text_embed_dim"),
        "text_stream_width": config.number("text_embed_dim"),
        "modulation_width": config.number("adaln_lora_dim"),
        "raw_text_width": config.number("crossattn_proj_in_channels") if reduced else 0,
    }


def _sana(config: Config) -> Fields:
    heads = _heads(config)
    return {
        **heads,
        **_ends(config),
        "layers": _layers(config),
        "ffn": int(heads["hidden"] * config.ratio("mlp_ratio")),
        "text_width": config.number("caption_channels"),
        "cross_heads": config.number("num_cross_attention_heads", most=1024),
        "cross_head_dim": config.number("cross_attention_head_dim"),
        "rotary": False,
        "qk_norm": config.values.get("qk_norm") is not None,
        **_flat(config),
    }


def _sana_video(config: Config) -> Fields:
    heads = _heads(config)
    return {
        **heads,
        **_ends(config),
        "layers": _layers(config),
        "ffn": int(heads["hidden"] * config.ratio("mlp_ratio")),
        "text_width": config.number("caption_channels"),
        "patch": config.numbers("patch_size", 3),
        "rotary": True,
    }


def _pixart(config: Config) -> Fields:
    heads = _heads(config)
    sized = config.values.get("use_additional_conditions")
    if sized is None:
        # The class adds them for the 1024 pixel checkpoints when its configuration is silent.
        sized = config.number("sample_size") == 128
    return {
        **heads,
        **_ends(config),
        **_flat(config),
        "layers": _layers(config),
        "ffn": 4 * heads["hidden"],
        "text_width": config.number("caption_channels"),
        "size_conditions": bool(sized),
    }


def _hunyuan_dit(config: Config) -> Fields:
    heads = _heads(config)
    inside = config.number("in_channels")
    return {
        **heads,
        **_flat(config),
        "in_channels": inside,
        "out_channels": inside * (2 if config.flag("learn_sigma") else 1),
        "layers": _layers(config),
        "ffn": int(heads["hidden"] * config.ratio("mlp_ratio")),
        "text_width": config.number("cross_attention_dim_t5"),
        "text_stream_width": config.number("cross_attention_dim"),
        "pooled_width": config.number("pooled_projection_dim"),
    }


def _mochi(config: Config) -> Fields:
    heads = _heads(config)
    return {
        **heads,
        **_ends(config),
        **_flat(config),
        "layers": _layers(config),
        "ffn": 4 * heads["hidden"] * 2 // 3,
        "text_width": config.number("text_embed_dim"),
        "text_stream_width": config.number("pooled_projection_dim"),
        "time_width": config.number("time_embed_dim"),
    }


CLASSES: dict[str, TransformerClass] = {
    "CogVideoXTransformer3DModel": TransformerClass("cogvideox", _cogvideox),
    "Cosmos3OmniTransformer": TransformerClass("cosmos3", _cosmos3),
    "CosmosTransformer3DModel": TransformerClass("cosmos_predict", _cosmos_predict),
    "Flux2Transformer2DModel": TransformerClass("flux2", _flux2),
    "FluxTransformer2DModel": TransformerClass("flux", _flux),
    "HeliosTransformer3DModel": TransformerClass("helios", _helios),
    "HunyuanDiT2DModel": TransformerClass("hunyuan_dit", _hunyuan_dit),
    "HunyuanVideo15Transformer3DModel": TransformerClass("hunyuan_video15", _hunyuan_video15),
    "HunyuanVideoTransformer3DModel": TransformerClass("hunyuan_video", _hunyuan_video),
    "LatteTransformer3DModel": TransformerClass("latte", _latte),
    "LTX2VideoTransformer3DModel": TransformerClass("ltx2", _ltx2),
    "LTXVideoTransformer3DModel": TransformerClass("ltx", _ltx),
    "MochiTransformer3DModel": TransformerClass("mochi", _mochi),
    "OvisImageTransformer2DModel": TransformerClass("ovis_image", _ovis_image),
    "PixArtTransformer2DModel": TransformerClass("pixart", _pixart),
    "QwenImageTransformer2DModel": TransformerClass("qwen_image", _qwen),
    "SD3Transformer2DModel": TransformerClass("sd3", _sd3),
    "SanaTransformer2DModel": TransformerClass("sana", _sana),
    "SanaVideoTransformer3DModel": TransformerClass("sana", _sana_video),
    "WanVACETransformer3DModel": TransformerClass("wan_vace", _wan_vace),
    "WanTransformer3DModel": TransformerClass("wan", _wan),
    "ZImageTransformer2DModel": TransformerClass("z_image", _z_image),
}
