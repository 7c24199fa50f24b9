"""Engines by name, loaded when asked for."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module

from perfmodel.engines.base import Engine, Version
from perfmodel.errors import BadInput, Problem

_VARIANTS = "perfmodel.engines.variants"
_MODULES = {
    "vllm-omni": "perfmodel.engines.vllm_omni",
    "sglang-diffusion": "perfmodel.engines.sglang_diffusion",
    "xdit": "perfmodel.engines.xdit",
    "diffusers": "perfmodel.engines.diffusers",
    "wan-official": "perfmodel.engines.wan_official",
    "cosmos-official": "perfmodel.engines.cosmos_official",
    "cache-dit(diffusers)": _VARIANTS,
    "diffusers+torchao": _VARIANTS,
    "paraattention": _VARIANTS,
    "svg-dense-baseline": _VARIANTS,
    "lightx2v": _VARIANTS,
    "fastvideo": _VARIANTS,
}
_ALIASES = {
    "vllm_omni": "vllm-omni",
    "vllmomni": "vllm-omni",
    "omni": "vllm-omni",
    "sglang": "sglang-diffusion",
    "xfuser": "xdit",
    "wan": "wan-official",
    "cosmos-framework": "cosmos-official",
    "cache-dit": "cache-dit(diffusers)",
}
TITLES = {
    "vllm-omni": "vLLM-Omni",
    "sglang-diffusion": "SGLang Diffusion",
    "xdit": "xDiT",
    "wan-official": "Wan",
    "cosmos-official": "Cosmos",
    "lightx2v": "LightX2V",
    "paraattention": "ParaAttention",
    "fastvideo": "FastVideo",
}
"""Engine names as people write them, where they differ from the id."""
DEFAULT_ENGINE = "vllm-omni"


def engine_names() -> tuple[str, ...]:
    """Names that `engine` accepts."""
    return tuple(_MODULES)


def engine(name: str = DEFAULT_ENGINE) -> Engine:
    """The engine called `name` (a version after ``@`` is ignored here).

    Raises:
        BadInput: no such engine; the problem names the nearest.
    """
    key = name.partition("@")[0].strip().lower()
    key = _ALIASES.get(key, key)
    if key not in _MODULES:
        near = get_close_matches(key, [*_MODULES, *_ALIASES], n=1, cutoff=0.4)
        best = _ALIASES.get(near[0], near[0]) if near else DEFAULT_ENGINE
        raise BadInput(
            Problem(
                "engine-name",
                f'no engine "{key}" is modelled; legal: {", ".join(_MODULES)}; try --engine {best}',
                field="--engine",
                value=name,
                legal_values=engine_names(),
                suggestions=(best,),
            )
        )
    module = import_module(_MODULES[key])
    loaded: Engine = module.ENGINES[key] if hasattr(module, "ENGINES") else module.ENGINE
    return loaded


STARTED = (
    "vllm-omni",
    "sglang-diffusion",
    "xdit",
    "diffusers",
    "wan-official",
    "cosmos-official",
)
"""Engines whose commands are modelled; the others are projects around their modules."""


def engines_with(slug: str) -> tuple[str, ...]:
    """Engines that run the model `slug`: servers, then the models' own code, else FastVideo.

    FastVideo's commands are not modelled, so it is named where nothing else has the model.
    """
    from perfmodel.engines.vllm_omni.pipelines import pipeline_of

    def has(name: str) -> bool:
        facts = getattr(engine(name), "facts", None)
        return facts is not None and facts.model(slug) is not None

    first = ("vllm-omni",) if pipeline_of(slug) is not None else ()
    found = (*first, *filter(has, STARTED[1:]))
    return found or tuple(filter(has, ("fastvideo",)))


def parse_engine(text: str | None) -> tuple[Engine, Version]:
    """Read ``vllm-omni``, ``vllm-omni@0.30.0`` or ``vllm-omni@2026-06-16``.

    Raises:
        BadInput: unknown engine, or a version that is neither a number nor a date.
    """
    name, given, version = (text or DEFAULT_ENGINE).partition("@")
    found = engine(name)
    return found, found.version(version.strip() if given else None)
