"""What ranks hold that cut the maps of a VAE into bands: of small maps, of an encode."""

from __future__ import annotations

import pytest

import perfmodel as pm
from perfmodel.units import GIB

CLIP_BYTES = 2 * 3


def activations(model: str, engine: str, parallel: str, phase: str, **work) -> float:
    """Live tensors of a phase [bytes]."""
    answer = pm.predict(
        pm.Workload(model=model, **work), "8xH200", engine=engine, parallel=parallel
    )
    assert answer.prediction is not None
    return answer.prediction.memory_parts_gib[phase].activations * GIB


@pytest.mark.parametrize("side", [512, 1024, 1536])
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("engine", ["xdit", "sglang-diffusion"])
def test_a_decode_in_bands_holds_its_share_of_a_map_of_any_size(engine, ranks, side):
    size = {"width": side, "height": side}
    clip = CLIP_BYTES * side * side
    whole = activations("flux.1-dev", engine, "usp8", "vae_decode", **size) - clip
    part = activations("flux.1-dev", engine, f"usp{ranks}_vaepp{ranks}", "vae_decode", **size)
    assert part - clip == pytest.approx(whole / ranks, rel=1e-9)


@pytest.mark.parametrize("side", [512, 1024, 1536])
def test_ranks_that_each_encode_all_hold_all_of_it(side):
    size = {"width": side, "height": side}
    alone = activations("flux.1-kontext-dev", "xdit", "usp8", "vae_encode", **size)
    shared = activations("flux.1-kontext-dev", "xdit", "usp8_vaepp8", "vae_encode", **size)
    assert shared == alone


def test_an_encode_in_bands_is_shared():
    size = {"width": 832, "height": 480, "frames": 81}
    alone = activations("wan2.1-i2v-14b", "xdit", "usp8", "vae_encode", **size)
    shared = activations("wan2.1-i2v-14b", "xdit", "usp8_vaepp8", "vae_encode", **size)
    clip = 2 * CLIP_BYTES * 81 * 832 * 480
    # 60 latent rows over 8 ranks: the largest band has 8.
    assert shared - clip == pytest.approx((alone - clip) * 8 / 60, rel=1e-6)


@pytest.mark.parametrize(("ranks", "rows"), [(2, 45), (4, 23), (8, 12)])
def test_the_fullest_rank_holds_the_largest_band_of_90_rows(ranks, rows):
    job = {"width": 1280, "height": 720, "frames": 81}
    clip = CLIP_BYTES * 81 * 1280 * 720
    whole = activations("wan2.1-t2v-14b", "xdit", "usp8", "vae_decode", **job) - clip
    part = activations("wan2.1-t2v-14b", "xdit", f"usp{ranks}_vaepp{ranks}", "vae_decode", **job)
    assert part - clip == pytest.approx(whole * rows / 90, rel=1e-6)


@pytest.mark.parametrize("engine", ["xdit", "sglang-diffusion", "vllm-omni"])
def test_a_larger_image_never_needs_less(engine):
    parallel = "cfg2_usp2" if engine == "vllm-omni" else "cfg2_usp2_vaepp4"
    sides = [(512, 512), (768, 512), (1024, 1024), (1280, 1024), (1536, 1152)]
    work = [pm.Workload(model="qwen-image-edit", width=w, height=h) for w, h in sides]
    answers = [pm.predict(one, "4xH200", engine=engine, parallel=parallel) for one in work]
    peaks = [answer.prediction.peak_memory_gib for answer in answers]
    assert peaks == sorted(peaks)
