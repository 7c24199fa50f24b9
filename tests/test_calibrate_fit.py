"""The fit: it finds known parameters, is repeatable, keeps halves apart, refuses nonsense."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from calibrate_rows import DEVICE, QUICK, RATES, shapes, true_times, write_gemm

from perfmodel.calibrate.explore import Options, from_unit, open_study, to_unit
from perfmodel.calibrate.fitfile import fit_document, write_fit
from perfmodel.calibrate.kernels import Kernels
from perfmodel.calibrate.laws_fit import fit_laws, with_known
from perfmodel.calibrate.metrics import error_summary
from perfmodel.calibrate.priors import family_medians
from perfmodel.calibrate.records import read_records
from perfmodel.calibrate.report import report_lines
from perfmodel.calibrate.run import calibrate
from perfmodel.calibrate.score import validate_microbench
from perfmodel.calibrate.split import held_out, shape_key, top_work
from perfmodel.calibrate.study import Objective, Space
from perfmodel.catalog import load_device
from perfmodel.cost import gemm, protocols
from perfmodel.cost.fits import Parameter, laws_of_fit, load_laws
from perfmodel.cost.machine import Rates
from perfmodel.cost.protocols import HCCL_ONLY
from perfmodel.errors import BadInput, MissingData

MICROBENCH = Path(__file__).parent.parent / "calibration" / "microbench"


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    picked = shapes()
    return write_gemm(tmp_path_factory.mktemp("records"), true_times(picked), picked)


@pytest.fixture(scope="module")
def result(records):
    return calibrate(records, DEVICE, QUICK)


def test_known_parameters_are_found(result):
    (fitted,) = result.laws
    assert fitted.heldout["mape"] < 1.5
    assert fitted.train["mape"] < 1.5
    assert fitted.found.values["launch_s"] == pytest.approx(5e-6, rel=0.15)
    assert fitted.found.values["memory_frac"] == pytest.approx(0.6, rel=0.1)


def test_noise_of_the_rows_bounds_the_error(tmp_path):
    picked = shapes()
    write_gemm(tmp_path, true_times(picked, noise=0.05), picked)
    (fitted,) = calibrate([tmp_path], DEVICE, QUICK, extrapolation=True).laws
    assert 2.0 < fitted.heldout["mape"] < 6.0
    assert fitted.extrapolation is not None
    assert fitted.extrapolation["mape"] < 10.0


def test_one_job_is_repeatable_to_the_bit_and_resumes(tmp_path):
    picked = shapes(60)
    records = write_gemm(tmp_path, true_times(picked), picked)

    def document(storage, trials=5):
        options = Options(trials=trials, storage=storage)
        return fit_document(calibrate(records, DEVICE, options))

    journal = str(tmp_path / "study" / "journal")
    first = document(None)
    assert document(None) == first
    assert document(journal) == first
    size = (tmp_path / "study" / "journal").stat().st_size
    assert document(journal) == first
    grown = (tmp_path / "study" / "journal").stat().st_size
    assert grown < 1.2 * size, "a finished study must not run its trials again"
    more = document(journal, trials=6)
    assert more["laws"]["gemm/bf16"]["trials"] == 6


def test_a_shape_lies_in_one_half_whatever_its_kernel(tmp_path):
    picked = shapes(200)
    times = true_times(picked)
    write_gemm(tmp_path, times, picked, name="a.csv")
    write_gemm(tmp_path, times * 1.1, picked, kernel="other", name="b.csv")
    (law,) = fit_laws(read_records([tmp_path]), DEVICE)
    away = held_out(law)
    by_shape = {}
    for row in range(len(law.rows)):
        by_shape.setdefault(shape_key(law, row), set()).add(bool(away[row]))
    assert len(by_shape) == 200
    assert all(len(halves) == 1 for halves in by_shape.values())
    assert 0.1 < away.mean() < 0.3
    assert (held_out(law, "other salt") != away).any()


def test_kernels_get_their_rate(tmp_path):
    picked = shapes(200)
    times = true_times(picked)
    write_gemm(tmp_path, times, picked, name="a.csv")
    half = [i for i, _ in enumerate(picked) if i % 2]
    slow = 5e-6 + (times - 5e-6) * 1.25
    write_gemm(tmp_path, slow[half], [picked[i] for i in half], kernel="slow", name="b.csv")
    (fitted,) = calibrate([tmp_path], DEVICE, QUICK).laws
    assert fitted.found.kernels["linear"]["rate"] == 1.0
    assert fitted.found.kernels["slow"]["rate"] == pytest.approx(0.8, abs=0.12)


@pytest.mark.parametrize("factor", [1e3, 1e-3])
def test_a_unit_slip_is_refused_with_file_and_row(tmp_path, factor):
    picked = shapes(100)
    write_gemm(tmp_path, true_times(picked) * factor, picked)
    with pytest.raises(BadInput, match=r"gemm\.csv:\d+: gemm/bf16 is not fitted.*ten largest"):
        calibrate([tmp_path], DEVICE, QUICK)


def test_one_wrong_file_does_not_hide_among_good_ones(tmp_path):
    picked = shapes(200)
    times = true_times(picked)
    write_gemm(tmp_path, times[:150], picked[:150], name="good.csv")
    write_gemm(tmp_path, times[150:] * 1e3, picked[150:], name="slipped.csv")
    result = calibrate([tmp_path], DEVICE, QUICK)
    (said,) = [p.message for p in result.records.problems]
    assert "without the 50 rows of" in said
    assert "slipped.csv" in said
    assert len(result.laws[0].law.rows) == 150
    assert result.laws[0].train["median_ape"] < 2


def test_rows_that_follow_no_law_are_refused(tmp_path):
    picked = shapes(100)
    noise = np.exp(2.0 * np.random.default_rng(0).normal(size=100))
    largest = np.argsort([m * n * k for m, n, k in picked])[-10:]
    noise[largest] = 1.0
    write_gemm(tmp_path, true_times(picked) * noise, picked)
    with pytest.raises(BadInput, match="misses half of the rows it was fitted to"):
        calibrate([tmp_path], DEVICE, QUICK)


def test_too_few_rows_are_refused(tmp_path):
    picked = shapes(5)
    write_gemm(tmp_path, true_times(picked), picked)
    with pytest.raises(BadInput, match="5 rows, a fit needs 8"):
        calibrate([tmp_path], DEVICE, QUICK)


def test_fit_file_holds_what_the_contract_names_and_reads_back(records, result):
    document = fit_document(result)
    assert {"schema_version", "fit_id", "device", "laws", "records", "split", "seed", "software",
            "created"} <= set(document)  # fmt: skip
    law = document["laws"]["gemm/bf16"]
    assert {"version", "parameters", "range", "train", "heldout", "kernels"} <= set(law)
    for parameter in law["parameters"].values():
        low, high = parameter["bounds"]
        assert low <= parameter["value"] <= high
    file = records[0] / "gemm.csv"
    assert document["records"][0]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    read = laws_of_fit(json.loads(json.dumps(document)))["gemm/bf16"]
    assert read.provenance == "fitted"
    assert read.values["rate_frac"] == law["parameters"]["rate_frac"]["value"]
    assert any("gemm/bf16" in line for line in report_lines(result, document))
    assert all(len(line) <= 100 for line in report_lines(result, document))


def test_an_older_law_version_is_refused_with_the_command(result):
    document = fit_document(result)
    document["laws"]["gemm/bf16"]["version"] = 0
    with pytest.raises(MissingData, match="perfmodel calibrate --records DIR --device h100-sxm"):
        laws_of_fit(document)


def test_writing_keeps_the_older_fit(tmp_path):
    path = tmp_path / "fits" / "x.json"
    assert write_fit({"fit_id": "aaaa", "laws": {}}, path) is None
    assert write_fit({"fit_id": "aaaa", "laws": {}}, path) is None
    assert write_fit({"fit_id": "bbbb", "laws": {}}, path) == path.with_name("x.aaaa.json")
    assert json.loads(path.read_text())["fit_id"] == "bbbb"
    assert json.loads(path.with_name("x.aaaa.json").read_text())["fit_id"] == "aaaa"
    (tmp_path / "notes.json").write_text("[]")
    with pytest.raises(BadInput, match="is not a fit"):
        write_fit({"fit_id": "c"}, tmp_path / "notes.json")


def test_refitting_one_law_keeps_the_others_and_the_records_behind_them(records, result):
    document = fit_document(result)
    kept = {**document["laws"]["gemm/bf16"], "achieved_frac": 0.123}
    source = {"file": "old.csv", "sha256": "0" * 64, "rows": 9}
    older = {
        **document,
        "laws": {"attention/bf16": kept, "gemm/bf16": kept},
        "records": [source, *document["records"]],
        "software": {"measured_with": ["vllm 1"]},
        "prior_family": "ampere",
    }
    merged = fit_document(calibrate(records, DEVICE, QUICK, only=("gemm",)), older=older)
    assert list(merged["laws"]) == ["attention/bf16", "gemm/bf16"]
    assert merged["laws"]["attention/bf16"] == kept
    assert merged["laws"]["gemm/bf16"] == document["laws"]["gemm/bf16"]
    assert merged["records"] == [*document["records"], source]
    assert merged["prior_family"] == "ampere"
    assert "vllm 1" in merged["software"]["measured_with"]
    assert merged["fit_id"] != document["fit_id"]


def test_slopes_of_a_batched_law_are_the_differences_of_single_points():
    """One call for all shifted points against one call a point."""
    table = MICROBENCH / "a100-sxm-80g" / "collective.csv"
    device = load_device("a100-sxm-80g")
    (law,) = fit_laws(read_records([table]), device, ("collective/ring",))
    problem = Objective(law, Rates.of(device), np.arange(0, len(law.rows), 3))
    free = np.array([not p.grid for p in problem.space.bounds()])
    point = np.where(free, np.linspace(0.15, 0.85, len(free)), problem.default)
    step, found = 1e-3, problem.slopes(point, free, 1e-3)
    for column, place in enumerate(np.flatnonzero(free)):
        moved = point.copy()
        moved[place] += -step if point[place] > 0.5 else step
        expected = (problem.residuals(moved) - problem.residuals(point)) / (moved - point)[place]
        assert found[:, column] == pytest.approx(expected, abs=1e-9), law.parameters[place].name


def test_what_the_library_states_is_not_fitted():
    """Over NVLink the change is that of NCCL's constants; over PCIe the rows decide."""
    table = MICROBENCH / "h100-sxm" / "collective.csv"
    laws = {law.name: law for law in fit_laws(read_records([table]), DEVICE)}

    def free(name, device):
        law = with_known(laws[name], load_device(device))
        return {p.name: p.grid for p in law.parameters if p.name in {"switch_s", "tuner"}}

    known = free("collective/ring", "h100-sxm")
    assert known["switch_s"] == (pytest.approx(0.8 * 2.8e-6 / (1 / 0.39 - 1), rel=5e-3),)
    assert len(known["tuner"]) == 3
    assert len(free("collective/ring", "l40s")["switch_s"]) > 3
    assert len(free("collective/all_to_all", "h100-sxm")["switch_s"]) > 3


