"""Where nothing fits, or only just: the sentence, the table and the document say one thing."""

from __future__ import annotations

import re
from typing import get_args

import pytest

import perfmodel as pm
from perfmodel import api
from perfmodel.cli.app import run as typed
from perfmodel.report.glossary import glossary
from perfmodel.report.render import Look, render

NARROW = [
    (dict(model="cosmos3-super"), "1xL40S", "vllm-omni", pm.Options()),
    (dict(model="flux.1-dev"), "1xRTX4090", "diffusers", pm.Options()),
    (dict(model="wan2.2-t2v-a14b", frames=81), "1xL40S", "vllm-omni", pm.Options()),
]


def needed_row(page: str) -> tuple[list[float], int]:
    """The last line of the memory table: its numbers, and which of them is marked."""
    line = next(line for line in page.splitlines() if line.startswith("  needed "))
    cells = re.findall(r"([\d.]+)( <-)?", line)
    return [float(value) for value, _ in cells], [bool(mark) for _, mark in cells].index(True)


@pytest.mark.parametrize(("work", "gpus", "engine", "options"), NARROW)
def test_the_sentence_says_what_the_table_says(work, gpus, engine, options):
    answer = api.recommend(pm.Workload(**work), gpus, engine=engine, options=options)
    assert answer.status == "does_not_fit"
    page = render(answer, "table", Look())
    said = re.search(r"needs ([\d.]+) GiB while .*?, ([\d.]+) GiB too much", " ".join(page.split()))
    assert said
    values, marked = needed_row(page)
    assert values[marked] == max(values) == float(said[1])
    miss = answer.nearest_miss
    assert miss
    assert miss.required_memory_gib == pytest.approx(float(said[1]), abs=0.06)
    assert miss.required_memory_gib - miss.capacity_gib == pytest.approx(answer.over_gib)
    # parts sum to the peak of a phase, and the peak less what is given back to what is needed
    for phase, parts in miss.memory_parts_gib.items():
        whole = getattr(miss.memory_by_phase_gib, phase)
        assert sum(v for v in parts.model_dump().values() if v) == pytest.approx(whole)
        assert getattr(miss.required_by_phase_gib, phase) <= whole + 1e-9


def test_one_configuration_that_does_not_fit_says_what_it_needs_not_what_it_holds():
    answer = api.predict(
        pm.Workload(model="flux.1-dev"),
        pm.system("1xRTX4090", gpu_memory_gib=20),
        engine="diffusers",
        options=pm.Options(offload="model"),
    )
    assert answer.status == "does_not_fit"
    page = " ".join(render(answer, "table", Look()).split())
    needed = f"{answer.prediction.required_memory_gib:.1f}"
    assert f"needs {needed} of 20.0 GiB, does not fit" in page
    assert f"offload-model needs {needed} GiB a GPU (denoise)" in page


def test_what_only_may_fit_is_not_listed_as_fitting():
    answer = api.recommend(pm.Workload(model="cosmos3-super"), "1xL40S")
    by_status = [choice.fit_status for choice in answer.would_fit]
    assert by_status == ["fits", "fits", "tight"]
    tight = answer.would_fit[-1]
    again = api.recommend(pm.Workload(model="cosmos3-super"), tight.needs.split()[1])
    assert {row.fit_status for row in again.recommendations} == {"tight"}
    page = render(answer, "table", Look())
    sure, maybe = page.split("MAY FIT", 1)
    assert "WOULD FIT" in sure
    assert tight.config_id not in sure.split("WOULD FIT")[1]
    assert tight.config_id in maybe


def test_what_fits_for_sure_has_a_plain_table():
    answer = api.predict(pm.Workload(), "4xB300", parallel="usp4")
    page = render(answer, "table", Look())
    assert "given back" not in page
    assert "GiB, fits" in page


@pytest.mark.parametrize(
    ("model", "words"),
    [("flux.1-dev", "A smaller image does not help"), ("cosmos3-super", "or shorter video does")],
)
def test_only_a_video_can_be_shorter(model, words):
    answer = api.recommend(pm.Workload(model=model), "1xRTX4090")
    assert any(words in note for note in answer.fit_notes)


def test_every_line_names_the_same_axes_that_split_weights():
    answer = api.recommend(pm.Workload(model="wan2.2-t2v-a14b"), "1xrtx-4090")
    assert answer.status == "does_not_fit"
    page = " ".join(render(answer, "table", Look()).split())
    assert "weights" in page
    assert "split by tp, pp or hsdp" in page
    assert "only tp, pp and hsdp split them" in page
    # what is offered splits its weights by one of the three
    offered = [c.config_id for c in answer.would_fit if c.title.startswith("more GPUs")]
    assert all(re.search(r"(^|_)(tp|pp|hsdp)\d", name) for name in offered)


def test_where_no_change_helps_the_other_engines_are_named(capsys):
    """vLLM-Omni keeps the text encoder beside streamed blocks; SGLang streams it too."""
    job = pm.Workload(model="flux.2-dev")
    answer = api.recommend(job, "1xRTX4090")
    assert answer.would_fit == ()
    assert "--engine any" in " ".join(render(answer, "table", Look()).split())
    streamed = pm.Options(offload="layerwise")
    other = api.recommend(job, "1xRTX4090", engine="sglang-diffusion", options=streamed)
    assert other.recommendations[0].fit_status == "fits"
    flags = ["recommend", "--gpus", "1xRTX4090", "--model", "flux.2-dev", "--engine", "any"]
    assert typed(flags) == 3
    said = " ".join(capsys.readouterr().out.split())
    of_sglang = said.split("engine=sglang-diffusion:")[1].split("engine=")[0]
    assert "Try --offload layerwise." in of_sglang
    assert "Try" not in said.split("engine=vllm-omni:")[1].split("engine=")[0]


def test_explain_offload_names_every_mode():
    (entry,) = [one for one in glossary() if one.term == "offload"]
    modes = get_args(pm.Options.model_fields["offload"].annotation)
    assert "auto" in modes
    assert [
        mode for mode in modes if f"{mode}:" not in entry.text.replace(" (the default)", "")
    ] == []
