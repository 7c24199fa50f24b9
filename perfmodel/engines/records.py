"""The run record of a request and configuration: what was asked, for any engine."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.engines.base import Context
from perfmodel.spec.parallel import ParallelConfig


def sent_record(ctx: Context, config: ParallelConfig, outputs: int) -> dict[str, object]:
    """The run record of one replica that is sent requests for `outputs` outputs at once."""
    record = run_record(replace(ctx, outputs=outputs), replace(config, dp=1), ctx.in_flight)
    return record if ctx.in_flight == 1 else {**record, "latency_of": "mean"}


def outputs_note(ctx: Context, outputs: int, why: str) -> list[str]:
    """A line when a command asks for fewer outputs than the question."""
    if outputs == ctx.outputs:
        return []
    return [f"measures {outputs} output a request, not {ctx.outputs}: {why}"]


def _host(ctx: Context, config: ParallelConfig) -> dict[str, int]:
    """CPUs that the devices of the run are spread over, where those are between them."""
    sockets = None if ctx.sockets_of is None else ctx.sockets_of(config.world_size // ctx.nodes)
    return {} if sockets is None else {"sockets": max(sockets, 1)}


def run_record(ctx: Context, config: ParallelConfig, in_flight: int = 1) -> dict[str, object]:
    """The run record of this request and configuration, without its measurements.

    Outputs are counted over all requests in flight.
    """
    behaviour, options = ctx.behaviour, ctx.behaviour.options
    backend = behaviour.attention_backend
    if config.ring > 1 and not behaviour.attention_explicit:
        backend = behaviour.ring_attention_backend
    shares = {
        "cache_skip": (options.cache_skip, 0.0),
        "attention_density": (options.attention_density, 1.0),
    }
    if "cache_skip" in behaviour.assumed:
        # A prior is no property of the run: only the method is known.
        del shares["cache_skip"]
    method = options.cache_method
    return {
        "id": f"local-{ctx.model_id}-{ctx.device}-{config.config_id}",
        "source": "local",
        "engine": behaviour.engine,
        "engine_version": behaviour.version,
        "model": ctx.hf_id or ctx.model_id,
        "task": ctx.task,
        "gpu": ctx.device,
        "num_gpus": config.world_size,
        "nodes": ctx.nodes,
        **_host(ctx, config),
        "height": ctx.height,
        "width": ctx.width,
        "frames": ctx.frames,
        "fps": ctx.fps,
        "steps": ctx.steps,
        "batch": 1,
        "guidance_scale": ctx.guidance,
        "cfg": ctx.branches > 1,
        "num_outputs": ctx.outputs * in_flight,
        **({"ref_images": ctx.input_images} if ctx.input_images else {}),
        "concurrency": in_flight,
        "dtype": options.dtype,
        "attention_backend": backend,
        "compile": behaviour.compiled,
        "offload": options.offload,
        "vae_fast_path": options.vae_fast_path or "off",
        "vae_tiling": config.vae_tiling or config.vae_patch > 1,
        **({"guardrails": True} if options.guardrails else {}),
        **({} if method == "none" else {"cache": method}),
        **{name: share for name, (share, none) in shares.items() if share != none},
        "parallel": {name: value for name, value in config.arguments.items() if value > 1},
    }
