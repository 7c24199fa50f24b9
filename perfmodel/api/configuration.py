"""The configuration that is asked for: degrees, an id, or a launch command."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from pydantic import ValidationError

from perfmodel import engines
from perfmodel.api.asked import as_options, as_parallel, as_workload
from perfmodel.api.caches import CACHE_SKIP
from perfmodel.api.records import LOSSY_BACKENDS, LOSSY_DTYPES
from perfmodel.errors import BadInput, Problem
from perfmodel.report.answer import ParallelInfo
from perfmodel.spec.parallel import ParallelConfig, parse_parallel
from perfmodel.spec.workload import Options, Workload

METHODS = {
    method.replace("_", ""): method
    for method in get_args(Options.model_fields["cache_method"].annotation)
    if method != "none"
}
"""Step caches, as an id names them."""

BACKENDS = {name: backend for backend, name in LOSSY_BACKENDS.items()}
"""Attention backends that change the output, as an id names them."""
PARTS = tuple(f"attn-{name}" for name in BACKENDS)


def asked_configuration(
    parallel: str | ParallelConfig | ParallelInfo | None,
    launch: Sequence[str] | None,
    engine: str,
    workload: Workload,
    options: Options | None,
) -> tuple[ParallelConfig, Workload, Options]:
    """The configuration, and what a launch command or an id adds to workload and options.

    Raises:
        BadInput: a launch command, degrees or an id that cannot be read.
    """
    workload, options, parallel = as_workload(workload), as_options(options), as_parallel(parallel)
    if launch:
        read = engines.parse_engine(engine)[0].read_launch(launch)
        options = Options.model_validate({**options.model_dump(), **read.options})
        if read.model and "model" not in workload.model_fields_set:
            workload = workload.model_copy(update={"model": read.model})
        workload = _with_request(workload, read.request)
        return _tiled(read.parallel, options), workload, options
    if isinstance(parallel, ParallelConfig):
        return parallel, workload, options
    config, suffixes = parse_parallel(parallel)
    for suffix in suffixes:
        options = _with_suffix(options, suffix)
    return _tiled(config, options), workload, options


def _tiled(config: ParallelConfig, options: Options) -> ParallelConfig:
    """The configuration as its id names it: patches tile by themselves."""
    tiled = options.vae_tiling == "on" and config.vae_patch == 1
    return replace(config, vae_tiling=True) if tiled else config


def _with_request(workload: Workload, request: Mapping[str, float]) -> Workload:
    """The workload with what a launch command states of the request; what was given stays.

    Raises:
        BadInput: a value out of range.
    """
    given = {key: value for key, value in workload.model_dump().items() if value is not None}
    taken = set(given)
    if "seconds" in given:
        taken.add("frames")
    if {"width", "height"} & taken:
        taken |= {"width", "height"}
    new = {key: value for key, value in request.items() if key not in taken}
    fields = {key: given[key] for key in workload.model_fields_set & set(given)}
    try:
        return Workload.model_validate({**fields, **new}) if new else workload
    except ValidationError as error:
        raise BadInput(
            *(
                Problem(
                    "launch-value",
                    f"{part['loc'][0]} {part['input']} of the launch command: {part['msg']}",
                    field="--parallel",
                    value=str(part["input"]),
                )
                for part in error.errors()
            )
        ) from None


def _with_suffix(options: Options, suffix: str) -> Options:
    """Options that an id part such as ``fp8`` or ``offload-layer`` stands for.

    Raises:
        BadInput: it stands for none, or for another value than the options state.
    """
    name, _, value = suffix.partition("-")
    change: dict[str, object]
    if name in LOSSY_DTYPES:
        change = {"dtype": name}
    elif name == "cache":
        method = METHODS.get(value)
        change = {"cache_method": method} if method else {CACHE_SKIP: value}
    elif name == "attn":
        if value not in BACKENDS:
            message = f'"{suffix}" in --parallel is no part of an id; legal: {", ".join(PARTS)}'
            raise BadInput(Problem("option", message, "--parallel", suffix, PARTS))
        change = {"attention_backend": BACKENDS[value]}
    elif name == "sparse":
        change = {"attention_density": value}
    else:
        change = {"offload": re.sub("^layer(?!wise)", "layerwise", value)}
    try:
        changed = Options.model_validate({**options.model_dump(), **change})
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
        message = f'"{suffix}" in --parallel is no part of an id: {problem}'
        raise BadInput(Problem("option", message, "--parallel", suffix)) from None
    for key in change:
        _refuse_two_values(key, suffix, getattr(options, key), getattr(changed, key))
    return changed


def _refuse_two_values(key: str, suffix: str, stated: object, said: object) -> None:
    """Nothing, unless an option that is not at its default is another one in the id.

    Quantised weights stand beside 16-bit activations of either kind, so these are none.

    Raises:
        BadInput: both are stated.
    """
    if stated in (said, Options.model_fields[key].default, "auto", "fp16"):
        return
    message = f'"{suffix}" in --parallel and --option {key}={stated} both state {key}; give one'
    raise BadInput(Problem("option", message, "--parallel", suffix))
