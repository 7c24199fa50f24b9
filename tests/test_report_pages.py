"""How answers look: order, columns, width, marks, formats."""

from __future__ import annotations

import csv
import io
import re

import pytest
import report_samples as samples

import perfmodel as pm
from perfmodel.report.answer import CompareAnswer, CompareRow, Evidence, StageRow, StagesMs
from perfmodel.report.markdown import render_markdown
from perfmodel.report.page import Column, Page
from perfmodel.report.render import Look, render
from perfmodel.report.tables import render_text


def text(answer, **look):
    return render(answer, "table", Look(**look))


def row_of(page: str, start: str) -> list[str]:
    line = next(line for line in page.splitlines() if line.strip().startswith(start))
    return line.split()


def test_the_answer_comes_first_then_why_choices_commands_trust():
    page = text(samples.answer())
    order = [
        "Cosmos3-Nano*",
        "BEST",
        "WHY",
        "configuration",
        "VAE decode of #1",
        "speed-up",
        "Not counted above",
        "1,512 combinations",
        "SERVE #1",
        "TRUST",
        "CITE",
    ]
    places = [page.index(part) for part in order]
    assert places == sorted(places)


def test_a_default_page_is_one_screen():
    assert len(text(samples.answer()).splitlines()) <= 50


@pytest.mark.parametrize("width", [40, 60, 79, 80, 100, 200])
def test_lines_keep_to_the_terminal_except_commands_and_tables(width):
    page = text(samples.answer(), width=width)
    for line in page.splitlines():
        if not line.startswith(("vllm serve", "  --", "  ", "─")):
            assert len(line) <= min(width, 100), line


@pytest.mark.parametrize(
    ("width", "shown", "hidden"),
    [
        (100, ["output", "MP4", "80 % range"], []),
        (79, ["denoise", "VAE dec."], ["output", "MP4"]),
        (60, ["denoise"], ["output", "MP4", "range"]),
    ],
)
def test_narrow_tables_drop_output_and_mp4_then_the_range(width, shown, hidden):
    header = next(x for x in text(samples.answer(), width=width).splitlines() if "vs best" in x)
    assert all(name in header for name in shown)
    assert not any(name in header for name in hidden)


def test_columns_that_are_zero_everywhere_are_left_out():
    assert "VAE enc." not in text(samples.answer())
    stages = StagesMs(text_encode=0.0, vae_encode=210.0, denoise=1.0)
    first = samples.prediction("usp4", 33290.0, stages_ms=stages)
    assert "VAE enc." in text(samples.answer(recommendations=(first,)))


def test_assumed_values_have_a_star_and_given_ones_do_not():
    page = text(samples.answer())
    assert "1280x720*" in page
    assert "189 frames at 24 fps*" in page
    assert "attention cuDNN*" in page
    work = samples.workload().model_copy(update={"assumed": ()})
    engine = samples.engine().model_copy(update={"assumed": ()})
    given = text(samples.answer(workload=work, engine=engine))
    assert "*" not in given.split("CITE")[0]


def test_priors_have_a_tilde():
    page = text(samples.answer())
    assert page.count("~1,700") == 3
    assert "~3,950" not in page


def test_ties_and_the_pick_are_said_in_words():
    page = text(samples.answer())
    assert "TIE with usp4_vaepp4" in page
    assert row_of(page, "1  cfg2_usp2")[2] == "best"
    assert row_of(page, "2  usp4")[2] == "tie"
    assert "+3.9 %" in page


def test_fewer_gpus_are_said_first():
    small = samples.prediction("usp2", 33000.0, num_gpus=2, rank=1)
    page = text(samples.answer(recommendations=(small,)))
    assert page.index("FEWER GPUS") < page.index("BEST")
    assert "usp2 on 2 of 4 GPUs is the best" in page
    tied = samples.prediction("usp2", 33500.0, num_gpus=2, rank=2, tied_with_best=True)
    best = samples.answer().recommendations[0]
    assert "usp2 on 2 of 4 GPUs ties" in text(samples.answer(recommendations=(best, tied)))
    assert "FEWER GPUS" not in text(samples.answer())


