"""Self-attention over a divided sequence: Ulysses, ring, both, with keys of the text in front."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from perfmodel.verify.live.mesh import Mesh
from perfmodel.verify.live.parts import chunk_attention, merge, plain_attention
from perfmodel.verify.live.tape import Tape

COPIES = "Ulysses layout copies"
JOIN = "join text and video k, v"
NAME = "self-attention"
Prefix = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Sequence:
    """How the tokens of a request lie on the ranks.

    Attributes:
        tokens: of the request.
        local: of each rank; the last ranks hold zero rows behind the last token.
        masked: zero rows are masked by the kernel (else they are attended to).
        backend: attention kernel of the engine.
    """

    tokens: int
    local: int
    masked: bool = True
    backend: str = ""

    @classmethod
    def of(cls, tokens: int, mesh: Mesh, *, masked: bool = True, backend: str = "") -> Sequence:
        """The split of `tokens` over the sequence ranks of `mesh`."""
        return cls(tokens, -(-tokens // mesh.sequence), masked, backend)

    def mine(self, values: torch.Tensor, mesh: Mesh) -> torch.Tensor:
        """The rank's rows of ``[batch, tokens, ...]``, zero rows appended where they end."""
        if mesh.sequence == 1:
            return values
        start = mesh.place("sequence") * self.local
        part = values[:, start : start + self.local]
        missing = self.local - part.shape[1]
        if not missing:
            return part.contiguous()
        zeros = part.new_zeros((part.shape[0], missing, *part.shape[2:]))
        return torch.cat((part, zeros), dim=1)


def self_attention(
    tape: Tape,
    mesh: Mesh,
    sequence: Sequence,
    heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    prefix: Prefix | None = None,
) -> torch.Tensor:
    """Attention of all tokens with one another.

    Args:
        tape: runs the steps.
        mesh: the ranks.
        sequence: the split.
        heads: q, k, v of this rank's tokens, ``[batch, local, heads, head_dim]``.
        prefix: k and v of the text for this tensor rank's heads, the same on all sequence ranks.

    Returns:
        As q.
    """
    if mesh.config.ulysses > 1:
        q, k, v = (
            scatter_heads(tape, mesh, part, letters)
            for part, letters in zip(heads, ("q, o", "k, v", "k, v"), strict=True)
        )
        heads = (q, k, v)
        prefix = None if prefix is None else _own_heads(prefix, mesh)
    if mesh.config.ring > 1:
        out = ring_attention(tape, mesh, sequence, heads, prefix)
    else:
        q, k, v = heads
        if prefix is not None:
            k, v = tape(JOIN, _join, (prefix[0], k), (prefix[1], v))
        mask = _mask(sequence, mesh, q, k)
        out = tape(NAME, plain_attention, q, k, v, mask, sequence.backend)
    return gather_heads(tape, mesh, out) if mesh.config.ulysses > 1 else out


def scatter_heads(tape: Tape, mesh: Mesh, part: torch.Tensor, letters: str) -> torch.Tensor:
    """``[batch, local, heads, d]`` to ``[batch, local * ranks, heads / ranks, d]``."""
    packed = tape(COPIES, _by_rank_of_heads, part, mesh.config.ulysses)
    swapped = tape.send(f"Ulysses all-to-all {letters}", mesh.all_to_all, packed, "ulysses")
    return tape(COPIES, _tokens_joined, swapped)


def gather_heads(tape: Tape, mesh: Mesh, part: torch.Tensor) -> torch.Tensor:
    """The inverse of `scatter_heads`."""
    packed = tape(COPIES, _by_rank_of_tokens, part, mesh.config.ulysses)
    swapped = tape.send("Ulysses all-to-all q, o", mesh.all_to_all, packed, "ulysses")
    return tape(COPIES, _heads_joined, swapped)


def ring_attention(
    tape: Tape,
    mesh: Mesh,
    sequence: Sequence,
    heads: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    prefix: Prefix | None,
) -> torch.Tensor:
    """Keys and values go round while each rank attends to the chunk it has.

    The text's keys join the first chunk alone.  Zero rows behind the last token are cut off.
    """
    q, k, v = heads
    ranks, place = mesh.config.ring, mesh.place("ring")
    out = lse = torch.empty(0)
    for step in range(ranks):
        passing = None
        if step + 1 < ranks:
            passing = mesh.pass_on((k, v))
            tape.note("ring send k, v", mesh.ring_step, (k, v))
        valid = max(sequence.tokens - (place - step) % ranks * q.shape[1], 0)
        chunk = (k[:, :valid], v[:, :valid]) if sequence.masked else (k, v)
        if step == 0:
            if prefix is not None:
                chunk = tape(JOIN, _join, (prefix[0], chunk[0]), (prefix[1], chunk[1]))
            out, lse = tape(f"{NAME}, first ring chunk", chunk_attention, q, *chunk)
            out = out.float()
        elif chunk[0].shape[1]:
            new = tape(f"{NAME}, ring chunk", chunk_attention, q, *chunk)
            out, lse = tape.fused("ring merge", merge, out, lse, *new)
        if passing is not None:
            k, v = passing.wait()
    return out.to(q.dtype)


def _own_heads(prefix: Prefix, mesh: Mesh) -> Prefix:
    parts = [t.chunk(mesh.config.ulysses, dim=2)[mesh.place("ulysses")] for t in prefix]
    return parts[0], parts[1]


def _mask(sequence: Sequence, mesh: Mesh, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor | None:
    """Which keys are tokens; None when all are."""
    empty = sequence.local * mesh.sequence - sequence.tokens
    if not empty or not sequence.masked:
        return None
    mask = torch.ones(k.shape[1], dtype=torch.bool, device=q.device)
    mask[-empty:] = False
    return mask[None, None, None, :]


def _join(keys: Prefix, values: Prefix) -> Prefix:
    return torch.cat(keys, dim=1), torch.cat(values, dim=1)


def _by_rank_of_heads(part: torch.Tensor, ranks: int) -> torch.Tensor:
    return part.unflatten(2, (ranks, -1)).permute(2, 0, 1, 3, 4).contiguous()


def _tokens_joined(swapped: torch.Tensor) -> torch.Tensor:
    return swapped.permute(1, 0, 2, 3, 4).flatten(1, 2).contiguous()


def _by_rank_of_tokens(part: torch.Tensor, ranks: int) -> torch.Tensor:
    return part.unflatten(1, (ranks, -1)).permute(1, 0, 2, 3, 4).contiguous()


def _heads_joined(swapped: torch.Tensor) -> torch.Tensor:
    return swapped.permute(1, 2, 0, 3, 4).flatten(2, 3).contiguous()
