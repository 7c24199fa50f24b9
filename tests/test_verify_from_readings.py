"""What engines print and send, read in its own units, and written as run records."""

from __future__ import annotations

import json

import pytest

from perfmodel.cli.app import run as typed
from perfmodel.spec.record import read_records
from perfmodel.verify.readings import durations_ms, read

HEADERS = (
    "HTTP/1.1 200 OK\r\nX-Request-Id: 7\r\nX-Inference-Time-S: 36.685\r\n"
    'X-Stage-Durations: {"Cosmos3Pipeline.forward":30.1,"Cosmos3Pipeline.diffuse":25.9,'
    '"Cosmos3Pipeline.vae.decode":4.02,"queue_wait_ms":3.0,"stage_0_gen_ms":32800.5}\r\n'
    "X-Peak-Memory-MB: 45123.500\r\n"
)
LOG = """\
(Worker pid=11) INFO [DiffusionPipelineProfiler] WanPipeline.text_encoder.forward took 0.020000s
(Worker pid=11) INFO [DiffusionPipelineProfiler] WanPipeline.text_encoder.forward took 0.030000s
(Worker pid=12) INFO [DiffusionPipelineProfiler] WanPipeline.diffuse took 25.000000s
(Worker pid=11) INFO [DiffusionPipelineProfiler] WanPipeline.diffuse took 26.000000s
(Worker pid=11) INFO [DiffusionPipelineProfiler] WanPipeline.vae.decode took 4.000000s
(Worker pid=11) INFO [DiffusionPipelineProfiler] WanPipeline.forward took 30.200000s
(Worker pid=12) INFO [DiffusionPipelineProfiler] WanPipeline.forward took 25.100000s
INFO Video response encoding (MP4 bytes): 3850.50 ms
"""


def test_headers():
    found = read(HEADERS)
    assert found.measured_ms == pytest.approx(
        {
            "server": 36_685.0,
            "pipeline_forward": 30_100.0,
            "denoise": 25_900.0,
            "vae_decode": 4_020.0,
            "stage_gen": 32_800.5,
        }
    )
    assert found.peak_memory_mib == 45_123.5


def test_curl_verbose_headers_have_a_mark():
    assert read("< x-inference-time-s: 2.5\n").measured_ms == {"server": 2500.0}


def test_a_log_is_summed_over_a_request_and_not_over_ranks():
    found = read(LOG)
    assert found.measured_ms == pytest.approx(
        {
            "text_encode": 50.0,
            "denoise": 26_000.0,
            "vae_decode": 4_000.0,
            "pipeline_forward": 30_200.0,
            "video_encode": 3850.5,
        }
    )
    assert found.requests == 1


def test_steps_of_a_log_are_a_stage():
    lines = "P.denoise_step took 0.5s\n" * 3 + "P.forward took 2.0s\n"
    assert read(lines).measured_ms == {"denoise": 1500.0, "pipeline_forward": 2000.0}


def test_the_last_of_several_requests_counts():
    slow = LOG.replace("26.0", "66.0").replace("30.2", "70.2")
    found = read(slow + LOG)
    assert found.measured_ms["denoise"] == pytest.approx(26_000.0)
    assert found.requests == 2
    assert any("2 requests" in note for note in found.notes)


def test_benchmark_files_in_both_units():
    modern = {
        "completed": 3, "failed": 1, "mean_e2el_ms": 37_000.0, "p99_e2el_ms": 39_000.0,
        "stage_durations_mean": {"P.diffuse": 25.0}, "mean_peak_memory_mb": 2048.0,
    }  # fmt: skip
    found = read(json.dumps(modern))
    assert found.measured_ms == {"client": 37_000.0, "client_p99": 39_000.0, "denoise": 25_000.0}
    assert (found.requests, found.failed, found.peak_memory_mib) == (3, 1, 2048.0)
    assert any("1 requests failed" in note for note in found.notes)
    older = {"completed_requests": 3, "latency_mean": 37.0, "latency_p50": 36.0}
    assert read(json.dumps(older)).measured_ms == {"client": 37_000.0, "client_p50": 36_000.0}


def test_an_image_response_carries_its_metrics():
    answer = {"data": [], "metrics": {"stage_durations": {"P.diffuse": 2.0}, "peak_memory_mb": 99}}
    found = read(json.dumps(answer))
    assert found.measured_ms == {"denoise": 2000.0}
    assert found.peak_memory_mib == 99


