"""Sources of error as people name them."""

from __future__ import annotations

from perfmodel.report.words import stage_title

COLLECTIVES = {
    "ulysses": "Ulysses all-to-all",
    "ring": "ring transfers",
    "tp": "tensor-parallel all-reduce",
    "cfg": "guidance exchange",
    "hsdp": "weight gathers",
    "pp": "pipeline hand-over",
    "allgather": "key gathers",
    "sequence": "exit gather",
    "vae": "gather of VAE tiles",
}
KINDS = {
    "attention": "attention",
    "gemm": "matrix products",
    "conv": "convolutions",
    "pointwise": "norms and other small kernels",
    "copy": "layout copies",
    "host": "host gaps of denoise",
    "wait": "waiting for the slowest rank",
    "transfer": "output copy",
    "video_encode": "MP4 encode",
    "text_encode": "host work of text encode",
    "vae_encode": "host work of VAE encode",
    "vae_decode": "host work of VAE decode",
    "run": "the whole run: release, clocks, settings that are not stated",
    "cache": "what the step cache skips",
}
AXES = {
    "cfg": "CFG parallel",
    "ulysses": "Ulysses",
    "ring": "ring",
    "allgather": "all-gather attention",
    "tp": "tensor parallel",
    "pp": "pipeline parallel",
    "hsdp": "weight sharding",
    "vae_patch": "VAE patch parallel",
    "vae_tiling": "VAE tiling",
}


SWITCHES = ("hsdp", "vae_tiling")
"""Axes that are on or off as far as this error goes."""


def source_title(source: str) -> str:
    """``collective.ulysses.fitted`` -> ``Ulysses all-to-all``."""
    kind, _, rest = source.partition(".")
    name = rest.partition(".")[0]
    if kind == "axis":
        doubling = "" if name in SWITCHES else " per doubling"
        return f"{AXES.get(name, name)}{doubling}, beyond its operators"
    if kind == "stage":
        return f"{stage_title(name)} as a whole"
    if kind == "collective":
        return COLLECTIVES.get(name, f"{name} collectives")
    return KINDS.get(kind, kind.replace("_", " "))
