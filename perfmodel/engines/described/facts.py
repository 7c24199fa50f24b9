"""Facts about an engine as data: the models it runs, the axes that do something, its defaults.

vLLM-Omni has a folder of code of its own; the other engines differ from one another only in such
facts and in how they are started.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from perfmodel.engines.base import Commands, Context, Residency, Version
from perfmodel.engines.releases import Number, nearest_release, read_day, read_number, unread
from perfmodel.errors import BadInput, Problem
from perfmodel.spec.hardware import Device
from perfmodel.spec.parallel import ParallelConfig

AXES = ("cfg", "ulysses", "ring", "allgather", "tp", "pp", "hsdp", "vae_patch", "text_encoder_tp")
"""Axes that an engine may lack for a model (data parallelism is a second process everywhere)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """How an engine runs one model.

    Attributes:
        pipeline: class or script of the engine.
        axes: keys of `ParallelConfig` that do something.
        fused_qkv: q, k and v are one product.
        text_each_forward: the text tower of the denoiser runs again in every forward.
        whole_clip: image-to-video encodes the image repeated over all frames; None as the model.
        rounding: of frames; None as the model.
        text_bits, vae_bits: bits of an activation in the text encoder and in the VAE.
        encode_bits: the same in the VAE's encoder.
        vae_fast_path: fused VAE kernels by default.
        auto_pad: tokens that do not divide are padded.
        uneven: the exchange takes heads and shards that do not divide.
        pad_masked: padding builds an attention mask.
        banded_vae: a distributed decode cuts bands of rows, not tiles.
        tiles_over_ranks: of a decode that is told to tile, ranks share whole tiles all the same.
        vae_everywhere: every rank ends with the decoded clip.
        fused_blocks: hand-written fused kernels in place of chains of small ones.
        fused_norm_rope: norms, rotary embeddings and attention are kernels of their own, what is
            between them single torch operations (TransformerEngine's modules).
        compiled: blocks are compiled unless asked otherwise.
        compile_flag: it can be asked otherwise.
        offload_modes: offload options that exist.
        modulation_per_frame: modulation is projected once a frame, not for each token.
        closing_steps: steps on the clean result after the last.
        boundary_ratio: expert boundary that wins over the checkpoint's.
        flow_shift: shift of the schedule, where the engine's own differs from the catalogue's.
        text_split: sequence parallelism divides the text of a joint attention too.
        sound_reads: how sound reads the divided video (see `Traits`).
        valid_text_only: padded text is cut, or runs unmasked, in models that would mask it.
        residency: where weights are kept by default.
        sparse_attention: by backend name, the share of the query-key products that it computes.
        vae_tiled: a decode is tiled unless told otherwise.
        tiles_vae: one device can be told to decode tiles.
        streams_frames: frames go to the video encoder while the VAE decodes the next (on CUDA).
        timers_wait: stage timers wait for the device.
        runs_ahead: the host does not read results between steps, so that it runs ahead.
        encode_mode: how the ranks share an encode: ``tile``, ``band`` or ``whole``.
        vae_over_sequence: only the ranks of sequence parallelism share a decode.
        vae_autocast: the VAE runs under autocast, which computes norms in fp32.
        dtypes: of linears that the engine has for this model; None: as for its others.
    """

    pipeline: str
    axes: frozenset[str] = frozenset()
    fused_qkv: bool = False
    text_each_forward: bool = False
    whole_clip: bool | None = None
    rounding: str | None = None
    text_bits: int = 16
    vae_bits: int = 16
    encode_bits: int = 16
    vae_fast_path: str = "off"
    auto_pad: bool = True
    uneven: bool = False
    pad_masked: bool = False
    banded_vae: bool = False
    tiles_over_ranks: bool = False
    vae_everywhere: bool = False
    fused_blocks: bool = False
    fused_norm_rope: bool = False
    compiled: bool = False
    compile_flag: bool = True
    offload_modes: tuple[str, ...] = ("none",)
    boundary_ratio: float | None = None
    flow_shift: float | None = None
    modulation_per_frame: bool = False
    closing_steps: int = 0
    text_split: bool = False
    sound_reads: str = "exchange"
    valid_text_only: bool = False
    residency: Residency | None = None
    vae_tiled: bool = False
    tiles_vae: bool = True
    sparse_attention: Mapping[str, float] = field(default_factory=dict)
    streams_frames: bool = False
    timers_wait: bool = True
    runs_ahead: bool = True
    encode_mode: Literal["tile", "band", "whole"] = "tile"
    vae_over_sequence: bool = False
    vae_autocast: bool = False
    dtypes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What releases before a day did differently.

    Attributes:
        before: the day of the first release that does it as `Facts.models` says.
        models: slug pattern of the models that it concerns.
        changes: fields of `ModelFacts` and their earlier values.
        without: axes that did not exist.
        source: where it was read.
    """

    before: str
    models: str
    changes: Mapping[str, object]
    source: str
    without: frozenset[str] = frozenset()


ATTENTIONS = (
    "FLASH_ATTN",
    "FLASH_ATTN_2",
    "TORCH_SDPA",
    "CUDNN_ATTN",
    "SAGE_ATTN",
    "XFORMERS",
)
"""Backends of a program whose own list was not read."""

Attention = Callable[[Device], str]
Use = Literal["alone", "shared", "ring"]
Refused = Callable[[Device, Use], frozenset[str]]


def nothing_refused(device: Device, use: Use) -> frozenset[str]:
    """An engine that was read to run every backend everywhere."""
    del device, use
    return frozenset()


Starter = Callable[[Context, ParallelConfig, float], Commands]


@dataclass(frozen=True, slots=True, kw_only=True)
class Era:
    """How an engine differed before the day `until`: terms file, default backend, backends."""

    until: str
    terms: str
    attention: Attention
    attentions: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """One engine.

    Attributes:
        name, title: id, and as people write it.
        terms: name of its latency terms file.
        releases: release number to the day it was published; the last is the one whose facts
            `models` holds.
        models: slug pattern to facts, the first match counts.
        earlier: what older releases did differently, oldest last.
        platforms: of ``cuda``, ``rocm`` and ``npu``.
        attention: default backend on a device.
        attentions: backends that can be asked for, where the device has a kernel.
        ring_attention: backend of ring chunks on a device when none is named; None: `attention`.
        refused: backends that the engine refuses, or replaces by another, on a device: ``alone``
            everywhere, ``shared`` where ranks share the tokens, ``ring`` in ring attention.
        torchao: activations of low-precision products are quantised by torch operations, not by
            kernels of the engine.
        torch_norms: its modules leave RMS norms to torch where the published ones do.
        copies: full copies around each Ulysses exchange.
        rank_order: axes from fastest to slowest.
        server: a process of its own answers requests, so the result crosses processes.
        stays: what the published end-to-end time of this engine ends with: ``response``, or
            ``result`` when the file is written after the clock stopped.
        sources: where the facts were read.
        patch_warmup_steps: synchronous steps before patches of the latent follow one another
            through the pipeline stages; None: the stages take turns.
        weight_only: dtypes of weights that the engine widens before each product.
        dtypes: of linears, beside bf16, that its commands set up; None: not read.
        aliases: further backend names to the ones known here.
        eras: what was otherwise before, oldest first.
        traced: facts of a class without a family; None when the engine cannot run one.
    """

    name: str
    title: str
    terms: str
    releases: Mapping[str, str]
    models: tuple[tuple[str, ModelFacts], ...]
    earlier: tuple[Earlier, ...] = ()
    platforms: tuple[str, ...] = ("cuda",)
    attention: Attention
    attentions: tuple[str, ...] = ATTENTIONS
    ring_attention: Attention | None = None
    refused: Refused = nothing_refused
    torch_norms: bool = False
    torchao: bool = False
    copies: int = 2
    rank_order: tuple[str, ...] = ("tp", "ulysses", "ring", "pp", "cfg", "dp")
    server: bool = False
    stays: str = "result"
    sources: tuple[str, ...] = ()
    patch_warmup_steps: int | None = None
    weight_only: tuple[str, ...] = ()
    dtypes: tuple[str, ...] | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    eras: tuple[Era, ...] = ()
    traced: ModelFacts | None = None

    def on(self, day: str) -> Facts:
        """These facts as they were on `day`."""
        for era in self.eras:
            if day < era.until:
                known = era.attentions or self.attentions
                changes = {"terms": era.terms, "attention": era.attention, "attentions": known}
                return replace(self, eras=(), **changes)  # type: ignore[arg-type]
        return self

    def model(self, slug: str, day: str | None = None) -> ModelFacts | None:
        """Facts of the model `slug` on a day; None when the engine does not run it."""
        found = next((found for pattern, found in self.models if re.match(pattern, slug)), None)
        if found is None or day is None:
            return found
        for earlier in self.earlier:
            if day < earlier.before and re.match(earlier.models, slug):
                found = replace(found, **earlier.changes)  # type: ignore[arg-type]
                found = replace(found, axes=found.axes - earlier.without)
        return found


FIRST_DAY = "2024-01-01"
"""None of these engines had a release before."""


def resolve_version(facts: Facts, text: str | None, dated: str | None = None) -> Version:
    """Version from a release number, a day or None (the release that was read).

    Another release is named as it was asked for and has the facts of the newest known one that is
    not newer, a day those of that day; a release that was never read and a day after the last one
    carry a warning.

    Raises:
        BadInput: neither a release nor a day, and no `dated`.
    """
    label, last = list(facts.releases.items())[-1]
    if text is None and dated is None:
        return Version(label, last)
    asked = text if text is not None else str(dated)
    if asked in facts.releases:
        return Version(asked, facts.releases[asked])
    day = read_day(asked)
    if day is not None and day >= FIRST_DAY:
        later = (unread(facts.title, asked, last),) if text is not None and day > last else ()
        return Version(f"main at {asked}", day, problems=later)
    if number := read_number(asked):
        return _nearest(facts, asked, number)
    if dated is not None and read_day(dated):
        return resolve_version(facts, None, dated)
    raise BadInput(
        Problem(
            "engine-version",
            f'"{asked}" is neither a {facts.title} version nor a day from {FIRST_DAY} on; legal: '
            f"{', '.join(facts.releases)} or a day such as {last}; try --engine {facts.name}",
            field="--engine",
            value=asked,
            legal_values=tuple(facts.releases),
            suggestions=(f"--engine {facts.name}",),
        )
    )


def _nearest(facts: Facts, asked: str, number: Number) -> Version:
    """The facts of a release that was read; without numbers those of the last."""
    read = {read_number(label): label for label in facts.releases}
    known = {one.release: label for one, label in read.items() if one is not None}
    taken = nearest_release(number, known) if known else None
    label = known[taken] if taken is not None else list(facts.releases)[-1]
    if taken == number.release and number.side == "exact":
        return Version(label, facts.releases[label])
    problem = Problem(
        "engine-version",
        f"{facts.title} {asked} was not read here; the behaviour of {label} is taken",
        field="--engine",
        value=asked,
        legal_values=tuple(facts.releases),
        suggestions=(f"{facts.name}@{label}",),
        severity="warning",
    )
    return Version(asked, facts.releases[label], problems=(problem,))
