"""Which engine terms may be freed, between which bounds, and how many."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from perfmodel import catalog
from perfmodel.calibrate.runs.cases import Case, Values
from perfmodel.cost.fits import Parameter, load_priors

ROWS_PER_TERM = 10
"""Independent rows that a free term needs."""

ENGINE_SIDE = (
    "sustained_frac.gemm",
    "sustained_frac.attention",
    "sustained_frac.conv",
    "conv_rate_frac",
    "strided_bytes_per_clock",
    "copy_memory_frac",
    "pointwise_memory_frac",
    "cache_hit_frac",
    "masked_attention_frac",
)
"""Named priors of kernels that an engine's own code decides: it may have a value of its own."""


def parameters(file: str) -> dict[str, Parameter]:
    """Terms that `file` may state, from their present value and their bounds.

    Terms are those of the file and of the files that it inherits from, and `ENGINE_SIDE`.
    """
    named = {name: entry(name, file) for name in (*inherited(file), *ENGINE_SIDE)}
    return {
        name: _parameter(name, found)
        for name, found in named.items()
        if found["low"] < found["high"]
    }


def _parameter(name: str, found: Mapping[str, Any]) -> Parameter:
    """Searched as a logarithm where that has an end: above zero, or as far below as above."""
    value, low, high = (float(found[key]) for key in ("value", "low", "high"))
    if low == 0.0 and name.endswith("_s") and value > 0.0:
        low = value * value / high
    return Parameter(name, value, low, high, str(found["meaning"]), log=low > 0.0)


def inherited(file: str) -> dict[str, Any]:
    """All terms that hold for an engine, by name."""
    return dict(catalog.load_terms(file).get("terms", {}))


def entry(name: str, file: str) -> dict[str, Any]:
    """The entry of a term: that of the file or its base, else the named prior as one."""
    terms = inherited(file)
    if name in terms:
        return dict(terms[name])
    prior = _named()[name]
    return {
        "value": prior["value"],
        "low": prior["bounds"][0],
        "high": prior["bounds"][1],
        "unit": "fraction",
        "provenance": "prior",
        "meaning": prior["meaning"],
    }


def _named() -> Mapping[str, Any]:
    found: Mapping[str, Any] = load_priors()["named"]
    return found


def before_the_fit(files: Iterable[str], ids: frozenset[str]) -> dict[str, dict[str, float]]:
    """Values before any fit of the terms of `files` that were fitted to runs among `ids`."""
    return {
        file: {
            name: float(found["prior"])
            for name, found in inherited(file).items()
            if found["provenance"] == "fitted" and ids & set(found.get("records", ()))
        }
        for file in files
    }


def independent_rows(cases: Iterable[Case]) -> int:
    """Distinct configurations of distinct sources: repeats and other step counts are the same."""
    return len({case.question for case in cases})


def rows_of(file: str, cases: Sequence[Case]) -> list[int]:
    """Runs that the terms of a file are fitted to.

    Those of its engine; if these are fewer than a term needs, also those of engines that follow
    its rules (inherit from it).
    """
    own = [n for n, case in enumerate(cases) if case.file == file]
    return own if independent_rows(cases[n] for n in own) >= ROWS_PER_TERM else heirs(file, cases)


def heirs(file: str, cases: Sequence[Case]) -> list[int]:
    """Runs of a file's engine and of those that inherit from it."""
    return [n for n, case in enumerate(cases) if file in case.chain]


def files_of(cases: Iterable[Case]) -> list[str]:
    """Terms files behind some runs, a base before what inherits from it."""
    depth = {file: len(case.chain) - n for case in cases for n, file in enumerate(case.chain)}
    return sorted(depth, key=lambda file: (depth[file], file))


def engines_under(file: str, name: str, cases: Sequence[Case]) -> list[str]:
    """Engines for which a term that is fitted in `file` holds: those of its runs."""
    found = {cases[n].file for n in rows_of(file, cases) if cases[n].under(file, name)}
    return sorted({file, *found})


def present(values: Values, file: str, parameter: Parameter) -> float:
    """Value of a term for the engine of a file: of `values`, else as shipped."""
    return values.get(file, {}).get(parameter.name, parameter.default)
