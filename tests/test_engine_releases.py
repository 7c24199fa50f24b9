"""Release numbers and days of engines as people write them, older and newer than known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import engines
from perfmodel.engines.releases import Number, nearest_release, read_day, read_number
from perfmodel.errors import BadInput
from perfmodel.spec.record import RunRecord
from perfmodel.validate.questions import version_of


@pytest.mark.parametrize(
    ("text", "release", "side"),
    [
        ("0.30.0", (0, 30, 0), "exact"),
        ("v0.30", (0, 30, 0), "exact"),
        ("0.30.0+cu130", (0, 30, 0), "exact"),
        ("0.30.0.post1", (0, 30, 0), "after"),
        ("0.5.13post1", (0, 5, 13), "after"),
        ("0.25.0rc2.dev62", (0, 25, 0), "before"),
        ("0.30.0.dev12+gabc", (0, 30, 0), "before"),
        ("0.30.0-rc1", (0, 30, 0), "before"),
        ("0.20.1.dev167 (main 89e389cf)", (0, 20, 1), "before"),
        ("0.5.23 (wheel)", (0, 5, 23), "after"),
        ("1.0", (1, 0, 0), "exact"),
    ],
)
def test_numbers_as_people_write_them(text, release, side):
    assert read_number(text) == Number(release, side)


@pytest.mark.parametrize(
    "text", ["", "main", "2026", "9772bb32", "0.30.0;rm", "0.30.0 x", "2026-06-16", "0..3", "v"]
)
def test_what_is_no_number(text):
    assert read_number(text) is None


def test_days_of_the_calendar():
    assert read_day("2026-06-16") == "2026-06-16"
    assert read_day("2026-06") == "2026-06-28"
    for text in ("2026-02-30", "2026-13-01", "2026-00", "2026", "26-01-01", "2026-6-1"):
        assert read_day(text) is None, text


RELEASE = st.tuples(st.integers(0, 2), st.integers(0, 9), st.integers(0, 9))


@given(st.sets(RELEASE, min_size=1), RELEASE, st.sampled_from(["exact", "before", "after"]))
def test_the_nearest_is_the_newest_that_is_not_newer(known, release, side):
    taken = nearest_release(Number(release, side), known)
    allowed = [one for one in known if one < release or (one == release and side != "before")]
    assert taken == (max(allowed) if allowed else min(known))


@pytest.mark.parametrize(
    ("engine", "text", "day", "warned"),
    [
        ("sglang-diffusion", "0.5.23", "2026-10-30", False),
        ("sglang-diffusion", "v0.5.23", "2026-10-30", False),
        ("sglang-diffusion", "0.5.15", "2026-06-26", True),
        ("sglang-diffusion", "0.5.13.post1", "2026-06-11", True),
        ("sglang-diffusion", "0.5.23.dev1", "2026-10-16", True),
        ("sglang-diffusion", "0.5.9", "2026-06-11", True),
        ("sglang-diffusion", "0.6", "2026-10-30", True),
        ("xdit", "0.4.3.post3", "2025-03-20", True),
        ("diffusers", "0.36.0", "2026-10-27", True),
        ("wan-official", "2.2", "2025-07-28", True),
        ("vllm-omni", "0.30.0+cu130", "2026-09-25", False),
        ("vllm-omni", "0.30.0.post1", "2026-09-25", True),
        ("vllm-omni", "2026-09-20", "2026-09-20", False),
        ("vllm-omni", "2030-01-01", "2030-01-01", True),
        ("sglang-diffusion", "2030-01-01", "2030-01-01", True),
    ],
)
def test_a_release_that_was_not_read_has_the_facts_of_the_one_before(engine, text, day, warned):
    version = engines.engine(engine).version(text)
    assert version.date == day
    assert [p.severity for p in version.problems] == ["warning"] * warned


@pytest.mark.parametrize("engine", ["vllm-omni", "sglang-diffusion", "xdit", "diffusers"])
@pytest.mark.parametrize("text", ["", "2026-02-30", "0.30.0;rm", "latest"])
def test_neither_a_release_nor_a_day(engine, text):
    with pytest.raises(BadInput) as caught:
        engines.parse_engine(f"{engine}@{text}")
    assert caught.value.exit_code == 2
    assert text in caught.value.problems[0].message


def test_the_day_of_a_record_carries_no_warning():
    assert engines.engine("vllm-omni").version(None, dated="2030-01-01").problems == ()


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        ("0.20.1.dev167 (main 89e389cf)", ("0.20.1.dev167", True)),
        ("v0.30.0", ("v0.30.0", True)),
        ("1.0.0", ("1.0.0", True)),
        ("9772bb32 (vLLM 0.23)", ("2026-08-17", False)),
        ("main@46e0b714", ("2026-08-17", False)),
        ("   ", ("2026-08-17", False)),
        (None, ("2026-08-17", False)),
    ],
)
def test_the_version_of_a_record(version, expected):
    record = RunRecord(
        id="a", source="https://x", source_date="2026-08-17", engine="vllm-omni",
        engine_version=version, model="wan2.1-t2v-14b", gpu="h100-sxm", num_gpus=1,
        measured_ms={"e2e": 1.0},
    )  # fmt: skip
    assert version_of(record) == expected
