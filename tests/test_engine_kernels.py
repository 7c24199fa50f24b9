"""Kernels that an engine's modules and its torch bring, by engine and day."""

from __future__ import annotations

import pytest

from perfmodel import catalog
from perfmodel.api.session import open_session
from perfmodel.engines.sources import day_of_run
from perfmodel.ops import Attention, Gemm, Pointwise
from perfmodel.placement.denoise import place_denoise
from perfmodel.placement.precision import quantise
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Options, Workload
from perfmodel.stages import flux, qwen_image, wan, z_image
from perfmodel.stages.base import Traits

# FLUX.1 at 1024 x 1024: 4096 latent tokens of 3072, q and k each.
TOKENS, WIDTH = 4096, 2 * 3072


def chain(family: object, slug: str, name: str, **traits: bool) -> Pointwise:
    model = catalog.load_model(slug)
    chosen = Traits(**traits)
    frames = {"frames": 81} if "t2v" in slug else {}
    shape = family.shape(model, Workload(model=slug, **frames), chosen)  # type: ignore[attr-defined]
    ops = family.denoise(model, shape, chosen).per_forward  # type: ignore[attr-defined]
    return next(op for op in ops if op.name == name)


def test_torch_norms_are_one_pass_since_torch_2_9():
    old = chain(flux, "flux.1-dev", "latent q, k norm and rope")
    new = chain(flux, "flux.1-dev", "latent q, k norm and rope", fused_torch_norms=True)
    # Cast 6, square 8, mean 4, scale 8, weight 8, cast 6 bytes an element against one pass of 4.
    assert float(old.eager_bytes) - float(new.eager_bytes) == 36.0 * TOKENS * WIDTH
    assert old.eager_launches - new.eager_launches == 2 * 7
    # Compiled code does not depend on it.
    assert float(old.bytes_moved) == float(new.bytes_moved)


@pytest.mark.parametrize(
    ("family", "slug", "name", "torch_module"),
    [
        (qwen_image, "qwen-image", "latent q, k norm and rope", False),
        (z_image, "z-image", "joined attention norm", False),
        (wan, "wan2.1-t2v-14b", "q, k norm and rope", True),
    ],
)
def test_only_modules_that_use_torch_norms_gain(family, slug, name, torch_module):
    plain = chain(family, slug, name)
    torch = chain(family, slug, name, fused_torch_norms=True)
    own = chain(family, slug, name, fused_norm_rope=True)
    assert (float(torch.eager_bytes) < float(plain.eager_bytes)) is torch_module
    assert float(own.eager_bytes) < float(torch.eager_bytes) or not torch_module
    assert float(own.eager_bytes) < float(plain.eager_bytes)


def traits_of(engine: str, slug: str = "flux.1-dev", gpus: str = "1xH100") -> Traits:
    session = open_session(Workload(model=slug), catalog.parse_gpus(gpus), engine=engine)
    return session.behaviour.traits


@pytest.mark.parametrize(
    ("engine", "fused"),
    [
        ("diffusers", True),
        ("diffusers@2025-03-01", False),
        ("cache-dit(diffusers)", True),
        ("diffusers+torchao", False),
        ("xdit", True),
        ("xdit@2024-11-30", False),
    ],
)
def test_which_engines_have_them(engine, fused):
    assert traits_of(engine).fused_torch_norms is fused
    assert not traits_of(engine).fused_norm_rope


def test_vllm_omni_brings_its_own():
    assert traits_of("vllm-omni").fused_norm_rope


def backends(engine: str, gpus: str, **options: object) -> set[str | None]:
    session = open_session(
        Workload(model="flux.1-dev"),
        catalog.parse_gpus(gpus),
        engine=engine,
        options=Options.model_validate(options),
    )
    job = session.job
    work = job.family.denoise(job.model, job.shape, job.behaviour.traits)
    layouts = Layouts.of([ParallelConfig()])
    placed = place_denoise(work, job.shape, layouts, job.behaviour, job.behaviour.options)
    return {
        op.backend
        for op in placed.ops
        if isinstance(op, Attention) and op.name == "joint attention"
    }


def test_torch_attention_is_flash_2_on_hopper_until_torch_2_10():
    assert backends("diffusers@2025-12-28", "1xH100") == {"FLASH_ATTN_2"}
    assert backends("diffusers@2026-03-01", "1xH100") == {"TORCH_SDPA"}
    assert backends("diffusers@2025-12-28", "1xB200") == {"FLASH_ATTN_2"}
    assert backends("diffusers@2025-12-28", "1xA100-SXM-80G") == {"TORCH_SDPA"}
    dated = backends("vllm-omni@2025-12-28", "1xH800", attention_backend="SDPA")
    assert dated == {"FLASH_ATTN_2"}


def test_xdit_before_its_runner_wraps_layers_and_uses_flash_2():
    system = catalog.parse_gpus("1xH100")
    job = Workload(model="flux.1-dev")
    old = open_session(job, system, engine="xdit@2024-11-30")
    new = open_session(job, system, engine="xdit")
    assert old.behaviour.attention_backend == "FLASH_ATTN_2"
    assert new.behaviour.attention_backend == "FLASH_ATTN"
    slow, fast = (s.job.machine.term("launch_eager_s") for s in (old, new))
    assert slow > 2 * fast


