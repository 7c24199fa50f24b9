"""Rows of other tools: wrong units, one shape, names without end; what is said and what is used."""

import numpy as np
import pytest
from calibrate_rows import DEVICE, QUICK, shapes, true_times, write_gemm

from perfmodel.calibrate.fitfile import fit_document
from perfmodel.calibrate.laws_fit import fit_laws
from perfmodel.calibrate.records import read_records
from perfmodel.calibrate.run import calibrate
from perfmodel.calibrate.score import validate_microbench
from perfmodel.calibrate.split import held_out
from perfmodel.errors import BadInput

SAME_HALF = [(128, 1024, 1024), (192, 1024, 1024)]
"""Shapes that the hash of the split puts into the same half."""


@pytest.fixture
def records(tmp_path):
    picked = shapes()
    return write_gemm(tmp_path, true_times(picked), picked)


def test_a_wrong_unit_of_one_kernel_does_not_hide_in_a_file(tmp_path):
    """The other kernel has the larger shapes."""
    picked = shapes(60)
    times = true_times(picked)
    write_gemm(tmp_path, times[:20] / 1000, picked[:20], kernel="mine")
    small = (tmp_path / "gemm.csv").read_text().splitlines()[1:]
    write_gemm(tmp_path, times[20:], picked[20:])
    with (tmp_path / "gemm.csv").open("a") as file:
        file.write("\n".join(small) + "\n")
    result = calibrate([tmp_path], DEVICE, QUICK)
    (said,) = [p.message for p in result.records.problems]
    assert 'without the 20 rows of kernel "mine" of ' in said
    assert "is latency_us in microseconds" in said
    assert set(result.laws[0].law.rows.text("kernel")) == {"linear"}
    assert result.laws[0].train["median_ape"] < 2


@pytest.mark.parametrize("slower", [3.0, 8.0, 15.0])
def test_a_kernel_far_slower_than_another_leaves_its_law_alone(slower, tmp_path):
    """As many rows as the fast one, and a name that sorts first: it would be the reference."""
    picked = shapes(120)
    times = true_times(picked, noise=0.02)
    write_gemm(tmp_path, times, picked, "linear", "fast.csv")
    write_gemm(tmp_path, true_times(picked, 0.02, 1 / slower), picked, "by_hand", "slow.csv")
    (fitted,) = calibrate([tmp_path], DEVICE, QUICK).laws
    assert fitted.heldout["by"]["kernel"]["linear"]["mape"] < 4
    assert fitted.heldout["by"]["kernel"]["by_hand"]["mape"] < 4


def test_a_few_rows_in_another_unit_are_left_out_or_named(tmp_path):
    picked = shapes(200)
    times = true_times(picked)
    work = np.prod(np.array(picked, float), axis=1)
    wrong = np.argsort(work)[[100, 120, 140]]
    times[wrong] /= 1000
    slow = int(np.argsort(work)[60])
    times[slow] *= 1000
    result = calibrate(write_gemm(tmp_path, times, picked), DEVICE, QUICK)
    said = [p.message for p in result.records.problems]
    assert any("3 of 200 rows of gemm/bf16 are faster than the peak" in text for text in said)
    assert any(f"gemm.csv:{slow + 2}: 1 of 197 rows" in text for text in said)
    assert len(result.laws[0].law.rows) == 197
    assert result.laws[0].train["median_ape"] < 2


def test_short_kernels_far_from_the_peak_are_fitted(tmp_path):
    """Launches alone: 0.2 % of the peak, and in microseconds all the same."""
    picked = [(m, 256, k) for m in (64, 80, 96, 112, 128) for k in (256, 512, 1024)]
    result = calibrate(write_gemm(tmp_path, true_times(picked), picked), DEVICE, QUICK)
    assert result.laws[0].achieved_frac < 0.03
    with pytest.raises(BadInput, match="is latency_us in microseconds"):
        calibrate(write_gemm(tmp_path, true_times(picked) * 1000, picked), DEVICE, QUICK)


def test_a_dtype_without_a_peak_leaves_the_other_laws(tmp_path):
    picked = shapes(40)
    write_gemm(tmp_path, true_times(picked), picked)
    with (tmp_path / "gemm.csv").open("a") as file:
        file.writelines(f"gemm,nvfp4,x,{m},{n},{k},50\n" for m, n, k in picked)
    result = calibrate([tmp_path], DEVICE, QUICK)
    assert [fitted.law.name for fitted in result.laws] == ["gemm/bf16"]
    assert "h100-sxm has no nvfp4 peak rate" in result.refused[0].message


def test_a_shape_is_in_one_half_where_the_hash_keeps_none_apart(tmp_path):
    """Two shapes of one half by the hash, with several kernels."""
    for index, kernel in enumerate("abcde"):
        write_gemm(tmp_path, [1e-4, 2e-4], SAME_HALF, kernel=kernel, name=f"{index}.csv")
    (law,) = fit_laws(read_records([tmp_path]), DEVICE)
    away = held_out(law)
    assert away.sum() == 5
    assert len(set(law.rows["m"][away])) == 1
    (tmp_path / "one").mkdir()
    one = [write_gemm(tmp_path / "one", [1e-4], SAME_HALF[:1], k, f"{k}.csv") for k in "abcdefghi"]
    with pytest.raises(BadInput, match="all its rows have one shape"):
        calibrate(one[0], DEVICE, QUICK)


def test_a_kernel_of_a_row_or_two_gets_no_factor_of_its_own(tmp_path):
    """Names of kernels that a profiler gives: factors would hold the noise, unseen rows pay."""
    picked = shapes(300)
    rng = np.random.default_rng(5)
    times = true_times(picked) * np.exp(rng.normal(0, 0.2, len(picked)))
    for start in range(0, 240, 2):
        part = slice(start, start + 2)
        write_gemm(tmp_path, times[part], picked[part], f"cutlass_{start}", f"{start}.csv")
    unseen = tmp_path / "unseen"
    unseen.mkdir()
    write_gemm(unseen, true_times(picked[240:]), picked[240:], "linear")
    result = calibrate([tmp_path], DEVICE, QUICK)
    assert result.laws[0].law.kernels.factors == ()
    answer = validate_microbench([unseen], DEVICE, fit_document(result))
    assert abs(answer["metrics"]["gemm"]["bias"]) < 8


def test_validate_says_that_rows_are_not_unseen(records, tmp_path):
    document = fit_document(calibrate(records, DEVICE, QUICK))
    assert "made from these rows" in validate_microbench(records, DEVICE, document)["warnings"][0]
    picked = shapes(20, seed=4)
    other = write_gemm(tmp_path, true_times(picked), picked)
    assert validate_microbench(other, DEVICE, document)["warnings"] == []
