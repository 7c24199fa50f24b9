"""Memory: closed forms on a made-up model, laws over configurations, advice, terms."""

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.memory import (
    FITS,
    NO,
    PARTS,
    PHASES,
    STATUS,
    TIGHT,
    MemoryTable,
    Terms,
    VaeMemory,
    memory,
    nearest_miss,
    remedies,
)
from perfmodel.memory.terms import resolve
from perfmodel.memory.vae import _covered
from perfmodel.ops import Gemm, Rows, Split
from perfmodel.shapes import Shape
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Options
from perfmodel.stages.base import Component, DenoiseWork

ROOT = Path(__file__).resolve().parent.parent
FILE = json.loads((ROOT / "calibration/engines/memory.json").read_text())
TERMS = resolve(FILE, "vllm-omni", "2026-06-01")
BARE = Terms(
    **{
        name: 0.0
        for name in (
            "context_bytes",
            "communicator_bytes",
            "peer_bytes",
            "workspace_bytes",
            "denoise_slack_frac",
            "vae_slack_frac",
            "worker_host_bytes",
            "upper_frac",
        )
    },
    hsdp_live_blocks=4.0,
    layerwise_live_blocks=2.0,
)
BLOCKS, BLOCK_PARAMS, OUTSIDE, TP_PARAMS = 40, 10_000, 5_000, 360_000
TEXT = Component(
    name="text_encoder", kind="text_encoder", params=300_000, block_params=280_000, blocks=20,
    when=("text_encode",),
)  # fmt: skip
DIT = Component(
    name="transformer", kind="transformer", params=BLOCKS * BLOCK_PARAMS + OUTSIDE,
    block_params=BLOCKS * BLOCK_PARAMS, blocks=BLOCKS, tp_params=TP_PARAMS,
    quantizable_params=TP_PARAMS, when=("denoise",),
)  # fmt: skip
EXPERT = replace(DIT, name="transformer_2")
VAE_WEIGHTS = Component(
    name="vae", kind="vae", params=50_000, bits=32, when=("vae_encode", "vae_decode")
)
MODEL = (TEXT, DIT, EXPERT, VAE_WEIGHTS)
HIDDEN, FFN = 64, 256
WORK = DenoiseWork(
    per_forward=(
        Gemm(name="up", count=BLOCKS, m=0, n=FFN, k=HIDDEN, rows=Rows.TOKENS, split=Split.COLUMN),
        Gemm(name="down", count=BLOCKS, m=0, n=HIDDEN, k=FFN, rows=Rows.TOKENS, split=Split.ROW),
    ),
    blocks=BLOCKS,
    block_params=BLOCK_PARAMS,
    hidden=HIDDEN,
    heads=8,
    kv_heads=8,
    head_dim=8,
    exit_width=HIDDEN,
    velocity_elements=0.0,
)
VAE = VaeMemory(
    bits=16,
    spatial_ratio=8,
    decode_live=lambda t, h, w: 100.0 * np.asarray(h) * w,
    encode_live=lambda f, h, w: 1.0 * np.asarray(h) * w,
)
MACHINE = SimpleNamespace(usable_bytes=1e9, gpus_per_node=8)
degrees = st.sampled_from([1, 2, 4, 8])
configs = st.builds(
    ParallelConfig, cfg=st.sampled_from([1, 2]), ulysses=degrees, ring=degrees, tp=degrees,
    pp=degrees, dp=degrees, hsdp=degrees, vae_patch=degrees, vae_tiling=st.booleans(),
)  # fmt: skip


