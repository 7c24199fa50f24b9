"""Every model and device of the catalogue through the engine: nothing is missing a pipeline."""

from __future__ import annotations

import pytest
from engine_contexts import ENGINE

from perfmodel import catalog
from perfmodel.engines.vllm_omni.attention import default_backend, platform_of
from perfmodel.engines.vllm_omni.pipelines import pipeline_of
from perfmodel.spec.workload import Options

PIPELINES = {
    "cosmos3": "Cosmos3",
    "wan": "Wan",
    "wan_vace": "WanVACE",
    "flux": "Flux",
    "flux2": "Flux2",
    "ovis_image": "OvisImage",
    "qwen_image": "QwenImage",
    "sd3": "StableDiffusion3",
    "z_image": "ZImage",
    "hunyuan_video15": "HunyuanVideo15",
    "minimax_h3": "MiniMaxH3",
}
# Its pipeline is in diffusers alone.
UNSERVED = {"flux.1-fill-dev"}


@pytest.mark.parametrize("slug", catalog.model_ids())
def test_every_model_of_a_registered_family_has_its_pipeline(slug):
    model = catalog.load_model(slug)
    device = catalog.load_device("b300-sxm")
    behaviour = ENGINE.behaviour(model, device, ENGINE.version(), Options())
    if model.family in PIPELINES and slug not in UNSERVED:
        assert behaviour.pipeline.startswith(PIPELINES[model.family])
    assert behaviour.has_pp == (model.family == "wan")
    unmasked = model.family in ("wan", "wan_vace", "minimax_h3")
    assert behaviour.attention_backend == ("TRTLLM_ATTN" if unmasked else "CUDNN_ATTN")


def test_guidance_of_z_image_is_one_batch_so_no_rank_can_take_a_branch():
    device = catalog.load_device("b300-sxm")
    for slug, has_cfg in (("z-image", False), ("qwen-image", True)):
        model = catalog.load_model(slug)
        assert ENGINE.behaviour(model, device, ENGINE.version(), Options()).has_cfg == has_cfg


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
