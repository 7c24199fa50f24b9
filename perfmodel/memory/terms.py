"""Named, bounded terms of the memory model and what an engine does with memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

NEWEST, UNENDING = "9998", "9999"


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Terms of ``calibration/engines/memory.json``, resolved for one engine and date.

    Attributes:
        context_bytes: driver context and loaded kernels of a process.
        communicator_bytes: buffers of one communicator, outside torch's allocator.
        peer_bytes: the same per peer of a communicator.
        workspace_bytes: library workspaces, warm-up leftovers and small tensors in the allocator.
        denoise_slack_frac: reserved over live memory of a transformer forward, minus 1.
        vae_slack_frac: the same of an untiled VAE map.
        hsdp_live_blocks: blocks that exist in full at a time under weight sharding.
        layerwise_live_blocks: blocks on the device at a time under layerwise offload.
        worker_host_bytes: host memory of one worker process without weights.
        cached_frac: share of freed blocks (full weights of sharded blocks, copies of the clip) that
            stays reserved; 0 for engines whose published peaks are of allocated memory.
        upper_frac: 80 % half-width of everything but the weights.
        uint8_on_device: the decoded video is turned into bytes on the device (three fp32 copies).
        hsdp_text_encoder: weight sharding covers separate text encoders too.
        offload_keeps_denoiser: model offload leaves the denoiser on the device for the decode.
        offload_moves_vae: model offload keeps the VAE on the host until it encodes or decodes; from
            then on it stays for the request.
        layerwise_swaps_encoders: under layerwise offload separate encoders are on the device only
            while they run.
        layerwise_streams_encoders: under layerwise offload separate encoders come from the host,
            layer by layer, and nothing of them or of the denoiser is on the device at other times.
        transformer_bits, text_encoder_bits, vae_bits: bits as loaded; 0 = as the model file says.
        quantizes_on_device: weights are loaded wide and quantised on the device, so that the load
            phase holds them all; every parameter of the transformer is quantised then.
        extra_bytes_per_element: extra live bytes per token and hidden element of this engine's
            transformer code (rotary embedding in complex double precision, fp32 residual).
    """

    context_bytes: float
    communicator_bytes: float
    peer_bytes: float
    workspace_bytes: float
    denoise_slack_frac: float
    vae_slack_frac: float
    hsdp_live_blocks: float
    layerwise_live_blocks: float
    worker_host_bytes: float
    upper_frac: float
    cached_frac: float = 1.0
    uint8_on_device: bool = False
    hsdp_text_encoder: bool = False
    offload_keeps_denoiser: bool = True
    offload_moves_vae: bool = False
    layerwise_swaps_encoders: bool = False
    layerwise_streams_encoders: bool = False
    transformer_bits: int = 0
    text_encoder_bits: int = 0
    vae_bits: int = 0
    quantizes_on_device: bool = False
    extra_bytes_per_element: float = 0.0


def load_terms(engine: str = "vllm-omni", date: str = "", offload: str = "none") -> Terms:
    """Terms of the shipped file for one engine on one date (ISO; empty = the newest)."""
    from perfmodel.catalog import load_terms as load_file

    return resolve(load_file("memory"), engine, date, offload)


def resolve(data: Mapping[str, Any], engine: str, date: str = "", offload: str = "none") -> Terms:
    """The terms in `data` for one engine on one date.

    Changes of an engine apply in order: from ``since`` on, before ``until``, and only under the
    ``offload`` mode that they name, if any.
    """
    values: dict[str, Any] = {name: entry["value"] for name, entry in data["terms"].items()}
    known = {f.name for f in fields(Terms)}
    for change in data["engines"].get(engine, ()):
        dated = change.get("since", "") <= (date or NEWEST) < change.get("until", UNENDING)
        if dated and change.get("offload", offload) == offload:
            values |= {key: value for key, value in change.items() if key in known}
    return Terms(**{key: value for key, value in values.items() if key in known})
