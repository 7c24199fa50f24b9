"""Versions, dated behaviour and resolved options of vLLM-Omni."""

from __future__ import annotations

import pytest
from engine_contexts import (
    A100,
    ASCEND,
    B300,
    ENGINE,
    H100,
    MI300X,
    RTX_PRO,
    FakeDevice,
    FakeModel,
    FakeTransformer,
)

from perfmodel.engines import engine, parse_engine
from perfmodel.engines.base import Behaviour
from perfmodel.engines.vllm_omni.versions import FEATURES, RELEASES, day_of_source, has
from perfmodel.errors import BadInput
from perfmodel.spec.workload import Options


def behaviour(
    slug: str = "cosmos3-nano",
    on: FakeDevice = B300,
    version: str | None = None,
    head_dim: int = 128,
    **options: object,
) -> Behaviour:
    model = FakeModel(slug, 2 if "a14b" in slug else 1, FakeTransformer(head_dim))
    return ENGINE.behaviour(model, on, ENGINE.version(version), Options.model_validate(options))


def test_the_default_version_is_pinned():
    assert ENGINE.version().label == "0.30.0"
    assert ENGINE.version().problems == ()
    assert parse_engine("vllm-omni")[1] == ENGINE.version("0.30.0")
    assert parse_engine(None)[0].name == "vllm-omni"


def test_a_day_is_a_version():
    day = parse_engine("vllm-omni@2026-06-16")[1]
    assert (day.date, day.release) == ("2026-06-16", None)
    assert ENGINE.version("9772bb32 (vLLM 0.23)x", dated="2026-08-17").date == "2026-08-17"


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("0.25.0rc2.dev62", (0, 24, 0)),
        ("0.30.1", (0, 30, 0)),
        ("0.21.0", (0, 20, 0)),
        ("0.20.1.dev167 (main 89e389cf)", (0, 20, 0)),
        ("0.30.0rc1", (0, 28, 0)),
        ("99", None),
        ("0.1.0", (0, 14, 0)),
    ],
)
def test_unknown_releases_take_the_nearest_older_one_with_a_warning(text, taken):
    if taken is None:
        with pytest.raises(BadInput) as caught:
            ENGINE.version(text)
        assert caught.value.problems[0].rule_id == "engine-version"
        return
    version = ENGINE.version(text)
    assert version.release == taken
    assert [p.severity for p in version.problems] == ["warning"]


@pytest.mark.parametrize("text", ["main", "2026-13-01", "2026-00", ""])
def test_no_version_at_all_is_refused(text):
    with pytest.raises(BadInput) as caught:
        ENGINE.version(text)
    assert caught.value.exit_code == 2


def test_unknown_engine_names_the_nearest():
    with pytest.raises(BadInput) as caught:
        engine("vllm-omi")
    assert caught.value.problems[0].suggestions == ("vllm-omni",)


def test_features_never_disappear():
    for feature in FEATURES.values():
        states = [feature.on(ENGINE.version(".".join(map(str, r)))) for r in sorted(RELEASES)]
        assert states == sorted(states)
        if feature.since > max(RELEASES):  # on main, in no wheel yet
            continue
        assert feature.since in RELEASES
        # On main a feature is there no later than in the first wheel that has it.
        assert feature.date <= RELEASES[feature.since]


