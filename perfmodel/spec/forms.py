"""Sizes of a traced operator as polynomials of the request: ``b*f*h*w + b*t + 8``.

Variables: ``b`` outputs of a batch, ``f`` frames, ``h`` rows and ``w`` columns of the token grid
(of a VAE: latent frames, rows and columns), ``t`` text tokens.  A term is a number (``3``,
``1/4``), variables, or both joined by ``*``; terms are joined by ``+`` or ``-``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from functools import lru_cache
from math import lcm
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

VARIABLES = "bfhwt"
Powers = tuple[int, ...]
"""Exponent of every variable."""
Terms = Mapping[Powers, Fraction]
"""Coefficient by exponents."""
Values = Mapping[str, int | NDArray[np.int64]]
"""What the variables stand for; columns are allowed."""
LONGEST = 400
MOST_TERMS = 24
MOST_DEGREE = 8
LARGEST = 10**15
ONE: Powers = (0,) * len(VARIABLES)

_FACTOR = rf"(?:\d+(?:/\d+)?|[{VARIABLES}])"
_TERM = rf"{_FACTOR}(?:\*{_FACTOR})*"
_FORM = re.compile(rf"-?{_TERM}(?: [+-] {_TERM})*")


def _checked(value: int | str) -> int | str:
    parse(value)
    return value


Form = Annotated[int | str, AfterValidator(_checked)]
"""A polynomial as a model file says it."""


@lru_cache(maxsize=4096, typed=True)
def parse(form: int | str) -> Terms:
    """Coefficients of a polynomial.

    Raises:
        ValueError: not written as described above, or too large.
    """
    text = str(form)
    if isinstance(form, bool) or len(text) > LONGEST or not _FORM.fullmatch(text):
        raise ValueError(f"{text[:40]} is no polynomial of {', '.join(VARIABLES)}")
    found: dict[Powers, Fraction] = {}
    for sign, term in re.findall(rf"(?:^|([+-]) )(-?{_TERM})", text):
        powers, coefficient = _term(term)
        found[powers] = found.get(powers, Fraction(0)) + coefficient * (-1 if sign == "-" else 1)
    if len(found) > MOST_TERMS or any(sum(powers) > MOST_DEGREE for powers in found):
        raise ValueError(f"{text[:40]} has too many terms or too high powers")
    if any(abs(value) > LARGEST or value.denominator > LARGEST for value in found.values()):
        raise ValueError(f"{text[:40]} holds too large a number")
    return {powers: value for powers, value in found.items() if value}


def _term(text: str) -> tuple[Powers, Fraction]:
    coefficient, powers = Fraction(-1 if text.startswith("-") else 1), [0] * len(VARIABLES)
    for factor in text.removeprefix("-").split("*"):
        if factor in VARIABLES:
            powers[VARIABLES.index(factor)] += 1
            continue
        try:
            coefficient *= Fraction(factor)
        except ZeroDivisionError:
            raise ValueError(f"{text[:40]} divides by 0") from None
    return tuple(powers), coefficient


def written(terms: Terms) -> int | str:
    """The polynomial as text; a constant whole number as itself."""
    if not terms:
        return 0
    if set(terms) == {ONE} and terms[ONE].denominator == 1:
        return int(terms[ONE])
    parts = [_written(p, terms[p]) for p in sorted(terms, key=lambda p: (-sum(p), p[::-1]))]
    text = parts[0]
    for part in parts[1:]:
        text += f" - {part[1:]}" if part.startswith("-") else f" + {part}"
    return text


def _written(powers: Powers, coefficient: Fraction) -> str:
    names = [name for name, power in zip(VARIABLES, powers, strict=True) for _ in range(power)]
    if abs(coefficient) != 1 or not names:
        names.insert(0, str(abs(coefficient)))
    return ("-" if coefficient < 0 else "") + "*".join(names)


def added(forms: Iterable[Terms]) -> Terms:
    """The sum of polynomials."""
    total: dict[Powers, Fraction] = {}
    for terms in forms:
        for powers, value in terms.items():
            total[powers] = total.get(powers, Fraction(0)) + value
    return {powers: value for powers, value in total.items() if value}


def part(terms: Terms, wanted: Callable[[Powers], bool]) -> Terms:
    """The terms whose exponents `wanted` accepts."""
    return {powers: value for powers, value in terms.items() if wanted(powers)}


def holds(powers: Powers, names: str) -> bool:
    """Whether any of the variables `names` is in a term."""
    return any(powers[VARIABLES.index(name)] for name in names)


def whole(terms: Terms, values: Values) -> int | NDArray[np.int64]:
    """The value, rounded up to a whole number (sizes that a ratio does not divide)."""
    scale = lcm(*(value.denominator for value in terms.values())) if terms else 1
    total: int | NDArray[np.int64] = 0
    for powers, value in terms.items():
        total = total + int(value * scale) * _product(powers, values)
    result = -(-total // scale)
    return result if isinstance(result, int) else np.asarray(result, np.int64)


def amount(terms: Terms, values: Values) -> float | NDArray[np.float64]:
    """The value as float64 (bytes)."""
    total: float | NDArray[np.float64] = 0.0
    for powers, value in terms.items():
        total = total + float(value) * np.asarray(_product(powers, values), np.float64)
    return float(total) if np.ndim(total) == 0 else np.asarray(total, np.float64)


def _product(powers: Powers, values: Values) -> int | NDArray[np.int64]:
    product: int | NDArray[np.int64] = 1
    for name, power in zip(VARIABLES, powers, strict=True):
        for _ in range(power):
            product = product * values[name]
    return product
