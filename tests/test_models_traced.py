"""Classes without a family: traced operators against FLOP counts of the classes and families.

The counts run the class on meta tensors with inputs written here, under torch's own counter, where
attention is two batched products; shapes and batches are none of those that were traced.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.catalog import load_model, read_model
from perfmodel.cli import main
from perfmodel.errors import BadInput
from perfmodel.ops import Attention, Gemm, Op, Pointwise, Role, Rows, flops
from perfmodel.placement.sequence import split_rows
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Workload
from perfmodel.stages import family, text_encoder
from perfmodel.stages import vae as vae_stage
from perfmodel.stages.base import Traits
from perfmodel.stages.imports import fallback
from perfmodel.stages.imports.read import Config, read_config, read_json
from perfmodel.stages.imports.shared import INDEX
from perfmodel.stages.imports.traced import read_traced
from perfmodel.stages.summary import flops_by_kind
from perfmodel.stages.traced_ops import operators

torch = pytest.importorskip("torch")
diffusers = pytest.importorskip("diffusers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

DIRECTORIES = Path(__file__).parent / "data" / "diffusers_traced"
TRAITS = Traits()
NEAR = 1e-6


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(list(arguments))
    printed = capsys.readouterr()
    return int(end.value.code or 0), printed.out, printed.err


@cache
def imported(name: str) -> ModelSpec:
    root = DIRECTORIES / name
    # Also where the catalogue has a family for the class by now.
    return read_traced(
        root, read_json(root / INDEX), read_config(root / "transformer/config.json")
    ).model


def configured(cls: str, **values: Any) -> Config:
    return Config(Path("config.json"), cls, values, frozenset(values))


def tensor(*size: int) -> Any:
    return torch.zeros(size, device="meta", dtype=torch.bfloat16)


def ids(*size: int) -> Any:
    return torch.zeros(size, device="meta", dtype=torch.int64)


@cache
def module(name: str) -> Any:
    values = json.loads((DIRECTORIES / name / "transformer" / "config.json").read_text())
    cls = getattr(diffusers, values.pop("_class_name"))
    with torch.device("meta"):
        built = cls(**values)
    return built.to(torch.bfloat16).eval()


def latte(b: int, f: int, h: int, w: int, t: int) -> dict[str, Any]:
    return dict(
        hidden_states=tensor(b, 4, f, 2 * h, 2 * w),
        timestep=ids(b),
        encoder_hidden_states=tensor(b, t, 4096),
    )


def auraflow(b: int, f: int, h: int, w: int, t: int) -> dict[str, Any]:
    return dict(
        hidden_states=tensor(b, 4, 2 * h, 2 * w),
        encoder_hidden_states=tensor(b, t, 2048),
        timestep=tensor(b),
    )


def cogview4(b: int, f: int, h: int, w: int, t: int) -> dict[str, Any]:
    return dict(
        hidden_states=tensor(b, 16, 2 * h, 2 * w),
        encoder_hidden_states=tensor(b, t, 4096),
        timestep=ids(b),
        original_size=tensor(b, 2),
        target_size=tensor(b, 2),
        crop_coords=tensor(b, 2),
    )


INPUTS: dict[str, Callable[..., dict[str, Any]]] = {
    "latte-1": latte,
    "auraflow-v0.3": auraflow,
    "cogview4-6b": cogview4,
}
PUBLISHED = {"latte-1": 1.06e9, "auraflow-v0.3": 6.8e9, "cogview4-6b": 6.4e9}
UNSEEN = ((1, 24, 32, 120), (2, 9, 15, 77), (5, 31, 7, 256))


@pytest.mark.parametrize("place", range(len(UNSEEN)))
@pytest.mark.parametrize("name", INPUTS)
def test_a_forward_does_the_work_of_the_class(name: str, place: int) -> None:
    b, h, w, t = UNSEEN[place]
    f = 16 if name == "latte-1" else 1
    model = imported(name)
    assert model.traced is not None
    ops = operators(model.traced.ops, {"b": b, "f": f, "h": h, "w": w, "t": t}, split=True)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(name)(**INPUTS[name](b, f, h, w, t), return_dict=False)
    assert sum(flops_by_kind(ops).values()) == pytest.approx(counter.get_total_flops(), rel=NEAR)


@pytest.mark.parametrize("name", INPUTS)
def test_parameters_are_those_of_the_class(name: str) -> None:
    model = imported(name)
    found = {part.name: part for part in family(model).components(model)}["transformer"]
    assert found.params == sum(p.numel() for p in module(name).parameters())
    assert found.params == pytest.approx(PUBLISHED[name], rel=0.02)
    assert 0.5 * found.params < found.block_params < found.params
    assert 0.9 * found.params < found.quantizable_params < found.params


def test_a_request_is_as_long_as_the_pipeline_says() -> None:
    model = imported("cogview4-6b")
    shape = family(model).shape(model, Workload(), TRAITS)
    assert (shape.width, shape.height, shape.steps, shape.guidance) == (1024, 1024, 50, 5.0)
    assert (shape.video_tokens, shape.text_tokens) == (4096, 1024)
    assert not model.branches_together
    assert imported("latte-1").branches_together
    assert imported("auraflow-v0.3").tasks["t2i"].flow_shift == 1.73


def test_a_class_that_takes_one_number_of_frames_says_so() -> None:
    model = imported("latte-1")
    assert model.traced is not None
    assert model.traced.frames == 16
    with pytest.raises(BadInput, match="--frames 16"):
        family(model).shape(model, Workload(frames=32), TRAITS)


def test_what_is_divided_over_tokens() -> None:
    model = imported("auraflow-v0.3")
    shape = family(model).shape(model, Workload(), TRAITS)
    work = family(model).denoise(model, shape, TRAITS)
    attention = [op for op in work.per_forward if isinstance(op, Attention)]
    assert all(op.role is Role.SELF for op in attention)
    # 8 registers and the text come before the tokens of the grid, and stay on every rank.
    assert {op.seq_q - op.prefix_q for op in attention} == {4096}
    assert {op.prefix_q for op in attention} == {256 + 8}
    half = Layouts.of([ParallelConfig(ulysses=2)])
    ops = [op for op in work.per_forward if isinstance(op, Gemm) and op.rows is Rows.TOKENS]
    full = sum(float(flops(op)) * int(op.count) for op in ops)
    split = sum(float(np.sum(flops(split_rows(op, half)))) * int(op.count) for op in ops)
    kept = sum(float(flops(op)) * int(op.count) * op.fixed_rows / op.m for op in ops)
    assert split == pytest.approx((full - kept) / 2 + kept, rel=1e-9)


def test_factorised_attention_exchanges_only_over_the_grid() -> None:
    model = imported("latte-1")
    shape = family(model).shape(model, Workload(text_tokens=120), TRAITS)
    work = family(model).denoise(model, shape, TRAITS)
    found = {
        (op.role, int(op.batch), int(op.seq_q), int(op.seq_kv)): int(op.count)
        for op in work.per_forward
        if isinstance(op, Attention)
    }
    assert found == {
        (Role.SELF, 16, 1024, 1024): 28,
        (Role.CROSS, 16, 1024, 120): 28,
        (Role.CROSS, 1024, 16, 16): 28,
    }


# Classes that do have a family, traced all the same: (shipped model, configuration, workloads).
FAMILIES = {
    "flux.1-dev": (
        "FluxTransformer2DModel",
        dict(guidance_embeds=True, num_layers=2, num_single_layers=2),
    ),
    "pixart-sigma-xl-1024": (
        "PixArtTransformer2DModel",
        dict(caption_channels=4096, sample_size=128, use_additional_conditions=False, num_layers=2),
    ),
    "wan2.1-t2v-14b": ("WanTransformer3DModel", dict(num_layers=2)),
    "mochi-1": ("MochiTransformer3DModel", dict(num_layers=2)),
}


@pytest.mark.parametrize("slug", FAMILIES)
def test_a_traced_class_does_the_work_of_its_family(slug: str) -> None:
    name, values = FAMILIES[slug]
    found = fallback.denoiser(configured(name, **values), {})
    shipped = load_model(slug)
    fewer = {"layers": 2} | ({"single_layers": 2} if "num_single_layers" in values else {})
    dims = shipped.transformer.model_copy(update=fewer)
    shipped = shipped.model_copy(update={"transformer": dims})
    for size in ({"width": 1024, "height": 1024}, {"width": 832, "height": 480}):
        shape = family(shipped).shape(shipped, Workload(**size), TRAITS)
        rows, columns = shape.latent_height, shape.latent_width
        patch = found.dims["patch"]
        values_at = {
            "b": 1,
            "f": shape.latent_frames // patch[0],
            "h": rows // patch[1],
            "w": columns // patch[2],
            "t": shape.text_tokens,
        }
        mine = flops_by_kind(operators(found.spec.ops, values_at, split=True))
        theirs = flops_by_kind(family(shipped).denoise(shipped, shape, TRAITS).per_forward)
        assert sum(mine.values()) == pytest.approx(sum(theirs.values()), rel=3e-3)
        assert mine["attention"] == pytest.approx(theirs["attention"], rel=3e-3)
    whole = family(shipped).components(shipped)
    params = {part.name: part.params for part in whole}["transformer"]
    assert found.spec.params == pytest.approx(params, rel=5e-3)


KL = dict(
    block_out_channels=[128, 256, 512, 512],
    layers_per_block=2,
    latent_channels=4,
    down_block_types=["DownEncoderBlock2D"] * 4,
    up_block_types=["UpDecoderBlock2D"] * 4,
)


def test_a_traced_vae_does_the_work_of_its_kind() -> None:
    fields = fallback.vae(configured("AutoencoderKL", **KL), {})
    shipped = load_model("pixart-sigma-xl-1024")
    spec = shipped.vae.model_validate({**fields, "kind": "traced"})
    traced = shipped.model_copy(update={"vae": spec})
    assert vae_stage.params(traced) == vae_stage.params(shipped)
    assert (spec.spatial_ratio, spec.temporal_ratio, spec.z_channels) == (8, 1, 4)
    for side in (64, 96):
        for stage, args in ((vae_stage.decode, (1, side, 64)), (vae_stage.encode, (1, 512, 768))):
            mine, theirs = (
                flops_by_kind(stage(model, *args, TRAITS)) for model in (traced, shipped)
            )
            assert sum(mine.values()) == pytest.approx(sum(theirs.values()), rel=3e-3)
    peak, known = (vae_stage.decode_peak_bytes(m, 1, 128, 128) for m in (traced, shipped))
    assert peak == pytest.approx(known, rel=0.10)
    # What is moved, layout conversions and biases included, decides the time of a decode.
    moved, told = (
        sum(eager_bytes(op) for op in vae_stage.decode(m, 1, 128, 128, TRAITS))
        for m in (traced, shipped)
    )
    assert moved == pytest.approx(told, rel=0.10)


def eager_bytes(op: Op) -> float:
    if not isinstance(op, Pointwise):
        return 0.0
    each = op.bytes_moved if op.eager_bytes is None else op.eager_bytes
    return float(each) * int(op.count)


@pytest.mark.parametrize(
    ("name", "latent", "ratios"),
    [
        ("AutoencoderTiny", (4, 72, 40), (8, 1)),
        ("AutoencoderKLCosmos", (16, 10, 28, 34), (8, 8)),
    ],
)
def test_a_vae_without_a_kind_does_the_work_of_the_class(
    name: str, latent: tuple[int, ...], ratios: tuple[int, int]
) -> None:
    fields = fallback.vae(configured(name), {})
    spec = load_model("flux.1-dev").vae.model_validate(fields)
    assert spec.traced is not None
    assert (spec.spatial_ratio, spec.temporal_ratio) == ratios
    with torch.device("meta"):
        built = getattr(diffusers, name)().to(torch.bfloat16)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        built.decode(tensor(1, *latent))
    frames, height, width = (1, *latent[1:])[-3:]
    values = {"b": 1, "f": frames, "h": height, "w": width, "t": 0}
    mine = flops_by_kind(operators(spec.traced.decode, values))
    assert sum(mine.values()) == pytest.approx(counter.get_total_flops(), rel=NEAR)
    params = spec.traced.encoder_params + spec.traced.decoder_params
    assert params == sum(p.numel() for p in built.parameters())


def test_a_vae_that_runs_otherwise_at_other_lengths_is_refused() -> None:
    with pytest.raises(BadInput, match=r"AutoencoderKLMagvit cannot be traced: .* other shapes"):
        fallback.vae(configured("AutoencoderKLMagvit"), {})


def test_a_traced_text_encoder_does_the_work_of_the_catalogue() -> None:
    pytest.importorskip("transformers")
    found = fallback.encoder(["transformers", "T5EncoderModel"], "text_encoder", LATTE_TEXT)
    assert found is not None
    name = imported("latte-1").text_encoders[0]
    assert found.params == text_encoder.component(name).params
    for tokens in (120, 512):
        values = {"b": 1, "f": 1, "h": 1, "w": 1, "t": tokens}
        mine, theirs = (
            flops_by_kind(ops)
            for ops in (operators(found.ops, values), text_encoder.encode(name, 1, tokens))
        )
        assert sum(mine.values()) == pytest.approx(sum(theirs.values()), rel=3e-3)


LATTE_TEXT = DIRECTORIES / "latte-1" / "text_encoder"


def test_the_encoder_that_the_catalogue_lacks_is_traced_too() -> None:
    traced = imported("auraflow-v0.3").traced
    assert traced is not None
    assert [part.params for part in traced.encoders] == [pytest.approx(1.22e9, rel=0.01)]
    assert imported("latte-1").text_encoders == ("t5-xxl",)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from perfmodel.stages.imports.write import write_model

    folder = tmp_path_factory.mktemp("models")
    for name in ("latte-1", "auraflow-v0.3"):
        write_model(imported(name), folder)
    return folder


def test_the_file_says_the_same(written: Path) -> None:
    assert read_model(written / "latte-1.yaml") == imported("latte-1")


def test_the_file_needs_no_library(written: Path) -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'diffusers', 'transformers'): sys.modules[name] = None\n"
        "from perfmodel.cli import main\n"
        "main(['recommend', '--gpus', '4xH100-SXM', '--engine', 'diffusers', '--json',\n"
        f"      '--model', {str(written / 'auraflow-v0.3.yaml')!r}])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout)
    assert answer["provenance"]["traced"].startswith("AuraFlowTransformer2DModel of diffusers")
    assert any(item["rule_id"] == "traced-model" for item in answer["warnings"])
    degrees = {name for row in answer["recommendations"] for name in row["config_id"].split("_")}
    assert {"cfg2", "usp2"} & degrees
    assert not any(name.startswith(("tp", "pp", "hsdp")) for name in degrees)


@pytest.mark.parametrize(
    ("engine", "parallel", "rule"),
    [
        ("diffusers", "tp=2", "engine-axis"),
        ("diffusers", "hsdp=2", "engine-axis"),
        ("diffusers", "pp=2", "engine-axis"),
        ("diffusers", "ulysses=8", "ulysses-heads"),
        ("vllm-omni", "ulysses=2", "model-not-in-engine"),
        ("xdit", "ulysses=2", "model-not-in-engine"),
    ],
)
def test_what_is_not_offered(
    written: Path, capsys: pytest.CaptureFixture[str], engine: str, parallel: str, rule: str
) -> None:
    model = str(written / "auraflow-v0.3.yaml")
    code, _, err = run(
        capsys,
        *("predict", "--gpus", "8xH100-SXM", "--model", model, "--engine", engine),
        *("--parallel", parallel),
    )
    assert code == 2
    assert f"error[{rule}]" in err


def test_degrees_are_offered_and_said(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(written / "latte-1.yaml")
    code, out, err = run(
        capsys,
        *("predict", "--gpus", "4xH100-SXM", "--model", model, "--engine", "diffusers"),
        *("--parallel", "cfg=2,ulysses=2"),
    )
    assert code == 0
    assert "operators traced, no family: LatteTransformer3DModel of diffusers" in out
    assert "warning[traced-model]" in err
    code, out, _ = run(capsys, "models", "show", model)
    assert code == 0
    assert "traced: the operators are those that LatteTransformer3DModel" in " ".join(out.split())


def test_the_program_divides_the_branches(written: Path) -> None:
    import perfmodel as pm

    job = pm.Workload(model=str(written / "latte-1.yaml"))
    best = pm.recommend(job, pm.system("4xH100-SXM"), engine="diffusers")
    rows = [row for row in best.recommendations if row.config_id.startswith("cfg2_")]
    assert rows
    program = str(rows[0].commands)
    assert "(2, " in program
    assert "divided(pipe.transformer.forward)" in program


def test_a_directory_is_read_in_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shrunk(tmp_path, "cogview4-6b", num_layers=2)
    monkeypatch.chdir(folder.parent)
    code, out, err = run(capsys, "models", "show", f"./{folder.name}")
    assert code == 0, err
    assert "family traced" in out
    code, out, err = run(capsys, "models", "import", str(folder), "--out", str(tmp_path / "x.yaml"))
    assert code == 0, err
    assert "Assumed:" in out
    assert err == ""


def shrunk(tmp_path: Path, name: str, **changes: Any) -> Path:
    root = tmp_path / "mine"
    shutil.copytree(DIRECTORIES / name, root)
    shutil.rmtree(root / "text_encoder")
    index = json.loads((root / "model_index.json").read_text())
    del index["text_encoder"]
    (root / "model_index.json").write_text(json.dumps(index))
    path = root / "transformer" / "config.json"
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value != "gone"}))
    return root


MALFORMED = [
    ({"num_layerz": 2}, 'unknown key "num_layerz" for CogView4Transformer2DModel; did you mean'),
    ({"num_layers": "many"}, "cannot be built from it"),
    ({"num_layers": 2, "text_embed_dim": -5}, "CogView4Transformer2DModel"),
    ({"_class_name": "CogView9Transformer2DModel"}, "has no such class to trace"),
    ({"_class_name": "Krea2Transformer2DModel"}, "unknown key"),
    ({"_class_name": 7}, "_class_name is missing"),
    ({"num_layers": 10**9}, "num_layers: 1000000000 is not a whole number from 1 to 1,000"),
    ({"sample_size": 10**6}, "sample_size: 1000000"),
    ({"in_channels": 10**30}, "in_channels"),
    ({"rope_axes_dim": [2] * 5000}, "has 5,000 entries"),
    ({"_class_name": "AutoencoderTiny"}, "AutoencoderTiny"),
    ({"_class_name": "DiffusionPipeline"}, "no such class"),
]


@pytest.mark.parametrize(("changes", "words"), MALFORMED)
def test_a_malformed_configuration_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], words: str
) -> None:
    root = shrunk(tmp_path, "cogview4-6b", **changes)
    target = tmp_path / "x.yaml"
    code, out, err = run(capsys, "models", "import", str(root), "--out", str(target))
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    assert words in err
    assert not target.exists()


def test_an_argument_that_is_not_known_is_named() -> None:
    with pytest.raises(BadInput, match='argument "position_ids" of Krea2Transformer2DModel'):
        fallback.denoiser(configured("Krea2Transformer2DModel", num_layers=1), {})


@pytest.mark.parametrize("missing", ["torch", "diffusers"])
def test_without_the_libraries_the_nearest_families_are_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
) -> None:
    root = shrunk(tmp_path, "cogview4-6b", _class_name="CogVideoXTransformer4DModel")
    monkeypatch.setitem(sys.modules, missing, None)
    code, _, err = run(capsys, "models", "import", str(root), "--out", str(tmp_path / "x.yaml"))
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert "nearest: CogVideoXTransformer3DModel" in err
    assert f"with {missing} installed it can be traced" in err
    assert "models/README.md" in err


BAD_FILES: list[tuple[Callable[[dict[str, Any]], object], str]] = [
    (lambda d: d["traced"]["ops"][0].update(eager="q*h"), "polynomial"),
    (lambda d: d["traced"]["ops"][0].update(kind="magic"), "kind"),
    (lambda d: d["traced"].update(params=0), "params"),
    (lambda d: d.pop("traced"), "traced"),
    (lambda d: d.update(family="flux"), "go together"),
]


@pytest.mark.parametrize(("spoil", "words"), BAD_FILES)
def test_a_spoilt_file_is_refused(
    written: Path, tmp_path: Path, spoil: Callable[[dict[str, Any]], object], words: str
) -> None:
    import yaml

    data = yaml.safe_load((written / "latte-1.yaml").read_text())
    spoil(data)
    path = tmp_path / "latte-1.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(BadInput, match=words):
        read_model(path)


def _eager_ms(model: Path, parallel: str) -> float:
    import perfmodel as pm

    job = pm.Workload(model=str(model))
    answer = pm.predict(job, "4xH100-SXM", engine="diffusers", parallel=parallel)
    return answer.stages_ms.denoise or 0.0


@pytest.mark.parametrize(("form", "together", "divided"), [("2*b", 4, 2), ("b + 7", 9, 8)])
def test_kernels_may_depend_on_the_request(
    written: Path, tmp_path: Path, form: str, together: int, divided: int
) -> None:
    """Both guidance branches are a batch of 2, divided over two devices one of 1."""
    import yaml

    data = yaml.safe_load((written / "auraflow-v0.3.yaml").read_text())
    moves = [op for op in data["traced"]["ops"] if op["kind"] == "moves"]

    def with_kernels(kernels: str | int) -> Path:
        for op in moves:
            op["kernels"] = kernels
        path = tmp_path / f"{kernels}.yaml"
        path.write_text(yaml.safe_dump(data))
        return path

    varying, two, one = map(with_kernels, (form, together, divided))
    assert _eager_ms(varying, "single") == pytest.approx(_eager_ms(two, "single"), rel=1e-12)
    assert _eager_ms(varying, "cfg=2") == pytest.approx(_eager_ms(one, "cfg=2"), rel=1e-12)
    assert _eager_ms(two, "single") > _eager_ms(one, "single")
