"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.report import words


@pytest.mark.parametrize(
    ("value", "low", "high", "text"),
    [
        (33_291.4, 31_600.0, 35_900.0, "33,290"),
        (3_948.0, 3_500.0, 4_400.0, "3,950"),
        (42.4, 30.0, 60.0, "42"),
        (366_412.0, 300_000.0, 450_000.0, "366,000"),
        (0.0, 0.0, 0.0, "0"),
        (None, None, None, "-"),
        (9.583, None, None, "9.58"),
    ],
)
def test_milliseconds_show_no_more_digits_than_the_range(value, low, high, text):
    assert words.milliseconds(value, low, high) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (31_625.0, 35_953.0, "31,600-36,000"),
        (31.0, 58.0, "31-58"),
        (None, 4.0, "-"),
        (0.0, 0.0, "-"),
    ],
)
def test_span(low, high, text):
    assert words.span(low, high) == text


@given(st.floats(1, 1e9), st.floats(0.01, 0.9))
def test_rounding_stays_inside_the_range(value, width):
    low, high = value * (1 - width), value * (1 + width)
    shown = float(words.milliseconds(value, low, high).replace(",", ""))
    # a step of at most a tenth of the range, or the smallest step of 1 or 10 ms
    assert abs(shown - value) <= max((high - low) / 10, 0.5) * (1 + 1e-9)


@given(st.floats(1e-4, 1e8), st.integers(1, 6))
def test_significant_digits_are_right_and_without_exponent(value, digits):
    text = words.significant(value, digits)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.5 * 10 ** (1 - digits) * 1.01)


@pytest.mark.parametrize(
    ("value", "text"), [(181e6, "181 MB"), (45.2e6, "45.2 MB"), (1.5e9, "1.50 GB"), (512, "512 B")]
)
def test_bytes_of_messages_are_decimal(value, text):
    assert words.megabytes(value) == text


def test_signed_percent():
    assert words.signed_percent(3.905) == "+3.9 %"
    assert words.signed_percent(-0.04) == "0 %"
    assert words.signed_percent(1108.3) == "+1,108 %"


def test_join_words():
    assert words.join_words(["a"]) == "a"
    assert words.join_words(["a", "b", "c"]) == "a, b and c"
    assert words.join_words([]) == ""
