"""Rows of a joint attention: latent tokens, text tokens, and both as one stream."""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.ops import Gemm, Ints, Pointwise, Rows, Split
from perfmodel.shapes import Shape
from perfmodel.stages.base import Traits
from perfmodel.stages.layers import linear, traffic

PLAIN = Traits()
"""An engine that does nothing of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of one forward: outputs in the batch, latent tokens, text tokens of each.

    `split_text`: sequence parallelism divides the text like latent tokens.
    """

    batch: Ints
    tokens: Ints
    text: Ints
    split_text: bool = False

    @property
    def kept(self) -> Ints:
        """Text tokens of each output that every sequence rank keeps."""
        return 0 if self.split_text else self.text

    @property
    def latent_rows(self) -> tuple[Rows, Ints]:
        """Latent tokens, which sequence parallelism divides."""
        return Rows.TOKENS, self.batch * self.tokens

    @property
    def text_rows(self) -> tuple[Rows, Ints]:
        """Text tokens, on every sequence rank unless they are divided too."""
        return Rows.TOKENS if self.split_text else Rows.TEXT, self.batch * self.text

    @property
    def vector_rows(self) -> tuple[Rows, Ints]:
        """One vector an output."""
        return Rows.NONE, self.batch


ONE = Sizes(batch=1, tokens=1, text=1)
"""Sizes at which only the weights of the operators are of interest."""


def sizes_of(shape: Shape, traits: Traits = PLAIN) -> Sizes:
    """Sizes of one guidance branch of a request."""
    return Sizes(
        batch=shape.batch,
        tokens=shape.tokens,
        text=shape.text_tokens,
        split_text=traits.text_split,
    )


def joined_linear(
    name: str, sizes: Sizes, width: tuple[Ints, Ints], count: int, split: Split = Split.NONE
) -> Gemm:
    """A product over text and latent tokens as one stream."""
    rows = (Rows.TOKENS, sizes.batch * (sizes.tokens + sizes.text))
    return replace(
        linear(name, rows, width, count=count, split=split), fixed_rows=sizes.batch * sizes.kept
    )


def joined_traffic(
    name: str,
    sizes: Sizes,
    per_row: tuple[float, float],
    count: Ints,
    *,
    launches: tuple[int, int] = (1, 1),
    split: Split = Split.NONE,
    is_copy: bool = False,
    scattered: float = 0.0,
    rowwise: tuple[float, float] = (0.0, 0.0),
) -> tuple[Pointwise, Pointwise]:
    """One memory-bound operator over both streams: the latent rows, then the text rows."""
    latent = traffic(
        name,
        sizes.latent_rows,
        per_row,
        count=count,
        launches=launches[0],
        eager_launches=launches[1],
        split=split,
        is_copy=is_copy,
        scattered=scattered,
        rowwise=rowwise,
    )
    text = traffic(
        f"{name} (text)",
        sizes.text_rows,
        per_row,
        count=count,
        launches=0,
        eager_launches=0,
        split=split,
        is_copy=is_copy,
        scattered=scattered,
        rowwise=rowwise,
    )
    return latent, text
