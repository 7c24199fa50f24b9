"""``perfmodel models``: list and show."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfmodel.catalog import model_ids
from perfmodel.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["models", *arguments])
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out, printed.err


def test_list_names_every_model(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "list")
    assert code == 0
    assert all(name in out for name in model_ids())
    code, out, _ = run(capsys, "list", "--json")
    rows = {row["slug"]: row for row in json.loads(out)["models"]}
    assert set(rows) == set(model_ids())
    assert rows["cosmos3-nano"]["tasks"][0] == "t2v"


def test_show_gives_weights_tokens_and_work(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", "nvidia/Cosmos3-Nano", "--frames", "81", "--size", "832x480")
    assert code == 0
    assert "8,190 tokens" in out
    # A forward of 832x480x81 was traced at 113.7975 TFLOP of products with 512 text tokens.
    code, out, _ = run(
        capsys, "show", "cosmos3-nano", "--frames", "81", "--size", "832x480", "--json"
    )
    document = json.loads(out)
    once = 2 * 7.1125e12
    assert document["flops"]["denoise"]["gemm"] == pytest.approx(70 * 113.7975e12 + once, rel=1e-4)
    assert {part["name"] for part in document["components"]} >= {"understanding", "vae"}
    assert document["shape"]["video_tokens"] == 8190


def test_show_says_how_a_request_is_rounded(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "show", "wan2.2-ti2v-5b", "--size", "1280x720")
    assert "1280x720 runs as 1280x704" in out


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (("show", "cosmos3-nono"), "model-name"),
        (("show", "cosmos3-nano", "--size", "big"), "size"),
        (("show", "cosmos3-nano", "--task", "t2x"), "task"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], rule: str
) -> None:
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert err.startswith(f"error[{rule}]: ")
    assert len(err.strip().splitlines()) == 1


def test_a_model_file_of_ones_own_can_be_shown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from perfmodel.catalog import data_roots

    original = next(root / "models" for root in data_roots() if (root / "models").is_dir())
    text = (original / "wan2.1-t2v-1.3b.yaml").read_text(encoding="utf-8")
    mine = tmp_path / "mine.yaml"
    mine.write_text(text.replace("layers: 30", "layers: 15"), encoding="utf-8")
    code, out, _ = run(capsys, "show", str(mine), "--json")
    assert code == 0
    blocks = {part["name"]: part["blocks"] for part in json.loads(out)["components"]}
    assert blocks["transformer"] == 15


@pytest.mark.parametrize("name", ["cosmos3-nano", "flux.1-dev", "ltx-2"])
def test_what_show_prints_agrees_with_its_schema(
    capsys: pytest.CaptureFixture[str], name: str
) -> None:
    import jsonschema

    from perfmodel.cli.schema import schema

    with pytest.raises(SystemExit):
        main(["models", "show", name, "--json"])
    answer = json.loads(capsys.readouterr().out)
    jsonschema.validate(answer, schema("show"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**answer, "flops": None}, schema("show"))


def test_an_import_creates_the_folder_that_it_writes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path / "mine"))
    code, _, said = run(capsys, "import", str(tmp_path / "nothing"))
    assert code == 2
    assert "is not a folder; it lists" not in said
    assert (tmp_path / "mine" / "models").is_dir()
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path / "file" / "mine"))
    code, _, said = run(capsys, "import", str(tmp_path / "nothing"))
    assert code == 2
    assert "cannot be created" in said
