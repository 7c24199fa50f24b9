"""Files that come from anywhere: each fault is one line with exit code 2, never a traceback."""

import copy
import json
import math
from pathlib import Path

import pytest
import yaml

from perfmodel import catalog
from perfmodel.cli.app import run
from perfmodel.cost.fitcheck import own_fit, read_fit
from perfmodel.errors import BadInput
from perfmodel.files import Unreadable, parse_json, read_yaml

ROOT = Path(__file__).parent.parent
FITS = sorted((ROOT / "calibration" / "fits").glob("*.json"))
H100 = json.loads((ROOT / "calibration" / "fits" / "h100-sxm.json").read_text())
DEEP = "[" * 5000 + "]" * 5000
LONG = "9" * 5000
ASK = ["--gpus", "4xH100", "--parallel", "usp4"]
RATE = ("laws", "gemm/bf16", "parameters", "rate_frac")


def refused(argv, capsys, rule):
    """Run; the refusal is lines of that rule, of which this is the text."""
    code = run([str(word) for word in argv])
    err = capsys.readouterr().err
    assert code == 2, err
    assert f"error[{rule}]: " in err
    lines = err.splitlines()
    assert all(line.startswith(("error[", "warning[")) and len(line) < 6000 for line in lines)
    return err


def changed(path, value):
    fit = copy.deepcopy(H100)
    here = fit
    for key in path[:-1]:
        here = here[key]
    if value is KeyError:
        del here[path[-1]]
    else:
        here[path[-1]] = value
    return fit


@pytest.mark.parametrize("path", FITS, ids=lambda p: p.stem)
def test_shipped_fits_hold_all_that_a_fit_needs(path):
    assert own_fit(path, path.stem)["laws"]


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ((*RATE, "value"), math.nan, "rate_frac.value: nan"),
        ((*RATE, "value"), math.inf, "rate_frac.value: inf"),
        ((*RATE, "value"), 10**400, "digits"),
        ((*RATE, "value"), 7.0, "7 is outside"),
        ((*RATE, "value"), "0.9", 'the text "0.9"'),
        ((*RATE, "value"), True, "rate_frac.value: true"),
        ((*RATE, "value"), KeyError, "rate_frac.value: is missing"),
        ((*RATE, "bounds"), [0.95, 1.0, 2], "rate_frac.bounds"),
        ((*RATE, "bounds"), [1e-3, 2e-3], "is outside 0.001 to 0.002"),
        (RATE, KeyError, "missing: rate_frac"),
        (RATE, [1], "rate_frac: a list"),
        (RATE[:3], [1], "parameters: a list"),
        (RATE[:3], "x", 'parameters: the text "x"'),
        (RATE[:2], 5, "gemm/bf16: 5"),
        ((*RATE[:2], "version"), 9, "version: 9"),
        ((*RATE[:2], "range"), {"m": [3, "x"]}, "range.m"),
        ((*RATE[:2], "kernels"), [1], "kernels: a list"),
        ((*RATE[:2], "kernels"), {"k": {"rate": -1}}, "kernels.k.rate: -1"),
        ((*RATE[:2], "kernels"), {"k": "fast"}, "kernels.k.rate"),
        (("laws",), None, "laws: null"),
        (("laws", "magic/bf16"), {}, "is no law"),
        (("schema_version",), 99, "schema_version: 99"),
        (("device",), None, "device: null"),
        (("device",), "b300-sxm", "asked is h100-sxm"),
    ],
    ids=str,
)
def test_a_fit_with_a_fault_names_it(path, value, named, tmp_path):
    file = tmp_path / "fit.json"
    file.write_text(json.dumps(changed(path, value)))
    with pytest.raises(BadInput) as caught:
        own_fit(file, "h100-sxm")
    assert named in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["5", "[1,2,3]", "null", "{}", '"x"', "", "{", DEEP, LONG])
def test_what_is_no_fit_is_refused_by_the_command(text, tmp_path, capsys):
    file = tmp_path / "fit.json"
    file.write_text(text)
    assert str(file) in refused(["predict", *ASK, "--fit", file], capsys, "fit-file")