def test_lossy_winners_are_marked():
    rows = (
        samples.prediction("usp4_fp8", 30000.0, lossless=False),
        samples.prediction("usp4", 33000.0),
    )
    page = text(samples.answer(recommendations=rows))
    assert "LOSSY" in page
    assert row_of(page, "1  usp4_fp8")[-1] == "lossy"


def test_commands_are_never_wrapped():
    long = "vllm serve MODEL " + " ".join(f"--flag-{n} value" for n in range(30))
    commands = samples.answer().recommendations[0].commands.model_copy(update={"serve": long})
    best = samples.prediction("usp4", 33000.0, commands=commands)
    assert long in text(samples.answer(recommendations=(best,)), width=60).splitlines()


def test_more_commands_show_request_and_benchmark():
    one, three = text(samples.answer()), text(samples.answer(), commands=3)
    assert "curl" not in one
    assert three.count("curl") == 3
    first = text(samples.answer(), commands=1)
    assert first.count("curl") == 1
    assert "--commands 1-5" in one
    assert "--commands 1-5" not in first
    assert "SERVE" not in text(samples.answer(), commands=0)


def test_rejected_lists_every_rule_with_its_example():
    page = text(samples.answer(), rejected=True)
    assert row_of(page, "640  world-size")[2:] == ["usp8", "needs", "8"]
    assert "ulysses=3" not in text(samples.answer())


def test_without_utf8_rules_are_dashes():
    page = text(samples.answer(), ascii_only=True)
    assert page.isascii()
    assert re.search(r"^  -{40,}$", page, re.M)
    assert "─" in text(samples.answer())


def test_colour_adds_nothing_but_escapes():
    colored, plain = text(samples.answer(), color=True), text(samples.answer())
    assert "\x1b[" in colored
    assert "\x1b" not in plain
    stripped = re.sub(r"\x1b\[[0-9;]*m", "", colored)
    assert [x.rstrip() for x in stripped.splitlines()] == plain.splitlines()


def test_trust_and_cite_name_what_the_numbers_rest_on():
    page = text(samples.answer(), seconds=0.31)
    assert "calibrated: 95 % of this time rests on laws fitted to measurements, 5 % on" in page
    assert "26 measured runs outside the fit. <https://e.org>" in page
    assert "answer 7f3c9e1d     (0.3 s)" in page


def test_rough_answers_name_the_next_command():
    assert "perfmodel bench" in text(samples.answer(trust="rough", evidence=()))
    known = (Evidence(kind="holdout", text="x"),)
    assert "perfmodel bench" not in text(samples.answer(trust="rough", evidence=known))


def test_nothing_fits_says_by_how_much_where_and_what_would():
    page = text(samples.no_fit())
    assert "NOTHING FITS" in page
    assert "BEST" not in page
    assert "tp2 needs 311.4 GiB a GPU (denoise), 42.8 GiB too much" in page
    assert "126 GiB host RAM" in page
    assert "44.0 <-" in page
    assert page.count("does not pool") == 1


def test_predict_shows_stages_operators_losses_and_memory():
    page = text(samples.predicted(), commands=0)
    order = ["RESULT", "denoise on one GPU", "Where the speed-up goes", "per GPU, GiB", "TRUST"]
    places = [page.index(part) for part in order]
    assert places == sorted(places)
    assert "denoise = 35 steps x 703 ms = 24,590 ms; lower bound at datasheet peak 16,100" in page
    assert "stages not split: output copy 2,250" in page
    assert "measured" not in page.split("denoise on one GPU")[0].split("basis:")[0]


def test_operators_are_ordered_by_time_and_cut():
    names = [row_of(text(samples.predicted(), operators=n), "self attention")[0] for n in (1, 2, 3)]
    assert names == ["self"] * 3
    two = text(samples.predicted(), operators=2)
    assert "down projection" in two
    assert "ulysses" not in two
    three = text(samples.predicted(), operators=3)
    assert "2 GPUs, 181 MB" in three


