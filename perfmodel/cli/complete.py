"""Completions of the shell: light, numpy is never loaded."""

from __future__ import annotations

PARALLEL_KEYS = (
    "cfg",
    "ulysses",
    "ring",
    "allgather",
    "tp",
    "pp",
    "dp",
    "hsdp",
    "hsdp_replicate",
    "vae_patch",
    "text_encoder_tp",
)
COUNTS = (1, 2, 4, 8)


def gpus(incomplete: str) -> list[str]:
    """``4xb3`` -> ``4xb300-sxm``; names alone are offered with common counts."""
    from perfmodel import catalog

    count, times, name = incomplete.partition("x")
    names = [item for item in catalog.hardware_ids() if item.startswith(name.lower())]
    if times and count.isdecimal():
        return [f"{count}x{item}" for item in names]
    if incomplete.isdecimal():
        return [f"{incomplete}x{item}" for item in catalog.hardware_ids()]
    if not incomplete:
        return [f"{number}x" for number in COUNTS] + ["here"]
    return [item for item in catalog.hardware_ids() if item.startswith(incomplete.lower())]


def models(incomplete: str) -> list[str]:
    """Slugs of the catalogue."""
    from perfmodel import catalog

    return [item for item in catalog.model_ids() if item.startswith(incomplete.lower())]


def engines(incomplete: str) -> list[str]:
    """Names of engines that are modelled."""
    from perfmodel.engines import engine_names

    return [name for name in engine_names() if name.startswith(incomplete)]


def options(incomplete: str) -> list[str]:
    """Keys of ``--option``."""
    from perfmodel.spec.workload import Options

    return [f"{key}=" for key in Options.model_fields if key.startswith(incomplete)]


def parallel(incomplete: str) -> list[str]:
    """The key being typed after the last comma."""
    done, comma, last = incomplete.rpartition(",")
    if "=" in last:
        key, _, degree = last.partition("=")
        return [f"{done}{comma}{key}={n}" for n in ("2", "4", "8") if n.startswith(degree)]
    used = {part.partition("=")[0] for part in done.split(",")}
    keys = [key for key in PARALLEL_KEYS if key.startswith(last) and key not in used]
    return [f"{done}{comma}{key}=" for key in keys]
