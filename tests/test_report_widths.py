"""What a page leaves out where it is too narrow, and what it says instead."""

from __future__ import annotations

import re

import pytest

import perfmodel as pm
from perfmodel.cli.app import run
from perfmodel.report.answer import CompareRow
from perfmodel.report.compare_page import compare_columns
from perfmodel.report.page import Column, Page, places
from perfmodel.report.render import Look, render
from perfmodel.report.tables import RULE, fit_columns, render_text, total_width
from perfmodel.report.verify_answer import TermShift, VerifyAnswer
from perfmodel.report.verify_page import verify_page
from perfmodel.verify.titles import KINDS


def text(answer, **look):
    return render(answer, "table", Look(**look))


def test_columns_leave_in_the_order_of_their_level():
    columns = [Column(str(n), ["x" * 20], drop=n) for n in (0, 1, 2, 3)]
    assert total_width(columns) == 2 + 4 * 20 + 3 * 2
    assert [c.header for c in fit_columns(columns, 100)] == ["0", "1", "2", "3"]
    assert [c.header for c in fit_columns(columns, 87)] == ["0", "1", "2"]
    assert [c.header for c in fit_columns(columns, 79)] == ["0", "1"]
    assert [c.header for c in fit_columns(columns, 30)] == ["0"]


def test_columns_of_the_last_resort_leave_after_all_others():
    columns = [Column(str(n), ["x" * 20], drop=n) for n in (0, -2, 1, -1)]
    assert [c.header for c in fit_columns(columns, 87)] == ["0", "-2", "-1"]
    assert [c.header for c in fit_columns(columns, 45)] == ["0", "-2"]
    assert [c.header for c in fit_columns(columns, 30)] == ["0"]


WIDE = [
    ("wan2.1-vace-14b", "4xH100-SXM", {"offload": "model", "dtype": "fp8"}, "xdit", "latency"),
    ("flux.1-fill-dev", "8xMI300X", {"offload": "layerwise", "cache_skip": 0.3}, "xdit", "cost"),
    ("ltx-2.3", "2x8xH100-SXM", {"offload": "layerwise", "dtype": "fp8"}, "sglang-diffusion", ""),
    ("minimax-h3", "8xA100-SXM", {"cache_skip": 0.3}, "vllm-omni", "throughput"),
    ("cosmos3-super", "2xRTX-4090", {}, "vllm-omni", "latency"),
    ("wan2.1-i2v-14b", "2xRTX-4090", {"cache_skip": 0.3, "dtype": "fp8"}, "vllm-omni", "latency"),
]


@pytest.mark.parametrize("requests", [1, 5])
@pytest.mark.parametrize(("model", "gpus", "options", "engine", "objective"), WIDE)
def test_no_table_is_wider_than_the_page(model, gpus, options, engine, objective, requests):
    answer = pm.recommend(
        pm.Workload(model=model, concurrency=requests),
        gpus,
        options=pm.Options(**options),
        engine=engine,
        objective=objective or "latency",
    )
    indented = [line for line in text(answer).splitlines() if line.startswith("  ")]
    assert max(map(len, indented)) <= 100


STAGE_HEADERS = {"VAE enc.", "denoise", "VAE dec.", "output", "MP4", "PNG"}


def told_ms(page: str) -> tuple[float, float]:
    """Of the best: its request, and the stages that the table and the line under it tell."""
    lines = page.splitlines()
    first = next(i for i, line in enumerate(lines) if "configuration  " in line and "#" in line)
    heads = re.split(r"\s{2,}", lines[first].strip())
    best = dict(zip(heads, re.split(r"\s{2,}", lines[first + 3].strip()), strict=True))
    shown = [value for head, value in best.items() if head in STAGE_HEADERS]
    (said,) = re.findall(r"request = (.*?) \+ these stages", " ".join(page.split()))
    beside = re.findall(r"\(~?([\d,.]+)", said)
    ms = [float(cell.strip("~").replace(",", "")) for cell in (best["request"], *shown, *beside)]
    return ms[0], sum(ms[1:])


@pytest.mark.parametrize("width", [60, 79, 80, 90, 100])
@pytest.mark.parametrize("requests", [1, 4])
def test_the_line_under_the_ranking_sums_to_the_request_at_every_width(width, requests):
    work = pm.Workload(
        model="wan2.2-t2v-a14b", frames=81, width=1280, height=720, concurrency=requests
    )
    answer = pm.recommend(work, "8xH100-SXM")
    request_ms, told = told_ms(text(answer, width=width))
    # each number is rounded to its range, the largest to hundreds
    assert told == pytest.approx(request_ms, rel=2e-3)


def test_what_is_not_shown_is_told_where_no_text_encoder_runs_too():
    answer = pm.recommend(pm.Workload(model="cosmos3-nano", frames=189), "4xB300")
    request_ms, told = told_ms(text(answer))
    assert told == pytest.approx(request_ms, rel=2e-3)


