"""The shipped fits: they load, stay in bounds, meet their stated errors, and the README agrees."""

from pathlib import Path

import numpy as np
import pytest

from perfmodel.calibrate.laws_fit import KINDS
from perfmodel.calibrate.priors import family_medians
from perfmodel.calibrate.score import validate_microbench
from perfmodel.calibrate.tables import (
    accuracy_table,
    engine_table,
    fill,
    parameter_tables,
    shipped_fits,
    shipped_terms,
    term_table,
)
from perfmodel.catalog import load_device
from perfmodel.cost import gemm, protocols
from perfmodel.cost.fits import laws_of_fit, load_priors
from perfmodel.spec.record import read_records

ROOT = Path(__file__).parent.parent / "calibration"
FITS = {fit["device"]: fit for fit in shipped_fits(ROOT / "fits")}
DEVICES = tuple(
    ["a100-sxm-80g", "ascend-910c-die", "b200-sxm", "b300-sxm", "h100-sxm", "h200-sxm", "l40s"]
)

# Mean error in percent over the thinned rows of each device; may only fall without a reason.
LIMITS = {
    "gemm/bf16": {"b300-sxm": 7, "h200-sxm": 6, "a100-sxm-80g": 6, "l40s": 11},
    "gemm/fp8": {"b300-sxm": 6, "h100-sxm": 5.3, "h200-sxm": 6, "l40s": 10},
    "attention/bf16": {"b300-sxm": 9, "h200-sxm": 9, "a100-sxm-80g": 6, "l40s": 10},
    "collective/ring": {"b300-sxm": 3.5, "h200-sxm": 4.5, "a100-sxm-80g": 4.5},
    "collective/all_to_all": {"b300-sxm": 7, "h200-sxm": 7, "a100-sxm-80g": 6},
}


COLLECTIVES_ALONE = "ascend-910b2"


def test_all_devices_have_a_fit():
    assert sorted(FITS) == sorted([*DEVICES, COLLECTIVES_ALONE])


def test_the_mesh_of_the_910b_has_its_collectives_within_the_target():
    laws = FITS[COLLECTIVES_ALONE]["laws"]
    assert set(laws) == {"collective/ring", "collective/all_to_all"}
    for law in laws.values():
        large = law["heldout"]["by"]["size"]["bytes>=2MiB"]
        assert large["n"] >= 20
        assert large["mape"] <= 10.0
        assert law["extrapolation"]["mape"] <= 10.0


def test_collectives_of_a_mesh_are_no_part_of_the_family():
    """They hold for devices with the same links; the family's are those of the 910C's switch."""
    lent = load_priors()["families"]["davinci"]["collective/all_to_all"]
    assert lent["devices"] == 1
    own = FITS["ascend-910c-die"]["laws"]["collective/all_to_all"]["parameters"]
    found = {name: entry["value"] for name, entry in own.items()}
    assert lent["parameters"] == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_fits_are_of_the_current_laws_and_inside_their_bounds(device):
    fit = FITS[device]
    laws = laws_of_fit(fit)
    assert {"gemm/bf16", "attention/bf16", "collective/ring", "collective/all_to_all"} <= set(laws)
    for name, law in laws.items():
        kind = name.split("/")[0]
        expected = KINDS[kind].parameters
        if kind == "gemm":
            expected = gemm.parameters_of(name.split("/")[1])
        if kind == "collective":
            expected = protocols.parameters_of(name)
        assert set(law.values) == {p.name for p in expected}, name
        for p in expected:
            assert p.low * (1 - 1e-4) <= law.values[p.name] <= p.high * (1 + 1e-4), (name, p.name)
    assert all(len(record["sha256"]) == 64 for record in fit["records"])
    assert fit["split"]["salt"]


@pytest.mark.parametrize("device", DEVICES)
def test_held_out_rows_are_a_fifth_and_not_much_worse_than_the_fitted_ones(device):
    for name, law in FITS[device]["laws"].items():
        train, held = law["train"], law["heldout"]
        if train["n"] > 400:
            assert 0.15 < held["n"] / (held["n"] + train["n"]) < 0.25, name
            assert held["mape"] < 1.35 * train["mape"] + 1.0, name


@pytest.mark.parametrize("device", ["b300-sxm", "h100-sxm", "h200-sxm", "a100-sxm-80g", "l40s"])
def test_shipped_records_are_predicted_within_the_stored_limits(device):
    answer = validate_microbench([ROOT / "microbench" / device], load_device(device))
    assert answer["predicted"] > 0.98 * answer["records"]
    for law, limits in LIMITS.items():
        if device in limits:
            assert answer["by"]["law"][law]["mape"] <= limits[device], (law, answer["by"]["law"])


def test_family_medians_are_those_of_the_fits():
    assert load_priors()["families"] == family_medians(list(FITS.values()))


def test_named_priors_lie_in_their_bounds_and_say_what_they_are():
    for name, prior in load_priors()["named"].items():
        low, high = prior["bounds"]
        assert low <= prior["value"] <= high, name
        assert prior["meaning"], name


def test_readme_tables_are_current():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    terms = shipped_terms(ROOT / "engines")
    for name, content in (
        ("accuracy", accuracy_table(shipped_fits(ROOT / "fits"))),
        ("parameters", parameter_tables()),
        ("engines", engine_table(terms)),
        ("terms", term_table(terms)),
    ):
        assert fill(text, name, content) == text, "run python -m perfmodel.calibrate.tables"


def test_fitted_engine_terms_lie_in_their_bounds_and_name_rows_that_exist():
    ids = {record.id for record in read_records([ROOT / "runs" / "public.jsonl"])[0]}
    for data in shipped_terms(ROOT / "engines"):
        fitted = [t for t in data["terms"].values() if t["provenance"] == "fitted"]
        assert 10 * len(fitted) <= data["fit"]["independent_rows"], data["engine"]
        for term in fitted:
            assert term["low"] <= term["value"] <= term["high"]
            assert term["low"] <= term["prior"] <= term["high"]
            assert len(set(term["records"]) & ids) == term["rows"] >= 10
            assert term["sources"] >= 2
        error = data["fit"]["held_out"]
        assert not fitted or error["after"]["weighted"] < error["before"]["weighted"]


def test_shipped_records_stay_small_and_carry_no_unlicensed_rows():
    files = list((ROOT / "microbench").rglob("*.csv"))
    assert sum(f.stat().st_size for f in files) < 3_000_000
    assert not any("ascend" in str(f) for f in files)


def test_fp8_gains_less_than_its_peak_where_quantising_costs():
    fit = FITS["b300-sxm"]["laws"]["gemm/fp8"]["parameters"]
    assert fit["row_s"]["value"] > 0
    assert np.isfinite(fit["input_pass_bytes"]["value"])
