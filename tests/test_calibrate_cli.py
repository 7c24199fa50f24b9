"""`perfmodel calibrate` and `perfmodel validate` on CSV, as typed."""

import json
import shutil
from pathlib import Path

import pytest

from perfmodel.catalog import data_roots, hardware_ids, load_device, load_fit
from perfmodel.cli.app import run
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
    assert fit["excluded"] == ["collective:num_ranks=4,8"]
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
        ({"laws": "gemm/fp4"}, "--laws gemm/fp4: no row is of it; these records have: collective"),
        ({"laws": "collective,gemm"}, "--laws gemm: no row"),
        ({"excluded": ["collective:num_ranks=3"]}, "no row holds 3; there are: 2, 4, 8"),
        ({"storage": "nosuch://x"}, "--storage nosuch://x cannot be used"),
    ],
)
def test_bad_input_is_one_line_each(tmp_path, changes, message):
    with pytest.raises(BadInput) as caught:
        calibrate(**options(tmp_path, **changes))
    assert any(message in problem.message for problem in caught.value.problems)
    assert not (tmp_path / "fit.json").exists()


def test_laws_that_are_fitted_again_may_be_of_an_older_program(tmp_path):
    """The law that --laws names is replaced; one that stays must be readable."""
    fit = tmp_path / "fit.json"
    older = json.loads((ROOT / "fits" / "a100-sxm-80g.json").read_text())
    older["laws"]["collective/all_to_all"]["version"] = 0
    fit.write_text(json.dumps(older))
    calibrate(**options(tmp_path))
    laws = json.loads(fit.read_text())["laws"]
    assert laws["collective/all_to_all"]["version"] > 0
    assert laws["gemm/bf16"] == older["laws"]["gemm/bf16"]
    older["laws"]["gemm/bf16"]["version"] = 0
    fit.write_text(json.dumps(older))
    with pytest.raises(BadInput) as caught:
        calibrate(**options(tmp_path))
    assert [p.field for p in caught.value.problems] == [f"{fit}: laws.gemm/bf16.version"]


def write(path, name, text):
    (path / name).write_text(text)
    return path / name


def test_what_is_at_the_target_is_refused_before_the_fit(tmp_path):
    """A folder, another program's file, a part of a fit, the fit of another device."""
    (tmp_path / "folder").mkdir()
    fit = json.loads((ROOT / "fits" / "h100-sxm.json").read_text())
    for target, message in (
        (tmp_path / "folder", "folder"),
        (write(tmp_path, "notes.json", "{}"), "not a fit"),
        (write(tmp_path, "part.json", '{"fit_id": "x"}'), "part.json: laws"),
        (write(tmp_path, "other.json", json.dumps(fit)), "is the fit of h100-sxm"),
    ):
        with pytest.raises(BadInput, match=message):
            calibrate(**options(tmp_path, out=target, records=[Path("not read")]))
    with pytest.raises(BadInput, match="nowhere: does not exist"):
        calibrate(**options(tmp_path, out=tmp_path / "new" / "fit", records=[Path("nowhere")]))
    assert not (tmp_path / "new" / "fit").exists()


def test_a_journal_that_was_cut_off_is_refused_before_the_fit(tmp_path):
    journal = write(tmp_path, "cut.journal", '{"op_code": 0, "wor')
    with pytest.raises(BadInput, match="last line is cut off"):
        calibrate(**options(tmp_path, storage=str(journal)))
    assert journal.read_text() == '{"op_code": 0, "wor'


@pytest.mark.parametrize("how", ["id", "file"])
def test_the_fit_of_an_own_device_goes_where_predictions_find_it(
    how, tmp_path, capsys, monkeypatch
):
    """Two commands, as the README has them: the second answer rests on the fit."""
    mine, away = tmp_path / "mine", tmp_path / "away"
    (mine / "hardware").mkdir(parents=True)
    away.mkdir()
    monkeypatch.chdir(away)
    monkeypatch.setenv("PERFMODEL_PATH", str(mine) if how == "id" else "")
    text = (data_roots()[0] / "hardware" / "a100-sxm-80g.yaml").read_text()
    card = mine / "hardware" / "my-card.yaml"
    card.write_text(text.replace("id: a100-sxm-80g", "id: my-card"))
    calibrate(**options(tmp_path, out=None, device="my-card" if how == "id" else str(card)))
    assert (mine / "calibration" / "studies" / "my-card.journal").is_file()
    assert not list(away.iterdir())
    assert (f"to use it: PERFMODEL_PATH={mine}" in capsys.readouterr().err) == (how == "file")
    monkeypatch.setenv("PERFMODEL_PATH", str(mine))
    assert load_fit("my-card")["laws"].keys() == {"collective/all_to_all"}


