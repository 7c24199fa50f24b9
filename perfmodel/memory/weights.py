"""Weights per rank: what each axis shards, and what offload leaves on the device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.memory.terms import Terms
from perfmodel.ops import DTYPE_BITS
from perfmodel.placement.groups import offload_group
from perfmodel.shapes import ceil_div
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.workload import GATHERED, LAYERWISE
from perfmodel.stages.base import Component
from perfmodel.units import BITS_PER_BYTE

Column = NDArray[np.float64]

# Modules that belong to the denoiser itself, so that its sharding covers them.
IN_DENOISER = frozenset({"understanding", "embeddings"})
# Bits per parameter with the scales of the format: one fp8 scale for 16 nvfp4 values, one fp32
# scale for 64 nf4 values.
QUANTIZED_BITS = {
    "fp8": 8.0,
    "fp8_block": 8.0,
    "int8": 8.0,
    "nvfp4": 4.5,
    "fp8wo": 8.0,
    "int8wo": 8.0,
    "fp8cast": 8.0,
    "fp6wo": 6.0,
    "nf4": 4.5,
}
PHASES = ("load", "text_encode", "vae_encode", "denoise", "vae_decode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One component on one rank.

    Attributes:
        resident: bytes that stay on the device in a phase [phase, configuration].
        gathered: bytes of full blocks that exist for a moment while the component runs.
        buffers: bytes that blocks pass through in all phases; components take turns in them.
        host: bytes of pinned host memory of this rank.
        loading: bytes of host memory of this rank while it loads.
    """

    resident: Column
    gathered: Column
    buffers: Column
    host: Column
    loading: Column


def in_denoiser(component: Component) -> bool:
    """Whether the sharding of the denoiser covers the component."""
    return component.kind == "transformer" or component.name in IN_DENOISER


