"""A block of the Wan transformer: modulated self-attention, cross-attention, feed-forward.

Source: diffusers 0.42.1 ``transformer_wan.py`` (https://pypi.org/project/diffusers/0.42.1/).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from perfmodel.spec.model import TransformerSpec
from perfmodel.verify.live.attend import Sequence, self_attention
from perfmodel.verify.live.block_cosmos import Rope, summed
from perfmodel.verify.live.parts import (
    Weights,
    layer_norm,
    modulated,
    norm_by,
    plain_attention,
    rms_norm,
    rotate_pairs,
    square_sums,
)
from perfmodel.verify.live.tape import Tape

MODULATIONS = 6
QK = "q, k norm and rope"


class WanBlock:
    """One block with random weights; a tensor rank holds its columns and rows."""

    def __init__(
        self, spec: TransformerSpec, weights: Weights, name: str, *, fused_qkv: bool
    ) -> None:
        """Weights of `name`, equal for equal names."""
        self.spec, self.mesh, self.fused = spec, weights.mesh, fused_qkv
        hidden, q_width = spec.hidden, spec.q_width
        widths = {"q": q_width, "k": spec.kv_width, "v": spec.kv_width}
        self.qkv = {n: weights.column(f"{name}.{n}", w, hidden) for n, w in widths.items()}
        self.cross_q = weights.column(f"{name}.cross_q", q_width, hidden)
        sources = ("text", "image") if spec.image_width else ("text",)
        self.keys = {
            (source, n): weights.column(f"{name}.{source}_{n}", spec.kv_width, hidden)
            for source in sources
            for n in "kv"
        }
        self.sources = sources
        self.out, self.cross_out = (
            weights.row(f"{name}.{n}", hidden, q_width) for n in ("out", "cross_out")
        )
        self.up = weights.column(f"{name}.up", spec.ffn, hidden)
        self.down = weights.row(f"{name}.down", hidden, spec.ffn)
        self.norm = weights.vector(f"{name}.norm", hidden)
        self.norms = {
            n: weights.vector(f"{name}.{n}_norm", width, split=True)
            for n, width in (
                ("q", q_width),
                ("k", spec.kv_width),
                ("cross_q", q_width),
                *((source, spec.kv_width) for source in sources),
            )
        }
        self.table = weights.full(f"{name}.modulation", MODULATIONS, hidden).float()
        if fused_qkv:
            self.joined = torch.cat(list(self.qkv.values()))

    def __call__(
        self,
        tape: Tape,
        x: torch.Tensor,
        context: dict[str, torch.Tensor],
        sequence: Sequence,
        rope: Rope,
    ) -> torch.Tensor:
        """Hidden state of the rank's tokens to the same; `context` has text (and image) states."""
        shift, scale, gate, late_shift, late_scale, late_gate = self.table.unbind()
        normed = tape.fused("norm and modulation", modulated, x, scale, shift)
        q, k, v = self._project(tape, normed)
        q, k = self._norm_and_rope(tape, q, k, rope)
        heads = (self._heads(q), self._heads(k), self._heads(v))
        attended = self_attention(tape, self.mesh, sequence, heads).flatten(2)
        attended = summed(tape, self.mesh, "attention output", attended, self.out)
        x, normed = tape.fused(
            "gate, residual and norm", _gate_and_norm, x, attended, gate, self.norm
        )
        crossed = self._cross(tape, normed, context, sequence.backend)
        x, normed = tape.fused(
            "residual, norm and modulation", _add_and_modulate, x, crossed, late_scale, late_shift
        )
        inner = tape("feed-forward in", F.linear, normed, self.up)
        inner = tape.fused("activation", _gelu, inner)
        out = summed(tape, self.mesh, "feed-forward out", inner, self.down)
        return tape.fused("gate and residual", _gated_sum, x, out, late_gate)

    def _heads(self, part: torch.Tensor) -> torch.Tensor:
        return part.unflatten(-1, (-1, self.spec.head_dim))

    def _project(
        self, tape: Tape, normed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if self.fused:
            whole = tape("q, k, v projection", F.linear, normed, self.joined)
            q, k, v = whole.split([len(weight) for weight in self.qkv.values()], dim=-1)
        else:
            q, k, v = (
                tape(f"{n} projection", F.linear, normed, weight) for n, weight in self.qkv.items()
            )
        return q, k, v

    def _norm_and_rope(
        self, tape: Tape, q: torch.Tensor, k: torch.Tensor, rope: Rope
    ) -> tuple[torch.Tensor, torch.Tensor]:
        norms, dim = (self.norms["q"], self.norms["k"]), self.spec.head_dim
        if self.mesh.config.tp == 1:
            return tape.fused(QK, _norm_and_turn, q, k, norms, rope, dim)
        sums = [self._sums(tape, QK, "q, k norm sums over tp", part) for part in (q, k)]
        widths = (self.spec.q_width, self.spec.kv_width)
        return tape.fused(QK, _norm_by_and_turn, (q, k), norms, tuple(sums), widths, rope, dim)

    def _sums(self, tape: Tape, name: str, message: str, part: torch.Tensor) -> torch.Tensor:
        own = tape.fused(name, square_sums, part)
        return tape.send(message, self.mesh.all_reduce, own, "tp")

    def _full_norm(
        self, tape: Tape, name: str, message: str, part: torch.Tensor, key: str
    ) -> torch.Tensor:
        """RMS norm over all heads, also those of the other tensor ranks."""
        if self.mesh.config.tp == 1:
            return tape.fused(name, rms_norm, part, self.norms[key])
        sums = self._sums(tape, name, message, part)
        width = part.shape[-1] * self.mesh.config.tp
        return tape.fused(name, norm_by, part, self.norms[key], sums, width)

    def _cross(
        self, tape: Tape, normed: torch.Tensor, context: dict[str, torch.Tensor], backend: str
    ) -> torch.Tensor:
        q = tape("cross q projection", F.linear, normed, self.cross_q)
        q = self._full_norm(tape, "cross q norm", "q, k norm sums over tp", q, "cross_q")
        found = []
        for source in self.sources:
            k, v = (
                tape(f"{source} {n} projection", F.linear, context[source], self.keys[source, n])
                for n in "kv"
            )
            message = f"{source} k norm sums over tp"
            k = self._full_norm(tape, f"{source} k norm", message, k, source)
            parts = (self._heads(q), self._heads(k), self._heads(v))
            name = f"{source} cross-attention"
            found.append(tape(name, plain_attention, *parts, None, backend).flatten(2))
        attended = found[0]
        if len(found) > 1:
            attended = tape("add text and image attention", torch.add, *found)
        return summed(tape, self.mesh, "cross output", attended, self.cross_out)


def _norm_and_turn(
    q: torch.Tensor,
    k: torch.Tensor,
    norms: tuple[torch.Tensor, torch.Tensor],
    rope: Rope,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _turn(rms_norm(q, norms[0]), rope, head_dim), _turn(
        rms_norm(k, norms[1]), rope, head_dim
    )


def _norm_by_and_turn(
    qk: tuple[torch.Tensor, torch.Tensor],
    norms: tuple[torch.Tensor, torch.Tensor],
    sums: tuple[torch.Tensor, ...],
    widths: tuple[int, int],
    rope: Rope,
    head_dim: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = (norm_by(qk[n], norms[n], sums[n], widths[n]) for n in range(2))
    return _turn(q, rope, head_dim), _turn(k, rope, head_dim)


def _turn(part: torch.Tensor, rope: Rope, head_dim: int) -> torch.Tensor:
    return rotate_pairs(part.unflatten(-1, (-1, head_dim)), *rope).flatten(2)


def _gate_and_norm(
    x: torch.Tensor, added: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = (x.float() + added * gate).type_as(x)
    return x, layer_norm(x, weight)


def _add_and_modulate(
    x: torch.Tensor, added: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x + added
    return x, modulated(x, scale, shift)


def _gelu(inner: torch.Tensor) -> torch.Tensor:
    return F.gelu(inner, approximate="tanh")


def _gated_sum(x: torch.Tensor, added: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    return (x.float() + added.float() * gate).type_as(x)
