"""Every model with attention to text apart answers on one to eight GPUs of three vendors."""

from __future__ import annotations

import pytest
from model_slugs import OTHER as SLUGS

from perfmodel.api import recommend
from perfmodel.catalog import parse_gpus
from perfmodel.engines.vllm_omni.pipelines import pipeline_of
from perfmodel.errors import PerfmodelError
from perfmodel.spec.workload import Workload

# LongCat-Video's own class lives in FastVideo, not in diffusers.
OTHERS = {"longcat-video": "fastvideo"}
# 62 GiB of transformer beside 48 GiB of language model that every rank holds.
TOO_LARGE = {("minimax-h3", "2xa100"), ("minimax-h3", "8xascend-910c-die")}
SYSTEMS = ("1xb300", "2xa100", "4xmi300x", "8xascend-910c-die")


@pytest.mark.parametrize("gpus", SYSTEMS)
@pytest.mark.parametrize("slug", SLUGS)
def test_it_answers(slug: str, gpus: str) -> None:
    engine = "vllm-omni" if pipeline_of(slug) else OTHERS.get(slug, "diffusers")
    answer = recommend(Workload(model=slug), parse_gpus(gpus), engine=engine)
    assert (answer.status == "does_not_fit") == ((slug, gpus) in TOO_LARGE)
    if (slug, gpus) in TOO_LARGE:
        return
    best = answer.recommendations[0]
    assert best.stages_ms is not None
    assert 0 < (best.stages_ms.denoise or 0) < (best.latency_ms or 0)


@pytest.mark.parametrize("slug", [slug for slug in SLUGS if not pipeline_of(slug)])
def test_a_model_that_the_engine_lacks_is_refused_by_name(slug: str) -> None:
    with pytest.raises(PerfmodelError) as refused:
        recommend(Workload(model=slug), parse_gpus("1xh100"), engine="vllm-omni")
    problem = refused.value.problems[0]
    assert problem.rule_id == "model-not-in-engine"
    assert slug in OTHERS or "diffusers" in problem.message


def test_sana_video_accepts_the_degrees_that_it_names() -> None:
    answer = recommend(Workload(model="sana-video-2b"), parse_gpus("8xh100"), engine="vllm-omni")
    for row in answer.recommendations:
        parallel = row.parallel.model_dump()
        assert parallel.get("ring_degree", 1) == 1
        assert parallel.get("ulysses_degree", 1) in (1, 2, 4)
        assert parallel.get("tensor_parallel_size", 1) in (1, 2)
