"""Flags to the library's records: workload, machine, options, settings.  All problems at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from perfmodel.cli.given import Given
from perfmodel.cli.values import (
    Collector,
    choice,
    number,
    pairs,
    real,
    refuse,
    size,
    switch,
    whole,
)
from perfmodel.errors import BadInput, Problem
from perfmodel.files import is_file
from perfmodel.spec.workload import Options, Workload
from perfmodel.units import MEGA, TERA

if TYPE_CHECKING:
    from perfmodel.spec.hardware import System

OBJECTIVES = ("latency", "throughput", "memory", "cost")
SHORTHANDS = {
    "dtype": "dtype",
    "attention": "attention_backend",
    "offload": "offload",
    "vae_tiling": "vae_tiling",
    "vae_mode": "vae_mode",
}
OPTION_ALIASES = {"attention": "attention_backend", "tiling": "vae_tiling", "cache": "cache_skip"}
STAGE_ALIASES = {
    "mp4": "video_encode",
    "media": "video_encode",
    "output": "transfer",
    "output_copy": "transfer",
    "copy": "transfer",
    "text": "text_encode",
    "vae": "vae_decode",
    "decode": "vae_decode",
    "encode": "vae_encode",
    "diffuse": "denoise",
}
STAGES = ("text_encode", "vae_encode", "denoise", "vae_decode", "transfer", "video_encode")
MEMORY_GIB = (0.0, MEGA)
MOST_SKIPPED = 0.99
MOST_MS = TERA


@dataclass(frozen=True, slots=True)
class Inputs:
    """A question in the library's records; `settings` are keyword arguments of the api."""

    workload: Workload
    system: System
    options: Options
    settings: dict[str, Any]


def read_inputs(given: Given) -> Inputs:
    """Everything that describes the question.

    Raises:
        BadInput: all problems of all flags.
    """
    collect = Collector()
    workload = collect(lambda: read_workload(given))
    system = collect(lambda: read_system(given))
    options = collect(lambda: read_options(given))
    settings = collect(lambda: read_settings(given))
    _check_names(given, collect)
    collect.finish()
    assert workload is not None
    assert system is not None
    assert options is not None
    assert settings is not None
    return Inputs(workload, system, options, settings)


def _check_names(given: Given, collect: Collector) -> None:
    """Names that the library looks up later; now, where a problem ends here, all are said."""
    from perfmodel import catalog, engines

    engine, model = given.text("engine"), given.text("model")
    if engine:
        collect(lambda: engines.parse_engine(engine))
    if collect.problems and model and model.strip():
        collect(lambda: catalog.load_model(model))


def read_workload(given: Given) -> Workload:
    """The request; what was not given stays None (the model's default).

    Raises:
        BadInput: every number that cannot be read or is out of range.
    """
    collect = Collector()
    values: dict[str, Any] = {"model": given.text("model"), "task": given.text("task")}
    sides = collect(lambda: size(given))
    values["width"], values["height"] = sides or (None, None)
    wholes = {
        "frames": (1, 10_000),
        "steps": (1, 10_000),
        "forwards": (1, 40_000),
        "batch": (1, 256),
        "concurrency": (1, 4096),
        "input_images": (0, 64),
        "text_tokens": (1, 65_536),
    }
    for key, (low, high) in wholes.items():
        values[key] = collect(lambda key=key, low=low, high=high: whole(given, key, low, high))  # type: ignore[misc]
    values["seconds"] = collect(lambda: real(given, "seconds", 0, 3600, above_low=True))
    values["fps"] = collect(lambda: real(given, "fps", 0, 240, above_low=True))
    values["guidance"] = collect(lambda: real(given, "guidance", 0, 100))
    values["sound"] = given.on("sound") or None
    if given.text("seconds") and given.text("frames"):
        collect.problems.append(
            Problem(
                "seconds",
                f"--frames {given.text('frames')} and --seconds "
                f"{given.text('seconds')} both state the length; give one",
                field="--seconds",
                value=given.text("seconds"),
            )
        )
    if values["model"] is not None and not values["model"].strip():
        collect.problems.append(
            Problem(
                "model",
                "the --model name is empty; try --model cosmos3-nano",
                field="--model",
                value="",
            )
        )
    collect.finish()
    return Workload(**{key: value for key, value in values.items() if value is not None})


