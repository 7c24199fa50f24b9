"""``models import`` and ``--model DIRECTORY``: diffusers directories, good and malformed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from perfmodel.catalog import load_model, read_model
from perfmodel.catalog.data import _entries, _names
from perfmodel.cli import main
from perfmodel.errors import BadInput
from perfmodel.spec.workload import Workload
from perfmodel.stages import family
from perfmodel.stages.base import Traits
from perfmodel.stages.imports import directory
from perfmodel.stages.imports.directory import read_directory
from perfmodel.stages.imports.read import class_keys
from perfmodel.stages.imports.transformers import CLASSES
from perfmodel.stages.imports.vaes import CLASSES as VAE_CLASSES
from perfmodel.stages.summary import request_flops

DIRECTORIES = Path(__file__).parent / "data" / "diffusers"
NAMES = ("wan2.2-t2v-a14b", "flux.1-dev", "cogvideox-5b", "sana-1.6b")


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out, printed.err


@pytest.mark.parametrize("name", NAMES)
def test_a_directory_gives_the_numbers_of_the_shipped_file(name: str) -> None:
    imported = read_directory(DIRECTORIES / name)
    model, shipped = imported.model, load_model(name)
    assert imported.template == name
    assert model.transformer == shipped.transformer
    assert model.vae == shipped.vae
    assert model.text_encoders == shipped.text_encoders
    assert family(model).components(model) == family(shipped).components(shipped)
    traits = Traits()
    mine, theirs = (
        request_flops(m, family(m).shape(m, Workload(), traits), traits) for m in (model, shipped)
    )
    assert mine == theirs


def test_the_schedule_and_the_experts_are_read() -> None:
    model = read_directory(DIRECTORIES / "wan2.2-t2v-a14b").model
    assert model.experts == 2
    assert model.expert_boundary == 0.875
    assert model.tasks["t2v"].flow_shift == 3.0


def test_import_writes_a_file_that_says_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = DIRECTORIES / "cogvideox-5b", tmp_path / "cogvideox-5b.yaml"
    code, out, _ = run(capsys, "models", "import", str(source), "--out", str(target))
    assert code == 0
    for part in ("5,570,283,072", "17,550 tokens", "Assumed as in cogvideox-5b", "tiling"):
        assert part in out
    written, read = read_model(target), read_directory(source).model
    assert written == read
    assert read_model(target).slug == "cogvideox-5b"


def test_import_writes_into_the_first_folder_of_the_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    monkeypatch.setenv("PERFMODEL_PATH", str(own))
    source = str(DIRECTORIES / "sana-1.6b")
    code, out, _ = run(capsys, "models", "import", source, "--json")
    assert code == 0
    written = Path(json.loads(out)["written"])
    assert written == own / "models" / "sana-1.6b.yaml"
    assert written.is_file()
    monkeypatch.delenv("PERFMODEL_PATH")
    code, _, err = run(capsys, "models", "import", source)
    assert code == 2
    assert "--out" in err


def test_a_directory_is_a_model_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(DIRECTORIES / "flux.1-dev", tmp_path / "my-tune")
    monkeypatch.chdir(tmp_path)
    # Engines know a model by the start of its slug, so the family's name comes first.
    assert load_model("./my-tune").slug == "flux.1-dev-my-tune"
    code, out, _ = run(capsys, "models", "show", "./my-tune")
    assert code == 0
    assert "my-tune" in out


def test_the_catalogue_wins_over_a_directory_of_a_bare_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = load_model("flux.1-dev")
    shutil.copytree(DIRECTORIES / "flux.1-dev", tmp_path / "flux.1-dev")
    shutil.copytree(DIRECTORIES / "flux.1-dev", tmp_path / "tunes" / "flux.1-dev")
    shutil.copytree(DIRECTORIES / "flux.1-dev", tmp_path / "unheard-of")
    monkeypatch.chdir(tmp_path)
    assert load_model("flux.1-dev") == shipped
    for name in ("./flux.1-dev", "flux.1-dev/", "tunes/flux.1-dev", "unheard-of"):
        assert load_model(name).notes[0].startswith("Read from configuration files"), name


def test_loops_over_the_catalogue_read_no_directory(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A folder of a slug, shipped or imported, once sent the reader into itself without end.
    shutil.copytree(DIRECTORIES / "flux.1-dev", tmp_path / "flux.1-dev")
    shutil.copytree(DIRECTORIES / "flux.1-dev", tmp_path / "flux.1-dev-mine")
    (tmp_path / "own").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path / "own"))
    reads: list[str] = []

    def counted(path: str | Path) -> directory.Imported:
        reads.append(Path(path).name)
        return read_directory(path)

    monkeypatch.setattr(directory, "read_directory", counted)
    importing = ("models", "import", "./flux.1-dev-mine", "--out", "own/models")
    assert run(capsys, *importing)[0] == 0
    _entries.cache_clear()
    _names.cache_clear()
    assert run(capsys, *importing)[0] == 0
    assert reads == ["flux.1-dev-mine"] * 2
    code, out, _ = run(capsys, "models", "list")
    assert code == 0
    assert "flux.1-dev-mine" in out
    assert run(capsys, "models", "show", "flux.1-dev-mine")[0] == 0
    assert len(reads) == 2


def edited(tmp_path: Path, part: str, **changes: Any) -> Path:
    root = tmp_path / "edited"
    shutil.copytree(DIRECTORIES / "cogvideox-5b", root)
    path = root / part
    data = json.loads(path.read_text())
    data.update(changes)
    path.write_text(json.dumps({k: v for k, v in data.items() if v != "gone"}))
    return root


CONFIG = "transformer/config.json"
MALFORMED = [
    (CONFIG, {"num_layers": -3}, "num_layers: -3"),
    (CONFIG, {"num_layers": 0}, "num_layers: 0"),
    (CONFIG, {"num_layers": 10**9}, "num_layers: 1000000000"),
    (CONFIG, {"num_layers": "many"}, 'num_layers: "many"'),
    (CONFIG, {"num_layers": True}, "num_layers: true"),
    (CONFIG, {"num_layers": 42.5}, "num_layers: 42.5"),
    (CONFIG, {"num_layers": [42]}, "num_layers: [42]"),
    (CONFIG, {"num_attention_heads": 10**30}, "num_attention_heads"),
    (CONFIG, {"num_layerz": 42}, 'did you mean "num_layers"'),
    (CONFIG, {"use_rotary_positional_embeddings": "yes"}, "is not true or false"),
    (CONFIG, {"_class_name": "gone"}, "_class_name"),
    (CONFIG, {"_class_name": "CogVideoTransformer"}, "nearest: CogVideoXTransformer3DModel"),
    ("vae/config.json", {"_class_name": "AutoencoderTinyX"}, "no known family"),
    ("vae/config.json", {"latent_channels": None}, "latent_channels: null"),
    ("vae/config.json", {"block_out_channels": [128, 200]}, "block_out_channels"),
    ("vae/config.json", {"block_out_channels": "wide"}, "block_out_channels"),
]


@pytest.mark.parametrize(("part", "changes", "words"), MALFORMED)
def test_a_malformed_value_is_one_line_and_exit_2(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    part: str,
    changes: dict[str, Any],
    words: str,
) -> None:
    root = edited(tmp_path, part, **changes)
    code, out, err = run(capsys, "models", "import", str(root), "--out", str(tmp_path / "x.yaml"))
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert not (tmp_path / "x.yaml").exists()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 40 + "1" + "}" * 40, "[]", "{", "\xff"])
@pytest.mark.parametrize("part", ["model_index.json", CONFIG, "vae/config.json"])
def test_a_file_that_is_no_configuration_is_one_line(tmp_path: Path, part: str, text: str) -> None:
    root = edited(tmp_path, CONFIG)
    (root / part).write_bytes(text.encode("latin-1"))
    with pytest.raises(BadInput) as refused:
        read_directory(root)
    assert len(refused.value.problems) == 1
    assert "\n" not in refused.value.problems[0].message
    assert part in refused.value.problems[0].message


@pytest.mark.parametrize("part", ["model_index.json", CONFIG, "vae/config.json"])
def test_a_missing_file_is_named(tmp_path: Path, part: str) -> None:
    root = edited(tmp_path, CONFIG)
    (root / part).unlink()
    with pytest.raises(BadInput, match=part):
        read_directory(root)


def test_every_mapped_class_has_its_arguments() -> None:
    assert set(CLASSES) | set(VAE_CLASSES) == set(class_keys())


def test_arguments_are_those_of_the_library() -> None:
    diffusers = pytest.importorskip("diffusers")
    import inspect

    for name, keys in class_keys().items():
        found = inspect.signature(getattr(diffusers, name).__init__).parameters
        assert set(found) - {"self", "args", "kwargs"} == set(keys), name


def directory_of(root: Path, pipeline: str, transformer: dict[str, Any], vae: str) -> Path:
    """A diffusers directory whose VAE is that of the flux.1-dev or wan2.2 one in the tests."""
    shutil.copytree(DIRECTORIES / vae / "vae", root / "vae")
    parts = {"transformer": ["diffusers", transformer["_class_name"]]}
    (root / "model_index.json").write_text(json.dumps({"_class_name": pipeline, **parts}))
    (root / "transformer").mkdir()
    (root / "transformer" / "config.json").write_text(json.dumps(transformer))
    return root


def test_ltx_2_3_is_told_from_ltx_2_by_its_options(tmp_path: Path) -> None:
    flags = ("gated_attn", "cross_attn_mod", "audio_gated_attn", "audio_cross_attn_mod")
    config = {"_class_name": "LTX2VideoTransformer3DModel", "use_prompt_embeddings": False}
    root = directory_of(
        tmp_path / "mine", "LTX2Pipeline", {**config, **dict.fromkeys(flags, True)}, "flux.1-dev"
    )
    shipped = load_model("ltx-2.3")
    decoder = {
        "_class_name": "AutoencoderKLLTX2Video",
        "block_out_channels": [256, 512, 1024, 1024],
        "decoder_block_out_channels": [256, 512, 512, 1024],
        "layers_per_block": [4, 6, 4, 2, 2],
        "decoder_layers_per_block": [4, 6, 4, 2, 2],
        "upsample_type": ["spatiotemporal", "spatiotemporal", "temporal", "spatial"],
        "upsample_residual": [False] * 4,
    }
    (root / "vae" / "config.json").write_text(json.dumps(decoder))
    imported = read_directory(root)
    assert imported.template == "ltx-2.3"
    assert imported.model.transformer == shipped.transformer
    assert imported.model.vae == shipped.vae
    assert imported.model.sound_widened


def test_control_blocks_are_counted_and_a_lone_half_of_a_control_network_is_refused(
    tmp_path: Path,
) -> None:
    vace = {"_class_name": "WanVACETransformer3DModel"}
    root = directory_of(tmp_path / "vace", "WanVACEPipeline", vace, "wan2.2-t2v-a14b")
    assert read_directory(root).model.transformer == load_model("wan2.1-vace-14b").transformer
    cosmos = {"_class_name": "CosmosTransformer3DModel", "img_context_dim_in": 1152}
    root = directory_of(tmp_path / "t", "Cosmos2_5_TransferPipeline", cosmos, "wan2.2-t2v-a14b")
    with pytest.raises(BadInput, match="--model cosmos-transfer"):
        read_directory(root)


@pytest.mark.parametrize(
    ("name", "engine"),
    [("wan2.2-t2v-a14b", "vllm-omni"), ("flux.1-dev", "diffusers"), ("flux.1-dev", "xdit")],
)
def test_commands_of_a_folder_name_the_folder(name: str, engine: str, tmp_path: Path) -> None:
    """The base name alone is another model, or none, where the command is run."""
    import perfmodel as pm

    folder = tmp_path / "my models" / f"{name}-tuned"
    shutil.copytree(DIRECTORIES / name, folder)
    answer = pm.recommend(pm.Workload(model=str(folder)), "4xH100", engine=engine)
    commands = answer.recommendations[0].commands
    assert commands
    assert str(folder) in str(commands.serve)
    assert answer.command
    assert f"--model '{folder}'" in answer.command
