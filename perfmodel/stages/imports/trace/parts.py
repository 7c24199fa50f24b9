"""Text encoders and VAEs that the catalogue does not have, traced like a denoiser."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch

from perfmodel.spec.forms import written
from perfmodel.spec.traced import AnyOp, TracedEncoder, TracedVae
from perfmodel.stages.imports.read import Config, refuse
from perfmodel.stages.imports.trace.assemble import Irregular, operators
from perfmodel.stages.imports.trace.denoiser import ROUTES, blocks_of, build, one_line
from perfmodel.stages.imports.trace.fit import Fitter, Point, monomials
from perfmodel.stages.imports.trace.points import LENGTHS, MAPS
from perfmodel.stages.imports.trace.record import Trace, traced


def trace_encoder(cls_name: str, part: str, folder: Path) -> TracedEncoder | None:
    """The operators of a text encoder; None where the library cannot build or run it."""
    import transformers

    cls = getattr(transformers, cls_name, None)
    if cls is None:
        return None
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            module = cls(config)
        module = module.to("meta", torch.bfloat16).eval()
        traces = [_read_prompt(module, at) for at in LENGTHS]
        fitter = Fitter(LENGTHS, monomials(False, False, True))
        ops = operators([trace.events for trace in traces], fitter)
    except Exception:
        # What a library raises on a class that it cannot build here is of many kinds.
        return None
    params = sum(tensor.numel() for tensor in module.parameters())
    layers, inside = blocks_of(module, params)
    text = getattr(config, "get_text_config", lambda: config)()
    return TracedEncoder(
        name=f"{cls_name} ({part})",
        params=params,
        layers=layers,
        layer_params=inside // max(layers, 1),
        width=int(getattr(text, "hidden_size", 0) or 0),
        ops=tuple(ops),
    )


def _read_prompt(module: Any, at: Point) -> Trace:
    ids = torch.ones((at.b, at.t), dtype=torch.int64)
    names = inspect.signature(type(module).forward).parameters
    extra = {"use_cache": False} if "use_cache" in names else {}
    return traced(module, lambda: module(input_ids=ids, attention_mask=ids, **extra), affirm=True)


def trace_vae(cls: type, config: Config) -> tuple[TracedVae, dict[str, Any]]:
    """Both networks of a VAE, and the fields of `VaeSpec` that they show.

    Raises:
        BadInput: it cannot be built or run from what is known, or is no polynomial of the map.
    """
    module = build(cls, config)
    channels = _latent_channels(module.config, config)
    complaints: list[str] = []
    for video in (True, False) if _is_video(module) else (False, True):
        try:
            return _networks(module, config.cls, channels, video=video)
        except Irregular as error:
            complaints.append(str(error))
        except Exception as error:
            complaints.append(one_line(error))
    what = f"{config.cls} cannot be traced: {complaints[0]}; {ROUTES}"
    raise refuse(str(config.path), what, value=config.cls)


def _is_video(module: Any) -> bool:
    return any(isinstance(child, torch.nn.Conv3d) for child in module.modules())


def _latent_channels(settings: Any, config: Config) -> int:
    for name in ("latent_channels", "z_dim", "z_channels"):
        value = settings.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    what = f"names no latent channels, so {config.cls} cannot be traced; {ROUTES}"
    raise refuse(str(config.path), what, value=config.cls)


def _networks(
    module: Any, name: str, channels: int, *, video: bool
) -> tuple[TracedVae, dict[str, Any]]:
    maps = MAPS if video else [Point(at.b, 1, at.h, at.w, 1) for at in MAPS]
    fitter = Fitter(maps, monomials(video, True, False))

    def latent(at: Point) -> Any:
        sides = (at.b, channels, at.f, at.h, at.w) if video else (at.b, channels, at.h, at.w)
        return torch.zeros(sides, dtype=torch.bfloat16, device="meta")

    decoded = [_decode(module, latent(at)) for at in maps]
    pixels = [_first(trace.result).shape for trace in decoded]
    side = pixels[0][-1] // maps[0].w
    time = (pixels[1][2] - pixels[0][2]) // (maps[1].f - maps[0].f) if video else 1

    def clip(at: Point) -> Any:
        frames = ((at.f - 1) * time + 1,) if video else ()
        sides = (at.b, pixels[0][1], *frames, at.h * side, at.w * side)
        return torch.zeros(sides, dtype=torch.bfloat16, device="meta")

    encoded = [_encode(module, clip(at)) for at in maps]
    decode = operators([trace.events for trace in decoded], fitter)
    encode = operators([trace.events for trace in encoded], fitter)
    inside = sum(p.numel() for n, p in module.named_parameters() if n.startswith(ENCODER_PARTS))
    whole = sum(p.numel() for p in module.parameters())
    vae = TracedVae(
        encoder_params=inside,
        decoder_params=whole - inside,
        encode=tuple(encode),
        decode=tuple(decode),
        encode_peak=_peak(fitter, encoded),
        decode_peak=_peak(fitter, decoded),
    )
    width = max(_widest(encode), _widest(decode))
    fields = {
        "name": name,
        "z_channels": channels,
        "encoder_width": width,
        "decoder_width": width,
        "spatial_ratio": side,
        "temporal_ratio": max(time, 1),
    }
    return vae, fields


ENCODER_PARTS = ("encoder.", "quant_conv.")


def _decode(module: Any, latent: Any) -> Trace:
    return traced(module, lambda: module.decode(latent, return_dict=False))


def _encode(module: Any, pixels: Any) -> Trace:
    return traced(module, lambda: module.encode(pixels, return_dict=False))


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, (tuple, list)) else result


def _widest(ops: list[AnyOp]) -> int:
    return max((op.out_channels for op in ops if op.kind == "conv"), default=1)


def _peak(fitter: Fitter, traces: list[Trace]) -> int | str:
    """Most bytes alive as a polynomial; where no single moment is the peak everywhere, a bound."""
    found = fitter.form(trace.peak_bytes for trace in traces)
    if found is not None:
        return written(found)
    areas = [at.b * at.f * at.h * at.w for at in fitter.points]
    each = max(-(-trace.peak_bytes // area) for trace, area in zip(traces, areas, strict=True))
    return f"{each}*b*f*h*w"