def loaded_bits(component: Component, terms: Terms) -> float:
    """Bits of an unquantised parameter as this engine loads it."""
    if in_denoiser(component):
        return terms.transformer_bits or component.bits
    override = {"text_encoder": terms.text_encoder_bits, "vae": terms.vae_bits}
    return override.get(component.kind, 0) or component.bits


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Bytes of one component before sharding: in and outside blocks, of each what TP divides."""

    block: float
    block_tp: float
    rest: float
    rest_tp: float


def _sizes(component: Component, dtype: str, terms: Terms) -> _Sizes:
    if terms.quantizes_on_device and component.kind == "transformer":
        component = replace(component, quantizable_params=component.params)
    bits = loaded_bits(component, terms)
    width = bits / BITS_PER_BYTE
    low = QUANTIZED_BITS.get(dtype, float(DTYPE_BITS.get(dtype, bits)))
    saved = max(0.0, component.quantizable_params * (bits - low) / BITS_PER_BYTE)
    if dtype not in QUANTIZED_BITS:
        saved = 0.0
    block_tp_params = min(component.tp_params, component.block_params)
    rest_params = component.params - component.block_params
    saved_block = min(saved, component.block_params * width)
    share_tp = block_tp_params / component.block_params if component.block_params else 0.0
    quantized = min(component.quantizable_params, component.block_params)
    if quantized:  # the quantised parameters are those that TP divides, as far as these reach
        share_tp = min(1.0, block_tp_params / quantized)
    block = component.block_params * width - saved_block
    block_tp = min(block, block_tp_params * width - saved_block * share_tp)
    rest = rest_params * width - (saved - saved_block)
    return _Sizes(block, block_tp, rest, min(rest, (component.tp_params - block_tp_params) * width))


def held(component: Component, layouts: Layouts, dtype: str, offload: str, terms: Terms) -> Held:
    """Bytes of `component` on the rank that holds most, by configuration.

    Tensor parallelism divides its layers, pipeline parallelism the blocks, weight sharding all
    that it wraps; sequence, guidance and VAE-patch parallelism divide nothing.  Gathered layerwise
    offload leaves a share of each block on the host of each rank, and on the device two blocks and
    two shares of them (vLLM-Omni 0.30.0, ``diffusion/offloader/distributed_layerwise_backend.py``).
    """
    sizes = _sizes(component, dtype, terms)
    tp = np.where(component.kind == "vae", 1, layouts.tp)
    block = sizes.block - sizes.block_tp * (1.0 - 1.0 / tp)
    rest = sizes.rest - sizes.rest_tp * (1.0 - 1.0 / tp)
    if component.kind == "text_encoder" and not in_denoiser(component):
        block, rest = block / layouts.text_encoder_tp, rest / layouts.text_encoder_tp
    one_block = block / max(component.blocks, 1)
    if component.kind == "transformer" and component.blocks:
        block = one_block * ceil_div(component.blocks, layouts.pp)
    sharded = in_denoiser(component) or (
        terms.hsdp_text_encoder and component.kind == "text_encoder"
    )
    shard = layouts.hsdp if sharded else np.ones(len(layouts), np.int64)
    full = block + rest
    live = np.minimum(terms.hsdp_live_blocks * one_block, block) + rest
    # An encoder without blocks here is sharded by layers of unknown, much smaller, size.
    whole = sharded and (component.blocks > 0 or in_denoiser(component))
    gathered = np.where((shard > 1) & whole, np.minimum(live, full), 0.0)
    resident = np.tile(full / shard, (len(PHASES), 1))
    loading = np.where(shard > 1, full, 0.0)
    host = np.zeros(len(layouts))
    buffers = np.zeros(len(layouts))
    mode = _mode(component, offload, terms)
    if mode == GATHERED and offloaded(component, mode):
        shares = offload_group(layouts).ranks
        resident = np.tile(rest, (len(PHASES), 1))
        host = block / shares
        live = np.minimum(terms.layerwise_live_blocks, component.blocks)
        buffers = live * one_block * (1.0 + (shares > 1) / shares)
    elif offloaded(component, mode):
        streams = mode != offload
        resident, host = _offload(component, mode, block / shard, rest / shard, terms, streams)
    return Held(
        resident=resident,
        gathered=gathered,
        buffers=buffers,
        host=host,
        loading=np.maximum(loading, host),
    )


def _mode(component: Component, offload: str, terms: Terms) -> str:
    """The offload mode that holds for the component."""
    swaps = terms.layerwise_swaps_encoders or terms.layerwise_streams_encoders
    if offload not in LAYERWISE or not swaps:
        return offload
    separate = component.kind == "text_encoder" and not in_denoiser(component)
    return "text-encoder" if separate else offload


def offloaded(component: Component, offload: str) -> bool:
    """Whether an offload mode moves the component to the host."""
    if component.kind == "vae":
        return False
    if offload == "text-encoder":
        return component.kind == "text_encoder"
    if offload in LAYERWISE:
        return component.blocks > 0 and in_denoiser(component)
    if offload != "model":
        return False
    separate_encoder = component.kind == "text_encoder" and not in_denoiser(component)
    return separate_encoder or (component.blocks > 0 and in_denoiser(component))


def kept_share(component: Component, terms: Terms) -> float:
    """Share of an encoder on the device while its layers come from the host one by one."""
    if component.layers == 0:
        return 1.0
    live = min(terms.layerwise_live_blocks / component.layers, 1.0)
    kept = component.params - component.layer_params * (1.0 - live)
    return kept / max(component.params, 1)


def _offload(
    component: Component,
    offload: str,
    block: Column,
    rest: Column,
    terms: Terms,
    streams: bool,
) -> tuple[Column, Column]:
    """Bytes left on the device by phase, and in pinned host memory."""
    whole, when = block + rest, set(component.when)
    if offload == "layerwise":
        live = np.minimum(terms.layerwise_live_blocks, component.blocks) / component.blocks
        if terms.layerwise_streams_encoders:
            return np.outer([phase in when for phase in PHASES], rest + block * live), whole
        return np.tile(rest + block * live, (len(PHASES), 1)), block * 1.0
    if terms.layerwise_streams_encoders and streams:
        kept = kept_share(component, terms)
        return np.outer([phase in when for phase in PHASES], whole * kept), whole
    if "denoise" in when and in_denoiser(component) and terms.offload_keeps_denoiser:
        when.add("vae_decode")
    return np.outer([phase in when for phase in PHASES], whole), whole


def one_at_a_time(parts: list[Column]) -> list[Column]:
    """Components that model offload swaps: in each phase and configuration only the largest stays.

    Args:
        parts: resident bytes [phase, configuration] of each swapped component.
    """
    if not parts:
        return []
    stack = np.stack(parts)
    largest = stack.argmax(axis=0)
    return [np.where(largest == index, part, 0.0) for index, part in enumerate(stack)]
