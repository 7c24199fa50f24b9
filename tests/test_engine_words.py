"""Commands of other engines say what was predicted, or say that they do not."""

from __future__ import annotations

import shlex

import pytest

import perfmodel as pm
from perfmodel import engines
from perfmodel.api.session import open_session
from perfmodel.engines.base import Context
from perfmodel.engines.legality import legal, problems
from perfmodel.spec.parallel import Layouts, parse_parallel
from perfmodel.spec.workload import Options

SAID = ("# predicted with ", "# needs a checkpoint stored in ")
NAMES = ("xdit", "sglang-diffusion", "diffusers", "wan-official")


def context(name: str, *, on="8xH100-SXM", slug: str = "wan2.1-t2v-14b", **options) -> Context:
    job = pm.Workload(model=slug)
    return open_session(job, pm.system(on), engine=name, options=Options(**options)).context


def texts(ctx: Context, text: str = "single"):
    config = parse_parallel(text)[0]
    return engines.engine(ctx.behaviour.engine).commands(ctx, config, 10.0)


def refused(ctx: Context, text: str = "single") -> list[str]:
    config = parse_parallel(text)[0]
    rules = engines.engine(ctx.behaviour.engine).rules()
    found = [one.rule_id for one in problems(rules, ctx, config) if one.severity == "error"]
    assert bool(found) != bool(legal(rules, ctx, Layouts.of([config]))[0])
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("given", ["foo", "flash_attn_9", "FLASHINFER", "TRTLLM_ATTN"])
def test_an_attention_that_the_engine_lacks_is_refused(name, given):
    assert refused(context(name, attention_backend=given)) == ["attention-backend"]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("xdit", "FLASH_3"), ("xdit", "sage"), ("xdit", "cudnn"), ("diffusers", "native"),
        ("sglang-diffusion", "fa"), ("sglang-diffusion", "sdpa"), ("wan-official", "FA2"),
        ("cosmos-official", "NATTEN"), ("lightx2v", "SAGE"),
    ],
)  # fmt: skip
def test_an_attention_that_it_has_is_taken(name, given):
    slug = "cosmos-predict2-14b-v2w" if name == "cosmos-official" else "wan2.1-t2v-14b"
    ctx = context(name, slug=slug, attention_backend=given, attention_density=0.5)
    assert "attention-backend" not in refused(ctx)


@pytest.mark.parametrize(
    ("device", "given", "word"),
    [
        ("8xH100-SXM", "FLASH_ATTN", "FLASH_3"),
        ("8xH100-SXM", "FA2", "FLASH"),
        ("8xA100-SXM", "FLASH_ATTN", "FLASH"),
        ("8xB300", "FLASH_ATTN", "FLASH_4"),
        ("8xMI300X", "FLASH_ATTN", "AITER"),
        ("8xH100-SXM", "SAGE", "SAGE"),
    ],
)
def test_xdit_is_given_the_backend_that_was_predicted(device, given, word):
    ctx = context("xdit", on=device, attention_backend=given)
    words = shlex.split(texts(ctx).request.splitlines()[-1])
    assert words[words.index("--attention_backend") + 1] == word
    read = engines.engine("xdit").read_launch(words).options["attention_backend"]
    again = context("xdit", on=device, attention_backend=read).behaviour.attention_backend
    generation = "FLASH_ATTN_2" if word == "FLASH" else ctx.behaviour.attention_backend
    assert again == generation


@pytest.mark.parametrize("name", ["xdit", "sglang-diffusion"])
@pytest.mark.parametrize(
    "options",
    [{"dtype": "fp8"}, {"attention_backend": "cudnn"}, {"attention_backend": "fa2"}, {}],
)
def test_what_is_predicted_is_read_back_from_the_command(name, options):
    ctx = context(name, **options)
    line = next(
        line for line in texts(ctx).serve.splitlines() if line.startswith(("xdit ", "sglang "))
    )
    read = engines.engine(name).read_launch(shlex.split(line)).options
    again = context(name, **{key: value for key, value in read.items() if key in options})
    assert again.behaviour.options.dtype == ctx.behaviour.options.dtype
    assert again.behaviour.attention_backend == ctx.behaviour.attention_backend


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "options",
    [
        {"dtype": "fp8"},
        {"dtype": "nvfp4"},
        {"dtype": "fp16"},
        {"cache_method": "tea_cache"},
        {"cache_method": "mag_cache", "cache_skip": 0.4},
        {"cache_skip": 0.3},
    ],
)
def test_no_option_is_lost_between_the_prediction_and_the_command(name, options):
    on = "8xB200" if options.get("dtype") == "nvfp4" else "8xH100-SXM"
    wanted = context(name, on=on, **options)
    if refused(wanted):
        assert refused(wanted) == ["dtype-not-in-engine"]
        return
    plain, asked = texts(context(name, on=on)).serve, texts(wanted).serve
    assert asked != plain
    said = [line for line in asked.splitlines() if line.startswith(SAID)]
    assert len(said) <= 1
    commands = [line for line in asked.splitlines() if not line.startswith("#")]
    same = commands == [line for line in plain.splitlines() if not line.startswith("#")]
    assert same == bool(said)


def test_a_replica_of_xdit_is_a_run_of_its_own():
    text = texts(context("xdit"), "cfg2_dp4").serve
    assert "# 4 replicas: start it 4 times" in text
    assert "--data_parallel_degree" not in text
    read = engines.engine("xdit").read_launch(shlex.split(text.splitlines()[-1]))
    assert read.parallel == parse_parallel("cfg2")[0]


def test_replicas_of_sglang_that_shard_their_weights_are_servers_of_their_own():
    ctx = context("sglang-diffusion")
    lines = texts(ctx, "usp2_hsdp2_dp3").serve.splitlines()
    starts = [line.removesuffix(" &") for line in lines if "sglang serve" in line]
    assert [line.partition(" ")[0] for line in starts] == [
        "CUDA_VISIBLE_DEVICES=0,1", "CUDA_VISIBLE_DEVICES=2,3", "CUDA_VISIBLE_DEVICES=4,5",
    ]  # fmt: skip
    assert len({line.rpartition("--port ")[2] for line in starts}) == 3
    for line in starts:
        read = engines.engine("sglang-diffusion").read_launch(shlex.split(line))
        assert read.parallel == parse_parallel("usp2_hsdp2")[0]
    together = texts(ctx, "usp2_dp3").serve
    assert "--dp-size 3" in together
    assert "CUDA_VISIBLE_DEVICES" not in together


@pytest.mark.parametrize("name", ["xdit", "sglang-diffusion"])
def test_sharded_weights_are_not_streamed_too(name):
    assert refused(context(name, offload="layerwise"), "usp2_hsdp2") == ["hsdp-layerwise"]
    assert refused(context(name, offload="layerwise"), "usp2") == []
    assert refused(context(name), "usp2_hsdp2") == []