def test_what_describes_hccl_is_not_fitted_to_nccl():
    table = MICROBENCH / "h100-sxm" / "collective.csv"
    (law,) = fit_laws(read_records([table]), DEVICE, ("collective/all_to_all",))

    def grids(device):
        known = with_known(law, load_device(device))
        return {p.name: (p.default, p.grid) for p in known.parameters if p.name in HCCL_ONLY}

    for device in ("h100-sxm", "l40s", "mi300x"):
        assert grids(device) == dict.fromkeys(HCCL_ONLY, (1.0, (1.0,)))
    assert grids("ascend-910b2") == dict.fromkeys(HCCL_ONLY, (1.0, ()))


def test_a_strong_pull_needs_evidence(records):
    (law,) = fit_laws(read_records(records), DEVICE)
    first = law.parameters[0]
    weak, strong = (
        Objective(replace(law, parameters=(replace(first, pull=pull), *law.parameters[1:])),
                  RATES, np.arange(20))
        for pull in (1.0, 3.0)
    )  # fmt: skip
    away = weak.default + 0.1
    assert strong.pull(away)[0] == pytest.approx(3 * weak.pull(away)[0])
    assert strong.pull(away)[1:] == pytest.approx(weak.pull(away)[1:])
    assert strong.loss(away) > weak.loss(away)


