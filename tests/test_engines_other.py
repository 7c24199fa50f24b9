"""Engines other than vLLM-Omni: facts, rules, commands that exist, launch commands read back."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from engine_contexts import ASCEND, B300, H100, MI300X, MODELS, RTX_PRO, FakeModel

from perfmodel import catalog, engines
from perfmodel.api.session import open_session
from perfmodel.api.table import search_space
from perfmodel.engines.base import Context
from perfmodel.engines.described.commands import benchmark
from perfmodel.engines.diffusers.commands import program
from perfmodel.engines.extract_flags import extract
from perfmodel.engines.legality import legal, problems
from perfmodel.engines.sglang_diffusion import commands as sglang
from perfmodel.engines.wan_official import commands as wan
from perfmodel.engines.xdit import commands as xdit
from perfmodel.errors import BadInput
from perfmodel.spec.parallel import Layouts, ParallelConfig, parse_parallel
from perfmodel.spec.workload import Options, Workload

RECORDED = (
    "cache-dit(diffusers)", "cosmos-official", "diffusers", "diffusers+torchao", "fastvideo",
    "lightx2v", "paraattention", "sglang-diffusion", "svg-dense-baseline", "vllm-omni",
    "wan-official", "xdit",
)  # fmt: skip
CONFIGS = (
    "single", "usp4", "ring2", "usp2_ring2", "cfg2", "cfg2_usp2", "cfg2_usp2_vaepp4", "usp4_hsdp4",
    "usp2_hsdp2", "tp2", "tiling", "dp2", "cfg2_dp2",
)  # fmt: skip


def context(name: str, slug: str = "wan2.2-i2v-a14b", *, on=H100, options=None, **changes):
    engine = engines.engine(name)
    behaviour = engine.behaviour(FakeModel(slug, 2), on, engine.version(), options or Options())
    base = dict(
        behaviour=behaviour, model_id=slug, branches=2, num_gpus=4, gpus_per_node=8,
        device="h100-sxm", peak_dtypes=frozenset({"bf16", "fp8"}), family="wan",
    )  # fmt: skip
    return Context(**{**base, **MODELS.get(slug, MODELS["cosmos3-nano"]), **changes})


def config(text: str) -> ParallelConfig:
    return parse_parallel(text)[0]


def allowed(ctx: Context, text: str) -> bool:
    rules = engines.engine(ctx.behaviour.engine).rules()
    return bool(legal(rules, ctx, Layouts.of([config(text)]))[0])


# Names


def test_every_engine_of_published_records_is_known():
    assert set(RECORDED) <= set(engines.engine_names())
    for name in engines.engine_names():
        assert engines.engine(name).name == name


@pytest.mark.parametrize(
    ("alias", "name"), [("sglang", "sglang-diffusion"), ("xfuser", "xdit"), ("WAN", "wan-official")]
)
def test_other_spellings_mean_the_same_engine(alias, name):
    assert engines.engine(alias).name == name


def test_an_unknown_engine_names_the_nearest():
    with pytest.raises(BadInput, match="try --engine xdit"):
        engines.engine("xditt")


@pytest.mark.parametrize("name", RECORDED)
def test_versions_are_a_release_a_day_or_refused(name):
    engine = engines.engine(name)
    assert engine.version("2026-03-01").date == "2026-03-01"
    assert engine.version("9.9.1").problems
    with pytest.raises(BadInput, match="neither"):
        engine.version("latest")


# Facts


def test_diffusers_repeats_the_text_tower_and_encodes_the_whole_clip():
    traits = context("diffusers", "cosmos3-nano").behaviour.traits
    assert traits.understanding_each_forward
    assert traits.condition_whole_clip
    assert not traits.fused_qkv


def test_wan_vae_is_fp32_in_wan_official_and_bf16_in_xdit():
    assert context("wan-official").behaviour.traits.vae_bits == 32
    assert context("xdit").behaviour.traits.vae_bits == 16


@pytest.mark.parametrize(
    ("name", "on", "backend"),
    [
        ("diffusers", H100, "TORCH_SDPA"),
        ("wan-official", H100, "FLASH_ATTN"),
        ("svg-dense-baseline", H100, "FLASH_ATTN_2"),
        ("xdit", H100, "FLASH_ATTN"),
        ("xdit", B300, "CUDNN_ATTN"),
        ("xdit", MI300X, "FLASH_ATTN"),
        ("sglang-diffusion", B300, "CUDNN_ATTN"),
        ("sglang-diffusion", RTX_PRO, "TORCH_SDPA"),
    ],
)
def test_attention_of_each_engine(name, on, backend):
    assert context(name, on=on).behaviour.attention_backend == backend


def test_what_was_asked_for_wins_and_the_rest_is_assumed():
    options = Options(attention_backend="sdpa", compile=True)
    behaviour = context("xdit", options=options).behaviour
    assert behaviour.attention_backend == "TORCH_SDPA"
    assert behaviour.compiled
    assert behaviour.assumed == ("vae_fast_path",)


@pytest.mark.parametrize("name", engines.engine_names())
def test_each_engine_has_terms_that_the_pipeline_needs(name):
    terms = catalog.load_terms(engines.engine(name).behaviour(
        catalog.load_model("wan2.2-t2v-a14b"), catalog.load_device("h100-sxm"),
        engines.engine(name).version(), Options(),
    ).terms)  # fmt: skip
    needed = {"launch_eager_s", "launch_compiled_s", "forward_host_s", "rank_skew_frac"}
    assert needed <= set(terms["terms"])
    for term in terms["terms"].values():
        assert term["low"] <= term["value"] <= term["high"]


def test_inherited_terms_are_priors_and_own_terms_win(tmp_path, monkeypatch):
    folder = tmp_path / "calibration" / "engines"
    folder.mkdir(parents=True)
    fitted = {"value": 1, "provenance": "fitted", "prior": 5, "engines": ["base", "leaf"]}
    base = {"terms": {"a": fitted, "b": {"value": 2}}, "spread": {"run.x.fitted": 0.1, "w": 0.5}}
    own = {"inherits": "base", "terms": {"b": {"value": 3, "provenance": "fitted"}}}
    leaf = {"inherits": "own", "terms": {}, "spread": {"run.x": 0.3}}
    for name, data in (("base", base), ("own", own), ("leaf", leaf)):
        (folder / f"{name}.json").write_text(json.dumps(data))
    monkeypatch.setenv("PERFMODEL_PATH", str(tmp_path))
    terms = catalog.load_terms("own")["terms"]
    # fitted to runs of others: as it was before
    assert (terms["a"]["value"], terms["a"]["provenance"]) == (5, "prior")
    assert terms["b"] == {"value": 3, "provenance": "fitted"}
    # runs of the leaf were among those of the base
    terms = catalog.load_terms("leaf")["terms"]
    assert (terms["a"]["value"], terms["a"]["provenance"]) == (1, "fitted")
    assert (terms["b"]["value"], terms["b"]["provenance"]) == (3, "prior")
    # a width of all runs that the leaf states replaces one of some runs of its base
    assert catalog.load_terms("leaf")["spread"] == {"run.x": 0.3, "w": 0.5}


# Rules


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("diffusers", "cfg2", "engine-axis"),
        ("diffusers", "tp2", "engine-axis"),
        ("wan-official", "ring2", "engine-axis"),
        ("wan-official", "usp4_hsdp2x2", "wan-all-ranks"),
        ("xdit", "cfg4", "xdit-cfg"),
        ("xdit", "hsdp4", "xdit-hsdp"),
        ("xdit", "usp4_vaepp2", "vae-all-ranks"),
        ("xdit", "usp8", "world-size"),
        ("xdit", "usp3", "ulysses-heads"),
        ("sglang-diffusion", "hsdp4", "sglang-hsdp"),
        ("sglang-diffusion", "pp2", "engine-axis"),
    ],
)
def test_refused_and_the_line_names_something_legal(name, text, rule):
    ctx = context(name)
    found = problems(engines.engine(name).rules(), ctx, config(text))
    assert rule in [problem.rule_id for problem in found if problem.severity == "error"]
    problem = next(problem for problem in found if problem.rule_id == rule)
    for suggestion in problem.suggestions:
        if suggestion == "single" or "=" in suggestion:
            parsed = ParallelConfig() if suggestion == "single" else config(suggestion)
            assert legal(engines.engine(name).rules(), ctx, Layouts.of([parsed]))[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("diffusers", "usp4"),
        ("wan-official", "usp4_hsdp4"),
        ("wan-official", "hsdp4"),
        ("xdit", "cfg2_usp2_vaepp4"),
        ("xdit", "usp4_hsdp2x2"),
        ("sglang-diffusion", "cfg2_tp2"),
        ("sglang-diffusion", "usp2_ring2_vaepp4"),
    ],
)
def test_accepted(name, text):
    assert allowed(context(name), text)


def test_wan21_has_a_ring_and_wan22_has_none():
    assert allowed(context("wan-official", "wan2.1-t2v-14b"), "ring4")
    assert not allowed(context("wan-official"), "ring4")


def test_a_model_without_a_pipeline_is_refused_in_every_layout():
    ctx = context("wan-official", "cosmos3-nano")
    assert not allowed(ctx, "single")


@pytest.mark.parametrize("name", engines.engine_names())
def test_one_device_is_legal_for_the_models_an_engine_has(name):
    found = False
    for slug in ("cosmos3-nano", "wan2.2-i2v-a14b", "cosmos-predict2-2b"):
        ctx = context(name, slug)
        found |= bool(ctx.behaviour.pipeline) and allowed(ctx, "single")
    assert found


def test_searched_axes_are_those_that_exist():
    engine = engines.engine("wan-official")
    assert engine.searched_axes(context("wan-official").behaviour) == ("ulysses", "hsdp")
    assert "ring" in engine.searched_axes(context("wan-official", "wan2.1-t2v-14b").behaviour)
    assert "vae_patch" in engines.engine("xdit").searched_axes(context("xdit").behaviour)


# Commands


def lines_with(text: str, program_name: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith(program_name)]
    return [shlex.split(line) for line in lines]


FLAGS = {
    "xdit": (xdit.known_flags(), "xdit", "request"),
    "sglang-diffusion": (sglang.known_flags(), "sglang", "serve"),
    "wan-official": (wan.known_flags(), ("python3", "torchrun"), "request"),
}


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_every_flag_of_every_command_exists(name):
    flags, start, part = FLAGS[name]
    checked = 0
    for options in (
        Options(),
        Options(compile=True, dtype="fp8", attention_backend="sdpa", vae_tiling="on"),
        Options(offload="layerwise"),
        Options(offload="model"),
    ):
        for text in CONFIGS:
            ctx = context(name, options=options, flow_shift=5.0)
            texts = engines.engine(name).commands(ctx, config(text), 10.0)
            (words,) = lines_with(getattr(texts, part), start)
            given = [word.partition("=")[0] for word in words if word.startswith("--")]
            known = {*flags, "--nproc_per_node"}
            assert set(given) <= known, set(given) - known
            checked += len(given)
    assert checked > 100


def test_flags_of_the_sglang_benchmark_exist():
    texts = engines.engine("sglang-diffusion").commands(
        context("sglang-diffusion"), config("cfg2"), 1
    )
    words = shlex.split(texts.benchmark)
    assert {word for word in words if word.startswith("--")} <= set(sglang.known_flags())


def test_several_outputs_are_sent_or_said_not_to_be():
    ctx = replace(context("sglang-diffusion"), outputs=3)
    words = shlex.split(
        engines.engine("sglang-diffusion").commands(ctx, config("cfg2"), 1).benchmark
    )
    assert words[words.index("--num-outputs-per-prompt") + 1] == "3"
    assert sglang.request_fields(ctx)["num_outputs_per_prompt"] == 3
    assert sglang.request_fields(replace(ctx, task="t2i"))["n"] == 3
    for name in ("xdit", "wan-official", "diffusers"):
        one = replace(context(name), outputs=3)
        texts = engines.engine(name).commands(one, config("single"), 1)
        for text in (texts.request, texts.benchmark):
            assert "# measures 1 output a request, not 3: " in text
        assert '"num_outputs": 1' in texts.benchmark


@pytest.mark.parametrize("name", engines.engine_names())
def test_texts_are_valid_shell_and_python(name):
    for slug, task in (
        ("wan2.2-i2v-a14b", "i2v"),
        ("cosmos3-nano", "t2v"),
        ("cosmos3-nano", "t2i"),
    ):
        ctx = context(name, slug, task=task)
        if not ctx.behaviour.pipeline:
            continue
        texts = engines.engine(name).commands(ctx, config("usp2"), 10.0)
        for text in (texts.serve, texts.request, texts.benchmark):
            done = subprocess.run(["bash", "-n"], input=text, text=True, check=False)
            assert done.returncode == 0, text


@pytest.mark.parametrize("text", ["single", "usp4", "usp2_ring2", "tiling"])
@pytest.mark.parametrize("offload", ["none", "model", "layerwise"])
def test_the_diffusers_program_is_python_and_states_its_degrees(text, offload):
    for task in ("t2v", "i2v", "t2i"):
        ctx = context("diffusers", task=task, options=Options(offload=offload, compile=True))
        source = program(replace(ctx, input_images=int(task == "i2v")), config(text))
        compile(source, "program", "exec")
        assert ("ulysses_degree=" in source) == (config(text).world_size > 1)
        assert ("enable_tiling" in source) == (text == "tiling")


@pytest.mark.parametrize("experts", [1, 2])
def test_the_diffusers_program_sets_up_every_expert(experts):
    ctx = context("diffusers", experts=experts, options=Options(compile=True))
    source = program(ctx, config("usp4"))
    for call in ("enable_parallelism(", "compile_repeated_blocks("):
        assert source.count(f"pipe.transformer.{call}") == 1
        assert source.count(f"pipe.transformer_2.{call}") == experts - 1


@pytest.mark.parametrize(
    "name", ["lightx2v", "fastvideo", "cache-dit(diffusers)", "paraattention", "svg-dense-baseline"]
)
def test_an_engine_without_a_known_command_gives_the_reason_instead(name):
    texts = engines.engine(name).commands(context(name), config("cfg2_usp2"), 10.0)
    for text in (texts.serve, texts.request, texts.benchmark):
        assert all(line.startswith("# no command: ") for line in text.splitlines())
        assert engines.engine(name).facts.title in text


@pytest.mark.parametrize("dtype", ["fp8wo", "int8wo", "nf4", "fp8cast"])
@pytest.mark.parametrize("experts", [1, 2])
def test_the_diffusers_program_stores_the_weights_of_every_expert_as_asked(dtype, experts):
    ctx = context("diffusers", experts=experts, options=Options(dtype=dtype))
    source = program(ctx, config("single"))
    compile(source, "program", "exec")
    config_of = {
        "fp8wo": "Float8WeightOnlyConfig())",
        "int8wo": "Int8WeightOnlyConfig())",
        "nf4": "bnb_4bit_quant_type='nf4'",
        "fp8cast": "enable_layerwise_casting(torch.float8_e4m3fn",
    }[dtype]
    assert source.count(config_of) == experts
    assert allowed(ctx, "single")


@pytest.mark.parametrize("name", ["vllm-omni", "xdit", "sglang-diffusion", "wan-official"])
def test_weights_are_widened_only_by_engines_that_do_so(name):
    assert not allowed(context(name, options=Options(dtype="int8wo")), "single")
    assert not allowed(context("diffusers", options=Options(dtype="fp6wo")), "single")


def test_torchao_has_a_program_until_it_quantises():
    engine = engines.engine("diffusers+torchao")
    for dtype, has_program in (("bf16", True), ("int8wo", True), ("fp8", False)):
        ctx = context("diffusers+torchao", options=Options(dtype=dtype))
        text = engine.commands(ctx, config("single"), 10.0).request
        assert ("from_pretrained" in text) == has_program
        assert text.startswith("# no command: ") != has_program


@pytest.mark.parametrize("name", sorted(FLAGS))
def test_a_launch_command_reads_back_as_its_configuration(name):
    engine = engines.engine(name)
    for text in ("single", "usp4", "usp4_hsdp4", "hsdp4", "cfg2_usp2_vaepp4", "usp2_ring2", "cfg2"):
        ctx = context(name)
        if not allowed(ctx, text):
            continue
        texts = engine.commands(ctx, config(text), 10.0)
        line = next(
            line
            for line in (texts.request + "\n" + texts.serve).splitlines()
            if line.startswith(("xdit ", "sglang ", "torchrun ", "python3 generate"))
        )
        launch = engine.read_launch(shlex.split(line))
        assert launch.parallel == config(text)
        assert launch.engine == name


@pytest.mark.parametrize(
    ("launcher", "expected"),
    [
        ("torchrun --nproc_per_node=8", "hsdp8"),
        ("torchrun --nproc-per-node 8", "hsdp8"),
        ("torchrun --nnodes=2 --nproc_per_node=4", "hsdp8"),
        ("python3 -m torch.distributed.run --nproc_per_node 2", "hsdp2"),
        ("torchrun --nproc_per_node=gpu", "single"),  # how many there are, it does not say
        ("python3", "single"),
    ],
)
def test_fsdp_shards_over_what_the_launcher_starts(launcher, expected):
    launch = f"{launcher} generate.py --task t2v-A14B --ckpt_dir w --dit_fsdp --t5_fsdp"
    assert engines.engine("wan-official").read_launch(launch.split()).parallel == config(expected)


@pytest.mark.parametrize(
    ("name", "slug", "tiles"),
    [
        ("wan-official", "wan2.2-i2v-a14b", False),
        ("cosmos-official", "cosmos-predict2-2b-v2w", False),
        ("xdit", "wan2.2-i2v-a14b", True),
        ("sglang-diffusion", "wan2.2-i2v-a14b", True),
        ("diffusers", "wan2.2-i2v-a14b", True),
    ],
)
def test_tiling_is_offered_where_a_command_can_ask_for_it(name, slug, tiles):
    ctx = context(name, slug)
    assert allowed(ctx, "tiling") == tiles
    session = open_session(Workload(model=slug), catalog.parse_gpus("2xH200"), engine=name)
    assert search_space(session).vae_tiling.any() == tiles
    texts = engines.engine(name).commands(ctx, config("tiling"), 1.0)
    both = texts.request + texts.serve
    assert ("tiling" in both.lower()) == tiles


def test_pipefusion_is_a_pipeline_degree_of_the_models_that_have_it():
    engine = engines.engine("xdit")
    ctx = context("xdit", "flux.1-dev")
    assert "pp" not in engine.searched_axes(ctx.behaviour)
    assert allowed(ctx, "usp2_pp2")
    assert not allowed(context("xdit", "qwen-image"), "pp2")
    command = engine.commands(ctx, config("usp2_pp2"), 1.0).request
    assert "--pipefusion_parallel_degree 2" in command
    (words,) = lines_with(command, "xdit")
    assert engine.read_launch(words).parallel == config("usp2_pp2")


def test_an_unknown_flag_names_the_nearest():
    with pytest.raises(BadInput, match="--ulysses_degree"):
        engines.engine("xdit").read_launch(shlex.split("xdit --ulyses_degree 2"))


def test_the_timed_run_records_each_repeat(tmp_path):
    script = "import json; json.dump([0.25, 0.5], open('timings.json', 'w'))"
    text = benchmark(
        context("xdit"), config("usp2"), [sys.executable, "-c", script], "timings.json"
    )
    done = subprocess.run(
        ["bash", "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert len(rows) == 3
    assert len({row["id"] for row in rows}) == 3
    for row in rows:
        assert row["measured_ms"]["e2e"] == pytest.approx(250.0)
        assert row["measured_ms"]["process"] > 0
        assert row["parallel"] == {"ulysses_degree": 2}


# Flag lists


def test_flags_are_extracted_from_f_strings_and_bare_calls(tmp_path):
    source = (
        "def f(parser, add_argument, prefix, dot):\n"
        "    parser.add_argument(f'--{prefix}.use-tiling', action='store_true')\n"
        "    parser.add_argument(f'--{dot}vae-tiling')\n"
        "    add_argument('--width', type=int)\n"
        "    add_argument(name)\n"
    )
    wheel = tmp_path / "sglang-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        from perfmodel.engines.extract_flags import PACKAGES

        for number, name in enumerate(PACKAGES["sglang"]):
            archive.writestr(name, source if number == 0 else "")
    found = extract(wheel)
    assert set(found["flags"]) == {"--vae-config.use-tiling", "--vae-tiling", "--width"}
    assert found["version"] == "0.0.1"
    assert "refused_with_omni" not in found


@pytest.mark.parametrize("name", ["xdit", "sglang_diffusion"])
def test_flag_lists_say_where_they_are_from(name):
    path = Path(engines.__file__).parent / name / "flags.json"
    data = json.loads(path.read_text())
    assert data["source"].startswith("https://pypi.org/project/")
    assert len(data["sha256"]) == 64
    assert len(data["flags"]) > 100


def test_no_engine_loads_for_the_default_one():
    code = (
        "import sys; from perfmodel.engines import engine; engine()\n"
        "loaded = [m for m in sys.modules if 'engines.described' in m or 'engines.xdit' in m]\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_rules_are_columns():
    for name in engines.engine_names():
        ctx = context(name)
        layouts = Layouts.of([config(text) for text in CONFIGS])
        for rule in engines.engine(name).rules():
            broken = rule.violated(ctx, layouts)
            assert broken.shape == (len(CONFIGS),)
            assert broken.dtype == np.bool_


def test_sglang_gathers_keys_alone():
    ctx = context("sglang-diffusion")
    assert allowed(ctx, "agkv4")
    assert not allowed(ctx, "agkv2_usp2")
    texts = engines.engine("sglang-diffusion").commands(ctx, config("agkv4"), 1.0)
    launch = engines.engine("sglang-diffusion").read_launch(shlex.split(texts.serve))
    assert launch.parallel == config("agkv4")


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--num-gpus 8 --ulysses-degree 4 --enable-cfg-parallel", "cfg2_usp4_vaepp8"),
        ("--num-gpus 8 --sp-degree 8", "usp8_vaepp8"),
        ("--num-gpus 8 --sp-degree 8 --ulysses-degree 4 --ring-degree 2", "usp4_ring2_vaepp8"),
        ("--num-gpus 8", "cfg2_usp4_vaepp8"),
        ("--num-gpus 8 --enable-cfg-parallel false", "usp8_vaepp8"),
        ("--num-gpus 8 --cfg-parallel-size 1", "usp8_vaepp8"),
        ("--num-gpus 8 --cfg-parallel-size 4 --enable-cfg-parallel", "agkv2_cfg4_vaepp8"),
        ("--num-gpus 8 --tp-size 4", "cfg2_tp4_vaepp8"),
        ("--num-gpus 8 --dp-size 2 --ring-degree 4", "ring4_dp2_vaepp4"),
        ("--num-gpus 2", "cfg2_vaepp2"),
        ("--num-gpus 2 --sp-degree 2", "agkv2_vaepp2"),
        ("--num-gpus 1", "single"),
    ],
)
def test_sglang_fills_in_degrees_as_its_server_does(flags, expected):
    launch = f"sglang serve --model-path Wan-AI/Wan2.2-T2V-A14B-Diffusers {flags}"
    found = engines.engine("sglang-diffusion").read_launch(launch.split())
    assert found.parallel == config(expected)


def test_sglang_divides_no_branches_of_a_model_that_runs_one():
    launch = "sglang serve --model-path black-forest-labs/FLUX.1-dev --num-gpus 4"
    found = engines.engine("sglang-diffusion").read_launch(launch.split())
    assert found.parallel == config("usp4")


@pytest.mark.parametrize(
    ("model", "flags", "patch"),
    [
        ("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "", 4),
        ("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "--vae-config.use-parallel-decode false", 1),
        ("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "--vae-config.use-parallel-decode true", 4),
        ("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "--dp-size 2", 2),
        ("Wan-AI/Wan2.2-T2V-A14B-Diffusers", "--num-frames 1", 1),
        ("nvidia/Cosmos3-Nano", "", 4),
        ("hunyuanvideo-community/HunyuanVideo", "", 4),
        ("Lightricks/LTX-2", "", 4),
        ("nvidia/Cosmos3-Super-Text2Image", "", 1),
        ("black-forest-labs/FLUX.1-dev", "", 1),
        ("Qwen/Qwen-Image", "", 1),
        ("no/catalogued-model", "", 1),
    ],
)
def test_sglang_decodes_videos_on_all_ranks_unless_told_otherwise(model, flags, patch):
    launch = f"sglang serve --model-path {model} --num-gpus 4 {flags}"
    found = engines.engine("sglang-diffusion").read_launch(launch.split())
    assert found.parallel.vae_patch == patch


@pytest.mark.parametrize(
    "flags", ["--num-gpus 8 --ulysses-degree 4", "--num-gpus 4 --sp-degree 4 --ring-degree 2"]
)
def test_sglang_refuses_sequence_degrees_that_do_not_multiply(flags):
    with pytest.raises(BadInput, match="--ulysses-degree"):
        engines.engine("sglang-diffusion").read_launch(["sglang", "serve", *flags.split()])


@pytest.mark.parametrize(
    ("name", "launch", "flag"),
    [
        ("cosmos-official", "examples/video2world.py --model_size 7B --seed 1", "--model_size"),
        ("wan-official", "generate.py --task s2v-14B --save_file x", "--task"),
        ("xdit", "xdit --model m --attention_backend AITER_FP8 --seed 1", "--attention_backend"),
    ],
)
def test_a_flag_that_would_change_the_prediction_is_not_ignored_in_silence(name, launch, flag):
    (problem,) = engines.engine(name).read_launch(launch.split()).problems
    assert (problem.rule_id, problem.severity, problem.field) == (
        "launch-ignored", "warning", flag,
    )  # fmt: skip


def test_cache_dit_takes_heads_that_do_not_divide():
    uneven = {"heads": 30, "kv_heads": 30, "tokens": 4096}
    assert allowed(context("cache-dit(diffusers)", **uneven), "usp4")
    assert not allowed(context("diffusers", **uneven), "usp4")


# Sparse attention

SPARSITY_OF_LAYERS = {
    "cosmos-predict2-2b-v2w": ((0.98, 2), (0.95, 3), (0.92, 7), (0.77, 15), (0.55, 1)),
    "cosmos-predict2-14b-v2w": ((0.98, 11), (0.95, 2), (0.92, 10), (0.77, 6), (0.55, 6), (0.0, 1)),
}
"""As the header of cosmos-predict2 1.0.9 ``configs/base/config_natten.py`` counts them."""


@pytest.mark.parametrize("slug", SPARSITY_OF_LAYERS)
def test_neighbourhood_attention_computes_what_its_windows_hold(slug):
    layers = SPARSITY_OF_LAYERS[slug]
    dense = sum(count for _, count in layers)
    expected = 1 - sum(sparsity * count for sparsity, count in layers) / dense
    clip = {"width": 1280, "height": 704, "frames": 93, "fps": 16.0, "steps": 35, "task": "v2w"}
    ctx = context("cosmos-official", slug, options=Options(attention_backend="natten"), **clip)
    assert ctx.behaviour.options.attention_density == pytest.approx(expected, abs=0.005)
    assert ctx.behaviour.attention_backend == "CUDNN_ATTN"
    assert allowed(ctx, "single")
    engine = engines.engine("cosmos-official")
    (words,) = lines_with(engine.commands(ctx, config("single"), 1.0).request, "python3")
    assert engine.read_launch(words).options == {"attention_backend": "NATTEN"}


def test_a_model_without_windows_has_no_neighbourhood_attention():
    ctx = context("wan-official", options=Options(attention_backend="NATTEN"))
    assert ctx.behaviour.options.attention_density == 1
    assert not allowed(ctx, "single")
    stated = Options(attention_backend="NATTEN", attention_density=0.2)
    assert allowed(context("wan-official", options=stated), "single")


@pytest.mark.parametrize(
    ("slug", "version", "on", "expected"),
    [
        ("wan2.1-t2v-1.3b", "0.5.23", H100, ("channels_last", 16, False)),
        ("wan2.1-t2v-1.3b", "0.5.17", H100, ("off", 16, False)),
        ("wan2.1-t2v-1.3b", "0.5.16", H100, ("off", 32, False)),
        ("wan2.1-t2v-1.3b", "0.5.13", H100, ("off", 32, True)),
        ("wan2.2-t2v-a14b", "0.5.23", H100, ("channels_last", 32, False)),
        ("cosmos3-nano", "2026-06-11", H100, ("off", 16, True)),
        ("cosmos3-nano", "0.5.23", ASCEND, ("off", 16, False)),
        ("hunyuanvideo", "0.5.23", H100, ("off", 16, False)),
    ],
)
def test_the_vae_of_sglang_by_release(slug, version, on, expected):
    """Fused kernels since 0.5.18 on CUDA, bf16 since 0.5.17, all ranks since 0.5.14."""
    found = engines.engine("sglang-diffusion")
    behaviour = found.behaviour(catalog.load_model(slug), on, found.version(version), Options())
    assert expected == (
        behaviour.traits.vae_fast_path,
        behaviour.traits.vae_bits,
        behaviour.vae_over_sequence,
    )


def test_an_engine_that_tiles_by_default_tiles():
    found = engines.engine("sglang-diffusion")
    for slug, tiled in (("hunyuanvideo", True), ("wan2.1-t2v-14b", False)):
        model = catalog.load_model(slug)
        behaviour = found.behaviour(model, H100, found.version(), Options())
        assert behaviour.vae_tiling_default is tiled
        asked = Options(vae_tiling="off")
        assert not found.behaviour(model, H100, found.version(), asked).vae_tiling_default


@pytest.mark.parametrize(
    ("name", "slug", "mode"),
    [
        ("xdit", "wan2.2-i2v-a14b", "band"),
        ("xdit", "hunyuanvideo-1.5-i2v", "whole"),
        ("sglang-diffusion", "wan2.1-i2v-14b", "band"),
        ("sglang-diffusion", "cosmos3-nano", "whole"),
    ],
)
def test_how_ranks_share_an_encode(name, slug, mode):
    found = engines.engine(name)
    behaviour = found.behaviour(catalog.load_model(slug), H100, found.version(), Options())
    assert behaviour.vae_encode_mode == mode


@pytest.mark.parametrize("slug", ["cosmos3-nano", "cosmos3-super", "cosmos-predict2.5-2b"])
def test_no_command_of_one_model_is_printed_for_another(slug):
    """The examples of Predict2 load a Predict2 checkpoint, whatever was asked."""
    texts = engines.engine("cosmos-official").commands(
        context("cosmos-official", slug), config("single"), 1.0
    )
    for text in (texts.serve, texts.request, texts.benchmark):
        assert "https://github.com/" in text
        assert all(line.startswith("#") for line in text.splitlines())


@pytest.mark.parametrize(
    ("slug", "size", "program"),
    [
        ("cosmos-predict2-2b-v2w", "2B", "video2world.py"),
        ("cosmos-predict2-14b-v2w", "14B", "video2world.py"),
        ("cosmos-predict2-14b-t2i", "14B", "text2image.py"),
    ],
)
def test_the_examples_of_predict2_load_its_models(slug, size, program):
    engine = engines.engine("cosmos-official")
    ctx = context("cosmos-official", slug, task="t2i" if slug.endswith("t2i") else "v2w")
    (words,) = lines_with(engine.commands(ctx, config("single"), 1.0).request, "python3")
    assert words[1] == f"examples/{program}"
    assert words[words.index("--model_size") + 1] == size
    assert engine.read_launch(words).model == slug
    at = words.index("--model_size")
    assert engine.read_launch(words[:at] + words[at + 2 :]).model == slug.replace("14b", "2b")


@pytest.mark.parametrize("on", [True, False])
def test_guardrails_are_disabled_unless_asked_for(on):
    ctx = context("cosmos-official", "cosmos-predict2-2b-v2w", options=Options(guardrails=on))
    texts = engines.engine("cosmos-official").commands(ctx, config("single"), 1.0)
    for text in (texts.serve, texts.request, texts.benchmark):
        assert ("--disable_guardrail" in text) != on
