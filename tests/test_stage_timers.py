"""Stage timers that do not wait for the device, and encoding beside the decode."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.pipeline.evaluate import evaluate
from perfmodel.pipeline.lines import Stage, plain_line
from perfmodel.pipeline.streaming import beside_decode
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.record import RunRecord
from perfmodel.spec.workload import Workload
from perfmodel.validate.predicted import predict_record
from perfmodel.validate.questions import question
from perfmodel.validate.timers import QUEUE_LAUNCHES, StageTimers, timers_of

WAN = Workload(model="wan2.1-t2v-1.3b", width=832, height=480, frames=81, steps=50)


def stage(name: str, seconds: list[float]) -> Stage:
    line = plain_line(
        name, "work", "host", np.array(seconds), count=1, bound="host", provenance="prior"
    )
    return Stage(name, (line,), np.arange(len(seconds)), len(seconds))


# Encoding beside the decode


@given(
    st.lists(
        st.tuples(st.floats(1e-3, 1e3), st.floats(0, 1e3), st.integers(1, 1000)),
        min_size=1,
        max_size=5,
    ),
    st.floats(1, 100),
)
def test_what_the_decode_does_not_hide(cases, held):
    encode, decode, frames = (list(column) for column in zip(*cases, strict=True))
    found = beside_decode(
        stage("video_encode", encode), stage("vae_decode", decode), np.array(frames), held
    ).total_s
    for visible, alone, beside, clip in zip(found, encode, decode, frames, strict=True):
        assert visible == pytest.approx(max(alone - beside, alone * min(1.0, held / clip)))
        assert visible <= alone * (1 + 1e-12)


def test_frames_are_encoded_while_they_are_decoded_since_0_5_22():
    """A long clip hides most of its encoding; nothing but a name crosses processes."""

    def run(version, **fields):
        work = WAN.model_copy(update=fields)
        system = catalog.parse_gpus("1xH100")
        session = open_session(work, system, engine=f"sglang-diffusion@{version}")
        found = evaluate(session.job, Layouts.of([ParallelConfig()])).stages
        return {name: float(one.total_s[0]) for name, one in found.items()}

    before, after = run("0.5.21", frames=161), run("0.5.23", frames=161)
    assert after["vae_decode"] == before["vae_decode"]
    encode, hidden = before["video_encode"], before["video_encode"] - after["video_encode"]
    assert hidden == pytest.approx(min(encode * (1 - 40 / 161), before["vae_decode"]), rel=1e-6)
    assert after["transfer"] < before["transfer"] - 0.1
    image = {"frames": 1, "task": "t2i", "model": "flux.1-dev", "width": 1024, "height": 1024}
    assert run("0.5.21", **image)["transfer"] == run("0.5.23", **image)["transfer"]


# Timers


def record(**fields) -> RunRecord:
    base = dict(
        id="x", engine="sglang-diffusion", engine_version="0.5.23", gpu="h100-sxm", num_gpus=1,
        model="Wan-AI/Wan2.1-T2V-1.3B-Diffusers", task="t2v", width=832, height=480, frames=21,
        steps=50, cfg=True, guidance_scale=3.0,
        measured_ms={"vae_decode": 1.0, "denoise": 1.0, "denoise_per_step": 1.0},
    )  # fmt: skip
    return RunRecord.model_validate({**base, **fields})


def test_work_in_the_queue_is_what_the_denoise_timer_lacks():
    """Published for FastHunyuan on one H100: 6 steps of 1,010.9 ms, a timer of 5,229.75 ms."""
    lacks_ms = 6 * 1010.9 - 5229.75
    hunyuan = record(
        model="FastVideo/FastHunyuan-diffusers", width=1280, height=720, steps=6,
        cfg=False, guidance_scale=1.0,
    )  # fmt: skip
    assert timers_of(question(hunyuan)).left_ms == pytest.approx(lacks_ms, rel=0.15)


def test_queued_work_moves_from_one_timer_to_the_next():
    found = predict_record(record())
    stages = found.answer.prediction.stages_ms
    left = stages.denoise - found.predicted_ms["denoise"]
    assert 0 < left <= stages.denoise * QUEUE_LAUNCHES / 50_000
    whole = stages.vae_decode + left + stages.video_encode
    assert found.predicted_ms["vae_decode"] == pytest.approx(whole, rel=1e-6)
    assert found.predicted_ms["denoise_per_step"] == pytest.approx(stages.denoise / 50)


def test_timers_that_wait_show_the_stage():
    stages = {"denoise": 3.0, "vae_decode": 2.0, "video_encode": 1.0}
    assert StageTimers().shown_ms(stages) == stages
    assert StageTimers(encodes=True).shown_ms(stages)["vae_decode"] == 3.0
    assert timers_of(question(record(engine="vllm-omni", engine_version="0.30.0"))) == StageTimers()
    # Copies of weights are waited for.
    assert timers_of(question(record(offload="layerwise"))).left_ms == 0.0


@pytest.mark.parametrize(
    ("fields", "compared"),
    [
        ({}, True),
        ({"gpu": "ascend-910c-die"}, False),
        ({"frames": 1, "model": "black-forest-labs/FLUX.1-dev", "task": "t2i"}, False),
        ({"engine": "vllm-omni", "engine_version": "0.30.0"}, True),
    ],
)
def test_a_decode_is_compared_where_its_timer_is_understood(fields, compared):
    assert ("vae_decode" in predict_record(record(**fields)).predicted_ms) is compared
