"""Laws that hold for every kind of VAE: columns, growth, temporal tiles, strict description."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from vae_specs import IMAGE_KINDS, SPECS

from perfmodel.catalog import load_model
from perfmodel.ops import Conv, Op, Pointwise, flops
from perfmodel.spec.vae import READ_BY, VaeSpec
from perfmodel.stages import vae as dispatch
from perfmodel.stages.base import Traits
from perfmodel.stages.vae.hunyuan import pieces

NAMES = sorted(SPECS)
CHUNKED = ("wan", "qwen_image")  # chunks of the Wan kind are counted, their frames never vary


def work(op: Op) -> np.ndarray:
    each = op.bytes_moved if isinstance(op, Pointwise) else flops(op)
    return np.asarray(each, float) * np.asarray(op.count)


def decode(spec: VaeSpec, frames: Any, height: Any, width: Any) -> tuple[Op, ...]:
    return dispatch.kind(spec).decode(spec, frames, height, width, Traits())


def encode(spec: VaeSpec, frames: Any, height: Any, width: Any) -> tuple[Op, ...]:
    return dispatch.kind(spec).encode(spec, frames, height, width, Traits())


sizes = st.lists(
    st.tuples(st.integers(1, 40), st.integers(1, 30), st.integers(1, 30)), min_size=2, max_size=3
)


@pytest.mark.parametrize("name", NAMES)
@given(rows=sizes)
@settings(max_examples=15, deadline=None)
def test_columns_are_the_single_maps(name: str, rows: list[tuple[int, int, int]]) -> None:
    spec = SPECS[name]
    side = spec.spatial_ratio
    for run, scale in ((decode, 1), (encode, side)):
        shapes = [(1 if spec.kind in IMAGE_KINDS else t, h * scale, w * scale) for t, h, w in rows]
        columns = run(spec, *np.array(shapes, np.int64).T)
        for number, shape in enumerate(shapes):
            single = run(spec, *shape)
            assert [op.name for op in single] == [op.name for op in columns]
            for one, many in zip(single, columns, strict=True):
                column = np.broadcast_to(work(many), (len(shapes),))
                assert column[number] == pytest.approx(float(work(one)), rel=1e-12)


@pytest.mark.parametrize("name", NAMES)
@given(
    frames=st.integers(1, 12), height=st.integers(2, 30), width=st.integers(2, 30),
    grow=st.integers(1, 6),
)  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_memory_and_work_grow_with_the_map(
    name: str, frames: int, height: int, width: int, grow: int
) -> None:
    spec = SPECS[name]
    kind = dispatch.kind(spec)
    frames = 1 if spec.kind in IMAGE_KINDS else frames
    small = kind.decode_peak_bytes(spec, frames, height, width)
    assert kind.decode_peak_bytes(spec, frames, height + grow, width) > small > 0
    side = spec.spatial_ratio
    first = kind.encode_peak_bytes(spec, frames, height * side, width * side)
    wider = kind.encode_peak_bytes(spec, frames, height * side, (width + grow) * side)
    assert wider > first > 0
    convolutions = [
        sum(float(work(op)) for op in decode(spec, frames, height, w) if isinstance(op, Conv))
        for w in (width, width + grow)
    ]
    # Every map is as wide as its latent, so work is exactly proportional.
    assert convolutions[1] * width == pytest.approx(convolutions[0] * (width + grow), rel=1e-9)


@given(frames=st.integers(1, 200), stride=st.integers(1, 12), overlap=st.integers(1, 5))
def test_temporal_tiles_are_those_of_the_loop(frames: int, stride: int, overlap: int) -> None:
    # The last two tiles may be short: the overlap is at most a step, as in the published VAE.
    size = stride + min(overlap, stride) + 1
    starts = range(0, frames, stride) if frames > size - 1 else range(1)
    longest = size - 1
    lengths = sorted(min(size, frames - start) for start in starts)
    found = pieces(frames, size, stride, longest)
    ours = sorted(n for piece in found for n in [int(piece.frames)] * int(piece.count))
    assert ours == lengths


def test_every_kind_has_a_module() -> None:
    kinds = set(get_args(VaeSpec.model_fields["kind"].annotation))
    assert kinds == set(dispatch.KINDS)
    # Traced ones are compared with their classes in test_models_traced.py.
    assert kinds == {spec.kind for spec in SPECS.values()} | {"wan", "traced"}
    assert {kind for readers in READ_BY.values() for kind in readers} <= kinds


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        ("kl2d", "temporal", (True, True, True)),
        ("flux2", "quant_convs", True),
        ("wan", "layers", (1, 2)),
        ("hunyuanvideo15", "tile_frames", 16),
        ("hunyuanvideo", "tile_frames", 16),  # without its stride
        ("hunyuanvideo15", "temporal", (True,)),
        ("ltx2", "layers", (1,)),
        ("mochi", "temporal_steps", (1, 2)),
        ("dcae", "attention_levels", (True,)),
        ("vq", "z_channels", 4),
    ],
)
def test_a_field_that_a_kind_cannot_use_is_refused(kind: str, field: str, value: Any) -> None:
    base = {"name": "x", "z_channels": 16, "encoder_width": 128, "decoder_width": 128}
    with pytest.raises(ValidationError):
        VaeSpec(**{**base, "spatial_ratio": 8, "temporal_ratio": 4, "kind": kind, field: value})


@pytest.mark.parametrize("name", NAMES)
def test_a_model_reaches_its_kind(name: str) -> None:
    model = load_model("wan2.1-t2v-1.3b").model_copy(update={"vae": SPECS[name]})
    kind = dispatch.kind(SPECS[name])
    assert dispatch.decode(model, 1, 4, 6, Traits()) == decode(SPECS[name], 1, 4, 6)
    side = 4 * SPECS[name].spatial_ratio
    assert dispatch.encode(model, 1, side, side, Traits()) == encode(SPECS[name], 1, side, side)
    component = dispatch.component(model)
    assert component.params == sum(kind.params(SPECS[name]))
    assert component.when == ("vae_encode", "vae_decode")
    peak = kind.decode_peak_bytes(SPECS[name], 1, 4, 6)
    assert dispatch.decode_peak_bytes(model, 1, 4, 6) == peak
    peak = kind.encode_peak_bytes(SPECS[name], 1, side, side)
    assert dispatch.encode_peak_bytes(model, 1, side, side) == peak


def test_the_fast_path_of_wan_leaves_the_same_network_elsewhere_alone() -> None:
    spec = SPECS["qwen-image-vae"]
    fast = Traits(vae_fast_path="lossless")
    assert dispatch.kind(spec).decode(spec, 1, 16, 16, fast) == decode(spec, 1, 16, 16)
    wan = VaeSpec(**{**spec.model_dump(exclude_unset=True), "kind": "wan"})
    assert dispatch.kind(wan).decode(wan, 1, 16, 16, fast) != decode(wan, 1, 16, 16)


def test_a_masked_attention_costs_quadratic_traffic() -> None:
    # HunyuanVideo builds a mask of all pairs of positions of a tile; the rest is linear.
    def mask_bytes(side: int) -> float:
        ops = decode(SPECS["hunyuanvideo-vae"], 5, side, side)
        return sum(float(work(op)) for op in ops if op.name.startswith("decode last tile: att")
                   and "mask" in op.name)  # fmt: skip

    tokens = 2 * 16 * 16  # the last tile of five latent frames has two
    assert mask_bytes(16) == pytest.approx(12 * tokens**2)
    assert mask_bytes(32) == pytest.approx(16 * mask_bytes(16))


def test_the_mask_of_hunyuanvideo_1_5_is_opened_row_by_row() -> None:
    ops = decode(SPECS["hunyuanvideo-1.5-vae"], 3, 5, 4)
    (row,) = [op for op in ops if "mask row" in op.name]
    tokens = 3 * 5 * 4
    # A row sees half of the positions on average, two bytes each.
    assert (row.count, row.launches) == (tokens, 1)
    assert float(work(row)) == tokens * (tokens / 2) * 2
