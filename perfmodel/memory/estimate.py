"""Compose weights, activations, VAE and runtime into a `MemoryTable`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from perfmodel.engines.base import Behaviour
from perfmodel.memory import vae as vae_model
from perfmodel.memory.denoise import denoise, text_live
from perfmodel.memory.residency import Share, encoder_shares, is_separate_encoder, model_terms
from perfmodel.memory.table import PARTS, WEIGHTS, MemoryTable
from perfmodel.memory.terms import Terms, load_terms
from perfmodel.memory.vae import VaeMemory
from perfmodel.memory.weights import (
    PHASES,
    QUANTIZED_BITS,
    Held,
    held,
    in_denoiser,
    loaded_bits,
    offloaded,
    one_at_a_time,
)
from perfmodel.ops import Ints, Op
from perfmodel.placement.guidance import together
from perfmodel.placement.patches import cache_bytes
from perfmodel.placement.sequence import local_tokens
from perfmodel.shapes import Shape
from perfmodel.spec.hardware import System
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.workload import Options
from perfmodel.stages.base import Component, DenoiseWork
from perfmodel.units import BITS_PER_BYTE

Column = NDArray[np.float64]
COLUMN_OF = {"text_encoder": "text_encoder", "vae": "vae"}


@dataclass(slots=True)
class _Sheet:
    """Bytes under construction."""

    parts: NDArray[np.float64]
    slack: Column

    def add(self, phase: str, part: str, value: Column) -> None:
        self.parts[PHASES.index(phase), PARTS.index(part)] += value

    def drop(self, phase: str) -> None:
        """The phase does not exist for this request."""
        self.parts[PHASES.index(phase)] = 0.0
        self.slack[PHASES.index(phase)] = 0.0

    def add_slack(self, phase: str, value: Column) -> None:
        self.add(phase, "runtime", value)
        self.slack[PHASES.index(phase)] += value


def memory(
    components: tuple[Component, ...],
    work: DenoiseWork,
    shape: Shape,
    layouts: Layouts,
    *,
    vae: VaeMemory,
    behaviour: Behaviour,
    system: System,
    text_ops: tuple[Op, ...] = (),
    terms: Terms | None = None,
    branches_together: bool = False,
    beside_bytes: float = 0.0,
) -> MemoryTable:
    """Memory of every configuration, on the rank that needs most.

    Args:
        components: weights by module (``Family.components``).
        work: unsharded operators of the denoise stage.
        shape: the request.
        layouts: configurations.
        vae: facts of the VAE (`vae_memory`).
        behaviour: resolved engine behaviour; its ``options`` hold dtype, offload and tiling.
        system: usable bytes and devices of a host.
        text_ops: operators of text encoding.
        branches_together: a rank runs its guidance branches as one batch.
        beside_bytes: what another process holds on the first device, without its context.
        terms: named terms; None reads the shipped ones for the engine and its date.

    Returns:
        Bytes by phase, part and configuration, and what follows from them.
    """
    options = behaviour.options
    if terms is None:
        terms = load_terms(behaviour.engine, behaviour.date, options.offload)
    terms = model_terms(terms, behaviour.residency)
    shares = encoder_shares(components, layouts, options.dtype, terms, behaviour.residency, system)
    count = len(layouts)
    sheet = _Sheet(np.zeros((len(PHASES), len(PARTS), count)), np.zeros((len(PHASES), count)))
    conditioned = bool(np.any(np.asarray(shape.condition_frames) > 0))
    host, loading = _weights(sheet, components, layouts, options, terms, shares, conditioned)
    denoised = together(shape, layouts) if branches_together else shape
    _denoiser(sheet, work, denoised, layouts, behaviour, terms, shape.batch)
    sheet.add("text_encode", "activations", text_live(text_ops, layouts))
    _vae(sheet, vae, shape, layouts, options, terms)
    beside = beside_bytes + terms.context_bytes if beside_bytes else 0.0
    outside = _outside(sheet, layouts, terms, beside)
    if not conditioned:
        sheet.drop("vae_encode")
    per_host = np.minimum(layouts.world_size, system.gpus_per_node)
    return MemoryTable(
        parts_bytes=sheet.parts,
        slack_bytes=sheet.slack,
        outside_bytes=outside,
        host_bytes=per_host * (terms.worker_host_bytes + np.maximum(host, loading)),
        pinned_bytes=per_host * host,
        upper_bytes=_upper(sheet.parts, terms),
        capacity_bytes=float(system.usable_bytes),
    )


def _stale(work: DenoiseWork, shape: Shape, layouts: Layouts) -> Column:
    """Keys and values of all patches in the blocks of a pipeline stage."""
    tokens = local_tokens(shape.tokens, layouts) * np.asarray(shape.batch, np.float64)
    return cache_bytes(work.blocks, work.kv_heads * work.head_dim, tokens, layouts)


def _denoiser(
    sheet: _Sheet,
    work: DenoiseWork,
    shape: Shape,
    layouts: Layouts,
    behaviour: Behaviour,
    terms: Terms,
    outputs: Ints,
) -> None:
    """Add what the denoiser holds beside its weights."""
    live = denoise(work, shape, layouts, terms, outputs)
    for part, value in (
        ("activations", live.activations),
        ("collectives", live.collectives),
        ("workspace", live.workspace),
    ):
        sheet.add("denoise", part, value)
    sheet.add_slack("denoise", terms.denoise_slack_frac * (live.activations + live.collectives))
    if behaviour.patch_warmup_steps is not None:
        sheet.add("denoise", "activations", _stale(work, shape, layouts))


def _vae(
    sheet: _Sheet,
    vae: VaeMemory,
    shape: Shape,
    layouts: Layouts,
    options: Options,
    terms: Terms,
) -> None:
    """Add what both passes of the VAE hold beside its weights."""
    vae = vae_model.with_bits(vae, terms.vae_bits)
    for phase, passes in (("vae_encode", vae_model.encode), ("vae_decode", vae_model.decode)):
        result = passes(vae, shape, layouts, options, terms)
        sheet.add(phase, "activations", result.activations)
        sheet.add(phase, "collectives", result.collectives)
        sheet.add_slack(phase, result.slack)


def _weights(
    sheet: _Sheet,
    components: tuple[Component, ...],
    layouts: Layouts,
    options: Options,
    terms: Terms,
    shares: Sequence[Share],
    conditioned: bool,
) -> tuple[Column, Column]:
    """Add the weights of all phases; returns host bytes of one rank while running and loading.

    `conditioned`: the VAE encodes before the denoiser runs.
    """
    offload = options.offload
    parts = [held(component, layouts, options.dtype, offload, terms) for component in components]
    swapped = [
        index
        for index, component in enumerate(components)
        if offload == "model" and offloaded(component, offload)
    ]
    residents = [part.resident * share.device for part, share in zip(parts, shares, strict=True)]
    for index, value in zip(
        swapped, one_at_a_time([residents[index] for index in swapped]), strict=True
    ):
        residents[index] = value
    for component, resident in zip(components, residents, strict=True):
        if component.kind == "vae" and offload == "model" and terms.offload_moves_vae:
            resident[[phase not in _with_vae(conditioned) for phase in PHASES]] = 0.0
        row = PARTS.index(COLUMN_OF.get(component.kind, "weights"))
        sheet.parts[:, row] += resident
    if terms.quantizes_on_device and options.dtype in QUANTIZED_BITS:
        _wide_load(sheet, components, layouts, terms)
    _gathered(sheet, components, parts, terms)
    for phase in PHASES:
        sheet.add(phase, "weights", np.max([part.buffers for part in parts], axis=0))
    separate = [
        loaded_bits(component, terms) / BITS_PER_BYTE * component.params
        for component in components
        if is_separate_encoder(component)
    ]
    hosted = (
        part.host + part.resident[PHASES.index("text_encode")] * share.host
        for part, share in zip(parts, shares, strict=True)
    )
    host = sum(hosted, np.zeros(len(layouts)))
    loading = sum((part.loading for part in parts), np.full(len(layouts), max(separate, default=0)))
    return host, loading


def _with_vae(conditioned: bool) -> tuple[str, ...]:
    """Phases with the VAE on the device, where model offload moves it too."""
    return ("vae_encode", "denoise", "vae_decode") if conditioned else ("vae_decode",)


def _wide_load(
    sheet: _Sheet, components: tuple[Component, ...], layouts: Layouts, terms: Terms
) -> None:
    """Quantisation on the device: while loading, all weights are there at full width."""
    sheet.parts[PHASES.index("load"), : len(WEIGHTS)] = 0.0
    for component in components:
        wide = held(component, layouts, "bf16", "none", terms).resident[PHASES.index("load")]
        sheet.add("load", COLUMN_OF.get(component.kind, "weights"), wide)


def _gathered(
    sheet: _Sheet, components: tuple[Component, ...], parts: list[Held], terms: Terms
) -> None:
    """Full blocks under weight sharding: live where they run, cached blocks afterwards."""
    for component, part in zip(components, parts, strict=True):
        if is_separate_encoder(component):
            sheet.add("text_encode", "collectives", part.gathered)
    inside = [
        part.gathered
        for component, part in zip(components, parts, strict=True)
        if in_denoiser(component)
    ]
    if inside:
        largest = np.max(np.stack(inside), axis=0)
        sheet.add("denoise", "collectives", largest)
        sheet.add_slack("vae_decode", terms.cached_frac * largest)


def _outside(sheet: _Sheet, layouts: Layouts, terms: Terms, beside: float) -> Column:
    """Add context, communicators and library workspace; returns what torch does not allocate.

    `beside`: bytes of another process on the first device, with its context.
    """
    context = np.full(len(layouts), terms.context_bytes + beside)
    communicators = _communicators(layouts, terms)
    for phase in PHASES:
        sheet.add(phase, "runtime", context)
        sheet.add(phase, "collectives", communicators)
    for phase in PHASES[1:]:
        sheet.add(phase, "workspace", np.full(len(layouts), terms.workspace_bytes))
    return context + communicators


def _communicators(layouts: Layouts, terms: Terms) -> Column:
    """Buffers of the communicators a rank belongs to: the world's and one for each axis."""
    total = np.zeros(len(layouts))
    for ranks in (
        layouts.world_size,
        layouts.ulysses,
        layouts.ring,
        layouts.tp,
        layouts.cfg,
        layouts.pp,
        layouts.hsdp,
    ):
        one = terms.communicator_bytes + terms.peer_bytes * (ranks - 1)
        total = total + np.where(ranks > 1, one, 0.0)
    return total


def _upper(parts: NDArray[np.float64], terms: Terms) -> Column:
    """Upper end of the 80 % range: weights are known, the rest is not."""
    weights = parts[:, WEIGHTS].sum(axis=1)
    phases = parts.sum(axis=1)
    return np.asarray((phases + terms.upper_frac * (phases - weights)).max(axis=0), np.float64)
