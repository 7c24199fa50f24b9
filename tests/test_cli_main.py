"""Exit codes, streams, and everything that is typed wrongly."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import report_samples as samples

from perfmodel import api
from perfmodel.cli.app import command_names, run, split_launch
from perfmodel.errors import BadInput, MissingData, Problem, Refused


@pytest.fixture
def asked(monkeypatch):
    """The api answers with samples; what it was asked is kept."""
    calls = []

    def recommend(workload, system, **settings):
        calls.append((workload, system, settings))
        return samples.answer()

    def predict(workload, system, **settings):
        calls.append((workload, system, settings))
        return samples.predicted()

    monkeypatch.setattr(api, "recommend", recommend)
    monkeypatch.setattr(api, "predict", predict)
    return calls


def python(*argv, **changes):
    environment = {**os.environ, **changes}
    command = [sys.executable, *argv]
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def lines(capsys):
    captured = capsys.readouterr()
    return captured.out, captured.err.splitlines()


def test_an_answer_goes_to_stdout_and_exits_with_0(asked, capsys):
    assert run(["recommend", "--gpus", "4xB300", "--frames", "189"]) == 0
    out, err = lines(capsys)
    assert "BEST" in out
    assert err == []
    workload, system, _ = asked[0]
    assert (workload.frames, system.num_gpus, system.device.id) == (189, 4, "b300-sxm")
    assert workload.model_fields_set == {"frames"}


def test_json_is_what_the_api_returned(asked, capsys):
    assert run(["recommend", "--gpus", "4xB300", "--json"]) == 0
    assert lines(capsys)[0] == samples.answer().model_dump_json() + "\n"


def test_settings_reach_the_api_only_when_given(asked, capsys):
    run(["recommend", "--gpus", "4xB300"])
    assert set(asked[0][2]) == {"options"}
    run(
        [
            "recommend",
            "--gpus",
            "4xB300",
            "--objective",
            "cost",
            "--top",
            "7",
            "--allow-lossy",
            "--use-all-gpus",
            "--strict",
            "--engine",
            "vllm-omni@0.30.0",
            "--max-latency",
            "1e6",
            "--price",
            "4",
        ]
    )
    given = {key: value for key, value in asked[1][2].items() if key != "options"}
    assert given == {
        "objective": "cost",
        "top": 7,
        "allow_lossy": True,
        "use_all_gpus": True,
        "strict": True,
        "engine": "vllm-omni@0.30.0",
        "max_latency_ms": 1e6,
        "price_per_gpu_hour": 4.0,
    }


def test_all_problems_are_shown_at_once_one_line_each(asked, capsys):
    code = run(
        [
            "recommend",
            "--gpus",
            "4xB301",
            "--size",
            "1280",
            "--frames",
            "0",
            "--steps",
            "-1",
            "--guidance",
            "nan",
            "--dtype",
            "bf17",
            "--objective",
            "speed",
            "--format",
            "xls",
        ]
    )
    out, err = lines(capsys)
    assert code == 2
    assert out == ""
    rules = [line.partition("]")[0] for line in err]
    assert sorted(rules) == sorted(
        f"error[{rule}"
        for rule in (
            "gpu-name",
            "size",
            "frames",
            "steps",
            "guidance",
            "dtype",
            "objective",
            "format",
        )
    )
    assert not asked


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["recomend"], 'error[command]: no command "recomend"; did you mean "recommend"?'),
        (
            ["recommend", "--gpuss", "4"],
            'error[flag]: recommend has no flag "--gpuss"; did you mean "--gpus"?',
        ),
        (["recommend"], "error[gpus]: no machine is named; try --gpus 4xB300"),
        (["recommend", "--gpus"], "error[usage]: "),
        (["recommend", "stray", "--gpus", "4xB300"], "error[usage]: "),
        (["--nonsense"], "error[flag]: perfmodel has no flag"),
        (["recommend", "--json=3"], "error[usage]: "),
        (["hardware", "lst"], 'error[command]: no command "lst"; did you mean "list"?'),
        (
            ["recommend", "--gpus", "4xB300", "--", "vllm"],
            "error[usage]: perfmodel recommend takes",
        ),
    ],
)
def test_what_is_typed_wrongly_is_one_line(argv, line, capsys):
    assert run(argv) == 2
    out, err = lines(capsys)
    assert out == ""
    assert len(err) == 1
    assert err[0].startswith(line)


@pytest.mark.parametrize(
    "argv",
    [
        ["recommend", "--json"],
        ["recommend", "--json", "--bad"],
        ["predict", "--gpus", "x", "--format", "json"],
        ["bogus", "--json"],
        ["compare", "--format=json", "--bad"],
    ],
)
def test_with_json_the_refusal_is_on_stdout_too(argv, capsys):
    assert run(argv) == 2
    out, err = lines(capsys)
    document = json.loads(out)
    assert document["status"] == "bad_input"
    assert [f"error[{p['rule_id']}]: {p['message']}" for p in document["problems"]] == err


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [(BadInput, 2, "bad_input"), (Refused, 2, "illegal"), (MissingData, 4, "missing_data")],
)
def test_refusals_of_the_library(monkeypatch, capsys, error, code, status):
    def refuse(*_, **__):
        raise error(Problem("some-rule", "why\nand what to type"), Problem("other", "more"))

    monkeypatch.setattr(api, "recommend", refuse)
    assert run(["recommend", "--gpus", "4xB300", "--json"]) == code
    out, err = lines(capsys)
    assert err == ["error[some-rule]: why and what to type", "error[other]: more"]
    assert json.loads(out)["status"] == status


def test_nothing_fits_is_an_answer_with_exit_code_3(monkeypatch, capsys):
    monkeypatch.setattr(api, "recommend", lambda *_, **__: samples.no_fit())
    assert run(["recommend", "--gpus", "4xB300"]) == 3
    assert "NOTHING FITS" in lines(capsys)[0]


@pytest.mark.parametrize(("limit", "code"), [("33000", 5), ("34000", 0)])
def test_a_missed_limit_exits_with_5(asked, capsys, limit, code):
    assert run(["recommend", "--gpus", "4xB300", "--max-latency", limit]) == code
    out, err = lines(capsys)
    assert "BEST" in out
    assert any("max-latency" in line for line in err) is (code == 5)


def test_a_bug_is_not_swallowed(monkeypatch):
    def bug(*_, **__):
        raise AttributeError("a bug")

    monkeypatch.setattr(api, "recommend", bug)
    with pytest.raises(AttributeError, match="a bug"):
        run(["recommend", "--gpus", "4xB300"])


def test_an_interrupt_exits_with_130(monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "recommend", interrupt)
    assert run(["recommend", "--gpus", "4xB300"]) == 130


def test_warnings_go_to_stderr_once(monkeypatch, capsys):
    from perfmodel.report.answer import ProblemInfo

    note = ProblemInfo(rule_id="tokens-padded", message="8,190 to 8,192", severity="warning")
    monkeypatch.setattr(api, "recommend", lambda *_, **__: samples.answer(warnings=(note, note)))
    assert run(["recommend", "--gpus", "4xB300"]) == 0
    assert lines(capsys)[1] == ["warning[tokens-padded]: 8,190 to 8,192"]


def test_ambiguous_typing_is_never_a_traceback(capsys):
    for argv in (
        ["recommend", "--frames", "9" * 400, "--gpus", "4xB300"],
        ["recommend", "--seconds", "1e999", "--gpus", "4xB300"],
        ["recommend", "--size", f"{'9' * 500}x1", "--gpus", "4xB300"],
        ["recommend", "--gpus", ""],
        ["recommend", "--gpus", "0xB300"],
        ["recommend", "--gpus", "4xB300", "--option", "="],
        ["recommend", "--gpus", "4xB300", "--size", "٣x٤"],
        ["predict", "--gpus", "4xB300", "--parallel", "=,=="],
    ):
        assert run(argv) == 2, argv
    _, err = lines(capsys)
    assert all(line.startswith("error[") for line in err)


def test_out_chooses_the_format_and_keeps_stdout_empty(asked, capsys, tmp_path):
    path = tmp_path / "answer.json"
    assert run(["recommend", "--gpus", "4xB300", "--out", str(path)]) == 0
    out, err = lines(capsys)
    assert out == ""
    assert err == [f"wrote {path}"]
    assert path.read_text() == samples.answer().model_dump_json() + "\n"


def test_a_folder_that_does_not_exist_is_one_line(asked, capsys, tmp_path):
    assert run(["recommend", "--gpus", "4xB300", "--out", str(tmp_path / "no" / "x.md")]) == 2
    assert lines(capsys)[1][0].startswith("error[out]:")


def test_commands_can_be_written_as_scripts(asked, capsys, tmp_path):
    assert run(["recommend", "--gpus", "4xB300", "--commands", str(tmp_path / "run")]) == 0
    script = tmp_path / "run" / "1_cfg2_usp2_vaepp4" / "serve.sh"
    assert samples.SERVE in script.read_text()
    assert os.access(script, os.X_OK)
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


@pytest.mark.parametrize(("text", "shown"), [("0", 0), ("1", 1), ("3", 3), ("1-2", 2)])
def test_commands_takes_a_number_or_a_range(asked, capsys, text, shown):
    assert run(["recommend", "--gpus", "4xB300", "--commands", text]) == 0
    assert lines(capsys)[0].count("curl") == shown


def test_a_launch_command_after_two_dashes_is_kept_as_typed(asked, capsys):
    launch = ["vllm", "serve", "M", "--omni", "--usp", "2", "--dtype", "auto"]
    assert run(["predict", "--gpus", "4xB300", "--parallel", "--", *launch]) == 0
    assert asked[0][2]["launch"] == launch
    assert "parallel" not in asked[0][2]
    assert split_launch(["a", "--", "b", "--", "c"]) == (["a"], ["b", "--", "c"])


def test_predict_passes_the_configuration_and_measurements(asked, capsys):
    argv = [
        "predict",
        "--gpus",
        "4xB300",
        "--parallel",
        "usp=4",
        "--measured",
        "denoise=25900",
        "--set",
        "mp4=3850",
    ]
    assert run(argv) == 0
    settings = asked[0][2]
    assert settings["parallel"].ulysses == 4
    assert settings["measured"] == {"denoise": 25900.0}
    assert settings["overrides"] == {"video_encode": 3850.0}
    assert "SERVE" not in lines(capsys)[0]


def test_an_id_with_an_option_part_reaches_the_api_whole(asked, capsys):
    assert run(["predict", "--gpus", "4xB300", "--parallel", "usp4_fp8"]) == 0
    assert asked[0][2]["parallel"] == "usp4_fp8"


def test_compare_asks_once_a_case_and_varies_only_what_was_said(asked, capsys):
    argv = ["compare", "--frames", "25", "--vary", "gpus=4xB300,8xH200", "--vary", "steps=20,35"]
    assert run(argv) == 0
    seen = [(s.device.id, w.steps, w.frames) for w, s, _ in asked]
    assert seen == [
        ("b300-sxm", 20, 25),
        ("b300-sxm", 35, 25),
        ("h200-sxm", 20, 25),
        ("h200-sxm", 35, 25),
    ]
    assert "vs first" in lines(capsys)[0]


def test_compare_with_parallel_predicts(asked, capsys):
    argv = ["compare", "--gpus", "4xB300", "--vary", "parallel=usp4,cfg2_usp2"]
    assert run(argv) == 0
    assert [settings["parallel"].config_id for _, _, settings in asked] == ["usp4", "cfg2_usp2"]


def test_an_illegal_case_keeps_its_row(monkeypatch, capsys):
    def recommend(workload, system, **_):
        if workload.steps == 20:
            raise Refused(Problem("some-rule", "not here"))
        return samples.answer()

    monkeypatch.setattr(api, "recommend", recommend)
    assert run(["compare", "--gpus", "4xB300", "--vary", "steps=20,35"]) == 0
    out = lines(capsys)[0]
    assert "illegal" in out
    assert "steps=20: error[some-rule]: not here" in out


@pytest.mark.parametrize("text", ["gpu=1", "steps=", "=", "steps"])
def test_bad_variations_are_refused(text, capsys):
    assert run(["compare", "--gpus", "4xB300", "--vary", text]) == 2
    assert lines(capsys)[1][0].startswith("error[vary]:")


def test_alone_it_prints_groups_with_an_example_each(capsys):
    assert run([]) == 0
    out = lines(capsys)[0]
    assert [word for word in ("decide", "look up") if f"\n{word}\n" in out] == ["decide", "look up"]
    assert "perfmodel recommend --gpus 4xB300 --frames 189" in out
    assert all(f"  {name} " in out for name in command_names())


def test_version(capsys):
    assert run(["--version"]) == 0
    assert lines(capsys)[0].startswith("perfmodel ")


@pytest.mark.parametrize("name", command_names())
def test_every_command_has_help(name, capsys):
    assert run([name, "--help"]) == 0
    assert "Usage: perfmodel" in lines(capsys)[0]


def test_a_group_alone_prints_its_help(capsys):
    assert run(["hardware"]) == 0
    out, err = lines(capsys)
    assert "list" in out
    assert err == []


def test_a_closed_pipe_is_quiet():
    script = (
        "import os, sys; read, write = os.pipe(); os.close(read); os.dup2(write, 1);"
        "from perfmodel.cli import main; main([])"
    )
    done = python("-c", script)
    assert done.stderr == ""
    assert done.returncode == 0


def test_completion_and_help_load_no_numpy():
    script = (
        "import sys; from perfmodel.cli.app import run;"
        "run(['recommend', '--help']); run([]); from perfmodel.cli import complete;"
        "complete.parallel('cfg=2,ul'); complete.options('d'); complete.gpus('4xb');"
        "complete.models('wan');"
        "sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    )
    done = python("-c", script)
    assert done.returncode == 0, done.stderr


def test_the_shell_completes_parallel_keys():
    done = python(
        "-m",
        "perfmodel",
        _PERFMODEL_COMPLETE="complete_bash",
        COMP_WORDS="perfmodel predict --parallel cfg=2,ul",
        COMP_CWORD="3",
    )
    assert done.stdout.split() == ["cfg=2,ulysses="]


def test_a_module_run_exits_with_the_code():
    assert python("-m", "perfmodel", "bogus").returncode == 2


def test_colour_obeys_flag_and_environment(asked, capsys, monkeypatch):
    argv = ["recommend", "--gpus", "4xB300", "--color"]
    run([*argv, "always"])
    assert "\x1b[" in lines(capsys)[0]
    run([*argv, "never"])
    assert "\x1b[" not in lines(capsys)[0]
    run(argv[:-1])
    assert "\x1b[" not in lines(capsys)[0]


def test_any_engine_asks_each_that_can_be_started(asked, capsys):
    assert run(["recommend", "--gpus", "4xB300", "--frames", "189", "--engine", "any"]) == 0
    assert [settings["engine"] for _, _, settings in asked] == [
        "vllm-omni",
        "sglang-diffusion",
        "xdit",
        "diffusers",
        "wan-official",
        "cosmos-official",
    ]
    out, _ = lines(capsys)
    assert "sglang-diffusion" in out
    assert "vs first" in out


@pytest.mark.parametrize(
    ("model", "engines"),
    [
        ("no-such-model", ()),
        ("latte-1", ("diffusers", "xdit")),
        ("hunyuanvideo", ("diffusers", "sglang-diffusion", "xdit")),
        ("longcat-video", ("fastvideo",)),
        ("wan2.1-t2v-14b", ("diffusers", "sglang-diffusion", "vllm-omni", "wan-official", "xdit")),
    ],
)
def test_any_engine_is_every_engine_that_has_the_model_fastest_first(model, engines, capsys):
    words = ["recommend", "--gpus", "4xH100", "--model", model, "--engine", "any", "--json"]
    code = run(words)
    answer = json.loads(capsys.readouterr().out)
    rows = answer.get("rows", ())
    assert code == (0 if engines else 2)
    assert sorted(row["values"]["engine"] for row in rows if row["status"] == "ok") == [*engines]
    times = [row["prediction"]["latency_ms"] for row in rows if row["prediction"]]
    assert times == sorted(times)


def test_what_one_engine_refuses_is_a_row_of_its_own(capsys):
    words = ["recommend", "--gpus", "4xH100", "--engine", "any", "--attention", "fa2"]
    assert run([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    refused = [row for row in rows if row["status"] != "ok"]
    assert [row["values"]["engine"] for row in refused] == ["vllm-omni", "cosmos-official"]
    assert rows[-2:] == refused
