"""What engines keep on the host by default, divide over ranks, or quantise on the device."""

import ast
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from perfmodel.api import predict
from perfmodel.api.session import open_session
from perfmodel.catalog import load_device, load_model, parse_gpus
from perfmodel.engines.base import Context, Residency
from perfmodel.engines.diffusers.commands import program
from perfmodel.memory import PHASES, load_terms
from perfmodel.memory.residency import encoder_shares, is_separate_encoder, model_terms
from perfmodel.memory.weights import held
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Options, Workload
from perfmodel.stages import family
from perfmodel.stages.base import Component
from perfmodel.stages.text_encoder import component
from perfmodel.units import GIB, MIB

TERMS = load_terms("sglang-diffusion")
AUTO = Residency(resident_multiple=2.0, streamed=True, fold_min_width=4096)
WIDE = component("umt5-xxl")
NARROW = component("qwen2.5-vl-7b-lm")
DIT = Component(
    name="transformer", kind="transformer", params=20_000_000_000, block_params=19_000_000_000,
    blocks=60, tp_params=19_000_000_000, quantizable_params=12_000_000_000, when=("denoise",),
)  # fmt: skip


def shares(
    *components: Component,
    rows: tuple[ParallelConfig, ...] = (ParallelConfig(),),
    gpus: str = "8xH100",
    residency: Residency | None = AUTO,
    dtype: str = "bf16",
) -> list[np.ndarray]:
    layouts = Layouts.of(rows)
    found = encoder_shares(components, layouts, dtype, TERMS, residency, parse_gpus(gpus))
    return [share.device for share in found]


def reserved_mib(model: str, engine: str, gpus: str, **changes: object) -> float:
    dtype = str(changes.pop("dtype", "bf16"))
    parallel = changes.pop("parallel", ParallelConfig())
    answer = predict(
        Workload(model=model, **changes),  # type: ignore[arg-type]
        parse_gpus(gpus),
        parallel=parallel,  # type: ignore[arg-type]
        engine=engine,
        options=Options(dtype=dtype),
    )
    assert answer.prediction is not None
    assert answer.prediction.reserved_gib is not None
    return answer.prediction.reserved_gib * GIB / MIB


def test_without_a_policy_everything_stays() -> None:
    assert all((share == 1.0).all() for share in shares(WIDE, DIT, residency=None))
    assert model_terms(TERMS, None) is TERMS


def test_only_separate_encoders_are_streamed() -> None:
    encoder, transformer = shares(NARROW, DIT)
    assert is_separate_encoder(NARROW)
    assert not is_separate_encoder(DIT)
    assert transformer[0] == 1.0
    outside = 1.0 - NARROW.layer_params / NARROW.params
    two_layers = 2 * NARROW.layer_params / NARROW.layers / NARROW.params
    assert encoder[0] == pytest.approx(outside + two_layers)


def test_streamed_layers_lie_in_host_memory() -> None:
    layouts = Layouts.of((ParallelConfig(), ParallelConfig(ulysses=2)))
    for gpus, streamed in (("2xH100", True), ("2xB200", False)):
        for encoder, ranks in ((NARROW, 1.0), (WIDE, 2.0)):
            share = encoder_shares((encoder, DIT), layouts, "bf16", TERMS, AUTO, parse_gpus(gpus))[
                0
            ]
            assert share.host.tolist() == ([1.0, 1.0 / ranks] if streamed else [0.0, 0.0])


def test_the_printed_command_leaves_encoders_where_memory_expects_them() -> None:
    from perfmodel.engines import engine

    sglang = engine("sglang-diffusion")
    for mode, wanted in (("none", None), ("text-encoder", "true")):
        behaviour = sglang.behaviour(
            load_model("flux.2-dev"),
            load_device("h100-sxm"),
            sglang.version(),
            Options(offload=mode),  # type: ignore[arg-type]
        )
        context = Context(
            behaviour=behaviour, model="FLUX.2-dev", model_id="flux.2-dev", hf_id="a/b", heads=48,
            kv_heads=48, hidden=6144, ffn_width=18432, tokens=4096, task="t2i",
        )  # fmt: skip
        words = sglang.commands(context, ParallelConfig(), 1.0).serve.split()
        flag = "--text-encoder-cpu-offload"
        assert (words[words.index(flag) + 1] if flag in words else None) == wanted
        assert words[words.index("--dit-cpu-offload") + 1] == "false"