def test_validate_scores_with_a_given_fit_and_fits_nothing(records, result):
    answer = validate_microbench(records, DEVICE, fit_document(result))
    assert answer["records"] == answer["predicted"] == 300
    assert answer["metrics"]["gemm"]["mape"] < 1.5
    assert answer["metrics"]["gemm"]["n"] == 300
    assert set(answer["by"]["dtype"]) == {"bf16"}
    assert set(answer["by"]["kernel"]) == {"linear"}
    assert answer["fit_id"] == fit_document(result)["fit_id"]


def test_validate_skips_what_has_no_peak(tmp_path):
    picked = shapes(20)
    write_gemm(tmp_path, true_times(picked), picked)
    text = (tmp_path / "gemm.csv").read_text()
    (tmp_path / "gemm.csv").write_text(text + text.split("\n", 1)[1].replace("bf16", "nvfp4"))
    answer = validate_microbench([tmp_path], DEVICE)
    assert answer["predicted"] == 20
    assert "gemm/nvfp4: h100-sxm has no nvfp4" in answer["skipped"][0]["reason"]
    (tmp_path / "gemm.csv").write_text(text.replace("bf16", "nvfp4"))
    with pytest.raises(MissingData, match="nvfp4"):
        validate_microbench([tmp_path], DEVICE)