@pytest.mark.parametrize(
    ("slug", "device", "version", "backend"),
    [
        ("cosmos3-nano", B300, None, "CUDNN_ATTN"),
        ("wan2.2-t2v-a14b", B300, None, "TRTLLM_ATTN"),
        ("wan2.2-t2v-a14b", B300, "0.24.0", "CUDNN_ATTN"),
        ("wan2.2-t2v-a14b", RTX_PRO, None, "CUDNN_ATTN"),
        ("wan2.2-t2v-a14b", B300, "0.20.0", "TORCH_SDPA"),
        ("wan2.2-t2v-a14b", B300, "2026-05-01", "CUDNN_ATTN"),
        ("cosmos3-nano", H100, None, "FLASH_ATTN"),
        ("cosmos3-nano", A100, None, "FLASH_ATTN"),
        ("cosmos3-nano", MI300X, None, "FLASH_ATTN"),
        ("cosmos3-nano", ASCEND, None, "FLASH_ATTN"),
    ],
)
def test_default_attention(slug, device, version, backend):
    found = behaviour(slug, device, version)
    assert found.attention_backend == backend
    assert not found.attention_explicit
    assert "attention_backend" in found.assumed


RDNA = FakeDevice("rdna4", None)


@pytest.mark.parametrize(
    ("name", "device", "since"),
    [
        ("CUDNN_ATTN", H100, "0.22.0"),
        ("FLASHINFER_ATTN", B300, "0.22.0"),
        ("SAGE_ATTN_3", RTX_PRO, "0.22.0"),
        ("FLASH_ATTN", B300, "0.22.0"),
        ("FLASH_ATTN", H100, "0.14.0"),
        ("SAGE_ATTN", A100, "0.14.0"),
        ("FLASH_ATTN_3_HUB", H100, "0.26.0"),
        ("TRTLLM_ATTN", B300, "0.26.0"),
        ("FASTVIDEO_VSA", B300, "0.28.0"),
        ("RAINFUSION_ATTN", ASCEND, "0.28.0"),
    ],
)
def test_a_backend_is_there_from_its_first_wheel_on(name, device, since):
    for release in sorted(RELEASES):
        label = ".".join(map(str, release))
        there = name in behaviour("wan2.2-t2v-a14b", device, label).attention_available
        assert there is (release >= tuple(map(int, since.split(".")))), label
    # The main branch has a backend before the first wheel does.
    assert name in behaviour("wan2.2-t2v-a14b", device, "2026-04-15").attention_available


def test_backends_that_the_engine_replaces_are_not_available():
    assert behaviour(on=RDNA).attention_available == ("TORCH_SDPA",)
    narrow = behaviour("sana-video-2b", head_dim=112).attention_available
    assert {"FLASHINFER_ATTN", "TRTLLM_ATTN", "SAGE_ATTN_3"}.isdisjoint(narrow)
    assert "CUDNN_ATTN" in narrow


@pytest.mark.parametrize(
    ("slug", "axis", "since"),
    [
        ("hunyuanvideo-1.5", "pipeline", "0.18.0"),
        ("hunyuanvideo-1.5", "has_sp", "0.22.0"),
        ("hunyuanvideo-1.5", "has_vae_patch", "0.22.0"),
        ("flux.2-dev", "pipeline", "0.18.0"),
        ("flux.2-dev", "has_cfg", "0.20.0"),
        ("flux.2-dev", "has_sp", "0.22.0"),
        ("flux.2-dev", "has_vae_patch", "0.26.0"),
        ("flux.2-klein-4b", "has_sp", "0.18.0"),
        ("flux.1-dev", "has_cfg", "0.16.0"),
        ("flux.1-dev", "has_hsdp", "0.18.0"),
        ("flux.1-kontext-dev", "has_cfg", "0.26.0"),
        ("qwen-image", "has_hsdp", "0.20.0"),
        ("z-image", "has_hsdp", "0.20.0"),
        ("ltx-2", "pipeline", "0.18.0"),
        ("ltx-2", "has_vae_patch", "0.26.0"),
        ("ltx-2.3", "pipeline", "0.20.0"),
        ("ltx-2.3", "has_vae_patch", "0.24.0"),
        ("helios-base", "pipeline", "0.18.0"),
        ("wan2.1-vace-14b", "pipeline", "0.20.0"),
        ("fastwan2.2-ti2v-5b", "pipeline", "0.28.0"),
        ("cosmos3-nano", "pipeline", "0.22.0"),
        ("cosmos3-edge", "pipeline", "0.26.0"),
        ("minimax-h3", "pipeline", "0.26.0"),
        ("sana-video-2b", "pipeline", "0.28.0"),
        ("sana-video-2b", "has_sp", "0.30.0"),
        ("sana-video-2b", "has_tp", "0.30.0"),
        ("wan2.2-t2v-a14b", "has_hsdp", "0.16.0"),
    ],
)
def test_a_pipeline_has_an_axis_from_its_first_wheel_on(slug, axis, since):
    for release in sorted(RELEASES):
        label = ".".join(map(str, release))
        found = behaviour(slug, H100, label)
        there = bool(found.pipeline and getattr(found, axis))
        assert there is (release >= tuple(map(int, since.split(".")))), label