def test_the_fit_of_an_unlisted_device_is_taken_with_a_warning(tmp_path, capsys):
    file = tmp_path / "fit.json"
    file.write_text(json.dumps(changed(("device",), "my-card")))
    assert read_fit(file)["device"] == "my-card"
    assert run(["predict", *ASK, "--fit", str(file)]) == 0
    assert "my-card" in capsys.readouterr().err


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 3000 + "1" + "}" * 3000, LONG, "[1"])
def test_json_that_no_parser_should_follow(text):
    with pytest.raises(Unreadable):
        parse_json(text)


@pytest.mark.parametrize(
    "text", [DEEP, "- " * 500 + "1", f"a: {LONG}", f"a: 0x{'f' * 5000}", "a: 2026-99-99", "a: ["]
)
def test_yaml_that_no_parser_should_follow(text, tmp_path):
    file = tmp_path / "x.yaml"
    file.write_text(text)
    with pytest.raises(Unreadable):
        read_yaml(file)


@pytest.mark.parametrize(
    ("argv", "rule"),
    [
        (["verify", "--from", "FILE.jsonl", "--plan", "FILE.json"], None),
        (["predict", *ASK, "--measured", "FILE.json"], "measured"),
        (["records", "convert", "FILE.json", *ASK], "no-times"),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_deep_json_is_refused_by_every_command(argv, rule, tmp_path, capsys):
    for suffix in ("json", "jsonl"):
        (tmp_path / f"FILE.{suffix}").write_text(DEEP)
    words = [str(tmp_path / word) if word.startswith("FILE") else word for word in argv]
    code = run(words)
    err = capsys.readouterr().err
    assert code == 2
    assert "error[" in err
    assert rule is None or f"error[{rule}]" in err


def test_deep_records_are_set_aside_by_validate(tmp_path, capsys):
    file = tmp_path / "runs.jsonl"
    file.write_text('{"a":' * 3000 + "1" + "}" * 3000 + "\n")
    run(["validate", str(file)])
    assert "nested deeper" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "rule"),
    [
        (["recommend", "--config", "FILE"], "config"),
        (["recommend", "--system", "FILE"], "system-file"),
        (["recommend", "--gpus", "4xH100", "--model", "FILE"], "models-file"),
        (["hardware", "check", "FILE"], "hardware-file"),
        (["models", "show", "FILE"], "models-file"),
    ],
    ids=lambda x: x[0] if isinstance(x, list) else "",
)
def test_yaml_with_an_endless_number_is_refused(argv, rule, tmp_path, capsys):
    file = tmp_path / "x.yaml"
    file.write_text(f"frames: {LONG}\n")
    words = [str(file) if word == "FILE" else word for word in argv]
    assert "digits" in refused(words, capsys, rule)


@pytest.mark.parametrize(
    ("argv", "rule"),
    [
        (["recommend", "--gpus", "4xH100", "--model", "a" * 5000], "model-name"),
        (["recommend", "--gpus", "4xH100", "--fit", "a" * 5000], "fit"),
        (["verify", "--from", "a" * 5000], "from"),
        (["predict", *ASK, "--measured", "a" * 5000], "measured"),
        (["models", "show", "a" * 5000], "model-name"),
        (["models", "import", "a" * 5000], "models-import"),
        (["records", "convert", "a" * 5000, *ASK], "record-file"),
        (["validate", "a" * 5000 + ".jsonl"], "record-file"),
        (["calibrate", "--records", "a" * 5000, "--device", "h100-sxm"], "records-missing"),
    ],
    ids=lambda x: " ".join(x[:2]) if isinstance(x, list) else "",
)
def test_a_path_that_is_too_long_is_one_line(argv, rule, capsys):
    refused(argv, capsys, rule)


