"""A few blocks with entry and exit, over the ranks of a mesh, and guidance on top."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from perfmodel.spec.model import TransformerSpec
from perfmodel.verify.live.attend import Sequence
from perfmodel.verify.live.block_cosmos import CosmosBlock
from perfmodel.verify.live.block_wan import WanBlock
from perfmodel.verify.live.parts import EPSILON, Weights, rms_norm, rope_tables
from perfmodel.verify.live.tape import Tape

EXIT = "sequence exit gather"
GUIDANCE_SCALE = 5.0


@dataclass(frozen=True)
class Size:
    """What one forward runs on.

    Attributes:
        spec: widths and heads.
        batch: outputs that run as one batch.
        grid: latent frames, rows and columns after padding to the patch.
        text_tokens: of a branch.
        masked: zero rows behind the last token are masked.
        fused_qkv: one product for q, k and v where the family allows it.
        backend: attention kernel of the engine.
    """

    spec: TransformerSpec
    batch: int
    grid: tuple[int, int, int]
    text_tokens: int
    masked: bool = True
    fused_qkv: bool = True
    backend: str = ""

    @property
    def tokens(self) -> int:
        """Latent tokens."""
        frames, rows, columns = self.grid
        patch = self.spec.patch
        return (frames // patch[0]) * (rows // patch[1]) * (columns // patch[2])


class _Base:
    """What both families share."""

    def __init__(self, size: Size, weights: Weights) -> None:
        self.size, self.weights, self.mesh = size, weights, weights.mesh
        self.sequence = Sequence.of(
            size.tokens, self.mesh, masked=size.masked, backend=size.backend
        )
        tables = rope_tables(size.tokens, size.spec.head_dim, weights.device)
        cos, sin = (self.sequence.mine(t.to(weights.dtype), self.mesh) for t in tables)
        self.rope = (cos, sin)
        spec = size.spec
        self.enter = weights.full("enter", spec.hidden, spec.patch_width_in)
        self.leave = weights.full("leave", spec.patch_width_out, spec.hidden)

    def latent(self) -> torch.Tensor:
        """Noise, the same on every rank."""
        frames, rows, columns = self.size.grid
        shape = (self.size.batch, self.size.spec.in_channels, frames, rows, columns)
        generator = torch.Generator(self.weights.device).manual_seed(1)
        noise = torch.randn(shape, generator=generator, device=self.weights.device)
        return noise.to(self.weights.dtype)

    def states(self, name: str, tokens: int) -> torch.Tensor:
        """Random text or image states, the same on every rank."""
        width = self.size.spec.hidden
        rows = self.weights.full(name, tokens, width) * width**0.5
        return rows[None].expand(self.size.batch, -1, -1).contiguous()

    def gathered(self, tape: Tape, part: torch.Tensor) -> torch.Tensor:
        """All tokens of a map of which each rank has its own."""
        if self.mesh.sequence == 1:
            return part
        whole = tape.send(EXIT, self.mesh.all_gather, part, "sequence")
        joined = whole.transpose(0, 1).flatten(1, 2)
        return joined[:, : self.size.tokens]


class CosmosDenoiser(_Base):
    """Cosmos3: one output at a time, hidden state gathered before the final norm."""

    def __init__(self, size: Size, weights: Weights, blocks: int) -> None:
        """Random weights of `blocks` blocks."""
        super().__init__(size, weights)
        self.blocks = [CosmosBlock(size.spec, weights, f"block{n}") for n in range(blocks)]
        self.norm = weights.vector("final", size.spec.hidden)
        self.time = weights.vector("time", size.spec.hidden)
        # both halves of a head turn by the same angles
        cos, sin = self.rope
        self.rope = (torch.cat((cos, cos), dim=-1), torch.cat((sin, sin), dim=-1))

    def prepare(self, branch: int) -> object:
        """Text K and V of every block."""
        text = self.states(f"text{branch}", self.size.text_tokens)
        return [block.keys(text, self.weights) for block in self.blocks]

    def forward(self, tape: Tape, latent: torch.Tensor, context: object) -> torch.Tensor:
        """Embed all tokens, run the rank's through the blocks, gather, project."""
        assert isinstance(context, list)
        tokens = tape("patchify", _patches, latent, self.size.spec.patch)
        x = tape("input projection", F.linear, tokens, self.enter)
        x = self.sequence.mine(tape("add timestep", torch.add, x, self.time), self.mesh)
        for block, keys in zip(self.blocks, context, strict=True):
            x = block(tape, x, keys, self.sequence, self.rope)
        x = tape.fused("final norm", rms_norm, self.gathered(tape, x), self.norm)
        return tape("output projection", F.linear, x, self.leave)


