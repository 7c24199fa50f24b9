"""What an engine leaves on the host by default, and what it divides beyond the named axes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.engines.base import Residency
from perfmodel.memory.terms import Terms
from perfmodel.memory.weights import QUANTIZED_BITS, in_denoiser, kept_share, loaded_bits
from perfmodel.spec.hardware import System
from perfmodel.spec.parallel import Layouts
from perfmodel.stages.base import Component
from perfmodel.units import BITS_PER_BYTE

Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Share:
    """Shares of a component's weights on one rank, by configuration: on the device, on its host."""

    device: Column
    host: Column


def model_terms(terms: Terms, residency: Residency | None) -> Terms:
    """The terms with the widths at which the engine loads this model's encoders and VAE."""
    if residency is None:
        return terms
    return replace(
        terms,
        text_encoder_bits=residency.text_encoder_bits or terms.text_encoder_bits,
        vae_bits=residency.vae_bits or terms.vae_bits,
    )


def is_separate_encoder(component: Component) -> bool:
    """Whether the component is an encoder outside the denoiser."""
    return component.kind == "text_encoder" and not in_denoiser(component)


def encoder_shares(
    components: tuple[Component, ...],
    layouts: Layouts,
    dtype: str,
    terms: Terms,
    residency: Residency | None,
    system: System,
) -> list[Share]:
    """For each component, the share of its weights on a rank's device and on its host.

    Formula: 1 and 0 for all but separate encoders; for these whole x kept and, where layers are
        streamed, whole, with
        whole = quantised share / ranks, those of a replica if the encoder is wide and they reach
            each other, else 1;
        kept = (outside the layers + the live layers) / all where layers are streamed, else 1.
    """
    stays = Share(np.ones(len(layouts)), np.zeros(len(layouts)))
    if residency is None:
        return [stays] * len(components)
    resident = _all_resident(components, layouts, dtype, terms, residency, system)
    ranks = _fold_ranks(layouts, residency, system)
    shares = []
    for component in components:
        if not is_separate_encoder(component):
            shares.append(stays)
            continue
        whole = np.ones(len(layouts))
        if residency.quantizes_text and dtype in QUANTIZED_BITS:
            whole = whole * QUANTIZED_BITS[dtype] / loaded_bits(component, terms)
        if 0 < residency.fold_min_width <= component.width:
            whole = whole / ranks
        streamed = ~resident & (residency.streamed and component.layers > 0)
        kept = np.where(streamed, kept_share(component, terms), 1.0)
        shares.append(Share(whole * kept, np.where(streamed, whole, 0.0)))
    return shares


def _all_resident(
    components: tuple[Component, ...],
    layouts: Layouts,
    dtype: str,
    terms: Terms,
    residency: Residency,
    system: System,
) -> NDArray[np.bool_]:
    """Whether the device is so large that everything stays; tensor parallelism divides blocks."""
    if not residency.resident_multiple or dtype in QUANTIZED_BITS:
        return np.zeros(len(layouts), np.bool_)
    total = np.zeros(len(layouts))
    for component in components:
        size = component.params * loaded_bits(component, terms) / BITS_PER_BYTE
        total = total + (size / layouts.tp if component.kind == "transformer" else size)
    return np.asarray(system.usable_bytes >= residency.resident_multiple * total)


def _fold_ranks(layouts: Layouts, residency: Residency, system: System) -> NDArray[np.int64]:
    """Ranks of a replica that share one copy of a wide encoder."""
    if not residency.fold_min_width or not system.p2p:
        return np.ones(len(layouts), np.int64)
    one_host = layouts.world_size <= system.gpus_per_node
    ranks = np.where(one_host, layouts.world_size // layouts.dp, 1)
    return np.asarray(np.maximum(ranks, 1), np.int64)
