"""Memory of plain diffusers modules: a forward replayed on meta tensors, model offload's hooks."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from perfmodel import catalog
from perfmodel.api.session import Session, open_session
from perfmodel.api.table import memory_of
from perfmodel.memory import NO, PARTS, PHASES
from perfmodel.memory.denoise import denoise
from perfmodel.memory.terms import load_terms
from perfmodel.spec.parallel import Layouts, ParallelConfig
from perfmodel.spec.workload import Options, Workload
from perfmodel.units import GIB

diffusers = pytest.importorskip("diffusers")
ONE = Layouts.of([ParallelConfig()])
BF16 = torch.bfloat16


class Alive(TorchDispatchMode):
    """Bytes of the storages that live at a time, those of `known` tensors left out."""

    def __init__(self, known):
        super().__init__()
        self.now = self.peak = 0
        self.seen = {t.untyped_storage()._cdata for t in known}

    def _note(self, value):
        if not isinstance(value, torch.Tensor):
            return
        storage = value.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self.seen:
            self.seen.add(key)
            self.now += size
            weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key, size):
        self.seen.discard(key)
        self.now -= size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        tree_map(self._note, out)
        self.peak = max(self.peak, self.now)
        return out


def empty(*sides, dtype=BF16):
    return torch.empty(*sides, dtype=dtype, device="meta")


def flux(tokens=4096, text=512):
    model = diffusers.FluxTransformer2DModel(
        num_layers=2, num_single_layers=2, guidance_embeds=True
    )
    return model, {
        "hidden_states": empty(1, tokens, 64),
        "encoder_hidden_states": empty(1, text, 4096),
        "pooled_projections": empty(1, 768),
        "timestep": empty(1),
        "img_ids": empty(tokens, 3),
        "txt_ids": empty(text, 3),
        "guidance": empty(1, dtype=torch.float32),
    }


def qwen():
    return diffusers.QwenImageTransformer2DModel(num_layers=2), {
        "hidden_states": empty(1, 4096, 64),
        "encoder_hidden_states": empty(1, 512, 3584),
        "encoder_hidden_states_mask": None,
        "timestep": empty(1),
        "img_shapes": [(1, 64, 64)],
    }


def wan():
    return diffusers.WanTransformer3DModel(num_layers=2), {
        "hidden_states": empty(1, 16, 21, 60, 104),
        "encoder_hidden_states": empty(1, 512, 4096),
        "timestep": empty(1, dtype=torch.int64),
    }


MODULES = [
    (flux, "flux.1-dev", {"width": 1024, "height": 1024}),
    (lambda: flux(16384), "flux.1-dev", {"width": 2048, "height": 2048}),
    (qwen, "qwen-image", {"width": 1024, "height": 1024}),
    (wan, "wan2.1-t2v-14b", {"width": 832, "height": 480, "frames": 81}),
]


def session(slug: str, gpus: str = "1xRTX4090", offload: str = "model", **work) -> Session:
    options = Options(offload=offload)
    asked = Workload(model=slug, **work)
    return open_session(asked, catalog.parse_gpus(gpus), engine="diffusers", options=options)


@pytest.mark.parametrize(("build", "slug", "work"), MODULES)
def test_a_forward_holds_what_its_replay_holds(build, slug, work, monkeypatch):
    def attend(query, key, value, *args, **kwargs):  # a fused kernel writes its output alone
        return torch.empty_like(query)

    monkeypatch.setattr(F, "scaled_dot_product_attention", attend)
    with torch.device("meta"):
        model, inputs = build()
        model = model.to(BF16).eval()
        given = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
        alive = Alive([*model.parameters(), *model.buffers(), *given])
        with alive, torch.no_grad():
            model(**inputs, return_dict=False)
    asked = session(slug, **work)
    job = asked.job
    family_work = job.family.denoise(job.model, job.shape, job.behaviour.traits)
    live = denoise(family_work, job.shape, ONE, load_terms("diffusers"), 1)
    assert float(live.activations[0]) == pytest.approx(alive.peak, rel=0.12)


def test_one_forward_of_flux_peaks_as_measured():
    # https://huggingface.co/datasets/diffusers/benchmarks, FLUX.1-dev bf16 on an L40S: 22.64 GiB
    # allocated with the transformer alone, 4,096 image and 512 text tokens
    job = session("flux.1-dev", width=1024, height=1024).job
    (transformer,) = [c for c in job.family.components(job.model) if c.kind == "transformer"]
    work = job.family.denoise(job.model, job.shape, job.behaviour.traits)
    terms = load_terms("diffusers")
    live = float(denoise(work, job.shape, ONE, terms, 1).activations[0])
    allocated = transformer.params * transformer.bits / 8 + live + terms.workspace_bytes
    assert allocated / GIB == pytest.approx(22.64, rel=0.01)


def test_flux_runs_on_a_card_of_24_gb_with_model_offload():
    asked = session("flux.1-dev", width=1024, height=1024)
    table = memory_of(asked, ONE)
    assert table.fit_status[0] != NO
    # nearly all of the card is taken: the transformer alone weighs 22.17 GiB
    assert 22.9 < float(table.required_bytes[0]) / GIB < 23.52
    resident = session("flux.1-dev", offload="none", width=1024, height=1024)
    assert memory_of(resident, ONE).fit_status[0] == NO


@pytest.mark.parametrize(
    ("slug", "phases"),
    [
        ("flux.1-dev", {"vae_decode"}),
        # image to video: the VAE encodes before the denoiser, and no hook sends it back
        ("wan2.1-i2v-14b", {"vae_encode", "denoise", "vae_decode"}),
    ],
)
def test_model_offload_of_diffusers_brings_the_vae_when_it_runs(slug, phases):
    asked = session(slug, gpus="1xH200")
    table = memory_of(asked, ONE)
    vae = table.parts_bytes[:, PARTS.index("vae"), 0]
    assert {phase for phase, held in zip(PHASES, vae, strict=True) if held > 0} == phases
    kept = memory_of(session(slug, gpus="1xH200", offload="none"), ONE)
    always = kept.parts_bytes[:, PARTS.index("vae"), 0]
    assert np.all(always[[p != "vae_encode" or p in phases for p in PHASES]] > 0)