def test_error_summary_against_hand_numbers():
    summary = error_summary(np.array([1.1, 0.8, 1.0]), np.array([1.0, 1.0, 2.0]))
    assert summary["n"] == 3
    assert summary["mape"] == pytest.approx((10 + 20 + 50) / 3, abs=1e-3)
    assert summary["median_ape"] == pytest.approx(20)
    assert summary["bias"] == pytest.approx((10 - 20 - 50) / 3, abs=1e-3)
    assert error_summary(np.array([]), np.array([])) == {"n": 0}


def test_unit_cube_round_trips_and_stays_in_bounds():
    for p in (*gemm.FP8_PARAMETERS, *protocols.RING_PARAMETERS):
        for x in (0.0, 0.2, 0.99, 1.0):
            value = from_unit(p, x)
            assert p.low - 1e-12 <= value <= p.high * (1 + 1e-9)
            assert from_unit(p, to_unit(p, value)) == pytest.approx(value, rel=1e-6, abs=1e-12)
    grid = Parameter("g", 1.0, 0.0, 1.0, "", grid=(0.0, 1.0))
    assert {from_unit(grid, x) for x in np.linspace(0, 1, 20)} == {0.0, 1.0}
    space = Space((grid,), Kernels(("a", "b"), (("b", "rate"),)))
    values, kernels = space.decode(space.encode({"g": 1.0}, {"b": {"rate": 0.5}}))
    assert values == {"g": 1.0}
    assert kernels["b"]["rate"] == pytest.approx(0.5)
    assert kernels["a"]["rate"] == 1.0


def test_top_work_is_the_top_tenth(records):
    (law,) = fit_laws(read_records(records), DEVICE)
    top = top_work(law)
    assert 0.05 <= top.mean() <= 0.1
    assert law.work[top].min() > law.work[~top].max()


def test_family_medians_and_another_family_for_missing_laws(result):
    document = fit_document(result)
    medians = family_medians([document, document])
    law = medians["hopper"]["gemm/bf16"]
    assert law["devices"] == 2
    value = document["laws"]["gemm/bf16"]["parameters"]["rate_frac"]["value"]
    assert law["parameters"]["rate_frac"] == pytest.approx(value, rel=1e-3)
    laws, _ = load_laws("h100-sxm", "hopper", {**document, "prior_family": "ampere"})
    assert laws["gemm/bf16"].provenance == "fitted"
    assert laws["attention/bf16"].origin == "family ampere"


def test_the_lock_of_a_killed_run_is_given_up_from_any_folder(tmp_path, monkeypatch):
    """Optuna gives a lock up 30 s after the file that it links to last changed: it must exist."""
    from optuna.storages.journal import JournalFileSymlinkLock

    monkeypatch.chdir(tmp_path)
    seen = []

    def acquire(lock):
        seen.append(lock._lock_target_file)
        return True

    monkeypatch.setattr(JournalFileSymlinkLock, "acquire", acquire)
    monkeypatch.setattr(JournalFileSymlinkLock, "release", lambda lock: None)
    open_study(Options(storage="studies/engines.journal"), "any")
    assert set(seen) == {str(tmp_path / "studies" / "engines.journal")}
