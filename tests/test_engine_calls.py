"""Requests and programs run the guidance branches that are predicted, by names that exist."""

from __future__ import annotations

import ast
import json
import shlex
from itertools import pairwise

import pytest

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.engines import engine
from perfmodel.engines.base import Context
from perfmodel.engines.diffusers.calls import CALLS, arguments, call_of, loaded_arguments
from perfmodel.engines.diffusers.commands import program
from perfmodel.engines.legality import problems
from perfmodel.engines.sglang_diffusion import commands as sglang
from perfmodel.engines.vllm_omni import commands as vllm
from perfmodel.engines.xdit import commands as xdit
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.workload import Options, Workload
from perfmodel.stages import wan

_COMMON = "prompt height width num_inference_steps guidance_scale generator"
_VIDEO = f"{_COMMON} num_frames negative_prompt"
_IMAGE = f"{_COMMON} negative_prompt"
_TRUE = f"{_IMAGE} true_cfg_scale"
ACCEPTED = {
    "CogVideoXPipeline": _VIDEO,
    "Cosmos2TextToImagePipeline": _IMAGE,
    "Cosmos2VideoToWorldPipeline": f"{_VIDEO} image video fps",
    "Cosmos2_5_PredictBasePipeline": f"{_VIDEO} image video",
    "Cosmos2_5_TransferPipeline": f"{_VIDEO} controls",
    "Cosmos3OmniPipeline": f"{_VIDEO} image video fps",
    "Flux2KleinPipeline": f"{_COMMON} image",
    "Flux2Pipeline": f"{_COMMON} image",
    "FluxFillPipeline": f"{_COMMON} image mask_image",
    "FluxKontextPipeline": f"{_TRUE} image",
    "FluxPipeline": _TRUE,
    "HeliosPipeline": f"{_VIDEO} image video",
    "HeliosPyramidPipeline": (
        "prompt height width guidance_scale generator num_frames negative_prompt image video "
        "pyramid_num_inference_steps_list"
    ),
    "HunyuanDiTPipeline": _IMAGE,
    "HunyuanVideo15ImageToVideoPipeline": (
        "prompt num_inference_steps generator num_frames negative_prompt image"
    ),
    "HunyuanVideo15Pipeline": (
        "prompt height width num_inference_steps generator num_frames negative_prompt"
    ),
    "HunyuanVideoPipeline": f"{_TRUE} num_frames",
    "LTX2ImageToVideoPipeline": f"{_VIDEO} image frame_rate",
    "LTX2Pipeline": f"{_VIDEO} frame_rate",
    "LTXConditionPipeline": f"{_VIDEO} image video frame_rate",
    "LattePipeline": f"{_IMAGE} video_length",
    "MochiPipeline": _VIDEO,
    "OvisImagePipeline": _IMAGE,
    "PixArtAlphaPipeline": _IMAGE,
    "PixArtSigmaPipeline": _IMAGE,
    "QwenImageEditPipeline": f"{_TRUE} image",
    "QwenImageEditPlusPipeline": f"{_TRUE} image",
    "QwenImagePipeline": _TRUE,
    "SanaPipeline": _IMAGE,
    "SanaVideoPipeline": f"{_IMAGE} frames",
    "StableDiffusion3Pipeline": _IMAGE,
    "WanImageToVideoPipeline": f"{_VIDEO} image",
    "WanPipeline": _VIDEO,
    "WanVACEPipeline": f"{_VIDEO} video",
    "ZImageControlNetPipeline": f"{_IMAGE} control_image",
    "ZImagePipeline": _IMAGE,
}
"""Arguments of ``__call__`` in diffusers 0.42.1, those that a request may need."""


def context(name: str, model: str, task: str | None = None, guidance: float | None = None):
    work = Workload(model=model, task=task, guidance=guidance)
    return open_session(work, "4xH100", engine=name).context


