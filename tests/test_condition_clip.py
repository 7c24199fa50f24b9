"""Image-to-video of Cosmos3 in vLLM-Omni: the image repeated over all frames, and where."""

from __future__ import annotations

import pytest

import perfmodel as pm

BEFORE, MOVED, ONE_FRAME = "2026-06-13", "2026-06-15", "2026-06-22"


def stages(day: str, task: str = "i2v", size: tuple[int, int] = (1280, 720)):
    job = pm.Workload(
        model="cosmos3-nano", task=task, width=size[0], height=size[1], frames=189
    )  # fmt: skip
    return pm.predict(job, pm.system("1xB300"), engine=f"vllm-omni@{day}").stages_ms


def test_the_clip_is_made_in_host_memory_before_the_day():
    more = stages(BEFORE).transfer - stages(MOVED).transfer
    # Pull request 4467 took 0.8 s off a forward, beside its stages.
    assert more == pytest.approx(189 * 1280 * 720 / 2e8 * 1e3, rel=1e-6)
    assert 700 < more < 1000
    assert stages(BEFORE).vae_encode == stages(MOVED).vae_encode > stages(ONE_FRAME).vae_encode


def test_it_grows_with_the_pixels():
    large = stages(BEFORE).transfer - stages(MOVED).transfer
    small = [stages(day, size=(640, 352)).transfer for day in (BEFORE, MOVED)]
    assert large / (small[0] - small[1]) == pytest.approx(1280 * 720 / (640 * 352), rel=1e-6)


def test_text_to_video_makes_none():
    assert stages(BEFORE, "t2v").transfer == stages(ONE_FRAME, "t2v").transfer


def test_the_published_difference_of_image_and_text_to_video():
    """NVIDIA's inference_benchmarks.md, B300, 480p and 720p: 1.27 and 2.65 s more."""
    for size, measured_ms in (((832, 480), 1270.0), ((1280, 720), 2650.0)):
        image, text = stages(BEFORE, "i2v", size), stages(BEFORE, "t2v", size)
        more = image.vae_encode + image.transfer - text.transfer
        assert more == pytest.approx(measured_ms, rel=0.1)