RECORD = {
    "id": "r1",
    "engine": "vllm-omni",
    "model": "cosmos3-nano",
    "gpu": "H100",
    "num_gpus": 4,
    "task": "t2v",
    "width": 1280,
    "height": 720,
    "frames": 189,
    "steps": 35,
    "measured_ms": {"server": 30000.0},
}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"parallel": {"cfg_parallel_size": 0}}, "cfg_parallel_size=0"),
        ({"parallel": {"cfg_parallel_size": -1}}, "cfg_parallel_size=-1"),
        ({"measured_ms": {"denoise_per_step": 1e308}}, "1e+308"),
        ({"measured_ms": {"server": 0}}, "measured_ms.server"),
        ({"steps": 1_000_000}, "steps: 1000000"),
    ],
    ids=str,
)
def test_a_record_that_cannot_be_is_set_aside_with_a_reason(change, named, tmp_path, capsys):
    file = tmp_path / "results.jsonl"
    file.write_text("\n".join(json.dumps(r) for r in (RECORD, {**RECORD, "id": "r2", **change})))
    code = run(["verify", "--from", str(file), "--gpus", "4xH100", "--study", "none"])
    out = capsys.readouterr()
    text = " ".join((out.out + out.err).split())
    assert code in (0, 1, 2, 5), text
    assert named in text
    assert "validation error" not in text


def test_a_study_whose_path_is_too_long_is_one_line(tmp_path, capsys):
    file = tmp_path / "results.jsonl"
    file.write_text(json.dumps(RECORD))
    refused(["verify", "--from", file, "--gpus", "4xH100", "--study", "a" * 5000], capsys, "study")


@pytest.mark.parametrize("value", ["1e308", "0"])
def test_a_header_with_an_impossible_time_is_refused(value, tmp_path, capsys):
    file = tmp_path / "headers.txt"
    file.write_text(f"x-inference-time-s: {value}\n")
    refused(["records", "convert", file, *ASK], capsys, "times")
    refused(["predict", *ASK, "--measured", file], capsys, "measured")


def test_targets_that_cannot_be_written_are_refused_before_the_fit(tmp_path, capsys):
    records = tmp_path / "gemm.csv"
    records.write_text("op,m\n")
    base = ["calibrate", "--records", records, "--device", "h100-sxm"]
    refused([*base, "--out", "/proc/f.json"], capsys, "out")
    refused([*base, "--storage", "/proc/s.j", "--out", tmp_path / "f.json"], capsys, "storage")


@pytest.mark.parametrize("command", ["calibrate", "validate"])
def test_unusable_records_end_with_an_error_line(command, tmp_path, capsys):
    records = tmp_path / "gemm.csv"
    records.write_text("op,m\ngemm,x\n")
    where = ["--records", records] if command == "calibrate" else [records]
    out = ["--out", tmp_path / "f.json"] if command == "calibrate" else []
    argv = [command, *where, "--device", "h100-sxm", *out]
    assert "nothing usable" in refused(argv, capsys, "records-empty")


def model_file(tmp_path, **changes):
    found = yaml.safe_load((ROOT / "models" / "ltx-2.yaml").read_text())
    for name, value in changes.items():
        part = next((found[p] for p in ("transformer",) if name in found[p]), found)
        part[name] = value
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(found))
    return file


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"text_encoders": []}, "text_encoders"),
        ({"text_encoders": ["", "t5-xxl"]}, 'text_encoders: "" is unknown'),
        ({"text_width": True}, "text_width: true"),
        ({"hidden": "4096"}, "hidden"),
        ({"size_multiple": True}, "size_multiple: true"),
        ({"sound_tokens_per_s": 0}, "sound_tokens_per_s"),
        ({"sound_tokens_per_s": math.inf}, "sound_tokens_per_s"),
    ],
    ids=str,
)
def test_a_model_file_with_a_fault_names_it(changes, named, tmp_path, capsys):
    file = model_file(tmp_path, **changes)
    for argv in (["models", "show", file], ["predict", *ASK, "--model", file]):
        assert named in refused(argv, capsys, "models-file")


def test_an_unknown_family_names_those_that_are_and_what_a_new_one_needs(tmp_path, capsys):
    err = refused(["models", "show", model_file(tmp_path, family="ltx3")], capsys, "family")
    assert 'family "ltx3" is unknown; did you mean "ltx' in err
    assert all(f", {name}" in err for name in ("wan", "flux2", "traced"))
    assert "a new size of one of them is such a file, a new family needs code" in err


def test_true_is_no_flow_shift(tmp_path):
    found = yaml.safe_load((ROOT / "models" / "ltx-2.yaml").read_text())
    found["tasks"]["t2v"]["flow_shift"] = True
    file = tmp_path / "mine.yaml"
    file.write_text(yaml.safe_dump(found))
    with pytest.raises(BadInput, match="flow_shift: true"):
        catalog.read_model(file)