def tasks_of(name: str) -> list[tuple[str, str]]:
    served = engine(name)
    found = []
    for slug in catalog.model_ids():
        model = catalog.load_model(slug)
        version = served.version()
        known = served.behaviour(
            model, catalog.load_device("h100-sxm"), version, Options()
        ).pipeline
        found += [(slug, task) for task in model.tasks] if known else []
    return found


@pytest.mark.parametrize(("slug", "task"), tasks_of("diffusers"))
def test_the_program_passes_what_the_pipeline_accepts(slug: str, task: str) -> None:
    ctx = context("diffusers", slug, task)
    if not call_of(ctx).pipeline:
        return
    passed = {*arguments(ctx, "prompt"), *loaded_arguments(ctx), "generator"}
    assert passed <= set(ACCEPTED[call_of(ctx).pipeline].split())
    tree = ast.parse(program(ctx, ParallelConfig()))
    literal = next(node.value for node in tree.body if _assigns(node, "arguments"))
    assert isinstance(literal, ast.Dict)
    assert {ast.literal_eval(key) for key in literal.keys if key} == passed


def _assigns(node: ast.stmt, name: str) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name


def test_every_class_that_a_model_is_called_by_has_its_arguments() -> None:
    assert {call.pipeline for _, call in CALLS if call.pipeline} == set(ACCEPTED)


def test_a_model_of_modular_blocks_has_no_program() -> None:
    texts = engine("diffusers").commands(context("diffusers", "minimax-h3"), ParallelConfig(), 1.0)
    assert texts.request.startswith("# MiniMax-H3 runs as modular blocks")


def test_xdit_names_the_task_of_models_that_have_several() -> None:
    for slug, task in (("wan2.2-ti2v-5b", "i2v"), ("hunyuanvideo-1.5", "t2v")):
        words = xdit.words(context("xdit", slug, task), ParallelConfig())
        assert words[words.index("--task") + 1] == task
    assert "--task" not in xdit.words(context("xdit", "wan2.1-t2v-14b"), ParallelConfig())


def _branches(name: str, fields: dict[str, object], family: str) -> int:
    """Branches that a request runs: the conditions of the engines' pipelines, by hand.

    vLLM-Omni and diffusers: ``true_cfg_scale > 1`` with a negative prompt for Qwen-Image.
    SGLang and xDiT: ``guidance_scale > 1`` there. Z-Image everywhere: a scale above 0.
    """
    scale = float(str(fields.get("guidance_scale", 1)))
    if family in ("z_image", "z_image_control"):
        return 1 + (scale > 0)
    if family == "qwen_image" and name in ("vllm-omni", "diffusers"):
        scale = float(str(fields.get("true_cfg_scale", 4)))
        return 1 + (scale > 1 and bool(fields.get("negative_prompt")))
    if family == "qwen_image" and name == "xdit":
        return 1 + (scale > 1 and bool(fields.get("negative_prompt")))
    return 1 + (scale > 1)


def _xdit_fields(ctx: Context) -> dict[str, object]:
    words = xdit.words(ctx, ParallelConfig())
    pairs = pairwise(words)
    return {flag[2:]: value for flag, value in pairs if flag.startswith("--")}


FIELDS = {
    "vllm-omni": vllm.request_fields,
    "sglang-diffusion": sglang.request_fields,
    "xdit": _xdit_fields,
    "diffusers": lambda ctx: arguments(ctx, "prompt"),
}
# Their scale is embedded, given to a guider, or a fixed set of passes.
ELSEWHERE = ("flux", "flux2", "hunyuan_video", "hunyuan_video15", "ltx2")


@pytest.mark.parametrize("guidance", [None, 0.5, 1.0, 3.0])
@pytest.mark.parametrize("name", FIELDS)
def test_a_request_runs_the_branches_that_are_predicted(name: str, guidance: float | None) -> None:
    for slug, task in tasks_of(name):
        ctx = context(name, slug, task, guidance)
        if ctx.family not in ELSEWHERE and "helios" not in slug:
            found = _branches(name, FIELDS[name](ctx), ctx.family)
            assert found == ctx.branches, (slug, task)


