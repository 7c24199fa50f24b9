"""Memory where tiles start: the first tile is a decode of its own size, whose blocks stay."""

from __future__ import annotations

import pytest

from perfmodel import Workload
from perfmodel.api.session import open_session
from perfmodel.api.table import memory_of
from perfmodel.spec.parallel import Layouts, parse_parallel


def peak_bytes(model: str, engine: str, config: str, **job: int) -> float:
    session = open_session(Workload(model=model, **job), "4xH100-SXM", engine=engine)
    return float(memory_of(session, Layouts.of([parse_parallel(config)[0]])).peak_bytes[0])


@pytest.mark.parametrize("config", ["tiling", "usp4_vaepp4"])
@pytest.mark.parametrize(
    "model",
    ["cosmos3-nano", "wan2.1-t2v-1.3b", "wan2.2-ti2v-5b", "hunyuanvideo", "hunyuanvideo-1.5"],
)
def test_a_larger_picture_takes_no_less_memory_where_its_decode_starts_to_be_tiled(model, config):
    """Tiles of 256 to 272 px; 256x256 is one map, of which a wider clip decodes several."""
    sides = range(224, 337, 16)
    peaks = [
        peak_bytes(model, "vllm-omni", config, width=side, height=side, frames=33) for side in sides
    ]
    assert peaks == sorted(peaks)


def test_tiles_lower_the_peak_of_a_large_picture():
    """What tiling is for: a fall between two ways to decode, not between two sizes."""
    job = {"width": 1280, "height": 720, "frames": 33}
    assert peak_bytes("wan2.1-t2v-1.3b", "vllm-omni", "tiling", **job) < peak_bytes(
        "wan2.1-t2v-1.3b", "vllm-omni", "single", **job
    )