def read_system(given: Given) -> System:
    """The machine of ``--gpus`` or ``--system`` with its overrides.

    Raises:
        BadInput: neither or both given, unknown names, numbers out of range.
    """
    from perfmodel import catalog

    collect = Collector()
    memory = collect(lambda: real(given, "gpu_memory", *MEMORY_GIB, above_low=True))
    reserve = collect(lambda: real(given, "gpu_reserve", *MEMORY_GIB))
    host_ram = collect(lambda: real(given, "host_ram", *MEMORY_GIB, above_low=True))
    sockets = collect(lambda: whole(given, "sockets", 1, 64))
    overrides = catalog.Overrides(
        gpu_memory_gib=memory,
        gpu_reserve_gib=reserve or 0.0,
        host_ram_gib=host_ram,
        p2p=False if given.on("no_p2p") else None,
        sockets=sockets,
    )
    gpus, path = given.text("gpus"), given.text("system")
    system = collect(lambda: _machine(gpus, path, overrides))
    collect.finish()
    assert system is not None
    return system


def _machine(gpus: str | None, path: str | None, overrides: Any) -> System:
    from perfmodel import catalog

    if gpus and path:
        raise BadInput(
            Problem(
                "gpus",
                f"--gpus {gpus} and --system {path} both name the machine; give one",
                field="--gpus",
                value=gpus,
            )
        )
    if path:
        return catalog.load_system(Path(path), overrides)
    if not gpus:
        raise BadInput(
            Problem(
                "gpus",
                "no machine is named; try --gpus 4xB300 (a name from "
                "perfmodel hardware list), --gpus here, or --system FILE",
                field="--gpus",
                suggestions=("--gpus 4xB300", "--gpus here"),
            )
        )
    return catalog.parse_gpus(gpus, overrides)


def read_options(given: Given) -> Options:
    """``--option`` and its shorthands; the same key twice with two values is a problem.

    Raises:
        BadInput: unknown keys or values.
    """
    collect = Collector()
    texts: dict[str, str] = {}
    for raw_key, text in (collect(lambda: pairs(given, "option")) or {}).items():
        if (key := collect(lambda raw_key=raw_key: _option_key(raw_key))) is not None:  # type: ignore[misc]
            texts[key] = text
    for key, text in _shorthands(given).items():
        if not _same_value(key, texts.setdefault(key, text), text):
            collect.problems.append(
                Problem(
                    "option",
                    f"{key} is given twice, as {texts[key]} and as {text}; give it once",
                    field="--option",
                    value=text,
                )
            )
    values = {
        key: collect(lambda key=key, text=text: option_value(key, text))  # type: ignore[misc]
        for key, text in texts.items()
    }
    collect.finish()
    return Options(**{key: value for key, value in values.items() if value is not None})


def _same_value(key: str, first: str, second: str) -> bool:
    """Whether two texts of an option mean the same, such as ``on`` and ``true``."""
    try:
        return first == second or option_value(key, first) == option_value(key, second)
    except BadInput:
        return False


def _shorthands(given: Given) -> dict[str, str]:
    texts = {name: text for key, name in SHORTHANDS.items() if (text := given.text(key))}
    if given.on("eager"):
        texts["compile"] = "off"
    if given.on("guardrails"):
        texts["guardrails"] = "on"
    if (cache := given.text("cache")) is not None:
        method = _method(cache)
        texts["cache_method" if method else "cache_skip"] = method or cache
    return texts


def _option_key(raw: str) -> str:
    from difflib import get_close_matches

    key = raw.strip().lower().replace("-", "_")
    key = OPTION_ALIASES.get(key, key)
    names = tuple(Options.model_fields)
    if key in names:
        return key
    near = get_close_matches(key, names, n=1, cutoff=0.5)
    hint = f'did you mean "{near[0]}"? ' if near else ""
    raise BadInput(
        Problem(
            "option",
            f'"{raw}" in --option is unknown; {hint}keys: {", ".join(names)}',
            field="--option",
            value=raw,
            legal_values=names,
            suggestions=tuple(near),
        )
    )


def option_value(key: str, text: str) -> str | bool | float:
    """The value of one option from its text.

    Raises:
        BadInput: not a value of this option.
    """
    if key in ("compile", "guardrails"):
        return switch(key, text)
    if key == "cache_skip":
        return _cache(text)
    if key == "attention_density":
        return _density(text)
    legal = literal_values(key)
    return choice(key, text, legal) if legal else text.strip()