def test_the_guider_of_hunyuanvideo_15_has_the_scale() -> None:
    for guidance, said in ((None, "6.0"), (1.0, "1.0")):
        source = program(
            context("diffusers", "hunyuanvideo-1.5", guidance=guidance), ParallelConfig()
        )
        assert f"pipe.guider = pipe.guider.new(guidance_scale={said})" in source


def test_sglang_adds_no_branch_to_an_embedded_scale() -> None:
    # Its default negative prompt is a text, so any scale above 1 would run a second branch.
    fields = sglang.request_fields(context("sglang-diffusion", "hunyuanvideo"))
    assert "guidance_scale" not in fields


@pytest.mark.parametrize("slug", ["qwen-image", "qwen-image-edit"])
def test_all_texts_of_qwen_image_ask_for_its_second_branch(slug: str) -> None:
    ctx = context("vllm-omni", slug)
    texts = engine("vllm-omni").commands(ctx, ParallelConfig(), 1.0)
    words = shlex.split(texts.benchmark)
    fields = json.loads(words[2])["fields"]
    assert float(fields["true_cfg_scale"]) == 4
    assert fields["negative_prompt"] == " "
    assert "guidance_scale" not in fields
    assert "true_cfg_scale" in texts.request
    assert "negative_prompt" in texts.request


def test_the_benchmark_of_sglang_asks_for_the_same_guidance() -> None:
    ctx = context("sglang-diffusion", "wan2.1-t2v-14b", guidance=1.0)
    texts = engine("sglang-diffusion").commands(ctx, ParallelConfig(), 1.0)
    words = shlex.split(texts.benchmark)
    extra = json.loads(words[words.index("--extra-body") + 1])
    assert extra == {"guidance_scale": 1.0, "flow_shift": 5.0}


@pytest.mark.parametrize(
    ("slug", "task", "legal"),
    [
        ("qwen-image", None, False),
        ("qwen-image-edit", None, True),
        ("hunyuanvideo-1.5", None, False),
        ("ltx-2", None, False),
        ("wan2.1-vace-14b", None, False),
        ("wan2.2-ti2v-5b", "t2v", False),
        ("wan2.2-ti2v-5b", "i2v", True),
        ("z-image", None, True),
    ],
)
def test_xdit_divides_branches_of_the_models_that_say_so(slug, task, legal) -> None:
    # ModelCapabilities.use_cfg_parallel of xfuser 0.7.0, runner_models/*.py.
    rules = engine("xdit").rules()
    found = problems(rules, context("xdit", slug, task), ParallelConfig(cfg=2))
    assert (not [problem for problem in found if problem.severity == "error"]) == legal


@pytest.mark.parametrize(
    ("name", "flag", "split"),
    [
        # 40 steps, boundary 0.875: 26 of high noise at shift 12, 17 at shift 5.
        ("wan-official", "--sample_shift 12", (26, 14)),
        ("sglang-diffusion", "flow_shift=12", (26, 14)),
        ("xdit", "--flow_shift 12", (26, 14)),
        ("vllm-omni", "flow_shift=5", (17, 23)),
    ],
)
def test_experts_change_where_the_engine_changes_them(name, flag, split) -> None:
    session = open_session(Workload(model="wan2.2-t2v-a14b"), "4xH100", engine=name)
    texts = engine(name).commands(session.context, ParallelConfig(), 1.0)
    assert flag in texts.request
    assert wan.experts(session.model, session.job.shape, session.behaviour.traits) == split


def test_generate_py_says_what_its_own_guidance_would_be() -> None:
    texts = engine("wan-official").commands(
        context("wan-official", "wan2.2-t2v-a14b"), ParallelConfig(), 1.0
    )
    assert "its own guidance runs: 4 on the high-noise and 3 on the low-noise" in texts.request
    same = context("wan-official", "wan2.2-ti2v-5b", guidance=5.0)
    texts = engine("wan-official").commands(same, ParallelConfig(), 1.0)
    assert "its own guidance" not in texts.request
