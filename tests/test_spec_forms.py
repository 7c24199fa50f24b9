"""Polynomials of model files: what is read, what is refused, and what a fit finds again."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.spec.forms import VARIABLES, added, amount, parse, whole, written
from perfmodel.stages.imports.trace.fit import Fitter, Point, monomials
from perfmodel.stages.imports.trace.points import POINTS, fitter, points

AT = {"b": 2, "f": 3, "h": 5, "w": 7, "t": 11}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (7, 7),
        ("f", 3),
        ("16*b*h*w + b*t + 8", 16 * 2 * 35 + 22 + 8),
        ("1/2*f*h - 1", 7),  # 6.5, rounded up
        ("-2 + t", 9),
        ("h*w*h*w", 1225),
    ],
)
def test_a_form_has_the_value_of_its_terms(text: int | str, value: int) -> None:
    assert whole(parse(text), AT) == value
    assert whole(parse(written(parse(text))), AT) == value


def test_columns_are_evaluated_at_once() -> None:
    found = whole(parse("b*f*h + 1"), {**AT, "f": np.array([1, 2]), "h": np.array([10, 20])})
    assert list(np.asarray(found)) == [21, 81]
    assert amount(parse("3*t"), {**AT, "t": np.array([2, 4])}).tolist() == [6.0, 12.0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "q",
        "f**2",
        "f h",
        "f+h",
        "2f",
        "1/0",
        "1e9",
        "__import__",
        "f*" * 50 + "f",
        True,
        "9" * 30,
    ],
)
def test_what_is_no_form_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"polynomial|terms|number|divides"):
        parse(text)


powers = st.tuples(*(st.integers(0, 2) for _ in VARIABLES)).filter(lambda each: sum(each) <= 8)
terms = st.dictionaries(powers, st.integers(-999, 999).filter(bool).map(Fraction), max_size=5)


@given(terms)
def test_writing_and_reading_is_the_identity(found: dict[tuple[int, ...], Fraction]) -> None:
    assert parse(written(found)) == found


@given(terms, terms)
def test_the_sum_has_the_sum_of_the_values(
    one: dict[tuple[int, ...], Fraction], other: dict[tuple[int, ...], Fraction]
) -> None:
    total = whole(added((one, other)), AT)
    assert total == whole(one, AT) + whole(other, AT)


SIZES = st.lists(
    st.sampled_from(["b*f*h*w", "f*h*w", "b*t", "b*h*w", "h", "w", "b*f*t", "b*f", "1"]),
    min_size=1,
    max_size=3,
    unique_by=lambda name: name.removeprefix("b*"),
)
"""No monomial both with and without the batch: a tensor has its batch once, or not at all."""


@settings(max_examples=60, deadline=None)
@given(SIZES, st.lists(st.integers(1, 20_000), min_size=3, max_size=3))
def test_a_fit_finds_the_sizes_that_made_the_values(names: list[str], factors: list[int]) -> None:
    truth = added(parse(f"{n}*{name}") for n, name in zip(factors, names, strict=False))
    shapes = points(video=True)
    values = [whole(truth, at.__dict__) for at in shapes]
    found = _fitter().form(int(value) for value in values)
    assert found == truth


def _fitter(cache: list[Fitter] = []) -> Fitter:  # noqa: B006 one table for all examples
    if not cache:
        cache.append(fitter(points(video=True)))
    return cache[0]


def test_no_fit_where_one_check_disagrees() -> None:
    shapes = points(video=False)
    values = [at.b * (at.h * at.w + at.t) for at in shapes]
    assert written(fitter(shapes).form(values) or {}) == "b*h*w + b*t"
    values[-1] += 1
    assert fitter(shapes).form(values) is None


def test_no_fit_of_what_is_no_polynomial() -> None:
    shapes = points(video=True)
    assert fitter(shapes).form(max(at.f, at.h, at.w) for at in shapes) is None
    assert fitter(shapes).form(-(-at.h // 5) * at.w for at in shapes) is None


def test_the_checks_have_a_batch_and_a_shape_of_their_own() -> None:
    assert len({at.b for at in POINTS}) == 3
    assert len(set(POINTS)) == len(POINTS)
    assert len(monomials(True, True, True)) > len(monomials(False, True, True))
    assert Point(1, 1, 1, 1, 1).power((3, 1, 2, 0, 4)) == 1