def literal_values(key: str) -> tuple[str, ...]:
    """Legal texts of an option that is a choice; empty for free text."""
    annotation = Options.model_fields[key].annotation
    arguments = [annotation, *get_args(annotation)]
    found = [value for part in arguments for value in get_args(part) if isinstance(value, str)]
    return tuple(dict.fromkeys(found or [v for v in get_args(annotation) if isinstance(v, str)]))


def _density(text: str) -> float:
    value = number(text)
    if value is None or not 0 < value <= 1:
        raise refuse("attention_density", text, "is no share of the products", "above 0, up to 1")
    return value


def _method(text: str) -> str:
    """The step cache that `text` names, with or without its underscore; "" for none of them."""
    folded = {name.replace("_", ""): name for name in literal_values("cache_method")}
    found = folded.get(text.strip().lower().replace("-", "").replace("_", ""), "")
    return "" if found == "none" else found


def _cache(text: str) -> float:
    if text.strip().lower() == "none":
        return 0.0
    name, equals, rest = text.partition("=")
    value = number(rest if equals else text)
    if (equals and name.strip() not in ("skip", "cache_skip")) or value is None:
        legal = ", ".join((*literal_values("cache_method"), "skip=0 to skip=0.99"))
        raise refuse("cache", text, "is neither skip=RATIO nor a method", legal)
    if not 0 <= value <= MOST_SKIPPED:
        raise refuse("cache", text, "skips an impossible share", "skip=0 to skip=0.99")
    return value


def read_settings(given: Given) -> dict[str, Any]:
    """Keyword arguments of the api that are not the default.

    Raises:
        BadInput: every flag that cannot be read.
    """
    collect = Collector()
    objective = given.text("objective")
    found: dict[str, Any] = {
        "engine": given.text("engine"),
        "objective": collect(lambda: choice("objective", objective, OBJECTIVES))
        if objective
        else None,
        "max_latency_ms": collect(lambda: real(given, "max_latency", 0, TERA, above_low=True)),
        "price_per_gpu_hour": collect(lambda: real(given, "price", 0, MEGA)),
        "top": collect(lambda: whole(given, "top", 1, 999)),
        "allow_lossy": given.on("allow_lossy") or None,
        "use_all_gpus": given.on("use_all_gpus") or None,
        "fit": collect(lambda: _existing(given, "fit")),
        "strict": given.on("strict") or None,
    }
    if given.on("any_gpus") and given.on("use_all_gpus"):
        collect.problems.append(
            Problem(
                "gpus",
                "--any-gpus and --use-all-gpus exclude each other; give one",
                field="--use-all-gpus",
            )
        )
    collect.finish()
    return {key: value for key, value in found.items() if value is not None}


def _existing(given: Given, key: str) -> Path | None:
    text = given.text(key)
    if text is None:
        return None
    path = Path(text)
    if not is_file(path):
        raise refuse(key, text, "is not a file", try_="")
    return path


def read_stage_times(given: Given, key: str) -> dict[str, float]:
    """``STAGE=MS`` of ``--set``; common names such as mp4 are understood.

    Raises:
        BadInput: unknown stages, negative or unreadable times.
    """
    collect = Collector()
    found: dict[str, float] = {}
    for name, text in (collect(lambda: pairs(given, key)) or {}).items():
        stage = collect(lambda name=name: stage_name(key, name))  # type: ignore[misc]
        value = number(text)
        if value is None or not 0 <= value <= MOST_MS:
            bad = refuse(key, f"{name}={text}", "is not a time in ms", f"0 to {MOST_MS:,g}")
            collect.problems.extend(bad.problems)
        elif stage is not None:
            found[stage] = value
    collect.finish()
    return found


def stage_name(key: str, name: str, further: tuple[str, ...] = ()) -> str:
    """The stage that `name` means.

    Raises:
        BadInput: none does.
    """
    folded = name.strip().lower().replace("-", "_").replace(" ", "_").removesuffix("_ms")
    folded = STAGE_ALIASES.get(folded, folded)
    if folded in (*STAGES, *further):
        return folded
    return choice(key, name, (*STAGES, *further))
