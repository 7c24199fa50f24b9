"""`perfmodel calibrate` and `perfmodel validate` on CSV, as typed."""

import json
import shutil
from pathlib import Path

import pytest

from perfmodel.catalog import data_roots, hardware_ids
from perfmodel.cli.calibrate import command as calibrate
from perfmodel.cli.validate import command as validate
from perfmodel.errors import BadInput, MissingData

ROOT = Path(__file__).parent.parent / "calibration"


def options(tmp_path, **changes):
    given = {
        "records": [ROOT / "microbench" / "a100-sxm-80g" / "collective.csv"],
        "device": "a100-sxm-80g",
        "out": tmp_path / "fit.json",
        "trials": 8,
        "jobs": 1,
        "timeout": None,
        "storage": None,
        "sampler": "tpe",
        "polish": True,
        "laws": "collective/all_to_all",
        "prior": None,
        "extrapolation": False,
        "excluded": None,
        "seed": 1,
    }
    return {**given, **changes}


def test_a_fit_is_written_reported_and_used_by_validate(tmp_path, capsys):
    calibrate(**options(tmp_path))
    shown = capsys.readouterr()
    assert "collective/all_to_all" in shown.out
    assert f"wrote {tmp_path / 'fit.json'}" in shown.err
    assert (tmp_path / "fit.journal").is_file()
    validate(
        records=[ROOT / "microbench" / "a100-sxm-80g" / "collective.csv"],
        device="a100-sxm-80g",
        fit=tmp_path / "fit.json",
        as_json=True,
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["fit_id"] == json.loads((tmp_path / "fit.json").read_text())["fit_id"]
    assert answer["metrics"]["collective"]["n"] == answer["predicted"] == 200
    assert set(answer["by"]["num_ranks"]) == {"2", "4", "8"}
    assert answer["provenance"]["collective/ring"] == "prior"
    assert answer["provenance"]["collective/all_to_all"] == "fitted"


def test_a_device_that_is_not_in_the_catalogue_needs_only_a_small_yaml(tmp_path, capsys):
    text = (data_roots()[0] / "hardware" / "a100-sxm-80g.yaml").read_text()
    mine = tmp_path / "my-card.yaml"
    mine.write_text(text.replace("id: a100-sxm-80g", "id: my-card"))
    assert "my-card" not in hardware_ids()
    calibrate(**options(tmp_path, device=str(mine)))
    assert json.loads((tmp_path / "fit.json").read_text())["device"] == "my-card"
    assert "my-card@" in capsys.readouterr().out


def test_excluded_rows_are_out(tmp_path, capsys):
    calibrate(**options(tmp_path, excluded=["collective:num_ranks=4,8"]))
    fit = json.loads((tmp_path / "fit.json").read_text())
    assert fit["laws"]["collective/all_to_all"]["range"]["num_ranks"] == [2.0, 2.0]
    capsys.readouterr()


def test_tables_that_are_not_fitted_are_not_warned_about(tmp_path, capsys):
    """A bad row of another operator is said only where its law is fitted."""
    bad = tmp_path / "records"
    bad.mkdir()
    shutil.copy(ROOT / "microbench" / "a100-sxm-80g" / "collective.csv", bad)
    head = "op,dtype,kernel,m,n,k,latency_us"
    (bad / "gemm.csv").write_text(f"{head}\ngemm,bf16,linear,64,64,64,fast\n")
    calibrate(**options(tmp_path, records=[bad]))
    assert "gemm.csv" not in capsys.readouterr().err
    with (bad / "collective.csv").open("a") as file:
        file.write("collective,all_to_all,nccl,none,1,2,2,1,dev,soft\n")
    calibrate(**options(tmp_path, records=[bad]))
    assert capsys.readouterr().err.count("row left out") == 1


def test_bad_rows_are_said_and_the_rest_is_used(tmp_path, capsys):
    folder = tmp_path / "records"
    folder.mkdir()
    source = ROOT / "microbench" / "a100-sxm-80g" / "collective.csv"
    shutil.copy(source, folder / "collective.csv")
    with (folder / "collective.csv").open("a") as file:
        file.write("collective,all_to_all,nccl,2,8,2,16,-1,dev,soft\n")
    calibrate(**options(tmp_path, records=[folder]))
    line = f"warning[records-row]: {folder / 'collective.csv'}:202: latency_us=-1 is not above zero"
    assert line in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "a101"}, "a101"),
        ({"sampler": "grid"}, '--sampler "grid" is unknown'),
        ({"prior": "volta"}, '--prior "volta" is unknown; one of: ada, ampere'),
        ({"records": [Path("nowhere")]}, "nowhere: does not exist"),
        ({"laws": "gemm/fp4"}, "no law can be fitted"),
    ],
)
def test_bad_input_is_one_line_each(tmp_path, changes, message):
    with pytest.raises(BadInput) as caught:
        calibrate(**options(tmp_path, **changes))
    assert any(message in problem.message for problem in caught.value.problems)
    assert not (tmp_path / "fit.json").exists()


def test_validate_refuses_what_is_no_fit(tmp_path):
    wrong = tmp_path / "wrong.json"
    wrong.write_text("[1]")
    csv = ROOT / "microbench" / "a100-sxm-80g" / "collective.csv"
    with pytest.raises(BadInput, match="wrong"):
        validate(records=[csv], device="a100-sxm-80g", fit=wrong)
    old = {"laws": {"gemm/bf16": {"version": 0, "parameters": {}, "range": {}}}, "fit_id": "x"}
    wrong.write_text(json.dumps(old))
    with pytest.raises((BadInput, MissingData), match="refit"):
        validate(records=[csv], device="a100-sxm-80g", fit=wrong)
    with pytest.raises(BadInput, match="--device"):
        validate(records=[csv], device=None, fit=None)
