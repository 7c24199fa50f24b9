"""Two small pieces of a diffusion pipeline, as torch modules and as operators.

The modules hold random weights.  The operators are written down from the formulas, not traced, so
that a prediction from them and a measurement of the module are independent of each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from perfmodel.ops import Attention, Conv, Gemm, Op, Pointwise, dtype_bytes

_EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class BlockSize:
    """A transformer block: tokens of the latent and of the text, widths, heads."""

    tokens: int
    text_tokens: int
    width: int
    heads: int
    ffn_width: int


@dataclass(frozen=True, slots=True)
class MapSize:
    """A residual block of a causal video VAE: channels, frames, rows, columns."""

    channels: int
    frames: int
    rows: int
    cols: int


SIZES: dict[str, tuple[BlockSize, MapSize]] = {
    "cpu": (BlockSize(768, 96, 512, 8, 2048), MapSize(48, 2, 40, 48)),
    "accelerator": (BlockSize(8640, 512, 4096, 32, 12288), MapSize(192, 4, 360, 640)),
}
"""Sizes between those of the quick preset, so that nothing is looked up."""


class Block(nn.Module):  # type: ignore[misc]
    """Self-attention, cross-attention to text and a GELU network, each with norm and residual."""

    def __init__(self, size: BlockSize) -> None:
        """Random weights of `size`."""
        super().__init__()
        width, ffn = size.width, size.ffn_width
        self.heads = size.heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.cross_out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, ffn), nn.Linear(ffn, width)

    def forward(self, x: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
        """``[batch, tokens, width]`` and ``[batch, text_tokens, width]`` to the former's shape."""
        x = x + self.out(self._attend(*self.qkv(self._norm(x)).chunk(3, dim=-1)))
        keys, values = self.key_value(text).chunk(2, dim=-1)
        x = x + self.cross_out(self._attend(self.query(self._norm(x)), keys, values))
        return x + self.down(F.gelu(self.up(self._norm(x)), approximate="tanh"))

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, (x.shape[-1],))

    def _attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads = [t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v)]
        return F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)


def block_ops(size: BlockSize, dtype: str = "bf16") -> tuple[Op, ...]:
    """The operators of `Block`, one after the other."""
    m, text, d, ffn = size.tokens, size.text_tokens, size.width, size.ffn_width
    heads, head_dim = size.heads, size.width // size.heads
    products = (
        ("qkv", m, 3 * d, d),
        ("out", m, d, d),
        ("cross query", m, d, d),
        ("cross key and value", text, 2 * d, d),
        ("cross out", m, d, d),
        ("up", m, ffn, d),
        ("down", m, d, ffn),
    )
    attentions = (("self-attention", m), ("cross-attention", text))
    row = m * d * dtype_bytes(dtype)
    return (
        *(Gemm(name=name, m=rows, n=n, k=k, dtype=dtype) for name, rows, n, k in products),
        *(
            Attention(
                name=name,
                seq_q=m,
                seq_kv=keys,
                heads=heads,
                kv_heads=heads,
                head_dim=head_dim,
                dtype=dtype,
            )
            for name, keys in attentions
        ),
        Pointwise(name="norm", count=3, bytes_moved=2 * row),
        Pointwise(name="residual", count=3, bytes_moved=3 * row),
        Pointwise(name="activation", bytes_moved=2 * row * ffn / d),
    )


class MapBlock(nn.Module):  # type: ignore[misc]
    """Two times (norm over channels, SiLU, causal 3x3x3 convolution), and a residual."""

    def __init__(self, size: MapSize) -> None:
        """Random weights of `size`."""
        super().__init__()
        channels = size.channels
        self.scale = nn.Parameter(torch.ones(channels, 1, 1, 1))
        self.first, self.second = (nn.Conv3d(channels, channels, 3) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``[batch, channels, frames, rows, cols]`` to the same shape."""
        hidden = self._causal(self.first, self._normed(x))
        return x + self._causal(self.second, self._normed(hidden))

    def _normed(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(F.normalize(x, dim=1, eps=_EPSILON) * self.scale)

    def _causal(self, conv: nn.Module, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = conv(F.pad(x, (1, 1, 1, 1, 2, 0)))
        return out


def map_ops(size: MapSize, dtype: str = "bf16") -> tuple[Op, ...]:
    """The operators of `MapBlock`; its norm makes three passes, scale and SiLU two each."""
    width = dtype_bytes(dtype)
    voxels = size.frames * size.rows * size.cols
    padded = (size.frames + 2) * (size.rows + 2) * (size.cols + 2)
    whole = voxels * size.channels * width
    return (
        Conv(
            name="convolution",
            count=2,
            in_channels=size.channels,
            out_channels=size.channels,
            kernel=(3, 3, 3),
            out_t=size.frames,
            out_h=size.rows,
            out_w=size.cols,
            dtype=dtype,
        ),
        Pointwise(name="map norm", count=2, bytes_moved=7 * whole, launches=5),
        Pointwise(
            name="pad",
            count=2,
            bytes_moved=whole + padded * size.channels * width,
            launches=2,
            is_copy=True,
        ),
        Pointwise(name="map residual", bytes_moved=3 * whole),
    )