def test_a_device_that_holds_the_weights_twice_keeps_them() -> None:
    # 20 G parameters in bf16 and 8.3 G in fp32 are 73 GB: one 80 GB device streams, 192 GB do not.
    assert shares(NARROW, DIT, gpus="H100")[0][0] < 0.5
    assert shares(NARROW, DIT, gpus="B200")[0][0] == 1.0
    # Tensor parallelism divides the transformer only.
    rows = (ParallelConfig(), ParallelConfig(tp=8))
    small = replace(NARROW, params=NARROW.params // 4)
    assert list(shares(small, DIT, rows=rows)[0] == 1.0) == [False, True]


def test_a_quantised_transformer_does_not_count_as_resident() -> None:
    assert shares(NARROW, DIT, gpus="B200", dtype="fp8")[0][0] < 0.5


def test_wide_encoders_are_divided_over_a_replica_whose_ranks_reach_each_other() -> None:
    rows = (ParallelConfig(), ParallelConfig(ulysses=4), ParallelConfig(cfg=2, dp=2))
    keep = replace(AUTO, streamed=False)
    wide, narrow = shares(WIDE, NARROW, rows=rows, residency=keep)
    assert wide.tolist() == [1.0, 0.25, 0.5]
    assert narrow.tolist() == [1.0, 1.0, 1.0]
    through_the_host = shares(WIDE, rows=rows, gpus="8xRTX 4090", residency=keep)[0]
    assert through_the_host.tolist() == [1.0, 1.0, 1.0]


def test_widths_of_a_model_win_over_those_of_the_engine() -> None:
    half = model_terms(TERMS, replace(AUTO, text_encoder_bits=16))
    assert (half.text_encoder_bits, half.vae_bits) == (16, TERMS.vae_bits)
    assert TERMS.text_encoder_bits == 32


def test_a_transformer_quantised_on_the_device_weighs_exactly_half() -> None:
    terms = load_terms("diffusers+torchao")
    layouts = Layouts.of((ParallelConfig(),))
    wide, low = (
        held(DIT, layouts, dtype, "none", terms).resident[3, 0] for dtype in ("bf16", "fp8")
    )
    assert low == pytest.approx(wide / 2)


def test_quantising_on_the_device_needs_the_wide_weights_first() -> None:
    request = {"width": 1024, "height": 1024, "steps": 28}
    wide = reserved_mib("flux.1-dev", "diffusers+torchao", "H100", **request)
    low = reserved_mib("flux.1-dev", "diffusers+torchao", "H100", dtype="int8", **request)
    # https://github.com/sayakpaul/diffusers-torchao: 33.851 and 31.608 GiB; weights are 31.438.
    assert wide == pytest.approx(33.851 * GIB / MIB, rel=0.05)
    assert low == pytest.approx(31.608 * GIB / MIB, rel=0.05)


@pytest.mark.parametrize(
    ("model", "gpus", "parallel", "mib"),
    [
        ("qwen-image", "H100", ParallelConfig(), 46938),
        ("flux.1-dev", "H100", ParallelConfig(), 36766),
        ("flux.1-dev", "2xH100", ParallelConfig(ulysses=2), 32332),
        ("flux.2-dev", "H100", ParallelConfig(), 70560),
        ("flux.2-dev", "2xH100", ParallelConfig(tp=2), 38262),
        ("z-image-turbo", "H100", ParallelConfig(), 24492),
    ],
)
def test_sglang_images_at_its_published_peaks(
    model: str, gpus: str, parallel: ParallelConfig, mib: float
) -> None:
    # Peaks of reserved memory in the server tests of https://github.com/sgl-project/sglang.
    found = reserved_mib(
        model, "sglang-diffusion", gpus, width=1024, height=1024, parallel=parallel
    )
    assert found == pytest.approx(mib, rel=0.10)


def test_encoder_components_tell_their_layers() -> None:
    for slug in ("qwen-image", "wan2.1-t2v-1.3b", "flux.1-dev"):
        model = load_model(slug)
        for part in family(model).components(model):
            if is_separate_encoder(part):
                assert 0 < part.layer_params < part.params
                assert part.layers > 0
                assert part.width > 0


def test_layerwise_offload_of_lightx2v_brings_an_encoder_only_while_it_runs() -> None:
    layouts = Layouts.of((ParallelConfig(),))
    for engine, later in (("lightx2v", 0.0), ("vllm-omni", WIDE.params * 2.0)):
        terms = load_terms(engine, offload="layerwise")
        resident = held(WIDE, layouts, "bf16", "layerwise", terms).resident[:, 0]
        assert resident[PHASES.index("text_encode")] == WIDE.params * 2.0
        assert resident[PHASES.index("denoise")] == later


@pytest.mark.parametrize("engine", ["diffusers", "xdit"])
def test_group_offload_streams_encoders_and_leaves_nothing_of_what_does_not_run(
    engine: str,
) -> None:
    # diffusers 0.42.1 hooks/group_offloading.py: every component lies on the host between forwards.
    layouts = Layouts.of((ParallelConfig(),))
    terms = load_terms(engine, offload="layerwise")
    parts = family(load_model("flux.2-dev")).components(load_model("flux.2-dev"))
    for part in parts:
        found = held(part, layouts, "bf16", "layerwise", terms)
        there = {phase for phase, row in zip(PHASES, found.resident[:, 0], strict=True) if row > 0}
        if is_separate_encoder(part):
            outside = (part.params - part.layer_params) * 2.0
            two = 2 * part.layer_params / part.layers * 2.0
            assert found.resident.max() == pytest.approx(outside + two)
            assert there == {"text_encode"}
        elif part.kind == "transformer":
            assert there == {"denoise"}
        if part.kind != "vae":
            assert float(found.host[0]) == part.params * 2.0


def test_the_program_offloads_what_memory_takes_off_the_device() -> None:
    ctx = open_session(
        Workload(model="flux.2-dev"),
        "1xRTX4090",
        engine="diffusers",
        options=Options(offload="layerwise"),
    ).context
    source = program(ctx, ParallelConfig())
    groups: dict[str, dict[str, object]] = {}

    class Module:
        device = "cpu"

        def __init__(self, name: str) -> None:
            self.name = name

        def to(self, device: str) -> None:
            self.device = device

    def record(part: Module, **given: object) -> None:
        groups[part.name] = given

    names = ("transformer", "text_encoder", "vae")
    parts = {name: Module(name) for name in names}
    pipe = SimpleNamespace(components={**parts, "scheduler": object()}, **parts)
    torch = SimpleNamespace(nn=SimpleNamespace(Module=Module), device=str)
    tree = ast.parse(source)
    loop = next(node for node in tree.body if isinstance(node, ast.For))
    scope = {"pipe": pipe, "torch": torch, "apply_group_offloading": record}
    exec(compile(ast.Module([loop], []), "loop", "exec"), scope)
    assert groups["transformer"]["offload_type"] == "block_level"
    assert groups["text_encoder"]["offload_type"] == "leaf_level"
    assert set(groups) == {"transformer", "text_encoder"}
    assert "pipe.vae.to('cuda')" in source