def shape_of(frames: int = 17, width: int = 640, height: int = 384, **changes: object) -> Shape:
    latent = (frames - 1) // 4 + 1
    values: dict[str, object] = {
        "task": "t2v", "batch": 1, "width": width, "height": height, "frames": frames, "fps": 24.0,
        "request_steps": 30, "steps": 30, "guidance": 5.0, "branches": 2, "forwards": 60,
        "latent_frames": latent, "latent_height": height // 8, "latent_width": width // 8,
        "text_tokens": 77, "video_tokens": latent * (height // 16) * (width // 16), **changes,
    }  # fmt: skip
    return Shape(**values)  # type: ignore[arg-type]


def table_of(
    *configs: ParallelConfig,
    terms: Terms = BARE,
    shape: Shape | None = None,
    components: tuple[Component, ...] = MODEL,
    usable_bytes: float = 1e9,
    branches_together: bool = False,
    work: DenoiseWork = WORK,
    **options: object,
) -> MemoryTable:
    chosen = Options(**options)
    engine = SimpleNamespace(
        engine="vllm-omni", date="", options=chosen, residency=None, patch_warmup_steps=None
    )
    machine = SimpleNamespace(usable_bytes=usable_bytes, gpus_per_node=8)
    return memory(
        components, work, shape or shape_of(), Layouts.of(configs), vae=VAE, behaviour=engine,
        system=machine, terms=terms, branches_together=branches_together,
    )  # fmt: skip


def weights_of(table: MemoryTable, phase: str = "load", row: int = 0) -> dict[str, float]:
    values = table.parts_bytes[PHASES.index(phase), :3, row]
    return dict(zip(PARTS[:3], values.tolist(), strict=True))


def test_one_device_holds_every_parameter_at_its_width() -> None:
    held = weights_of(table_of(ParallelConfig()))
    dit = BLOCKS * BLOCK_PARAMS + OUTSIDE
    assert held == {"weights": 2 * 2 * dit, "text_encoder": 2 * 300_000, "vae": 4 * 50_000}


@pytest.mark.parametrize("axis", ["cfg", "ulysses", "ring", "allgather", "dp", "vae_patch"])
def test_axes_that_share_no_weights(axis: str) -> None:
    assert weights_of(table_of(ParallelConfig(**{axis: 2}))) == weights_of(
        table_of(ParallelConfig())
    )


def test_tensor_parallelism_divides_its_layers_only() -> None:
    held = weights_of(table_of(ParallelConfig(tp=4)))
    dit = BLOCKS * BLOCK_PARAMS + OUTSIDE
    assert held["weights"] == pytest.approx(2 * 2 * (dit - TP_PARAMS * 3 / 4))
    assert held["text_encoder"] == 2 * 300_000


def test_pipeline_gives_the_first_stage_the_larger_share_of_blocks() -> None:
    # 40 blocks over 16 stages: 3 on the first.
    held = weights_of(table_of(ParallelConfig(pp=16)))
    assert held["weights"] == pytest.approx(2 * 2 * (3 * BLOCK_PARAMS + OUTSIDE))


def test_weight_sharding_divides_all_of_the_denoiser_and_holds_full_blocks_while_it_runs() -> None:
    table = table_of(ParallelConfig(ulysses=4, hsdp=4))
    dit = BLOCKS * BLOCK_PARAMS + OUTSIDE
    assert weights_of(table)["weights"] == pytest.approx(2 * 2 * dit / 4)
    assert weights_of(table)["text_encoder"] == 2 * 300_000
    running = table.parts_bytes[PHASES.index("denoise"), PARTS.index("collectives"), 0]
    exchange = 2 * 2 * HIDDEN * shape_of().tokens / 4
    # Four full blocks, the parameters outside the blocks, and two copies of the exchanged q.
    assert running == pytest.approx(2 * (4 * BLOCK_PARAMS + OUTSIDE) + exchange)


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [("fp8", 8.0), ("nvfp4", 4.5), ("fp16", 16.0), ("int8wo", 8.0), ("fp6wo", 6.0), ("nf4", 4.5)],
)
def test_low_precision_covers_quantisable_parameters_only(dtype: str, bits: float) -> None:
    held = weights_of(table_of(ParallelConfig(), dtype=dtype))
    rest = BLOCKS * BLOCK_PARAMS + OUTSIDE - TP_PARAMS
    assert held["weights"] == pytest.approx(2 * (2 * rest + bits / 8 * TP_PARAMS))


def test_layerwise_offload_leaves_two_blocks_of_each_expert_and_pins_the_rest_on_every_rank() -> (
    None
):
    table = table_of(ParallelConfig(ulysses=2), offload="layerwise")
    assert weights_of(table)["weights"] == pytest.approx(2 * 2 * (2 * BLOCK_PARAMS + OUTSIDE))
    assert table.pinned_bytes[0] == pytest.approx(2 * (2 * 2 * BLOCKS * BLOCK_PARAMS))


