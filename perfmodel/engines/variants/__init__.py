"""Projects around diffusers or Wan modules: their rules, with their own kernels and host terms.

Each is one `ENGINE` by name; published records use these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perfmodel.engines.base import Commands, Context, Residency
from perfmodel.engines.described.attention import flash, flash_2
from perfmodel.engines.described.engine import DescribedEngine
from perfmodel.engines.described.facts import Facts, ModelFacts, Starter, nothing_refused
from perfmodel.engines.diffusers.commands import read_launch, render
from perfmodel.engines.diffusers.facts import FACTS as DIFFUSERS
from perfmodel.engines.diffusers.facts import PLAIN, WAN
from perfmodel.spec.parallel import ParallelConfig


def _like_diffusers(name: str, title: str, source: str, **changes: object) -> Facts:
    merged: dict[str, object] = {
        "name": name,
        "title": title,
        "terms": name,
        "releases": {"main": "2026-06-01"},
        "sources": (source, *DIFFUSERS.sources),
        "weight_only": (),
        # Their own programs quantise as they like: how they are started is not modelled.
        "dtypes": None,
        # They bring kernels and groups of their own.
        "ring_attention": None,
        "refused": nothing_refused,
        **changes,
    }
    return replace(DIFFUSERS, **merged)  # type: ignore[arg-type]


# cache-dit brings plans of its own for every transformer, uneven heads included.
_CACHE_DIT = frozenset({"ulysses", "ring", "tp"})
# LightX2V: own modules, fused norm and rotary kernels, all in bf16, Ulysses and guidance groups.
_LIGHTX2V = ModelFacts(
    pipeline="LightX2V",
    fused_blocks=True,
    axes=frozenset({"cfg", "ulysses", "ring"}),
    offload_modes=("none", "auto", "model", "layerwise"),
)

# Its CogVideoX script quantises the text encoder too; the FLUX script the transformer only.
_COGVIDEOX = replace(PLAIN, residency=Residency(quantizes_text=True))

# They drop the text mask of HunyuanVideo, so that a plain kernel can run.
_UNMASKED = ((r"(fast)?hunyuan", replace(PLAIN, valid_text_only=True)), *DIFFUSERS.models)

# Batch, ring and Ulysses meshes; text is divided with the latent.
_MESHES = frozenset({"cfg", "ulysses", "ring"})
_PARA_ATTENTION = tuple(
    (
        pattern,
        replace(found, axes=_MESHES, auto_pad=False, text_split=True) if split else found,
    )
    for split, models in (
        (True, ((r"(fast)?hunyuanvideo$", replace(PLAIN, valid_text_only=True)),)),
        (True, ((r"(wan|fastwan)", WAN), (r"(flux\.?1|mochi|cogvideox)", PLAIN))),
        (False, _UNMASKED),
    )
    for pattern, found in models
)

FACTS: Mapping[str, Facts] = {
    facts.name: facts
    for facts in (
        _like_diffusers(
            "cache-dit(diffusers)",
            "cache-dit on diffusers",
            "https://github.com/vipshop/cache-dit",
            models=tuple(
                (pattern, replace(found, axes=_CACHE_DIT, uneven=True, auto_pad=False))
                for pattern, found in DIFFUSERS.models
            ),
        ),
        _like_diffusers(
            "diffusers+torchao",
            "diffusers with torchao",
            "https://github.com/sayakpaul/diffusers-torchao",
            # Its tables are of nightly builds on the way to torch 2.6.
            releases={"main": "2024-10-31"},
            weight_only=("fp8wo", "int8wo", "fp6wo"),
            torch_norms=False,
            models=tuple(
                (pattern, replace(found, compiled=True))
                for pattern, found in ((r"cogvideox", _COGVIDEOX), *DIFFUSERS.models)
            ),
        ),
        _like_diffusers(
            "paraattention",
            "ParaAttention",
            "https://pypi.org/project/para-attn/0.3.38/ src/para_attn/context_parallel",
            torch_norms=False,
            models=_PARA_ATTENTION,
        ),
        _like_diffusers(
            "svg-dense-baseline",
            "Sparse VideoGen, dense baseline",
            "https://github.com/svg-project/Sparse-VideoGen",
            attention=flash_2,
            torch_norms=False,
            models=_UNMASKED,
        ),
        _like_diffusers(
            "lightx2v",
            "LightX2V",
            "https://github.com/ModelTC/LightX2V",
            torchao=False,
            attention=flash,
            torch_norms=False,
            models=((r"(wan|hunyuanvideo)", _LIGHTX2V),),
        ),
        _like_diffusers(
            "fastvideo",
            "FastVideo",
            "https://github.com/hao-ai-lab/FastVideo",
            attention=flash,
            torch_norms=False,
            models=(
                (r"(wan|fastwan|hunyuanvideo|longcat-video)", replace(WAN, pipeline="FastVideo")),
            ),
        ),
    )
}


def without_template(title: str) -> Starter:
    """A starter for an engine whose own commands are not known: the reason, as shell comments."""
    reason = (
        f"# no command: how {title} is started is not modelled; "
        "give its own program the degrees and options of this configuration"
    )

    def starter(ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
        del ctx, config, predicted_s
        return Commands(serve=reason, request=reason, benchmark=reason)

    return starter


# A program of diffusers sets up weight-only quantisation; the rest only torchao's scripts do.
_PROGRAM = without_template("the quantisation of torchao")


def _torchao(ctx: Context, config: ParallelConfig, predicted_s: float) -> Commands:
    plain = ctx.behaviour.options.dtype in ("bf16", "fp16", "fp8wo", "int8wo")
    return (render if plain else _PROGRAM)(ctx, config, predicted_s)


ENGINES = {
    name: DescribedEngine(
        facts=facts,
        starter=_torchao if name == "diffusers+torchao" else without_template(facts.title),
        reader=read_launch,
    )
    for name, facts in FACTS.items()
}