class WanDenoiser(_Base):
    """Wan: a convolution embeds, each rank projects its own tokens, which are gathered then."""

    def __init__(self, size: Size, weights: Weights, blocks: int) -> None:
        """Random weights of `blocks` blocks."""
        super().__init__(size, weights)
        spec, fused = size.spec, size.fused_qkv
        self.blocks = [WanBlock(spec, weights, f"block{n}", fused_qkv=fused) for n in range(blocks)]
        self.norm = weights.vector("final", spec.hidden)
        self.patch = self.enter.view(spec.hidden, spec.in_channels, *spec.patch)

    def prepare(self, branch: int) -> object:
        """Text (and image) states of the width of the blocks."""
        found = {"text": self.states(f"text{branch}", self.size.text_tokens)}
        if self.size.spec.image_width:
            found["image"] = self.states("image", self.size.spec.image_tokens)
        return found

    def forward(self, tape: Tape, latent: torch.Tensor, context: object) -> torch.Tensor:
        """Embed all tokens, run the rank's through the blocks, project, gather."""
        assert isinstance(context, dict)
        stride = self.size.spec.patch
        x = tape("patch embedding", F.conv3d, latent, self.patch, None, stride)
        x = self.sequence.mine(tape("token layout", _as_tokens, x), self.mesh)
        for block in self.blocks:
            x = block(tape, x, context, self.sequence, self.rope)
        x = tape.fused("final norm", _final_norm, x, self.norm)
        return self.gathered(tape, tape("output projection", F.linear, x, self.leave))


KINDS: dict[str, type[CosmosDenoiser | WanDenoiser]] = {
    "cosmos3": CosmosDenoiser,
    "wan": WanDenoiser,
}
"""Families whose blocks can be built."""


def guided(
    model: CosmosDenoiser | WanDenoiser, tape: Tape, latent: torch.Tensor, branches: int
) -> torch.Tensor:
    """One guided step: every branch once, on this rank or on another, and their combination.

    Branches are divided over the guidance ranks; the predictions are gathered, and every rank
    combines them itself.
    """
    ranks, place = model.mesh.config.cfg, model.mesh.place("cfg")
    mine = range(place, branches, ranks)
    # branches differ in the text alone, so the steps of one tell all
    found = [
        model.forward(tape if branch == place else tape.silent(), latent, model.prepare(branch))
        for branch in mine
    ]
    if ranks > 1:
        stacked = torch.stack(found)
        whole = tape.send("guidance exchange", model.mesh.all_gather, stacked, "cfg")
        # rank r has branches r, r + ranks, ...
        found = list(whole.transpose(0, 1).flatten(0, 1)[:branches])
    if branches == 1:
        return found[0]
    return tape("guidance combine", _combined, found[0], found[1])


def _combined(with_prompt: torch.Tensor, without: torch.Tensor) -> torch.Tensor:
    return without + GUIDANCE_SCALE * (with_prompt - without)


def _patches(latent: torch.Tensor, patch: tuple[int, int, int]) -> torch.Tensor:
    cut = latent
    for axis, size in zip((2, 4, 6), patch, strict=True):
        cut = cut.unflatten(axis, (-1, size))
    # batch, frames, rows, columns, channels and the three offsets inside a patch
    return cut.permute(0, 2, 4, 6, 1, 3, 5, 7).flatten(4).flatten(1, 3).contiguous()


def _as_tokens(x: torch.Tensor) -> torch.Tensor:
    return x.flatten(2).transpose(1, 2).contiguous()


def _final_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    wide = F.layer_norm(x.float(), (x.shape[-1],), eps=EPSILON)
    return (wide * weight).type_as(x)
