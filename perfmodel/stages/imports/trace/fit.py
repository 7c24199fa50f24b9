"""Numbers seen at several shapes as exact polynomials of the shape."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from itertools import combinations, product

import numpy as np
from numpy.typing import NDArray

from perfmodel.spec.forms import ONE, VARIABLES, Powers, Terms

MOST_TERMS = 5
LARGEST_DENOMINATOR = 64
NEAR = 1e-6


@dataclass(frozen=True)
class Point:
    """Values of the variables in one trace."""

    b: int
    f: int
    h: int
    w: int
    t: int

    def power(self, powers: Powers) -> int:
        """A monomial at this point."""
        value = 1
        for name, exponent in zip(VARIABLES, powers, strict=True):
            value *= getattr(self, name) ** exponent
        return value


def monomials(frames: bool, grid: bool, text: bool) -> list[Powers]:
    """Monomials without the batch, of the variables that differ; sizes, then squares of tokens."""
    names = ["", "f"] if frames else [""]
    planes = ["", "h", "w", "hw"] if grid else [""]
    sizes = [f + p for f, p in product(names, planes)]
    sizes += [f + "t" for f in names] if text else []
    tokens = [name for name in ("hw", "fhw", "f", "t") if name in sizes]
    squares = [a + b for a, b in combinations(tokens, 2)] + [a + a for a in tokens]
    unique = dict.fromkeys("".join(sorted(name)) for name in (*sizes, *squares))
    return [tuple(name.count(variable) for variable in VARIABLES) for name in unique]


@dataclass
class Fitter:
    """Exact polynomials through the values of several traces.

    The traces with the batch of the first decide the terms; the others, which of these grow with
    the batch, and whether the whole holds at shapes that decided nothing.  Where all have one
    batch, all terms are taken to grow with it.

    Attributes:
        points: shape of every trace.
        basis: monomials without the batch.
    """

    points: Sequence[Point]
    basis: Sequence[Powers]
    known: dict[tuple[int, ...], Terms | None] = field(default_factory=dict)

    def form(self, values: Iterable[int]) -> Terms | None:
        """The polynomial with the fewest terms that gives `values` exactly; None: there is none."""
        key = tuple(values)
        if key not in self.known:
            self.known[key] = self._form(key)
        return self.known[key]

    @cached_property
    def deciding(self) -> list[int]:
        """Traces with the batch of the first."""
        return [i for i, point in enumerate(self.points) if point.b == self.points[0].b]

    @cached_property
    def _table(self) -> NDArray[np.float64]:
        rows = [[self.points[i].power(powers) for powers in self.basis] for i in self.deciding]
        return np.array(rows, float)

    @cached_property
    def _subsets(self) -> list[tuple[NDArray[np.intp], NDArray[np.float64]]]:
        """Sets of monomials by number of terms, with the least-squares solver of each."""
        scale = self._table.max(axis=0)
        found = []
        spare = len(self.deciding) - 2
        few = range(1, min(MOST_TERMS, spare, len(self.basis)) + 1)
        sets = [list(combinations(range(len(self.basis)), count)) for count in few]
        # A padded map has them all: (f + 2)(h + 2)(w + 2).
        plain = tuple(i for i, powers in enumerate(self.basis) if max(powers) <= 1)
        sets += [[plain]] if MOST_TERMS < len(plain) <= spare else []
        for one in sets:
            chosen = np.array(one)
            inside = np.moveaxis((self._table / scale)[:, chosen], 0, 1)
            found.append((chosen, np.linalg.pinv(inside) / scale[chosen][:, :, None]))
        return found

    def _form(self, values: tuple[int, ...]) -> Terms | None:
        if len(set(values)) == 1:
            return {ONE: Fraction(values[0])} if values[0] else {}
        seen = np.array([values[index] for index in self.deciding], float)
        for chosen, solver in self._subsets:
            found = solver @ seen
            left = np.einsum("psc,sc->sp", self._table[:, chosen], found) - seen
            near = np.flatnonzero(np.abs(left).max(axis=1) <= NEAR * np.abs(seen).max())
            for row in near:
                terms = self._exact(chosen[row], found[row], values)
                if terms is not None:
                    return terms
        return None

    def _exact(
        self, chosen: NDArray[np.intp], numbers: NDArray[np.float64], values: tuple[int, ...]
    ) -> Terms | None:
        terms = [
            (self.basis[index], _exact_number(float(number)))
            for index, number in zip(chosen, numbers, strict=True)
        ]
        terms = [(powers, number) for powers, number in terms if number]
        for batched in self._batchings(len(terms)):
            batch = self.points[0].b
            whole = {
                (int(grows), *powers[1:]): number / (batch if grows else 1)
                for grows, (powers, number) in zip(batched, terms, strict=True)
            }
            if all(
                sum(point.power(powers) * number for powers, number in whole.items()) == value
                for point, value in zip(self.points, values, strict=True)
            ):
                return whole
        return None

    @staticmethod
    def _batchings(count: int) -> Iterable[tuple[bool, ...]]:
        """Which terms grow with the batch, all of them first."""
        return sorted(product((True, False), repeat=count), key=lambda grows: -sum(grows))


def _exact_number(number: float) -> Fraction:
    """The whole number, or small fraction, that a solver came close to."""
    near = round(number)
    if abs(number - near) <= max(NEAR, abs(number) * NEAR**1.5):
        return Fraction(near)
    return Fraction(number).limit_denominator(LARGEST_DENOMINATOR)
