"""The JSON contract."""

from __future__ import annotations

import json
import math

import jsonschema
import pytest
import report_samples as samples
from pydantic import ValidationError

from perfmodel.cli.schema import names, schema
from perfmodel.errors import BadInput, MissingData, Problem, Refused
from perfmodel.report.answer import (
    Answer,
    CompareAnswer,
    PredictAnswer,
    ProblemInfo,
    StagesMs,
    refusal,
)

CONTRACT = {
    "schema_version status problems workload system engine recommendations scaling rejected "
    "lossy_options warnings provenance answer_id throughput_best vae_choices evidence "
    "interval_level command": "",
    "workload": "model task width height frames fps steps guidance batch latent_frames "
    "latent_height latent_width video_tokens text_tokens guidance_branches forwards assumed",
    "system": "device num_gpus nodes link usable_gib",
    "engine": "name version",
    "recommendations": "rank config_id parallel options stages_ms denoise_per_step_ms latency_ms "
    "latency_low_ms latency_high_ms pipeline_forward_ms first_request_ms requests_per_hour "
    "peak_memory_gib peak_rank peak_phase memory_gib memory_by_phase_gib reserved_gib "
    "host_memory_gib capacity_gib fits fit_status tied_with_best lossless why speedup_loss_ms "
    "provenance_share commands basis_share",
    "scaling": "num_gpus config_id latency_ms speedup efficiency requests_per_hour",
    "rejected": "rule count example",
}
NESTED = {
    "parallel": "cfg_parallel_size ulysses_degree ring_degree tensor_parallel_size "
    "pipeline_parallel_size data_parallel_size hsdp_shard_size hsdp_replicate_size "
    "vae_patch_parallel_size",
    "stages_ms": "text_encode vae_encode denoise vae_decode transfer video_encode",
    "memory_gib": "weights text_encoder vae activations workspace collectives runtime",
    "memory_by_phase_gib": "load text_encode vae_encode denoise vae_decode",
    "commands": "serve request benchmark",
}


@pytest.fixture(scope="module")
def document():
    return json.loads(samples.answer().model_dump_json())


@pytest.mark.parametrize("part", CONTRACT)
def test_recommend_has_the_fields_of_the_contract(document, part):
    found = document.get(part, document)
    found = found[0] if isinstance(found, list) else found
    fields = (CONTRACT[part] or part).split()
    assert [name for name in fields if name not in found] == []


@pytest.mark.parametrize("part", NESTED)
def test_a_recommendation_has_the_nested_fields(document, part):
    missing = set(NESTED[part].split()) - set(document["recommendations"][0][part])
    assert missing == set()


def test_predict_has_prediction_and_operators():
    document = json.loads(samples.predicted().model_dump_json())
    assert {"prediction", "operators", "denoise_lower_bound_ms"} <= set(document)
    fields = (
        "stage name kind count time_ms time_each_ms flops bytes message_bytes group_size link "
        "bound roof_fraction provenance"
    )
    assert set(fields.split()) <= set(document["operators"][0])


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("recommend", samples.answer()),
        ("recommend", samples.no_fit()),
        ("recommend", Answer(status="bad_input")),
        ("predict", samples.predicted()),
        ("compare", CompareAnswer(varied={"gpus": ("a",)})),
    ],
)
def test_answers_agree_with_their_schema(name, answer):
    jsonschema.validate(json.loads(answer.model_dump_json()), schema(name))


def test_the_schema_refuses_wrong_types_and_accepts_added_fields(document):
    jsonschema.validate({**document, "added_later": 1}, schema("recommend"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "status": "fine"}, schema("recommend"))


def test_every_listed_schema_is_a_schema():
    for name in names():
        jsonschema.Draft202012Validator.check_schema(schema(name))


def test_unknown_schema_names_the_legal_ones():
    with pytest.raises(BadInput, match="legal: recommend, predict"):
        schema("recomend")


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_no_number_is_nan_or_infinite(value):
    with pytest.raises(ValidationError):
        StagesMs(denoise=value)


def test_unknown_is_null_and_absent_is_zero(document):
    stages = document["recommendations"][0]["stages_ms"]
    assert stages["vae_encode"] == 0.0
    assert document["recommendations"][0]["first_request_ms"] is None


def test_json_comes_back_as_the_same_answer():
    for answer in (samples.answer(), samples.no_fit()):
        assert Answer.model_validate_json(answer.model_dump_json()) == answer
    one = samples.predicted()
    assert PredictAnswer.model_validate_json(one.model_dump_json()) == one


def test_answers_are_frozen_and_refuse_unknown_fields():
    answer = samples.answer()
    with pytest.raises(ValidationError):
        answer.status = "illegal"
    with pytest.raises(ValidationError):
        Answer(latency=3)


def test_predict_answers_offer_the_fields_of_the_prediction():
    one = samples.predicted()
    assert (one.fit_status, one.peak_phase, one.config_id) == (
        "fits",
        "denoise",
        "cfg2_usp2_vaepp4",
    )
    with pytest.raises(AttributeError, match="bad_input"):
        _ = PredictAnswer(status="bad_input").latency_ms


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(BadInput, "bad_input", 2), (Refused, "illegal", 2), (MissingData, "missing_data", 4)],
)
def test_a_refusal_carries_status_problems_and_exit_code(error, status, code):
    problem = Problem("cfg-branches", "cfg=2 needs\n 2 branches", legal_values=("1",))
    document = refusal(error(problem), PredictAnswer)
    assert isinstance(document, PredictAnswer)
    assert (document.status, document.exit_code) == (status, code)
    assert document.problems == (ProblemInfo.of(problem),)
    assert document.problems[0].line() == "error[cfg-branches]: cfg=2 needs 2 branches"


def test_does_not_fit_exits_with_3():
    assert samples.no_fit().exit_code == 3
    assert samples.answer().exit_code == 0
