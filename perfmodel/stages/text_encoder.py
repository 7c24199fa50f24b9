"""Text and image encoders that run before the denoiser, never compiled and never split.

Dimensions were checked against the published modules: parameters and FLOP are exact (transformers
5.24.0, https://pypi.org/project/transformers/5.24.0/, ``UMT5EncoderModel``, ``CLIPVisionModel``).
"""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.ops import Attention, Conv, Floats, Ints, Op, Pointwise, Role, Rows
from perfmodel.stages.base import Component
from perfmodel.stages.layers import elements, linear

# Bytes per element of the unfused kernels: T5 norm in fp32; tanh-GELU written out in eight
# products and sums, times the second projection; CLIP's LayerNorm and quick GELU.
T5_NORM_BYTES, T5_NORM_LAUNCHES = 34.0, 8
T5_GELU_BYTES, T5_GELU_LAUNCHES = 42.0, 9
LAYER_NORM_BYTES = 4.0
GELU_BYTES = 4.0
RESIDUAL_BYTES = 6.0
CLONE_BYTES = 4.0
# Relative-position bias of a layer, per head and token pair: gather, copy; 150 B a pair for the
# bucket arithmetic that all heads share (int64 and fp32 maps, some twenty kernels).
T5_BIAS_BYTES, T5_BUCKET_BYTES, T5_BIAS_LAUNCHES = 6.0, 150.0, 24


@dataclass(frozen=True, slots=True)
class Encoder:
    """Dimensions of a T5-like text encoder or a CLIP image encoder.

    Attributes:
        title: name in reports.
        layers, hidden, ffn, heads, head_dim: dimensions of a block.
        tokens: sequence length that engines pad to (images: patches and the class token).
        vocabulary: rows of the token embedding (0: an image encoder).
        patch_px, image_px: patch and image side of an image encoder.
    """

    title: str
    layers: int
    hidden: int
    ffn: int
    heads: int
    head_dim: int
    tokens: int
    vocabulary: int = 0
    patch_px: int = 0
    image_px: int = 0

    @property
    def is_text(self) -> bool:
        """Whether it reads text (else one image)."""
        return self.vocabulary > 0


ENCODERS = {
    "umt5-xxl": Encoder(
        title="UMT5-XXL encoder",
        layers=24,
        hidden=4096,
        ffn=10240,
        heads=64,
        head_dim=64,
        tokens=512,
        vocabulary=256_384,
    ),
    "clip-vit-h14": Encoder(
        title="CLIP ViT-H/14 image encoder",
        layers=32,
        hidden=1280,
        ffn=5120,
        heads=16,
        head_dim=80,
        tokens=257,
        patch_px=14,
        image_px=224,
    ),
}
T5_BUCKETS = 32
RGB = 3


def params(encoder: Encoder) -> int:
    """Parameters: a gated block without biases (T5) or a plain one with (CLIP)."""
    hidden, width = encoder.hidden, encoder.heads * encoder.head_dim
    if encoder.is_text:
        block = 4 * hidden * width + 3 * hidden * encoder.ffn + 2 * hidden
        block += T5_BUCKETS * encoder.heads
        return encoder.layers * block + encoder.vocabulary * hidden + hidden
    block = 4 * (hidden * width + hidden) + 2 * hidden * encoder.ffn + encoder.ffn + hidden
    block += 4 * hidden
    patches = RGB * encoder.patch_px**2 * hidden
    return encoder.layers * block + patches + hidden + encoder.tokens * hidden + 4 * hidden


def component(name: str) -> Component:
    """The encoder's weights, needed only before the denoise stage."""
    encoder = ENCODERS[name]
    return Component(
        name="text_encoder" if encoder.is_text else "image_encoder",
        kind="text_encoder",
        params=params(encoder),
        when=("text_encode",),
    )


def encode(name: str, runs: Ints) -> tuple[Op, ...]:
    """Operators of `runs` forwards of the encoder called `name`, batch 1 each."""
    encoder = ENCODERS[name]
    tokens, hidden, width = encoder.tokens, encoder.hidden, encoder.heads * encoder.head_dim
    count = encoder.layers * runs
    rows = (Rows.NONE, tokens)
    prefix = "text encoder " if encoder.is_text else "image encoder "
    attention = Attention(
        name=f"{prefix}attention",
        count=count,
        seq_q=tokens,
        seq_kv=tokens,
        heads=encoder.heads,
        kv_heads=encoder.heads,
        head_dim=encoder.head_dim,
        role=Role.MAP,
        masked=encoder.is_text,
    )
    return (
        *_entry(encoder, prefix, runs),
        linear(f"{prefix}q, k, v", rows, (width, hidden), count=3 * count),
        attention,
        linear(f"{prefix}attention output", rows, (hidden, width), count=count),
        linear(
            f"{prefix}feed-forward in",
            rows,
            (encoder.ffn, hidden),
            count=count * (2 if encoder.is_text else 1),
        ),
        linear(f"{prefix}feed-forward out", rows, (hidden, encoder.ffn), count=count),
        *_pointwise(encoder, prefix, count),
    )


def _entry(encoder: Encoder, prefix: str, runs: Ints) -> tuple[Op, ...]:
    if encoder.is_text:
        moved = elements(encoder.tokens, encoder.hidden) * CLONE_BYTES
        return (_moved(f"{prefix}embedding", runs, moved, 1),)
    side = encoder.image_px // encoder.patch_px
    return (
        Conv(
            name=f"{prefix}patch embedding",
            count=runs,
            in_channels=RGB,
            out_channels=encoder.hidden,
            kernel=(1, encoder.patch_px, encoder.patch_px),
            stride=(1, encoder.patch_px, encoder.patch_px),
            out_t=1,
            out_h=side,
            out_w=side,
        ),
    )


def _pointwise(encoder: Encoder, prefix: str, count: Ints) -> tuple[Op, ...]:
    """Norms, activation, residuals and layout copies of all layers."""
    rows, wide = elements(encoder.tokens, encoder.hidden), elements(encoder.tokens, encoder.ffn)
    shared = (
        _moved(f"{prefix}residual", 2 * count, rows * RESIDUAL_BYTES, 1),
        _moved(f"{prefix}attention layout", count, rows * CLONE_BYTES, 1),
    )
    if not encoder.is_text:
        return (
            _moved(f"{prefix}norm", 2 * count, rows * LAYER_NORM_BYTES, 1),
            _moved(f"{prefix}activation", count, wide * GELU_BYTES, 1),
            *shared,
        )
    pairs = elements(encoder.tokens, encoder.tokens)
    bias = pairs * (encoder.heads * T5_BIAS_BYTES + T5_BUCKET_BYTES)
    return (
        _moved(f"{prefix}norm", 2 * count, rows * T5_NORM_BYTES, T5_NORM_LAUNCHES),
        _moved(f"{prefix}activation", count, wide * T5_GELU_BYTES, T5_GELU_LAUNCHES),
        _moved(f"{prefix}position bias", count, bias, T5_BIAS_LAUNCHES),
        *shared,
    )


def _moved(name: str, count: Ints, bytes_moved: Floats, launches: int) -> Pointwise:
    return Pointwise(name=name, count=count, bytes_moved=bytes_moved, launches=launches)