def test_measurements_stand_beside_the_prediction():
    rows = (
        StageRow(
            stage="denoise",
            predicted_ms=24600,
            low_ms=23300,
            high_ms=26000,
            measured_ms=25903.0,
            error_pct=-5.0,
            outside_range=False,
        ),
        StageRow(
            stage="video_encode",
            predicted_ms=1700,
            measured_ms=3850,
            error_pct=-56.0,
            outside_range=True,
            basis="prior",
        ),
    )
    page = text(samples.predicted(stages=rows, largest_gap="Largest gap: MP4"))
    assert "25,903" in page
    assert "-56 % !" in page
    assert "-5 % !" not in page
    assert "! outside the range. Largest gap: MP4" in page
    titles = next(line for line in page.splitlines() if "predicted" in line)
    assert titles.split("range")[1].split()[:2] == ["measured", "error"]


def image_of(answer):
    made = answer.workload.model_copy(update={"frames": 1, "latent_frames": 1})
    return answer.model_copy(update={"workload": made})


def test_an_image_is_written_as_png_and_has_image_tokens():
    for answer in (samples.answer(), samples.predicted()):
        video, image = text(answer), text(image_of(answer))
        assert "MP4" in video
        assert "video +" in video
        assert "MP4" not in image
        assert "PNG" in image
        assert "image +" in image


def test_compare_keeps_the_row_of_a_refused_case():
    rows = (
        CompareRow(values={"gpus": "4xB300"}, prediction=samples.prediction("usp4", 30000.0)),
        CompareRow(
            values={"gpus": "8xH200"},
            prediction=samples.prediction("usp8", 45000.0),
            vs_first_pct=50.0,
        ),
        CompareRow(values={"gpus": "1xL4"}, status="does_not_fit"),
    )
    page = text(CompareAnswer(rows=rows, varied={"gpus": ("4xB300", "8xH200", "1xL4")}))
    assert row_of(page, "4xB300")[1:4] == ["usp4", "first", "30,000"]
    assert row_of(page, "8xH200")[1:5] == ["usp8", "+50.0", "%", "45,000"]
    assert row_of(page, "1xL4")[1:4] == ["does", "not", "fit"]


def test_markdown_is_made_of_pipe_tables_and_ends_with_the_command():
    page = render(samples.answer(), "md", Look(seconds=0.3))
    assert page.rstrip().endswith(f"```sh\n{samples.answer().command}\n```")
    table = [line for line in page.splitlines() if line.startswith("|")]
    widths = {line.replace("\\|", "").count("|") for line in table[:5]}
    assert len(widths) == 1
    assert "(0.3 s)" not in page
    assert not re.search(r"(?<!\\)(?<!\*)\*(?!\*)", page.split("```")[0])


def test_markdown_escapes_pipes_in_cells():
    page = Page()
    page.table([Column("a", ["x|y"])])
    assert "x\\|y" in render_markdown(page)


def test_csv_has_a_line_a_configuration_and_full_precision():
    rows = list(csv.DictReader(io.StringIO(render(samples.answer(), "csv"))))
    assert [row["config_id"] for row in rows] == [
        "cfg2_usp2_vaepp4",
        "usp4_vaepp4",
        "cfg2_ring2_vaepp4",
    ]
    assert float(rows[0]["denoise_ms"]) == samples.answer().recommendations[0].stages_ms.denoise
    assert rows[0]["first_request_ms"] == ""


def test_json_is_the_model_dump():
    answer = samples.answer()
    assert render(answer, "json") == answer.model_dump_json() + "\n"


def test_the_same_answer_gives_the_same_bytes():
    for form in ("table", "json", "csv", "md"):
        assert render(samples.answer(), form, Look()) == render(samples.answer(), form, Look())


def test_a_word_longer_than_the_page_is_not_cut():
    page = Page()
    page.paragraph("see " + "x" * 120 + " here")
    assert "x" * 120 in render_text(page, 80)


def test_a_faster_configuration_that_may_not_fit_is_not_denied():
    answer = pm.recommend(pm.Workload(model="ovis-image"), pm.system("2xRTX-4090"))
    rows = answer.recommendations
    assert any(row.fit_status == "tight" and row.latency_ms < rows[0].latency_ms for row in rows)
    text = render(answer, "table", Look())
    assert "is the best that surely fits" in text
    assert "best of all" not in text
