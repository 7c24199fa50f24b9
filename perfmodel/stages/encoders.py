"""Dimensions of the text and image encoders (`stages.text_encoder` turns them into operators).

Checked against the published modules: parameters and FLOP are exact (transformers 5.24.0,
https://pypi.org/project/transformers/5.24.0/, classes named in `ENCODERS`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoder:
    """Dimensions of one encoder.

    Attributes:
        title: name in reports.
        kind: ``t5`` (gated blocks without bias, relative positions), ``decoder`` (causal language
            model with grouped heads and rotary positions), ``clip`` (causal text tower), ``bert``
            (two-way text tower) or ``vision`` (patches of one image).
        layers, hidden, ffn, heads, head_dim: dimensions of a block.
        kv_heads: heads of k and v (0: as `heads`).
        tokens: sequence length that engines pad to (images: patches and the class token).
        vocabulary: rows of the token embedding (0: an image encoder).
        patch_px, image_px: patch and image side of an image encoder.
        shared_positions: one table of relative positions for all layers (T5; UMT5 has one each).
        qkv_bias: q, k and v of a decoder have biases.
        qk_norm: q and k of a decoder are normed per head.
        norms: RMS norms of a gated block (Gemma has two more behind its branches).
        plain_ffn: a T5 block with one projection in and no gate (T5 before v1.1).
        class_token: an image encoder adds a class token and a norm before the blocks.
        quick_gelu: activation of a CLIP text tower.
        projection: a CLIP text tower ends in a projection of the pooled token.
        pooled_head: an image encoder ends in an attention that pools its tokens.
        language_head: pipelines load the causal model and compute the logits of all tokens.
        head_params: parameters of that head (0: tied to the embedding).
        idle_params: loaded and not run: a vision tower, a head that is not asked for logits.
        prefix: start of operator names; the kind's own when empty.
    """

    title: str
    kind: Literal["t5", "decoder", "clip", "bert", "vision"]
    layers: int
    hidden: int
    ffn: int
    heads: int
    head_dim: int
    tokens: int
    kv_heads: int = 0
    vocabulary: int = 0
    patch_px: int = 0
    image_px: int = 0
    shared_positions: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    norms: int = 2
    plain_ffn: bool = False
    class_token: bool = False
    quick_gelu: bool = False
    projection: bool = False
    pooled_head: bool = False
    language_head: bool = False
    head_params: int = 0
    idle_params: int = 0
    prefix: str = ""

    @property
    def is_text(self) -> bool:
        """Whether it reads text (else one image)."""
        return self.vocabulary > 0

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward network has a gate: two projections in, no biases."""
        return self.kind in ("t5", "decoder")

    @property
    def ffn_inputs(self) -> int:
        """Projections into the feed-forward network: gate and value, or one."""
        return 2 if self.is_gated and not self.plain_ffn else 1

    @property
    def width(self) -> int:
        """Columns of the query projection."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of the key (or value) projection."""
        return (self.kv_heads or self.heads) * self.head_dim

    @property
    def start(self) -> str:
        """First words of operator names."""
        return self.prefix or ("text encoder " if self.is_text else "image encoder ")


T5_XXL = Encoder(
    title="T5-v1.1-XXL encoder",
    kind="t5",
    layers=24,
    hidden=4096,
    ffn=10_240,
    heads=64,
    head_dim=64,
    tokens=512,
    vocabulary=32_128,
    shared_positions=True,
)
CLIP_L = Encoder(
    title="CLIP-L text encoder",
    kind="clip",
    layers=12,
    hidden=768,
    ffn=3072,
    heads=12,
    head_dim=64,
    tokens=77,
    vocabulary=49_408,
    quick_gelu=True,
    prefix="CLIP-L ",
)
QWEN25_VL = Encoder(
    title="Qwen2.5-VL-7B text model",
    kind="decoder",
    layers=28,
    hidden=3584,
    ffn=18_944,
    heads=28,
    kv_heads=4,
    head_dim=128,
    tokens=1108,
    vocabulary=152_064,
    qkv_bias=True,
)
QWEN3 = Encoder(
    title="Qwen3-4B",
    kind="decoder",
    layers=36,
    hidden=2560,
    ffn=9728,
    heads=32,
    kv_heads=8,
    head_dim=128,
    tokens=512,
    vocabulary=151_936,
    qk_norm=True,
)
QWEN3_8B = replace(QWEN3, title="Qwen3-8B", hidden=4096, ffn=12_288)
LLAMA = Encoder(
    title="LLaVA-Llama-3-8B text model",
    kind="decoder",
    layers=32,
    hidden=4096,
    ffn=14_336,
    heads=32,
    kv_heads=8,
    head_dim=128,
    tokens=351,
    vocabulary=128_320,
)
MISTRAL = replace(
    LLAMA,
    title="Mistral-Small-3.1-24B text model",
    layers=40,
    hidden=5120,
    ffn=32_768,
    tokens=512,
    vocabulary=131_072,
)
GEMMA3 = Encoder(
    title="Gemma-3-12B text model",
    kind="decoder",
    layers=48,
    hidden=3840,
    ffn=15_360,
    heads=16,
    kv_heads=8,
    head_dim=256,
    tokens=1024,
    vocabulary=262_208,
    qk_norm=True,
    norms=4,
)

