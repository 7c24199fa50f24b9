"""Read a ``vllm serve MODEL --omni ...`` command as typed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.engines.base import Launch
from perfmodel.errors import BadInput, Problem
from perfmodel.spec.parallel import MOST_DEGREE, ParallelConfig, check_ranks, degree_of

_DEGREES = {
    "--usp": "ulysses",
    "--ring": "ring",
    "--allgather-degree": "allgather",
    "--cfg-parallel-size": "cfg",
    "--tensor-parallel-size": "tp",
    "--pipeline-parallel-size": "pp",
    "--vae-patch-parallel-size": "vae_patch",
    "--text-encoder-tp-size": "text_encoder_tp",
    "--hsdp-replicate-size": "hsdp_replicate",
    "--hsdp-shard-size": "hsdp",
    "--num-gpus": "num_gpus",
}
_TEXT_OPTIONS = {
    "--diffusion-attention-backend": "attention_backend",
    "--vae-fast-path": "vae_fast_path",
    "--vae-parallel-mode": "vae_mode",
    "--ulysses-mode": "ulysses_mode",
}
_SWITCH_OPTIONS: dict[str, tuple[str, object]] = {
    "--enforce-eager": ("compile", False),
    "--no-enforce-eager": ("compile", True),
    "--vae-use-tiling": ("vae_tiling", "on"),
    "--enable-cpu-offload": ("offload", "model"),
    "--enable-layerwise-offload": ("offload", "layerwise"),
    "--enable-distributed-layerwise-offload": ("offload", "layerwise-gather"),
    "--no-guardrails": ("guardrails", False),
}
_DTYPES = {
    "auto": "bf16",
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "fp8": "fp8",
    "int8": "int8",
    "modelopt": "fp8",
    "modelopt_fp4": "nvfp4",
}
_CACHES = {"stepcache": "step_cache", "step_cache_dit": "step_cache"}
# Until 0.20.0: entrypoints/cli/serve.py, diffusion/attention/selector.py.
_OLDER_NAMES = {"--quantization-config": "--diffusion-quantization-config"}
_ATTENTION_VARIABLE = "DIFFUSION_ATTENTION_BACKEND="
_DP_FLAG = "--data-parallel-size"
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


def _load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((Path(__file__).parent / name).read_text(encoding="utf-8"))
    return loaded


@cache
def known_flags() -> dict[str, dict[str, Any]]:
    """Flags of vllm-omni 0.30.0 and those it inherits from vllm, by spelling, and older names."""
    older = {name: {"same_as": now} for name, now in _OLDER_NAMES.items()}
    return {**_load("vllm_flags.json")["flags"], **_load("flags.json")["flags"], **older}


@cache
def refused_flags() -> frozenset[str]:
    """Flags that the engine refuses under ``--omni``."""
    return frozenset(_load("flags.json")["refused_with_omni"])


def canonical(flag: str) -> str:
    """The first spelling of a flag: ``--ulysses-degree`` -> ``--usp``; underscores are dashes."""
    name = flag if not flag.startswith("--") else "--" + flag[2:].replace("_", "-")
    return str(known_flags().get(name, {}).get("same_as", name))


def takes_value(flag: str) -> bool:
    """Whether a known flag is followed by a value."""
    facts = known_flags()[flag]
    if "kind" in facts:
        return bool(facts["kind"] == "value")
    action = str(facts.get("action", ""))
    return not (action.startswith("store_") or action.endswith("BooleanOptionalAction"))


@dataclass(slots=True)
class _Reading:
    """What was read so far."""

    model: str = ""
    omni: bool = False
    hsdp: bool = False
    rank_local: bool = False
    degrees: dict[str, int] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    ignored: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)


def read_launch(argv: Sequence[str]) -> Launch:
    """Read ``vllm serve ...`` as typed: degrees, options and model.

    Raises:
        BadInput: not a serve command, unknown flags or values; all problems at once, each with the
            nearest known flag.
    """
    reading = _Reading()
    for flag, value in _pairs(_arguments(argv, reading), reading):
        _apply(flag, value, reading)
    if reading.rank_local and reading.options.get("offload") == "layerwise-gather":
        reading.options["offload"] = "layerwise"
    parallel = _parallel(reading)
    if reading.problems:
        raise BadInput(*reading.problems)
    check_ranks(parallel)
    if not reading.omni:
        reading.warnings.append(
            Problem(
                "launch",
                "the command has no --omni, so vllm would start its text engine; it is read as if "
                "--omni were there; try adding --omni",
                suggestions=("--omni",),
                severity="warning",
            )
        )
    if "guardrails" not in reading.options and "cosmos3" in reading.model.lower():
        reading.options["guardrails"] = True
    return Launch(
        parallel=parallel,
        options=reading.options,
        model=reading.model,
        num_gpus=reading.degrees.get("num_gpus"),
        ignored=tuple(reading.ignored),
        problems=tuple(reading.warnings),
    )


def _arguments(argv: Sequence[str], reading: _Reading) -> list[str]:
    """The words after ``serve``; line continuations and variable assignments are dropped.

    But for the variable that names the attention backend; a flag wins over it.

    An empty word stays: it is a value or, as of a variable that is not set, a model without name.
    """
    tokens = [token for token in argv if not token or token.strip(" \n\\")]
    while tokens and (tokens[0] == "env" or _ASSIGNMENT.match(tokens[0])):
        name = tokens.pop(0)
        if name.startswith(_ATTENTION_VARIABLE) and name != _ATTENTION_VARIABLE:
            reading.options["attention_backend"] = name.removeprefix(_ATTENTION_VARIABLE)
    if "serve" not in tokens[:5]:
        given = " ".join(tokens[:3]) or "nothing"
        raise BadInput(
            Problem(
                "launch",
                f'"{given}" is not a launch command of vllm-omni; try --parallel -- '
                "vllm serve MODEL --omni ..., or name the engine that it starts: --engine NAME",
                field="--parallel",
                value=given,
                suggestions=("vllm serve MODEL --omni",),
            )
        )
    start = tokens.index("serve")
    omni = ["--omni"] if any("omni" in token for token in tokens[:start]) else []
    return tokens[start + 1 :] + omni


def _pairs(tokens: list[str], reading: _Reading) -> Iterator[tuple[str, str]]:
    """Known flags with their value ("" for switches); the rest becomes problems."""
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if not token.startswith("-"):
            _positional(token, reading)
            continue
        head, equals, value = token.partition("=")
        flag = canonical(head)
        if flag.partition(".")[0] in known_flags() and "." in flag:
            if not equals and position < len(tokens):
                value, position = tokens[position], position + 1
            yield flag, value
            continue
        if flag not in known_flags():
            reading.problems.append(_unknown(head))
            if not equals and position < len(tokens) and not tokens[position].startswith("-"):
                position += 1
            continue
        if takes_value(flag) and not equals:
            if position == len(tokens):
                reading.problems.append(_bad_value(flag, "nothing", "a value"))
                continue
            value, position = tokens[position], position + 1
        yield flag, value


def _positional(token: str, reading: _Reading) -> None:
    if not token:
        reading.problems.append(_bad_value("model", token, "the name or path of one"))
    if reading.model and reading.model != token:
        reading.problems.append(_bad_value("model", f"{reading.model} and {token}", "one model"))
    reading.model = token


def _apply(flag: str, value: str, reading: _Reading) -> None:
    """Record one flag."""
    if flag in refused_flags():
        reading.problems.append(_refused(flag, value))
    elif flag == "--omni":
        reading.omni = True
    elif flag == "--model":
        _positional(value, reading)
    elif flag == "--use-hsdp":
        reading.hsdp = True
    elif flag in _DEGREES:
        _degree(flag, value, reading)
    elif flag in ("--dlo-use-allgather", "--dlo-no-use-allgather"):
        reading.rank_local = flag == "--dlo-no-use-allgather"
    elif flag in _TEXT_OPTIONS:
        _text_option(flag, value, reading)
    elif flag in _SWITCH_OPTIONS:
        name, choice = _SWITCH_OPTIONS[flag]
        reading.options[name] = choice
    else:
        _special(flag, value, reading)


def _special(flag: str, value: str, reading: _Reading) -> None:
    """Flags whose value needs reading: dtype, quantisation, offload, attention, cache."""
    if flag in ("--dtype", "--quantization", "--diffusion-quantization-config"):
        _dtype(flag, value, reading)
    elif flag == "--diffusion-offload-config":
        _offload(flag, value, reading)
    elif flag.startswith("--diffusion-attention-config"):
        _attention_config(flag, value, reading)
    elif flag == "--cache-backend" and value != "none":
        reading.options["cache_method"] = _CACHES.get(value, value)
    else:
        reading.ignored.append(flag)


def _degree(flag: str, value: str, reading: _Reading) -> None:
    automatic = flag == "--hsdp-shard-size" and value == "-1"
    degree = -1 if automatic else degree_of(value)
    if degree is None:
        legal = f"a whole number from 1 to {MOST_DEGREE:,}"
        reading.problems.append(_bad_value(flag, value, legal))
        return
    reading.degrees[_DEGREES[flag]] = degree


def _text_option(flag: str, value: str, reading: _Reading) -> None:
    choices = known_flags()[flag].get("choices")
    if choices and value not in choices:
        reading.problems.append(_bad_value(flag, value, f"one of {', '.join(choices)}"))
        return
    reading.options[_TEXT_OPTIONS[flag]] = value


def _dtype(flag: str, value: str, reading: _Reading) -> None:
    method = value
    if flag == "--diffusion-quantization-config":
        parsed = _json(flag, value, reading)
        method = str(parsed.get("method", "")) if parsed is not None else ""
    name = _DTYPES.get(method.lower().replace("-", "_"))
    if name is None:
        known = ", ".join(_DTYPES)
        reading.problems.append(_bad_value(flag, method or value, f"a modelled one: {known}"))
    elif flag != "--dtype" or "dtype" not in reading.options:
        reading.options["dtype"] = name


def _offload(flag: str, value: str, reading: _Reading) -> None:
    parsed = _json(flag, value, reading)
    if parsed is None:
        return
    components = parsed.get("components", [])
    if parsed.get("mode") == "layer":
        gathers = '"allgather"' in value
        reading.options["offload"] = "layerwise-gather" if gathers else "layerwise"
    elif components == ["text_encoder"]:
        reading.options["offload"] = "text-encoder"
    else:
        reading.options["offload"] = "model"


def _attention_config(flag: str, value: str, reading: _Reading) -> None:
    backend: object = value
    if "." not in flag:
        parsed = _json(flag, value, reading)
        default = parsed.get("default") if parsed is not None else None
        backend = default.get("backend") if isinstance(default, dict) else default
    elif not flag.endswith("default.backend"):
        backend = None
    if isinstance(backend, str) and backend:
        reading.options["attention_backend"] = backend
    else:
        reading.ignored.append(flag)


def _json(flag: str, value: str, reading: _Reading) -> dict[str, Any] | None:
    try:
        parsed = json.loads(value)
    except json.JSONDecodeError:
        parsed = None
    if isinstance(parsed, dict):
        return parsed
    reading.problems.append(_bad_value(flag, value, 'a JSON object such as {"method": "fp8"}'))
    return None


def _parallel(reading: _Reading) -> ParallelConfig:
    """Degrees, with hsdp -1 and dp resolved as the engine does."""
    degrees = {name: value for name, value in reading.degrees.items() if name != "num_gpus"}
    shard = degrees.pop("hsdp", -1)
    replicate = degrees.pop("hsdp_replicate", 1)
    if reading.options.get("vae_tiling") == "on":
        degrees["vae_tiling"] = True
    config = replace(ParallelConfig(), **degrees)  # type: ignore[arg-type]
    mesh = config.world_size
    if reading.hsdp:
        if shard == -1 and (mesh == 1 or mesh % replicate):
            reading.problems.append(
                _bad_value("--use-hsdp", f"{mesh} ranks", "--hsdp-shard-size when it stands alone")
            )
        shard = mesh // replicate if shard == -1 else shard
        config = replace(config, hsdp=max(shard, 1), hsdp_replicate=replicate)
    gpus = reading.degrees.get("num_gpus", config.world_size)
    if gpus % config.world_size:
        reading.problems.append(
            _bad_value("--num-gpus", str(gpus), f"a multiple of the {config.world_size} ranks")
        )
    elif gpus > config.world_size:
        config = replace(config, dp=gpus // config.world_size)
        if reading.options.get("offload") != "layerwise-gather":
            reading.warnings.append(_repeated_work(gpus, config.dp))
    return config


def _repeated_work(gpus: int, replicas: int) -> Problem:
    return Problem(
        "dp-repeats",
        f"--num-gpus {gpus} makes {replicas} data-parallel replicas, but without "
        "--enable-distributed-layerwise-offload one server runs a request at a time and all "
        f"{replicas} repeat it; try {replicas} servers with a port each",
        field="--parallel",
        value=f"--num-gpus {gpus}",
        suggestions=(f"{replicas} servers with a port each",),
        severity="warning",
    )


def _unknown(flag: str) -> Problem:
    near = get_close_matches(flag, known_flags(), n=1, cutoff=0.5)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return Problem(
        "launch-flag",
        f'"{flag}" is no flag of vllm serve --omni (0.30.0){hint}',
        field="--parallel",
        value=flag,
        suggestions=tuple(near),
    )


def _bad_value(flag: str, value: str, wanted: str) -> Problem:
    return Problem(
        "launch-value",
        f'"{value}" for {flag} is not {wanted}',
        field="--parallel",
        value=value,
    )


def _refused(flag: str, value: str) -> Problem:
    number = value if value.isdecimal() else "N"
    hint = f"--num-gpus {number}" if flag == _DP_FLAG else "--num-gpus N"
    return Problem(
        "dp-flag",
        f"{flag} is refused together with --omni (vllm-omni 0.22 and later): data parallelism is "
        f"the number of GPUs over the other degrees; try {hint} times the other degrees",
        field="--parallel",
        value=flag,
        suggestions=(hint,),
    )
