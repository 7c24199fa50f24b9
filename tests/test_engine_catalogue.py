"""Every model and device of the catalogue through the engine: nothing is missing a pipeline."""

from __future__ import annotations

import pytest
from engine_contexts import ENGINE

from perfmodel import catalog
from perfmodel.engines.vllm_omni.behaviour import default_backend, platform_of
from perfmodel.engines.vllm_omni.pipelines import pipeline_of
from perfmodel.spec.workload import Options


@pytest.mark.parametrize("slug", catalog.model_ids())
def test_every_model_has_a_pipeline(slug):
    model = catalog.load_model(slug)
    device = catalog.load_device("b300-sxm")
    behaviour = ENGINE.behaviour(model, device, ENGINE.version(), Options())
    assert behaviour.pipeline.startswith("Cosmos3" if model.family == "cosmos3" else "Wan")
    assert behaviour.has_pp == (model.family == "wan")
    assert behaviour.attention_backend == (
        "CUDNN_ATTN" if model.family == "cosmos3" else "TRTLLM_ATTN"
    )


@pytest.mark.parametrize("name", catalog.hardware_ids())
def test_every_device_has_a_default_backend_that_exists_for_it(name):
    device = catalog.load_device(name)
    behaviour = ENGINE.behaviour(
        catalog.load_model("cosmos3-nano"), device, ENGINE.version(), Options()
    )
    if platform_of(device.family):
        backend = default_backend(device, pipeline_of("wan2.2-t2v-a14b"), 128, ENGINE.version())
        assert backend in behaviour.attention_available
        assert behaviour.attention_backend in behaviour.attention_available


@pytest.mark.parametrize("slug", ["hunyuanvideo", "cogvideox-5b", "cosmos-predict2.5-2b", "mochi"])
def test_models_outside_the_registry_have_none(slug):
    assert pipeline_of(slug) is None
