"""Attention of engines other than vLLM-Omni: names by release and device, rings, commands."""

from __future__ import annotations

import shlex

import pytest
from engine_contexts import ASCEND, B300, H100, MI300X, MODELS, RTX_PRO, FakeDevice, FakeModel

from perfmodel import engines
from perfmodel.engines.base import Behaviour, Context
from perfmodel.engines.diffusers.commands import program
from perfmodel.engines.legality import problems
from perfmodel.spec.parallel import parse_parallel
from perfmodel.spec.workload import Options

RDNA4 = FakeDevice("rdna4", None)


def behaviour(name: str, on=H100, version=None, slug="wan2.1-t2v-14b", **options) -> Behaviour:
    engine = engines.engine(name)
    return engine.behaviour(FakeModel(slug), on, engine.version(version), Options(**options))


def context(name: str, on=H100, **given) -> Context:
    base = dict(model_id="wan2.1-t2v-14b", branches=2, num_gpus=4, gpus_per_node=8)
    found = behaviour(name, on, **given)
    return Context(
        behaviour=found, device_family=on.family, **base, **MODELS["wan2.1-t2v-14b"]
    )  # fmt: skip


def errors(ctx: Context, parallel: str) -> dict[str, str]:
    rules = engines.engine(ctx.behaviour.engine).rules()
    found = problems(rules, ctx, parse_parallel(parallel)[0])
    return {p.rule_id: p.message for p in found if p.severity == "error"}


@pytest.mark.parametrize(
    ("on", "version", "backend"),
    [
        (B300, "0.5.23", "CUDNN_ATTN"),
        (B300, "0.5.18", "CUDNN_ATTN"),
        (B300, "0.5.17", "FLASH_ATTN"),
        (B300, "0.5.13", "FLASH_ATTN"),
        (H100, "0.5.23", "FLASH_ATTN"),
        (RTX_PRO, "0.5.23", "TORCH_SDPA"),
        (MI300X, "0.5.23", "FLASH_ATTN"),
    ],
)
def test_the_default_of_sglang_by_release(on, version, backend):
    assert behaviour("sglang-diffusion", on, version).attention_backend == backend


def test_cudnn_came_to_sglang_with_0_5_17():
    for version, there in (("0.5.16", False), ("0.5.17", True), ("0.5.23", True)):
        found = behaviour("sglang-diffusion", version=version).attention_available
        assert ("CUDNN_ATTN" in found) is there, version


def test_flash_attention_of_sglang_runs_as_sdpa_on_workstation_cards():
    assert "FLASH_ATTN" not in behaviour("sglang-diffusion", RTX_PRO).attention_available


@pytest.mark.parametrize(
    ("name", "on", "backend", "parallel", "refused"),
    [
        ("sglang-diffusion", H100, "CUDNN_ATTN", "ring2", True),
        ("sglang-diffusion", H100, "SAGE_ATTN", "ring2", False),
        ("sglang-diffusion", H100, "CUDNN_ATTN", "usp4", False),
        ("xdit", H100, "TORCH_SDPA", "ring2", True),
        ("xdit", H100, "FLASH_ATTN", "ring2", False),
        ("xdit", B300, "FLASH_ATTN", "ring2", True),
        ("xdit", B300, "FLASH_ATTN", "usp4", False),
        ("diffusers", H100, "XFORMERS", "usp4", True),
        ("diffusers", H100, "XFORMERS", "single", False),
        ("diffusers", H100, "TORCH_SDPA", "ring4", True),
        ("diffusers", H100, "TORCH_SDPA", "usp4", False),
        ("diffusers", B300, "FLASH_ATTN", "usp4", True),
        ("diffusers", H100, "FLASH_ATTN", "ring4", False),
    ],
)
def test_backends_that_do_not_run_on_shared_tokens_are_refused(
    name, on, backend, parallel, refused
):
    found = errors(context(name, on, attention_backend=backend), parallel)
    assert ("attention-shared" in found) is refused, found


