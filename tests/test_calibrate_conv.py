"""Convolutions are fitted to the formula that predicts them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.calibrate.checks import rate_fracs
from perfmodel.calibrate.laws_fit import KINDS, FitLaw, fit_laws
from perfmodel.calibrate.records import Records, Rows
from perfmodel.catalog import parse_gpus
from perfmodel.cost import Machine, cost
from perfmodel.cost.conv import PARAMETERS
from perfmodel.cost.fits import Law
from perfmodel.ops import Conv
from perfmodel.topology import Topology

CASES = (
    # in, out, kernel, stride, output: a VAE's levels, a pointwise one, a strided one
    (384, 384, (3, 3, 3), (1, 1, 1), (1, 90, 160)),
    (96, 96, (3, 3, 3), (1, 1, 1), (4, 720, 1280)),
    (192, 96, (1, 1, 1), (1, 1, 1), (4, 360, 640)),
    (192, 192, (1, 3, 3), (1, 2, 2), (2, 180, 320)),
)
VALUES = {p.name: p.default for p in PARAMETERS} | {"rate_frac": 0.6, "store_frac": 0.4}


def machine(dtype: str) -> Machine:
    system = parse_gpus("1xh100-sxm")
    box = Machine.build(system.device, Topology.of(system))
    law = Law(name=f"conv/{dtype}", values=VALUES, provenance="fitted")
    return replace(box, laws={**box.laws, law.name: law})


def operator(case: tuple[object, ...], dtype: str) -> Conv:
    inputs, outputs, kernel, stride, out = case
    t, h, w = out
    return Conv(name="c", in_channels=inputs, out_channels=outputs, kernel=kernel, stride=stride,
                out_t=t, out_h=h, out_w=w, dtype=dtype)  # fmt: skip


def table(dtype: str, times: np.ndarray) -> Rows:
    names = ("kt", "kh", "kw"), ("stride_t", "stride_h", "stride_w"), ("out_t", "out_h", "out_w")
    columns = {
        "in_channels": np.array([case[0] for case in CASES]),
        "out_channels": np.array([case[1] for case in CASES]),
        "batch": np.ones(len(CASES), int),
        "dtype": np.full(len(CASES), dtype),
        "kernel": np.full(len(CASES), "torch.conv3d"),
        "latency_s": times,
    }
    for part, three in enumerate(names):
        for axis, name in enumerate(three):
            columns[name] = np.array([case[2 + part][axis] for case in CASES])
    return Rows("conv", columns, np.zeros((len(CASES), 2), np.int64))


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_rows_are_costed_as_the_prediction_of_the_same_convolution(dtype):
    box = machine(dtype)
    found = [cost(operator(case, dtype), box, sustained=False) for case in CASES]
    asked = np.array([float(one.time_each_s) for one in found])
    assert {one.provenance for one in found} == {"fitted"}
    rows = table(dtype, asked)
    fitted = KINDS["conv"].predict(VALUES, box.rates, rows, {"rate": np.ones(len(CASES))})
    assert fitted == pytest.approx(asked, rel=1e-9)


def test_a_measured_convolution_serves_the_type_that_is_as_fast():
    box = machine("bf16")
    half = cost(operator(CASES[0], "fp16"), box)
    assert half.law == "conv/bf16"
    assert half.time_each_s == cost(operator(CASES[0], "bf16"), box).time_each_s


def test_fp32_rows_are_held_against_the_units_that_run_them():
    """torch multiplies fp32 convolutions in tf32: an H100 does 495, not 67 TFLOP/s."""
    box = machine("fp32")
    times = np.array([float(cost(operator(case, "fp32"), box).time_each_s) for case in CASES])
    (law,) = fit_laws(Records(ops={"conv": table("fp32", times)}), box.device)
    assert isinstance(law, FitLaw)
    fracs = rate_fracs(law, box.rates)
    assert fracs is not None
    assert 0.2 < float(np.max(fracs)) < 1.0
