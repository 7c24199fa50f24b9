"""Models that make sound beside the video, against the diffusers classes of its parts."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from meta_modules import counted_calls, ids, tensor

from perfmodel.catalog import load_model
from perfmodel.spec.workload import Workload
from perfmodel.stages import family, ltx2_sound, ltx2_text, minimax_h3
from perfmodel.stages.base import Traits
from perfmodel.stages.summary import flops_by_kind

torch = pytest.importorskip("torch")
pytest.importorskip("diffusers")
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

LTX23 = dict(
    video_connector_num_attention_heads=32,
    video_connector_num_layers=8,
    video_gated_attn=True,
    audio_connector_num_attention_heads=32,
    audio_connector_attention_head_dim=64,
    audio_connector_num_layers=8,
    audio_gated_attn=True,
    per_modality_projections=True,
    proj_bias=True,
)
CONNECTORS: dict[str, dict[str, Any]] = {"ltx-2": {}, "ltx-2.3": LTX23}


@pytest.mark.parametrize("tokens", [256, 1024])
@pytest.mark.parametrize("slug", CONNECTORS)
def test_connectors_do_the_work_of_the_class(
    slug: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors

    model, calls = load_model(slug), counted_calls(monkeypatch)
    with torch.device("meta"):
        built = LTX2TextConnectors(**CONNECTORS[slug]).to(torch.bfloat16).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        built(tensor(1, tokens, 3840, 49), ids(1, tokens))
    mine = flops_by_kind(ltx2_text.connect(model, tokens, 1))
    assert mine["gemm"] == pytest.approx(counter.get_total_flops(), rel=1e-6)
    assert mine["attention"] == pytest.approx(sum(calls), rel=1e-6)
    assert ltx2_text.component(model).params == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize("frames", [26, 126, 251])
@pytest.mark.parametrize("widened", [False, True])
def test_sound_takes_the_work_of_the_classes(frames: int, widened: bool) -> None:
    from diffusers import AutoencoderKLLTX2Audio
    from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder, LTX2VocoderWithBWE

    with torch.device("meta"):
        sound = AutoencoderKLLTX2Audio().to(torch.bfloat16).eval()
        vocoder = LTX2VocoderWithBWE() if widened else LTX2Vocoder()
    vocoder = vocoder.to(device="meta", dtype=torch.bfloat16).eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        sound.decode(tensor(1, 8, frames, 16))
        vocoder(tensor(1, 2, ltx2_sound.mel_frames(frames), 64))
    mine = flops_by_kind(ltx2_sound.decode(frames, 1, widened=widened))
    assert sum(mine.values()) == pytest.approx(counter.get_total_flops(), rel=1e-6)
    parts = {part.name: part.params for part in ltx2_sound.components(widened=widened)}
    assert parts["audio_vae"] == sum(p.numel() for p in sound.parameters())
    assert parts["vocoder"] == sum(p.numel() for p in vocoder.parameters())


@pytest.mark.parametrize("seconds", [1, 5])
def test_sound_of_minimax_h3_takes_the_work_of_the_class(seconds: int) -> None:
    from diffusers import AutoencoderKLMiniMaxH3Audio

    model = load_model("minimax-h3")
    shape = family(model).shape(model, Workload(frames=24 * seconds), Traits())
    length = minimax_h3.sound_rows(model, shape) // 2
    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        built = AutoencoderKLMiniMaxH3Audio().eval()
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        built.decode(tensor(2, 32, length, dtype=torch.float32))
    mine = flops_by_kind(family(model).sound_decode(model, shape))
    assert sum(mine.values()) == pytest.approx(counter.get_total_flops(), rel=1e-6)
    parts = {part.name: part.params for part in family(model).components(model)}
    assert parts["audio_vae"] == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize(("frames", "ran", "latent"), [(1, 5, 2), (5, 5, 2), (120, 124, 37)])
def test_clips_of_minimax_h3_are_seventeen_frames_each_and_five(
    frames: int, ran: int, latent: int
) -> None:
    model = load_model("minimax-h3")
    shape = family(model).shape(model, Workload(frames=frames), Traits())
    assert (shape.frames, shape.latent_frames) == (ran, latent)
    # 896 x 512 pixels in 32 x 32 a token; two channels of sound, 40 a second; 256 of text.
    assert shape.tokens == latent * 16 * 28 + 2 * round(ran / 24 * 40) + 256