@pytest.mark.parametrize("name", ["sglang-diffusion", "xdit", "diffusers"])
@pytest.mark.parametrize("on", [H100, B300, MI300X])
def test_a_ring_without_a_named_backend_is_legal(name, on):
    if name == "diffusers" and on is MI300X:  # torch's attention there returns no sums
        return
    assert "attention-shared" not in errors(context(name, on), "ring2")


def test_the_ring_runs_the_backend_that_was_named():
    found = behaviour("xdit", H100, attention_backend="CUDNN_ATTN")
    assert found.ring_attention_backend == found.ring_attention_kernel == "CUDNN_ATTN"
    assert behaviour("sglang-diffusion", B300).ring_attention_backend == "FLASH_ATTN"
    assert behaviour("diffusers", H100).ring_attention_backend == "CUDNN_ATTN"


@pytest.mark.parametrize(
    ("name", "on", "word"),
    [
        ("sglang-diffusion", H100, "fa"),
        ("sglang-diffusion", MI300X, "aiter"),
        ("xdit", H100, "FLASH_3"),
        ("xdit", B300, "FLASH_4"),
        ("xdit", MI300X, "AITER"),
        ("xdit", RDNA4, "AITER_FLYDSL"),
        ("xdit", ASCEND, "NPU"),
    ],
)
def test_flash_attention_by_the_word_for_the_device(name, on, word):
    ctx = context(name, on, attention_backend="FLASH_ATTN")
    serve = engines.engine(name).commands(ctx, parse_parallel("usp4")[0], 1.0).serve
    words = shlex.split(serve, comments=True)
    flag = next(flag for flag in ("--attention-backend", "--attention_backend") if flag in words)
    assert words[words.index(flag) + 1] == word
    launch = engines.engine(name).read_launch(words)
    assert launch.options["attention_backend"] == "FLASH_ATTN"


@pytest.mark.parametrize(
    ("on", "backend", "parallel", "word"),
    [
        (H100, "FLASH_ATTN", "single", "_flash_3"),
        (H100, "FLASH_ATTN", "usp4", "_flash_3_hub"),
        (B300, "FLASH_ATTN", "single", "flash_4_hub"),
        (H100, "FLASH_ATTN_2", "usp4", "flash"),
        (ASCEND, "FLASH_ATTN", "usp4", "_native_npu"),
        (H100, None, "usp4", None),
        (H100, None, "ring4", "_native_cudnn"),
    ],
)
def test_the_program_of_diffusers_sets_what_is_costed(on, backend, parallel, word):
    ctx = context("diffusers", on, attention_backend=backend)
    text = program(ctx, parse_parallel(parallel)[0])
    assert (f"set_attention_backend({word!r})" in text) is (word is not None)
    assert ("set_attention_backend" in text) is (word is not None)


def test_old_releases_of_xdit_are_dated_and_have_no_weight_sharding():
    old = behaviour("xdit", version="0.4.1")
    assert (old.version, old.date, old.terms) == ("0.4.1", "2025-01-01", "xdit-wrappers")
    assert old.attention_backend == "FLASH_ATTN_2"
    assert not old.has_hsdp
    assert behaviour("xdit", version="0.5.0").has_hsdp
    ctx = context("xdit", version="0.4.5")
    serve = engines.engine("xdit").commands(ctx, parse_parallel("usp4")[0], 1.0).serve
    assert "# the program xdit came with 0.5.0" in serve


def test_programs_without_a_flag_say_that_the_packages_decide():
    assert behaviour("wan-official").attention_available == ("FLASH_ATTN", "FLASH_ATTN_2")
    assert "attention-backend" in errors(
        context("wan-official", attention_backend="SAGE_ATTN"), "usp4"
    )
    ctx = context("wan-official", attention_backend="FLASH_ATTN_2")
    serve = engines.engine("wan-official").commands(ctx, parse_parallel("usp4")[0], 1.0).serve
    assert "# predicted with FLASH_ATTN_2: no flag names it" in serve