@pytest.mark.parametrize("bad", ["NaN", "-1", "true", '"x"', "null", "Infinity", "[1]"])
def test_numbers_that_are_none_are_left_out(bad):
    assert durations_ms(f'{{"P.diffuse": {bad}, "P.vae.decode": 1}}') == {"vae_decode": 1000.0}


@pytest.mark.parametrize("text", ["", "hello", "{", "[1, 2]", '{"a": 1}', "X-Stage-Durations: {"])
def test_other_texts_have_no_times(text):
    assert read(text).measured_ms == {}


def test_records_convert_and_verify(tmp_path, capsys):
    (tmp_path / "headers.txt").write_text(HEADERS)
    (tmp_path / "server.log").write_text("INFO Video response encoding (MP4 bytes): 3850.50 ms\n")
    files = [str(tmp_path / "headers.txt"), str(tmp_path / "server.log")]
    question = ["--gpus", "4xB300", "--frames", "189", "--parallel", "cfg2_usp2_vaepp4"]
    out = tmp_path / "results.jsonl"
    assert typed(["records", "convert", *files, *question, "--out", str(out)]) == 0
    written = out.read_text()
    assert typed(["records", "convert", *files, *question, "--out", str(out)]) == 2
    assert "holds something" in capsys.readouterr().err
    assert out.read_text() == written
    (record,), bad = read_records([out])
    assert not bad
    assert record.measured_ms["server"] == pytest.approx(36_685.0)
    assert record.measured_ms["video_encode"] == 3850.5
    assert record.peak_memory_mib == 45_123.5
    assert record.memory_kind == "reserved"
    assert (record.gpu, record.frames, record.num_gpus) == ("b300-sxm", 189, 4)
    assert record.parallel["vae_patch_parallel_size"] == 4
    capsys.readouterr()
    assert typed(["verify", "--from", str(out), "--study", "none", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["runs"][0]["compared_ms"] == pytest.approx(36_685.0)
    assert answer["runs"][0]["peak_memory_gib"] == pytest.approx(45_123.5 / 1024)


LAUNCH = "vllm serve nvidia/Cosmos3-Nano --omni --usp 2"


def converted(folder, capsys, *words: str) -> dict[str, object]:
    """The record of one request with a header, of the configuration in `words`."""
    path = folder / "headers.txt"
    path.write_text("X-Inference-Time-S: 36.685\n")
    assert typed(["records", "convert", str(path), "--gpus", "4xB300", *words]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_a_converted_record_is_of_the_launch_command(tmp_path, capsys):
    launch = [*LAUNCH.split(), "--enable-layerwise-offload"]
    found = converted(tmp_path, capsys, "--parallel", "--", *launch)
    assert found["parallel"] == {"ulysses_degree": 2}
    assert (found["num_gpus"], found["offload"]) == (2, "layerwise")
    by_flags = ["--parallel", "usp2", "--offload", "layerwise", "--guardrails"]
    assert converted(tmp_path, capsys, *by_flags) == found
    wan = ["vllm", "serve", "Wan-AI/Wan2.1-T2V-1.3B-Diffusers", "--omni"]
    assert converted(tmp_path, capsys, "--parallel", "--", *wan)["model"] == wan[2]


def test_what_is_not_read_of_a_launch_command_is_said_in_converting(tmp_path, capsys):
    path = tmp_path / "headers.txt"
    path.write_text(HEADERS)
    launch = ["xdit", "--model", "Wan-AI/Wan2.1-T2V-14B-Diffusers", "--gemm_quantization", "fp6"]
    asked = ["records", "convert", str(path), "--gpus", "4xB300", "--parallel", "--", *launch]
    assert typed(asked) == 0
    assert capsys.readouterr().err.count("warning[launch-ignored]") == 1


def test_degrees_are_not_stated_twice_in_converting(tmp_path, capsys):
    (tmp_path / "headers.txt").write_text(HEADERS)
    asked = ["records", "convert", str(tmp_path / "headers.txt"), "--gpus", "4xB300"]
    assert typed([*asked, "--parallel", "usp4", "--", *LAUNCH.split()]) == 2
    assert "both state the degrees" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("suffix", "name", "value"),
    [
        ("fp8", "dtype", "fp8"),
        ("cache-0.3", "cache_skip", 0.3),
        ("offload-layer-gather", "offload", "layerwise-gather"),
        ("sparse-0.5", "attention_density", 0.5),
    ],
)
def test_a_converted_record_keeps_the_options_of_its_id(tmp_path, capsys, suffix, name, value):
    assert converted(tmp_path, capsys, "--parallel", "usp2").get(name) != value
    assert converted(tmp_path, capsys, "--parallel", f"usp2_{suffix}")[name] == value


def test_what_a_cache_skips_is_recorded_where_it_was_stated(tmp_path, capsys):
    named = converted(tmp_path, capsys, "--cache", "tea_cache")
    assert named["cache"] == "tea_cache"
    assert "cache_skip" not in named
    both = ["--cache", "tea_cache", "--option", "cache_skip=0.3"]
    stated = converted(tmp_path, capsys, *both)
    assert (stated["cache"], stated["cache_skip"]) == ("tea_cache", 0.3)


def test_verify_takes_the_converted_record_of_several_outputs(tmp_path, capsys):
    asked = ["--model", "qwen-image", "--batch", "4"]
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps(converted(tmp_path, capsys, *asked)) + "\n")
    question = ["verify", "--from", str(path), "--gpus", "4xB300", "--study", "none", "--json"]
    assert typed([*question, "--model", "qwen-image", "--batch", "4"]) == 0
    (ran,) = json.loads(capsys.readouterr().out)["runs"]
    assert ran["status"] == "measured"
    assert typed([*question, "--model", "qwen-image", "--batch", "2"]) == 2
    assert "4 outputs a request, asked 2" in capsys.readouterr().err


def test_what_cannot_be_converted_is_one_line(tmp_path, capsys):
    path = tmp_path / "log.txt"
    path.write_text("hello\n")
    assert typed(["records", "convert", str(path), "--gpus", "4xB300"]) == 2
    assert capsys.readouterr().err.startswith("error[no-times]: no times in ")
    assert typed(["records", "convert", "--gpus", "4xB300"]) == 2
    assert capsys.readouterr().err.startswith("error[files]: no file is named")
    assert typed(["records", "convert", "/no/such", "--gpus", "4xB300"]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_predict_puts_the_same_readings_beside_its_stages(tmp_path, capsys):
    path = tmp_path / "headers.txt"
    path.write_text(HEADERS + "INFO Video response encoding (MP4 bytes): 3850.50 ms\n")
    question = ["--gpus", "4xB300", "--frames", "189", "--parallel", "cfg2_usp2_vaepp4"]
    assert typed(["predict", *question, "--measured", str(path), "--json"]) == 0
    rows = {row["stage"]: row for row in json.loads(capsys.readouterr().out)["stages"]}
    assert rows["denoise"]["measured_ms"] == pytest.approx(25_900.0)
    assert rows["request"]["measured_ms"] == pytest.approx(36_685.0)
    # server - forward - MP4
    assert rows["transfer"]["measured_ms"] == pytest.approx(36_685.0 - 30_100.0 - 3850.5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"measured_ms": {"x": 5}}, "nothing that is predicted"),
        ({"frames": -1}, "no record answers the question"),
        ({"sockets": 0}, "greater than or equal to 1"),
        ({"steps": 3}, "steps 3, asked 35"),
    ],
)
def test_one_record_that_answers_nothing_is_an_error_with_its_reason(
    tmp_path, capsys, changes, said
):
    record = {
        "id": "a", "engine": "vllm-omni", "model": "cosmos3-nano", "gpu": "b300-sxm",
        "num_gpus": 4, "parallel": {"cfg_parallel_size": 2, "ulysses_degree": 2},
        "frames": 189, "width": 1280, "height": 720, "steps": 35, "measured_ms": {"e2e": 31000.0},
    }  # fmt: skip
    path = tmp_path / "results.jsonl"
    question = ["verify", "--from", str(path), "--gpus", "4xB300", "--frames", "189"]
    path.write_text(json.dumps(record) + "\n")
    assert typed([*question, "--study", "none"]) == 0
    capsys.readouterr()
    path.write_text(json.dumps({**record, **changes}) + "\n")
    assert typed([*question, "--study", "none"]) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error")]
    assert len(errors) == 1
    assert said in errors[0]