@pytest.mark.parametrize(
    ("layout", "shares"),
    [(ParallelConfig(ulysses=4), 4), (ParallelConfig(dp=2, ulysses=2), 2), (ParallelConfig(), 1)],
)
def test_gathered_offload_shares_two_blocks_and_pins_each_block_once(layout, shares) -> None:
    """Experts take turns in two blocks and, where ranks share, in two shares of one."""
    table = table_of(layout, offload="layerwise-gather")
    buffers = 2 * BLOCK_PARAMS * (1 + (1 / shares if shares > 1 else 0))
    assert weights_of(table)["weights"] == pytest.approx(2 * (buffers + 2 * OUTSIDE))
    copies = layout.world_size / shares
    assert table.pinned_bytes[0] == pytest.approx(copies * 2 * 2 * BLOCKS * BLOCK_PARAMS)


def test_patches_in_a_pipeline_keep_the_keys_and_values_of_all() -> None:
    engine = SimpleNamespace(
        engine="xdit", date="", options=Options(), residency=None, patch_warmup_steps=1
    )
    plain = SimpleNamespace(**{**vars(engine), "patch_warmup_steps": None})
    layouts = Layouts.of([ParallelConfig(pp=2, ulysses=2), ParallelConfig()])
    held = [
        memory(MODEL, WORK, shape_of(), layouts, vae=VAE, behaviour=one, system=MACHINE)
        for one in (engine, plain)
    ]
    row = (PHASES.index("denoise"), PARTS.index("activations"))
    more = held[0].parts_bytes[row] - held[1].parts_bytes[row]
    tokens = -(-shape_of().tokens // 2)
    assert more == pytest.approx([-(-BLOCKS // 2) * tokens * 2 * 8 * 8 * 2.0, 0.0])


def test_model_offload_keeps_one_of_encoder_and_experts_at_a_time() -> None:
    table = table_of(ParallelConfig(), offload="model")
    dit = BLOCKS * BLOCK_PARAMS + OUTSIDE
    assert weights_of(table, "text_encode") == {
        "weights": 0.0, "text_encoder": 600_000.0, "vae": 200_000.0,
    }  # fmt: skip
    assert weights_of(table, "denoise") == {
        "weights": 2.0 * dit, "text_encoder": 0.0, "vae": 200_000.0,
    }  # fmt: skip
    assert table.pinned_bytes[0] == 2 * (300_000 + 2 * dit)


def test_untiled_decode_is_one_map_and_its_clip() -> None:
    table = table_of(ParallelConfig())
    clip = 17 * 640 * 384 * 3 * 2
    live = table.parts_bytes[PHASES.index("vae_decode"), PARTS.index("activations"), 0]
    assert live == 100 * 48 * 80 + clip


def test_tiles_cover_the_map_with_the_overlap_of_the_engine() -> None:
    # vLLM-Omni cuts 1280x720 into 4 x 7 tiles that sum to 1.6467 of the map.
    (rows, high), (columns, wide) = _covered(720, VAE), _covered(1280, VAE)
    assert (int(rows), int(columns)) == (4, 7)
    assert high * wide / (720 * 1280) == pytest.approx(1.6467, abs=1e-4)


def test_patch_parallel_decode_gathers_padded_tiles_of_all_ranks_everywhere() -> None:
    # 640x384 at stride 192: 2 x 4 tiles of 256 px; 4 ranks hold 2 each.
    table = table_of(ParallelConfig(ulysses=4, vae_patch=4))
    tile = 17 * 256 * 256 * 3 * 2
    row = table.parts_bytes[PHASES.index("vae_decode"), :, 0]
    assert row[PARTS.index("collectives")] == 4 * 2 * tile
    clip = 17 * 640 * 384 * 3 * 2
    assert row[PARTS.index("activations")] == max(2 * 2 * tile + 100 * 32 * 32, 4 * clip)


def test_no_encode_phase_without_a_condition_image() -> None:
    without, image = (
        table_of(ParallelConfig()),
        table_of(ParallelConfig(), shape=shape_of(condition_frames=1)),
    )
    phase = PHASES.index("vae_encode")
    assert without.by_phase_bytes[phase, 0] == 0
    clip = 640 * 384 * 3 * 2
    assert image.parts_bytes[phase, PARTS.index("activations"), 0] == 640 * 384 + 2 * clip


@settings(deadline=None, max_examples=40)
@given(rows=st.lists(configs, min_size=1, max_size=6), dtype=st.sampled_from(["bf16", "fp8"]))
def test_columns_equal_one_by_one_and_parts_sum_to_the_peak(
    rows: list[ParallelConfig], dtype: str
) -> None:
    together = table_of(*rows, terms=TERMS, dtype=dtype)
    for index, config in enumerate(rows):
        alone = table_of(config, terms=TERMS, dtype=dtype)
        assert together.parts_bytes[:, :, index] == pytest.approx(alone.parts_bytes[:, :, 0])
        assert together.host_bytes[index] == pytest.approx(alone.host_bytes[0])
        assert together.upper_bytes[index] >= together.peak_bytes[index]
    assert together.peak_parts_bytes.sum(axis=0) == pytest.approx(
        together.by_phase_bytes.max(axis=0)
    )
    assert np.all(together.parts_bytes >= 0)
    assert np.all(together.required_bytes <= together.peak_bytes)


@settings(deadline=None, max_examples=40)
@given(base=configs, axis=st.sampled_from(["tp", "hsdp", "pp"]))
def test_weights_never_grow_with_a_sharding_degree(base: ParallelConfig, axis: str) -> None:
    table = table_of(*(replace(base, **{axis: degree}) for degree in (1, 2, 4, 8)))
    held = table.parts_bytes[0, :3].sum(axis=0)
    assert np.all(np.diff(held) <= 1e-9 * held[0])


@pytest.mark.parametrize("config", [
    ParallelConfig(), ParallelConfig(ulysses=4), ParallelConfig(vae_tiling=True),
    ParallelConfig(cfg=2, ulysses=2, vae_patch=4), ParallelConfig(ulysses=4, hsdp=4),
])  # fmt: skip
def test_more_frames_pixels_or_outputs_never_need_less(config: ParallelConfig) -> None:
    def peak(**changes: object) -> float:
        return float(table_of(config, terms=TERMS, shape=shape_of(**changes)).peak_bytes[0])  # type: ignore[arg-type]

    for name, values in (
        ("frames", (1, 5, 17, 49, 97, 193)),
        ("width", (128, 256, 512, 1024)),
        ("height", (128, 256, 512, 1024)),
        ("batch", (1, 2, 4)),
    ):
        sizes = [peak(**{name: value}) for value in values]
        assert all(low <= high for low, high in pairwise(sizes)), (name, sizes)


def test_branches_that_run_as_one_batch_are_alive_together() -> None:
    configs = (ParallelConfig(), ParallelConfig(cfg=2))

    def activations(shape: Shape, *, together: bool) -> list[float]:
        table = table_of(*configs, shape=shape, branches_together=together)
        row = table.parts_bytes[PHASES.index("denoise"), PARTS.index("activations")]
        latents = 8 * 4.0 * float(WORK.velocity_elements)
        return (row - latents).tolist()

    one, other = activations(shape_of(), together=False)
    assert activations(shape_of(), together=True) == pytest.approx([2 * one, other])
    alone = shape_of(branches=1, forwards=30, guidance=1.0)
    assert activations(alone, together=True) == pytest.approx([one, other])


def test_more_sequence_ranks_never_need_more_in_the_denoiser() -> None:
    long = shape_of(frames=193, width=1280, height=768)
    table = table_of(*(ParallelConfig(ulysses=n) for n in (2, 4, 8)), shape=long)
    live = table.parts_bytes[PHASES.index("denoise"), PARTS.index("activations")]
    assert np.all(np.diff(live) <= 0)


def test_one_rank_has_no_communicator_and_reserved_leaves_out_the_driver() -> None:
    terms = replace(BARE, context_bytes=7e6, communicator_bytes=1e6, peer_bytes=1e5)
    table = table_of(ParallelConfig(), ParallelConfig(ulysses=4), terms=terms)
    # World and Ulysses group of four ranks: two communicators with three peers each.
    assert table.outside_bytes.tolist() == [7e6, 7e6 + 2 * 1.3e6]
    assert table.reserved_bytes == pytest.approx(table.peak_bytes - table.outside_bytes)


def test_status_is_tight_when_only_slack_or_the_upper_end_is_too_much() -> None:
    terms = replace(BARE, vae_slack_frac=1.0, upper_frac=0.5)
    table = table_of(ParallelConfig(), terms=terms)
    required, upper = float(table.required_bytes[0]), float(table.upper_bytes[0])
    assert required < table.peak_bytes[0] < upper
    for usable, status in ((required - 1, NO), (required + 1, TIGHT), (upper + 1, FITS)):
        found = table_of(ParallelConfig(), terms=terms, usable_bytes=usable)
        assert found.fit_status[0] == status
        assert found.fits[0] == (status != NO)
    assert STATUS == ("fits", "tight", "no")


def test_nearest_miss_names_phase_part_and_excess() -> None:
    layouts = Layouts.of([ParallelConfig(), ParallelConfig(ulysses=2), ParallelConfig(tp=2)])
    table = table_of(*(layouts.row(i) for i in range(3)), usable_bytes=1e6)
    miss = nearest_miss(table, layouts)
    assert miss.config == ParallelConfig(tp=2)
    assert miss.phase == PHASES[int(table.peak_phase[2])]
    assert miss.over_bytes == pytest.approx(table.required_bytes[2] - 1e6)
    assert miss.weights_alone
    small = replace(DIT, params=10, block_params=0, blocks=0, tp_params=0, quantizable_params=0)
    rows = Layouts.of([ParallelConfig()])
    video = nearest_miss(table_of(ParallelConfig(), components=(small,), usable_bytes=1e6), rows)
    assert (video.phase, video.part, video.weights_alone) == ("vae_decode", "activations", False)
    assert video.needs[0] == "vae_tiling"


def test_remedies_start_with_the_least_change_and_give_host_memory() -> None:
    layouts = Layouts.of([ParallelConfig()])

    def estimate(options: Options, usable_bytes: float) -> MemoryTable:
        return table_of(ParallelConfig(), usable_bytes=usable_bytes, **options.model_dump())

    plain = table_of(ParallelConfig())
    decode = PHASES.index("vae_decode")
    assert plain.peak_phase[0] == decode
    less = min(
        (
            table_of(ParallelConfig(), offload="text-encoder", vae_tiling=tiling)
            for tiling in ("auto", "on")
        ),
        key=lambda table: float(table.required_bytes[0]),
    )
    changed = table_of(ParallelConfig(), offload="model")
    assert less.required_bytes[0] > changed.required_bytes[0]
    between = float(less.required_bytes[0] + changed.required_bytes[0]) / 2
    found = remedies(lambda options: estimate(options, between), layouts, Options())
    assert [remedy.change for remedy in found] == ["offload=model"]
    assert found[0].host_bytes == pytest.approx(float(changed.host_bytes[0]))
    assert found[0].status == "fits"
    assert remedies(lambda options: estimate(options, 10.0), layouts, Options()) == ()


def test_terms_are_named_bounded_and_say_what_they_rest_on() -> None:
    known = set(Terms.__dataclass_fields__)
    for name, term in FILE["terms"].items():
        assert name in known
        assert term["low"] <= term["value"] <= term["high"]
        assert term["provenance"] in ("measured", "fitted", "prior", "datasheet")
        assert term["evidence"]
    about = {"since", "until", "offload", "source"}
    for changes in FILE["engines"].values():
        for change in changes:
            assert set(change) <= known | about
            assert change["source"]


def test_dated_facts_hold_from_their_day() -> None:
    before = resolve(FILE, "vllm-omni", "2026-08-30")
    assert (before.uint8_on_device, resolve(FILE, "vllm-omni").uint8_on_device) == (False, True)
    assert resolve(FILE, "unknown-engine") == resolve(FILE, "none")
