"""What an answer says of its trust: errors of the fit that it used, shapes beyond its records."""

import copy
import json

import pytest

import perfmodel as pm
from perfmodel.catalog import load_fit
from perfmodel.cli.app import run
from perfmodel.errors import MissingData

ASKED = ["predict", "--model", "wan2.1-t2v-1.3b", "--gpus", "1xh100", "--frames", "33"]
WIDE = [1.0, 1e15]


def answer(capsys, *more):
    assert run([*ASKED, *more]) == 0
    return capsys.readouterr().out


def own_fit(path, change):
    fit = copy.deepcopy(load_fit("h100-sxm"))
    for name, law in fit["laws"].items():
        change(name, law)
    path.write_text(json.dumps({**fit, "fit_id": "deadbeef"}))
    return str(path)


@pytest.mark.parametrize(("limit", "outside"), [(1e15, False), (2000, True)])
def test_time_at_shapes_beyond_the_records_is_said(limit, outside, tmp_path, capsys):
    """Products alone have a limit here: what lies beyond it is their time."""

    def change(name, law):
        law["range"] = {dim: WIDE for dim in law["range"]}
        if name.startswith("gemm/"):
            law["range"]["m"] = [1.0, limit]

    fit = own_fit(tmp_path / "fit.json", change)
    asked = ("--size", "832x480", "--fit", fit, "--operators", "999")
    found = json.loads(answer(capsys, *asked, "--json"))
    rows = [r for r in found["operators"] if r["kind"] == "gemm" and r["stage"] == "denoise"]
    products = sum(row["time_ms"] for row in rows) / found["prediction"]["latency_ms"]
    assert 0.1 < products < 0.9
    if outside:
        assert found["prediction"]["extrapolated_share"] == pytest.approx(products, abs=0.03)
    else:
        assert found["prediction"]["extrapolated_share"] == 0.0
    page = " ".join(answer(capsys, *asked).split())
    assert ("is at shapes beyond those measured" in page) is outside


def test_held_out_errors_are_those_of_the_fit_that_is_used(tmp_path, capsys):
    def change(name, law):
        if name == "gemm/bf16":
            law["heldout"]["median_ape"] = 77.7

    page = answer(capsys, "--fit", own_fit(tmp_path / "fit.json", change))
    assert "gemm 77.7 %" in page
    assert "gemm 77.7 %" not in answer(capsys)


def test_collectives_alone_do_not_make_a_device_measured():
    """A 910B2 has measured collectives; its products are priors, which --strict refuses."""
    said = pm.predict(pm.Workload(), "8xascend-910b2", parallel="cfg2_usp4_hsdp8")
    assert 0 < said.prediction.provenance_share["fitted"] < 0.5
    (warning,) = [w.message for w in said.warnings if w.rule_id == "priors"]
    assert "perfmodel bench" in warning
    with pytest.raises(MissingData, match="ascend-910b2 has no fitted kernel laws"):
        pm.predict(pm.Workload(), "8xascend-910b2", strict=True)
