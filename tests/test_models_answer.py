"""Every image and joint-attention model answers on one to eight GPUs of three vendors."""

from __future__ import annotations

import pytest
from model_slugs import JOINT as SLUGS

from perfmodel.api import recommend
from perfmodel.catalog import load_model, parse_gpus
from perfmodel.engines.vllm_omni.pipelines import pipeline_of
from perfmodel.spec.workload import Workload

# In no registry of vLLM-Omni.
ENGINE = {"hunyuan_video": "xdit"}
SYSTEMS = ("1xb300", "2xa100", "4xmi300x", "8xascend-910c-die")


@pytest.mark.parametrize("gpus", SYSTEMS)
@pytest.mark.parametrize("slug", SLUGS)
def test_it_answers(slug: str, gpus: str) -> None:
    other = ENGINE.get(load_model(slug).family, "diffusers")
    engine = "vllm-omni" if pipeline_of(slug) else other
    answer = recommend(Workload(model=slug), parse_gpus(gpus), engine=engine)
    assert answer.recommendations
    best = answer.recommendations[0]
    assert best.stages_ms is not None
    assert 0 < (best.stages_ms.denoise or 0) < (best.latency_ms or 0)