ENCODERS = {
    # T5EncoderModel, UMT5EncoderModel, MT5EncoderModel; the encoder of T5-11B has one projection in
    # (https://huggingface.co/google-t5/t5-11b), that of mT5 is HunyuanDiT's text_encoder_2
    # (https://huggingface.co/Tencent-Hunyuan/HunyuanDiT-v1.2-Diffusers).
    "t5-xxl": T5_XXL,
    "umt5-xxl": replace(
        T5_XXL, title="UMT5-XXL encoder", vocabulary=256_384, shared_positions=False
    ),
    "byt5-small": replace(
        T5_XXL,
        title="ByT5-small glyph encoder",
        layers=12,
        hidden=1472,
        ffn=3584,
        heads=6,
        tokens=256,
        vocabulary=1510,
        prefix="glyph encoder ",
    ),
    "t5-11b": replace(
        T5_XXL,
        title="T5-11B encoder",
        hidden=1024,
        ffn=65_536,
        heads=128,
        head_dim=128,
        plain_ffn=True,
    ),
    "mt5-xl": replace(
        T5_XXL,
        title="mT5-XL encoder",
        hidden=2048,
        ffn=5120,
        heads=32,
        tokens=256,
        vocabulary=250_112,
        prefix="mT5 ",
    ),
    # BertModel without the pooled head's use
    "bert-large-zh": Encoder(
        title="BERT-large text encoder (Chinese and English)",
        kind="bert",
        layers=24,
        hidden=1024,
        ffn=4096,
        heads=16,
        head_dim=64,
        tokens=77,
        vocabulary=47_020,
        prefix="BERT ",
    ),
    # CLIPTextModel, CLIPTextModelWithProjection
    "clip-l": CLIP_L,
    "clip-g": replace(
        CLIP_L,
        title="CLIP-bigG text encoder",
        layers=32,
        hidden=1280,
        ffn=5120,
        heads=20,
        quick_gelu=False,
        projection=True,
        prefix="CLIP-bigG ",
    ),
    # Qwen2_5_VLTextModel, Qwen3Model, LlamaModel, MistralModel, Gemma3TextModel, Gemma2Model
    "qwen2.5-vl-7b": QWEN25_VL,
    "qwen3-1.7b": replace(
        QWEN3, title="Qwen3-1.7B", layers=28, hidden=2048, ffn=6144, heads=16, tokens=284
    ),
    "qwen3-4b": QWEN3,
    "qwen3-8b": QWEN3_8B,
    "llama3-8b": LLAMA,
    "mistral-24b": MISTRAL,
    "gemma3-12b": GEMMA3,
    "gemma2-2b": replace(
        GEMMA3,
        title="Gemma-2-2B text model",
        layers=26,
        hidden=2304,
        ffn=9216,
        heads=8,
        kv_heads=4,
        tokens=300,
        vocabulary=256_000,
        qk_norm=False,
    ),
    # Qwen3VLTextModel, the first 50 of 64 blocks; its vision tower is loaded beside it.
    "qwen3-vl-32b": replace(
        QWEN3,
        title="Qwen3-VL-32B, 50 blocks",
        layers=50,
        hidden=5120,
        ffn=25_600,
        heads=64,
        tokens=256,
        idle_params=595_266_800,
    ),
    # The same with the heads and towers that image pipelines load around them.
    "qwen2.5-vl-7b-lm": replace(
        QWEN25_VL,
        title="Qwen2.5-VL-7B",
        language_head=True,
        head_params=152_064 * 3584,
        idle_params=676_550_144,
    ),
    "qwen3-4b-lm": replace(QWEN3, language_head=True),
    "qwen3-8b-lm": replace(QWEN3_8B, language_head=True, head_params=151_936 * 4096),
    "mistral-24b-lm": replace(MISTRAL, title="Mistral-Small-3.1-24B", idle_params=131_072 * 5120),
    # CLIPVisionModel, SiglipVisionModel
    "clip-vit-h14": Encoder(
        title="CLIP ViT-H/14 image encoder",
        kind="vision",
        layers=32,
        hidden=1280,
        ffn=5120,
        heads=16,
        head_dim=80,
        tokens=257,
        patch_px=14,
        image_px=224,
        class_token=True,
    ),
    "siglip-so400m": Encoder(
        title="SigLIP so400m image encoder",
        kind="vision",
        layers=27,
        hidden=1152,
        ffn=4304,
        heads=16,
        head_dim=72,
        tokens=729,
        patch_px=14,
        image_px=384,
        pooled_head=True,
    ),
}