OMNI = "https://github.com/vllm-project/vllm-omni/blob/main"


@pytest.mark.parametrize(
    ("engine", "source", "day"),
    [
        ("xdit", "https://github.com/xdit-project/xdit_assets/blob/main/a.png", "2024-11-30"),
        ("xdit", "https://github.com/xdit-project/xDiT/blob/main/docs/performance/flux.md",
         "2024-11-30"),
        ("xdit", "https://github.com/xdit-project/xDiT/pull/750", None),
        ("vllm-omni", "https://github.com/vllm-project/vllm-omni/pull/4301", "2026-06-10"),
        ("vllm-omni", f"{OMNI}/docs/user_guide/acceleration/parallelism_acceleration.md",
         "2026-01-06"),
        ("vllm-omni", f"{OMNI}/benchmarks/diffusion/performance_dashboard/"
         "wan_2_2_serving_performance.md", "2026-04-15"),
        ("vllm-omni", f"{OMNI}/benchmarks/diffusion/performance_dashboard/"
         "cosmos3_super_serving_performance.md", None),
        ("diffusers", "https://github.com/vllm-project/vllm-omni/pull/4301", None),
    ],
)  # fmt: skip
def test_days_of_sources(engine, source, day):
    assert day_of_run(engine, source, None) == day


def test_vllm_omni_compiles_since_0_14():
    system, job = catalog.parse_gpus("1xH100"), Workload(model="qwen-image")
    assert not open_session(job, system, engine="vllm-omni@2025-12-28").behaviour.compiled
    assert open_session(job, system, engine="vllm-omni@0.14.0").behaviour.compiled


@pytest.mark.parametrize(("engine", "passes", "batched"), [
    ("vllm-omni@0.24.0", 2, False),
    ("vllm-omni@0.26.0", 4, True),
    ("diffusers", 4, True),
])  # fmt: skip
def test_passes_of_a_guided_step_of_ltx_2(engine, passes, batched):
    job = Workload(model="ltx-2", steps=20, guidance=4.0)
    session = open_session(job, catalog.parse_gpus("1xH100"), engine=engine)
    assert session.job.shape.branches == passes
    assert session.job.shape.forwards == 20 * passes
    assert session.job.branches_together is batched


def test_sharded_weights_leave_hand_written_kernels_fused():
    system = catalog.parse_gpus("2xH100")
    job = Workload(model="z-image-turbo")
    fused = open_session(job, system, engine="sglang-diffusion").behaviour
    assert fused.fused_blocks
    assert not fused.hsdp_breaks_graph
    assert open_session(job, system, engine="vllm-omni").behaviour.hsdp_breaks_graph


def test_on_an_npu_norms_are_one_kernel_where_the_engine_calls_it_and_blocks_are_not_fused():
    system = catalog.parse_gpus("1xAscend-910C-die")
    job = Workload(model="flux.1-dev")
    sglang = open_session(job, system, engine="sglang-diffusion").behaviour
    assert sglang.traits.fused_norm_rope
    assert not sglang.fused_blocks
    assert not traits_of("diffusers", gpus="1xAscend-910C-die").fused_torch_norms


@pytest.mark.parametrize(("engine", "compiled", "fused"), [
    ("diffusers", True, True), ("diffusers", False, False), ("diffusers+torchao", None, True),
    ("lightx2v", True, False), ("vllm-omni", True, False), ("sglang-diffusion", None, False),
])  # fmt: skip
def test_torchao_quantises_activations_in_compiled_kernels_others_in_their_own(
    engine, compiled, fused
):
    model = "wan2.1-t2v-14b"
    asked = Options(dtype="fp8", compile=compiled)
    session = open_session(
        Workload(model=model, steps=2), catalog.parse_gpus("1xH100"), engine=engine, options=asked
    )
    assert session.behaviour.fused_quantise is fused
    op = Gemm(name="a", m=8, n=8, k=8)
    assert quantise(op, "fp8", fused=fused).input_quantised is fused
    assert quantise(op, "fp8", fused=fused).launches == (1 if fused else 3)
    assert quantise(op, "bf16", fused=fused) is op


def test_a_page_read_later_keeps_the_day_of_its_figures():
    page = "https://github.com/vllm-project/vllm-omni/blob/main/docs/user_guide/diffusion/attention_backends.md"
    assert day_of_run("vllm-omni", page, "2026-07-13") == "2026-04-15"
    assert day_of_run("vllm-omni", page, "2026-04-01") == "2026-04-01"
    assert day_of_run("vllm-omni", page, None) == "2026-04-15"
    other = "https://github.com/vllm-project/vllm-omni/pull/4301"
    assert day_of_run("vllm-omni", other, "2026-07-13") == "2026-07-13"
    assert day_of_run("sglang-diffusion", page, "2026-07-13") == "2026-07-13"
