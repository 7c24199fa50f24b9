"""Norms, rotary embeddings, activations and attention, kernel by kernel as published modules do.

Activations are ``[batch, tokens, width]``, heads ``[batch, tokens, heads, head_dim]``.
"""

from __future__ import annotations

import contextlib
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from perfmodel.verify.live.mesh import Mesh

EPSILON = 1e-6
ROPE_BASE = 10_000.0
BACKENDS = {
    "CUDNN_ATTN": SDPBackend.CUDNN_ATTENTION,
    "FLASH_ATTN": SDPBackend.FLASH_ATTENTION,
    "FLASH_ATTN_2": SDPBackend.FLASH_ATTENTION,
    "SDPA_EFFICIENT": SDPBackend.EFFICIENT_ATTENTION,
}
"""Engine backends that torch has a kernel of; others run what torch takes first."""

_ROWS_AT_ONCE = 1024


@dataclass(frozen=True)
class Weights:
    """Random weights: the same full matrix on every rank, of which a rank keeps its part."""

    device: torch.device
    dtype: torch.dtype
    mesh: Mesh

    def full(self, name: str, *shape: int) -> torch.Tensor:
        """Normal values, scaled so that a product keeps the size of its input."""
        generator = torch.Generator(self.device).manual_seed(zlib.crc32(name.encode()))
        values = torch.randn(shape, generator=generator, device=self.device)
        return (values / math.sqrt(math.prod(shape[1:]) or 1)).to(self.dtype)

    def column(self, name: str, out_width: int, in_width: int) -> torch.Tensor:
        """``[out, in]`` with the outputs divided over the tensor ranks."""
        return self._part(self.full(name, out_width, in_width), 0)

    def row(self, name: str, out_width: int, in_width: int) -> torch.Tensor:
        """``[out, in]`` with the inputs divided over the tensor ranks."""
        return self._part(self.full(name, out_width, in_width), 1)

    def vector(self, name: str, width: int, *, split: bool = False) -> torch.Tensor:
        """Values around one; with `split` those of this tensor rank."""
        values = (1 + self.full(name, width, 1).flatten() / 10).to(self.dtype)
        return self._part(values, 0) if split else values

    def _part(self, values: torch.Tensor, dimension: int) -> torch.Tensor:
        parts = values.chunk(self.mesh.config.tp, dimension)
        return parts[self.mesh.place("tp")].contiguous()


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """RMS norm of the last dimension in fp32."""
    wide = x.float()
    squares = wide.pow(2).mean(-1, keepdim=True)
    return weight * (wide * torch.rsqrt(squares + EPSILON)).to(x.dtype)


def square_sums(x: torch.Tensor) -> torch.Tensor:
    """Sum of squares of each row in fp32: what tensor ranks add for a norm over all heads."""
    return x.float().pow(2).sum(-1, keepdim=True)


def norm_by(x: torch.Tensor, weight: torch.Tensor, sums: torch.Tensor, width: int) -> torch.Tensor:
    """RMS norm of a part of a row, with the sum of squares over the whole row of `width`."""
    wide = x.float() * torch.rsqrt(sums / width + EPSILON)
    return weight * wide.to(x.dtype)


def modulated(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """Layer norm in fp32, times ``1 + scale``, plus shift."""
    wide = F.layer_norm(x.float(), (x.shape[-1],), eps=EPSILON)
    return (wide * (1 + scale) + shift).type_as(x)


def layer_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Layer norm in fp32 with a weight."""
    return F.layer_norm(x.float(), (x.shape[-1],), weight.float(), eps=EPSILON).type_as(x)


def rope_tables(tokens: int, head_dim: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Cosine and sine by position, ``[1, tokens, 1, head_dim / 2]`` in fp32."""
    powers = torch.arange(0, head_dim, 2, device=device).float() / head_dim
    angles = torch.outer(torch.arange(tokens, device=device).float(), ROPE_BASE**-powers)
    return angles.cos()[None, :, None, :], angles.sin()[None, :, None, :]


def rotate_halves(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding that pairs the first half of a head with the second (tables of both)."""
    low, high = x.chunk(2, dim=-1)
    turned = torch.cat((-high, low), dim=-1)
    return x * cos + turned * sin


def rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding that pairs neighbours."""
    left, right = x.unflatten(-1, (-1, 2)).unbind(-1)
    out = torch.empty_like(x)
    out[..., 0::2] = left * cos - right * sin
    out[..., 1::2] = left * sin + right * cos
    return out


def plain_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None = None,
    backend: str = "",
) -> torch.Tensor:
    """Attention of ``[batch, tokens, heads, head_dim]``; fewer key heads are shared."""
    heads = [t.transpose(1, 2) for t in (q, k, v)]
    options = {"enable_gqa": True} if q.shape[2] != k.shape[2] else {}
    chosen = BACKENDS.get(backend) if q.is_cuda and mask is None else None
    with sdpa_kernel(chosen) if chosen is not None else contextlib.nullcontext():
        out = F.scaled_dot_product_attention(heads[0], heads[1], heads[2], mask, **options)
    return out.transpose(1, 2)


def chunk_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention to one chunk of the keys, and the logarithm of the sum of its weights.

    Returns:
        ``[batch, tokens, heads, head_dim]`` and ``[batch, tokens, heads, 1]`` in fp32.
    """
    if q.shape[2] != k.shape[2]:
        share = q.shape[2] // k.shape[2]
        k, v = (t.repeat_interleave(share, dim=2) for t in (k, v))
    out, lse = _KERNELS.get(q.device.type, _chunk_by_rows)(*(t.transpose(1, 2) for t in (q, k, v)))
    return out.transpose(1, 2), lse[..., : q.shape[1]].transpose(1, 2).unsqueeze(-1).float()


def merge(
    out: torch.Tensor, lse: torch.Tensor, new: torch.Tensor, new_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over two sets of keys from that over each (online softmax), in fp32."""
    share = torch.sigmoid(new_lse - lse)
    return out - share * (out - new), lse - F.logsigmoid(lse - new_lse)


Pair = tuple[torch.Tensor, torch.Tensor]


def _chunk_cpu(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Pair:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
    return out, lse


def _chunk_cuda(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Pair:
    if q.dtype == torch.float32:
        return _chunk_by_rows(q, k, v)
    found = torch.ops.aten._scaled_dot_product_efficient_attention(q, k, v, None, True)
    return found[0], found[1]


def _chunk_by_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Pair:
    """Scores written out, some rows at a time: where no kernel gives the sum of its weights."""
    outs, sums = [], []
    for rows in q.split(_ROWS_AT_ONCE, dim=2):
        scores = (rows @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
        sums.append(scores.logsumexp(-1))
        outs.append(scores.softmax(-1).to(q.dtype) @ v)
    return torch.cat(outs, dim=2), torch.cat(sums, dim=2)


_KERNELS: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Pair]] = {
    "cpu": _chunk_cpu,
    "cuda": _chunk_cuda,
}
