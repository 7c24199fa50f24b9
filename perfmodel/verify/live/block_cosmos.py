"""A block of the Cosmos3 video tower: keys of the text in front, gated feed-forward, no modulation.

Source: vLLM-Omni 0.30.0 ``transformer_cosmos3.py`` (https://pypi.org/project/vllm-omni/0.30.0/).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from perfmodel.spec.model import TransformerSpec
from perfmodel.verify.live.attend import Sequence, self_attention
from perfmodel.verify.live.mesh import Mesh
from perfmodel.verify.live.parts import Weights, rms_norm, rotate_halves
from perfmodel.verify.live.tape import Tape

Rope = tuple[torch.Tensor, torch.Tensor]


class CosmosBlock:
    """One block with random weights; a tensor rank holds its columns and rows."""

    def __init__(self, spec: TransformerSpec, weights: Weights, name: str) -> None:
        """Weights of `name`, equal for equal names."""
        self.spec, self.mesh = spec, weights.mesh
        hidden, widths = spec.hidden, (("q", spec.q_width), ("k", spec.kv_width))
        self.heads = {
            letter: weights.column(f"{name}.{letter}", width, hidden)
            for letter, width in (*widths, ("v", spec.kv_width))
        }
        names = ("gate", "up") if spec.activation == "swiglu" else ("up",)
        self.wide = {n: weights.column(f"{name}.{n}", spec.ffn, hidden) for n in names}
        self.out = weights.row(f"{name}.out", hidden, spec.q_width)
        self.down = weights.row(f"{name}.down", hidden, spec.ffn)
        self.norms = [weights.vector(f"{name}.norm{n}", hidden) for n in range(2)]
        self.qk_norms = [weights.vector(f"{name}.{n}_norm", spec.head_dim) for n in "qk"]
        self.name = name

    def keys(self, text: torch.Tensor, weights: Weights) -> tuple[torch.Tensor, torch.Tensor]:
        """K and V of the text for the heads of this tensor rank: what the text tower would keep."""
        width = (self.spec.kv_width, text.shape[-1])
        k, v = (
            F.linear(text, weights.column(f"{self.name}.text_{n}", *width)).unflatten(
                -1, (-1, self.spec.head_dim)
            )
            for n in "kv"
        )
        return k, v

    def __call__(
        self,
        tape: Tape,
        x: torch.Tensor,
        text: tuple[torch.Tensor, torch.Tensor],
        sequence: Sequence,
        rope: Rope,
    ) -> torch.Tensor:
        """Hidden state of the rank's tokens, ``[batch, local, hidden]``, to the same."""
        normed = tape.fused("input norm", rms_norm, x, self.norms[0])
        q, k, v = (
            tape(f"{letter} projection", F.linear, normed, self.heads[letter]).unflatten(
                -1, (-1, self.spec.head_dim)
            )
            for letter in "qkv"
        )
        q, k = tape.fused("q, k norm and rope", _norm_and_rope, q, k, tuple(self.qk_norms), rope)
        attended = self_attention(tape, self.mesh, sequence, (q, k, v), text).flatten(2)
        attended = summed(tape, self.mesh, "attention output", attended, self.out)
        x, normed = tape.fused("residual and norm", _residual_and_norm, x, attended, self.norms[1])
        inner = self._feed_forward(tape, normed)
        out = summed(tape, self.mesh, "down projection", inner, self.down)
        return tape("residual", torch.add, x, out)

    def _feed_forward(self, tape: Tape, normed: torch.Tensor) -> torch.Tensor:
        up = tape("up projection", F.linear, normed, self.wide["up"])
        if "gate" not in self.wide:
            return tape.fused("activation", _squared, up)
        gate = tape("gate projection", F.linear, normed, self.wide["gate"])
        return tape.fused("activation", _gated, gate, up)


def summed(
    tape: Tape, mesh: Mesh, name: str, x: torch.Tensor, weight: torch.Tensor
) -> torch.Tensor:
    """A product over the inputs of this tensor rank, summed over the ranks."""
    out = tape(name, F.linear, x, weight)
    if mesh.config.tp == 1:
        return out
    return tape.send(f"{name} all-reduce", mesh.all_reduce, out, "tp")


def _norm_and_rope(
    q: torch.Tensor, k: torch.Tensor, norms: tuple[torch.Tensor, ...], rope: Rope
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = rms_norm(q, norms[0]), rms_norm(k, norms[1])
    return rotate_halves(q, *rope), rotate_halves(k, *rope)


def _residual_and_norm(
    x: torch.Tensor, added: torch.Tensor, weight: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    x = x + added
    return x, rms_norm(x, weight)


def _gated(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return F.silu(gate) * up


def _squared(up: torch.Tensor) -> torch.Tensor:
    return F.relu(up).square()