def test_the_vae_of_the_edit_pipelines_is_not_shared():
    # models/qwen_image/pipeline_qwen_image_edit*.py load the VAE of diffusers.
    assert behaviour("qwen-image").has_vae_patch
    assert not behaviour("qwen-image-edit").has_vae_patch
    assert not behaviour("qwen-image-edit-2509").has_vae_patch


def test_single_components_are_offloaded_since_0_30():
    assert "text-encoder" in behaviour("wan2.2-t2v-a14b").offload_modes
    assert "text-encoder" not in behaviour("wan2.2-t2v-a14b", version="0.28.0").offload_modes


def test_minimax_h3_passes_no_masks_since_0_28():
    assert behaviour("minimax-h3").attention_backend == "TRTLLM_ATTN"
    assert behaviour("minimax-h3", version="0.26.0").attention_backend == "CUDNN_ATTN"


def test_trtllm_needs_head_dim_128():
    assert behaviour("wan2.2-t2v-a14b", head_dim=64).attention_backend == "CUDNN_ATTN"


def test_ring_chunks_run_on_a_backend_with_a_ring_kernel():
    assert behaviour().ring_attention_backend == "TORCH_SDPA"
    assert behaviour(on=H100).ring_attention_backend == "FLASH_ATTN"
    assert behaviour(on=ASCEND).ring_attention_backend == "TORCH_SDPA"


def test_vae_fast_path_by_version_platform_and_mode():
    assert behaviour().traits.vae_fast_path == "lossless"
    assert behaviour(version="0.28.0").traits.vae_fast_path == "off"
    assert behaviour(version="2026-08-20").traits.vae_fast_path == "off"
    assert behaviour(version="2026-09-20").traits.vae_fast_path == "lossless"
    assert behaviour(on=ASCEND).traits.vae_fast_path == "off"
    assert behaviour(on=MI300X).traits.vae_fast_path == "off"
    assert behaviour(vae_mode="spatial_shard_width").traits.vae_fast_path == "off"
    assert behaviour(vae_fast_path="channels_last").traits.vae_fast_path == "channels_last"
    assert behaviour("qwen-image").traits.vae_fast_path == "off"


def test_image_condition_of_cosmos3_by_day():
    assert behaviour(version="2026-06-16").traits.condition_whole_clip is True
    assert behaviour(version="2026-06-22").traits.condition_whole_clip is False
    assert behaviour().traits.condition_whole_clip is False
    assert behaviour("wan2.2-i2v-a14b").traits.condition_whole_clip is None


def test_compiled_unless_eager_or_ascend():
    assert behaviour().compiled
    assert not behaviour(compile=False).compiled
    assert not behaviour(on=ASCEND).compiled
    assert behaviour().assumed == ("attention_backend", "compile", "vae_fast_path")
    assert behaviour(compile=True).assumed == ("attention_backend", "vae_fast_path")