@pytest.mark.parametrize("place", ["hardware", "."])
def test_validate_takes_the_fit_that_calibrate_wrote_for_a_device_file(
    place, tmp_path, capsys, monkeypatch
):
    """The same --device in both commands, and no other option."""
    monkeypatch.chdir(tmp_path)
    text = (data_roots()[0] / "hardware" / "a100-sxm-80g.yaml").read_text()
    card = Path(place) / "my-card.yaml"
    card.parent.mkdir(exist_ok=True)
    card.write_text(text.replace("id: a100-sxm-80g", "id: my-card"))
    rows = ROOT / "microbench" / "a100-sxm-80g" / "collective.csv"
    argv = ["validate", str(rows), "--device", str(card), "--json"]
    assert run(argv) == 0
    assert set(json.loads(capsys.readouterr().out)["provenance"].values()) == {"prior"}
    calibrate(**options(tmp_path, out=None, device=str(card)))
    capsys.readouterr()
    assert run(argv) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["provenance"]["collective/all_to_all"] == "fitted"
    fit = Path("calibration/fits/my-card.json")
    assert answer["fit_id"] == json.loads(fit.read_text())["fit_id"]


def test_the_place_of_a_fit_does_not_depend_on_how_the_file_is_named(tmp_path, monkeypatch):
    from perfmodel.cli.fit_place import own_fit_path

    folder = tmp_path / "mine" / "hardware"
    folder.mkdir(parents=True)
    (folder / "my-card.yaml").touch()
    device = load_device("a100-sxm-80g").model_copy(update={"id": "my-card"})
    wanted = tmp_path / "mine" / "calibration" / "fits" / "my-card.json"
    for here, name in (
        (folder, "my-card.yaml"),
        (folder, "./my-card.yaml"),
        (folder.parent, "hardware/my-card.yaml"),
        (tmp_path, "mine/hardware/my-card.yaml"),
        (tmp_path, str(folder / "my-card.yaml")),
    ):
        monkeypatch.chdir(here)
        assert own_fit_path(name, device).resolve() == wanted, name


def test_an_own_file_of_a_shipped_device_says_whose_fit_is_used(tmp_path, capsys, monkeypatch):
    (tmp_path / "hardware").mkdir()
    shipped = data_roots()[0] / "hardware" / "a100-sxm-80g.yaml"
    argv = ["predict", "--gpus", "1xa100-sxm-80g", "--parallel", "single"]
    assert run(argv) == 0
    assert "warning[fit-device]" not in capsys.readouterr().err
    (tmp_path / "hardware" / "a100-sxm-80g.yaml").write_text(shipped.read_text())
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path))
    assert run(argv) == 0
    own = tmp_path / "hardware" / "a100-sxm-80g.yaml"
    assert f"warning[fit-device]: {own} describes a100-sxm-80g anew" in capsys.readouterr().err
    fit = data_roots()[0] / "calibration" / "fits" / "a100-sxm-80g.json"
    (tmp_path / "calibration" / "fits").mkdir(parents=True)
    shutil.copy(fit, tmp_path / "calibration" / "fits")
    assert run(argv) == 0
    assert "warning[fit-device]" not in capsys.readouterr().err


def test_a_fit_elsewhere_says_how_it_is_used(tmp_path, capsys):
    calibrate(**options(tmp_path))
    assert f"fit.json; to use it: --fit {tmp_path / 'fit.json'}" in capsys.readouterr().err


def test_the_same_warning_is_shown_a_few_times_and_then_counted(tmp_path, capsys):
    text = (ROOT / "microbench" / "a100-sxm-80g" / "collective.csv").read_text()
    bad = "collective,all_to_all,nccl,2,8,2,16,-1,dev,soft\n"
    records = write(tmp_path, "collective.csv", text + 500 * bad)
    calibrate(**options(tmp_path, records=[records]))
    err = capsys.readouterr().err
    assert err.count("warning[records-row]") == 21
    assert "warning[records-row]: 480 more of the kind" in err


def test_bench_refuses_a_file_as_its_folder(tmp_path, capsys):
    file = write(tmp_path, "gemm.csv", "op\n")
    assert run(["bench", "--ops", "gemm", "--device", "cpu", "--out", str(file)]) == 2
    assert f"cannot hold records: {file} is a file" in capsys.readouterr().err


def test_limits_of_microbenchmarks_fail_the_command(capsys):
    csv = ROOT / "microbench" / "a100-sxm-80g" / "collective.csv"
    argv = ["validate", str(csv), "--device", "a100-sxm-80g", "--fail-above"]
    assert run([*argv, "collective=50"]) == 0
    assert run([*argv, "collective=0.1"]) == 5
    assert run([*argv, "gemm=50"]) == 5
    assert "gemm was measured by no scored record" in capsys.readouterr().err
    assert run([*argv, "request=50"]) == 2


def test_flags_of_the_other_kind_of_records_are_refused(capsys):
    csv = ROOT / "microbench" / "a100-sxm-80g" / "collective.csv"
    runs = ROOT / "runs" / "public.jsonl"
    assert run(["validate", str(csv), "--device", "a100-sxm-80g", "--plot", "x.png"]) == 2
    assert run(["validate", str(csv), "--device", "a100-sxm-80g", "--in-fit"]) == 2
    assert run(["validate", str(runs), "--fit", "x.json"]) == 2
    assert "--fit goes with microbenchmark CSV" in capsys.readouterr().err


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
