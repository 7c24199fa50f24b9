"""Shapes at which a class is traced: eight that decide, two of a larger batch that check.

A batch of one hides copies (a dimension of one needs no layout), so none is traced where the class
takes more.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.stages.imports.trace.fit import Fitter, Point, monomials

POINTS = (
    Point(2, 3, 8, 12, 32),
    Point(2, 5, 12, 8, 48),
    Point(2, 2, 16, 10, 64),
    Point(2, 4, 10, 18, 96),
    Point(2, 7, 14, 6, 16),
    Point(2, 6, 20, 14, 80),
    Point(2, 3, 6, 22, 112),
    Point(2, 8, 18, 16, 40),
    Point(3, 4, 22, 20, 56),
    Point(4, 5, 14, 26, 72),
)
DECIDE, DECIDE_IMAGE = 8, 6


def points(
    *,
    video: bool,
    batched: bool = True,
    frames: int | None = None,
    grid: tuple[int, int] | None = None,
    text: int | None = None,
) -> list[Point]:
    """The shapes, with what a class takes at one value only.

    Args:
        video: it takes frames.
        batched: it takes more than one output at once.
        frames: the number of frames that it takes.
        grid: the rows and columns that it takes.
        text: the number of text tokens that it takes.
    """
    found = []
    # An image has half as many variables, and as many monomials.
    for point in POINTS if video else (*POINTS[:DECIDE_IMAGE], *POINTS[DECIDE:]):
        f = (frames or point.f) if video else 1
        h, w = grid or (point.h, point.w)
        b = point.b if batched else 1
        found.append(replace(point, b=b, f=f, h=h, w=w, t=text or point.t))
    return found


def fitter(found: list[Point]) -> Fitter:
    """A fitter over the variables that differ between the shapes."""

    def varies(*names: str) -> bool:
        return any(len({getattr(point, name) for point in found}) > 1 for name in names)

    return Fitter(found, monomials(varies("f"), varies("h", "w"), varies("t")))


LENGTHS = [Point(b, 1, 1, 1, t) for b, t in ((2, 16), (2, 24), (2, 40), (2, 64), (3, 56), (4, 72))]
"""Lengths of a prompt."""
MAPS = [
    Point(1, f, h, w, 1)
    for f, h, w in (
        (3, 6, 10),
        (4, 10, 6),
        (2, 8, 14),
        (6, 12, 8),
        (5, 14, 18),
        (7, 16, 12),
        (3, 18, 16),
        (8, 10, 20),
        (9, 20, 14),
        (4, 22, 26),
        (5, 24, 16),
    )
]
"""Latent maps of a VAE, one output each."""