def test_the_header_that_tells_the_time_is_named_for_its_server_alone():
    work = pm.Workload(model="flux.1-dev")
    assert "x-inference-time-s" in text(pm.recommend(work, "2xH100-SXM"))
    other = text(pm.recommend(work, "2xH100-SXM", engine="xdit"))
    assert "x-inference-time-s" not in other
    assert "one request from start to file" in other


def test_a_lossy_row_of_a_comparison_says_so():
    work, box = pm.Workload(model="wan2.1-t2v-14b"), "4xH100-SXM"
    cases = [("bf16", {"dtype": "bf16"}), ("fp8", {"dtype": "fp8"})]
    answers = [pm.recommend(work, box, options=pm.Options(**options)) for _, options in cases]
    rows = [
        CompareRow(values={"dtype": name}, status="ok", prediction=answer.recommendations[0])
        for (name, _), answer in zip(cases, answers, strict=True)
    ]
    (quality,) = [c.cells for c in compare_columns(rows) if c.header == "quality"]
    assert list(quality) == ["", "lossy"]


def test_markdown_shows_all_stages_and_names_none_beside_the_text_encode():
    answer = pm.recommend(pm.Workload(model="wan2.1-t2v-14b", frames=81), "4xH100-SXM")
    page = render(answer, "md", Look())
    assert re.search(r"^request = text encode \(\S+\) \+ these stages", page, re.MULTILINE)


@pytest.mark.parametrize("bounded", [False, True])
def test_the_terms_of_a_verdict_fit_the_page_with_the_longest_title(bounded):
    title = max(KINDS.values(), key=len)
    shift = TermShift(
        source="run",
        title=title,
        shift_pct=-10.5,
        before_pct=36,
        after_pct=35,
        effect_ms=-1234567,
        bounded=bounded,
    )
    page = render_text(verify_page(VerifyAnswer(terms=(shift,), ranking=())))
    assert title in page
    assert max(map(len, page.splitlines())) <= 100


def test_a_comparison_of_engines_says_how_to_ask_for_one(capsys):
    words = ["recommend", "--gpus", "2xH100-SXM", "--model", "flux.1-dev", "--engine", "any"]
    assert run(words) == 0
    assert "recommend --engine NAME tells why" in capsys.readouterr().out


def test_hosts_of_one_device_are_joined_by_a_network():
    answer = pm.recommend(pm.Workload(model="wan2.2-ti2v-5b"), "2xGB10")
    assert "2x GB10, network, 2 nodes" in " ".join(text(answer).split())


@pytest.mark.parametrize("columns", [80, 100])
def test_a_prediction_fits_a_terminal_of_80_columns(columns):
    job = pm.Workload(model="cosmos3-nano", frames=189)
    answer = pm.predict(job, "4xB300", parallel="cfg2_usp2_vaepp4")
    lines = text(answer, width=columns).splitlines()
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("command", [["explain"], ["explain", "usp"], ["hardware", "list"]])
@pytest.mark.parametrize("columns", [80, 100, 120])
def test_pages_without_a_target_take_the_columns_of_the_terminal(
    command, columns, capsys, monkeypatch
):
    monkeypatch.setattr("perfmodel.cli.output.page_columns", lambda path=None: columns)
    assert run(command) == 0
    widest = max(map(len, capsys.readouterr().out.splitlines()))
    assert widest <= min(columns, 100)


def test_wide_signs_take_two_places():
    assert [places(word) for word in ("GPU", "加速器", "é", "e\u0301", RULE)] == [3, 6, 1, 1, 1]
    page = Page()
    page.table([Column("name", ["加速器", "GPU"], right=False), Column("ms", ["1", "20"])])
    page.paragraph("加速器 " * 30)
    lines = render_text(page, 40).splitlines()
    assert max(map(places, lines)) <= 40
    assert [places(line) for line in lines[:4]] == [places(lines[0])] * 4
    assert "\ue000" not in "".join(lines)


def test_a_long_name_stands_above_its_row():
    name = "an-accelerator-of-our-own-lab-with-a-name-of-more-than-forty-letters"
    page = Page()
    numbers = [Column(str(n), ["1", "234"]) for n in range(8)]
    page.table([Column("id", ["a10", name], right=False), *numbers])
    lines = render_text(page, 80).splitlines()
    assert lines[2].split() == ["a10"] + ["1"] * 8
    assert lines[3].strip() == name
    assert lines[4].split() == ["234"] * 8
    assert max(map(len, lines)) <= 80
    short = Page()
    short.table([Column("id", ["a10", name], right=False), *numbers[:4]])
    assert render_text(short, 100).splitlines()[3].split() == [name, *["234"] * 4]