def test_what_differs_between_pipelines():
    cosmos, wan = behaviour(), behaviour("wan2.2-t2v-a14b")
    assert (cosmos.pad_masked, wan.pad_masked) == (True, False)
    assert (cosmos.has_pp, wan.has_pp) == (False, True)
    assert (cosmos.traits.fused_qkv, wan.traits.fused_qkv) == (False, True)
    assert wan.traits.boundary_ratio == 0.875
    assert behaviour("wan2.2-ti2v-5b").traits.boundary_ratio is None
    assert wan.vae_result_on_rank0
    assert not behaviour("qwen-image").vae_result_on_rank0
    assert "pp" not in ENGINE.searched_axes(cosmos)
    assert "pp" in ENGINE.searched_axes(wan)


def test_only_cosmos3_refuses_guidance_parallel_on_distilled_checkpoints():
    assert behaviour("cosmos3-super-i2v-4step").cfg_on_distilled_refused
    assert not behaviour("cosmos3-super-i2v-4step", version="0.28.0").cfg_on_distilled_refused
    assert not behaviour("fastwan2.2-ti2v-5b").cfg_on_distilled_refused
    assert behaviour("fastwan2.2-ti2v-5b").pipeline == "WanDMDPipeline"


def test_padding_by_release():
    assert behaviour().auto_pad
    assert not behaviour(version="0.28.0").auto_pad
    assert behaviour("wan2.1-t2v-14b", version="0.16.0").auto_pad
    assert not behaviour("wan2.1-t2v-14b", version="0.14.0").auto_pad


def test_has_asks_the_release_before_the_day():
    assert not has("cudnn_default", ENGINE.version("0.20.0"))
    assert has("cudnn_default", ENGINE.version("2026-05-08"))


def test_a_pull_request_dates_what_was_measured_for_it():
    pull = "https://github.com/vllm-project/vllm-omni/pull/{}"
    # Days that records of these pull requests state themselves.
    assert day_of_source(pull.format(4301)) == "2026-06-10"
    assert day_of_source(pull.format(4467)) == "2026-06-15"
    # Between them, and beyond the newest.
    assert "2026-06-10" < str(day_of_source(pull.format(4400))) < "2026-06-15"
    assert day_of_source(pull.format(99_999)) == RELEASES[(0, 30, 0)]
    days = [str(day_of_source(pull.format(number))) for number in range(0, 9000, 250)]
    assert days == sorted(days)
    assert day_of_source("https://github.com/sgl-project/sglang/pull/27037") is None


@pytest.mark.parametrize(
    ("version", "backend", "cut", "ragged"),
    [
        ("0.20.0", "FLASH_ATTN", False, True),
        ("0.20.0", "TORCH_SDPA", False, False),
        ("0.22.0", "FLASH_ATTN", True, True),
        ("2026-04-15", "CUDNN_ATTN", False, False),
    ],
)
def test_padded_text_of_hunyuanvideo_1_5(version, backend, cut, ragged):
    traits = behaviour("hunyuanvideo-1.5", H100, version, attention_backend=backend).traits
    assert (traits.valid_text_only, traits.ragged_attention) == (cut, ragged)


@pytest.mark.parametrize(
    ("slug", "version", "bits"),
    [
        ("wan2.2-i2v-a14b", "0.18.0", 32),
        ("wan2.2-i2v-a14b", "0.20.0", 16),
        ("hunyuanvideo-1.5", "0.30.0", 32),
        ("sana-video-2b", "0.30.0", 32),
        ("helios-base", "0.30.0", 32),
        ("cosmos3-nano", "0.22.0", 16),
        ("qwen-image", "0.18.0", 16),
    ],
)
def test_the_width_of_the_vae_by_pipeline_and_release(slug, version, bits):
    """``torch_dtype`` of each pipeline's VAE in the wheels of these releases."""
    found = behaviour(slug, version=version)
    assert (found.traits.vae_bits, found.traits.vae_encode_bits) == (bits, bits)
    kept = found.residency.vae_bits if found.residency else 0
    assert kept == (32 if slug.startswith(("hunyuan", "sana", "helios")) else 0)
