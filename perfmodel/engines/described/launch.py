"""Read a launch command that is made of ``--flag value`` words."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from perfmodel.engines.base import Launch
from perfmodel.errors import BadInput, Problem
from perfmodel.spec.parallel import MOST_DEGREE, ParallelConfig, check_ranks, degree_of

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_FALSE = ("false", "0", "no", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grammar:
    """What the flags of an engine mean.

    Attributes:
        engine: id.
        programs: words that start it; one of them must be in the command.
        flags: all flags, to their extracted facts (action, same_as).
        degrees: flag to key of `ParallelConfig`.
        switches: flag to (key, value) of a degree or an option; ``option:`` marks options.
        texts: flag to an option and its values by the engine's words.
        model: flags that name the checkpoint.
        models: flag to catalogue ids by its values; it says more than the path of a checkpoint.
        request: flag to a field of `Workload`; ``size`` holds width and height.
        hints: flag whose value is not read to the flag of this program that says the same, "" where
            none does.
        settle: completes the degrees as the engine does, from them, the model and the request.
    """

    engine: str
    programs: tuple[str, ...]
    flags: Mapping[str, Mapping[str, Any]]
    degrees: Mapping[str, str]
    switches: Mapping[str, tuple[str, object]] = field(default_factory=dict)
    texts: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    model: tuple[str, ...] = ("--model",)
    models: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    request: Mapping[str, str] = field(default_factory=dict)
    hints: Mapping[str, str] = field(default_factory=dict)
    settle: Callable[[dict[str, int], str, Mapping[str, float]], None] | None = None


def read(grammar: Grammar, argv: Sequence[str]) -> Launch:
    """Degrees, options and model of a command as typed.

    Raises:
        BadInput: another program, unknown flags or values, each with the nearest known one.
    """
    words = _words(grammar, argv)
    degrees: dict[str, int] = {}
    options: dict[str, object] = {}
    request: dict[str, float] = {}
    problems: list[Problem] = []
    ignored: list[tuple[str, str]] = []
    path, model = "", ""
    for flag, value in _pairs(grammar, words, problems):
        if flag in grammar.model:
            path = value
        elif value in grammar.models.get(flag, ()):
            model = grammar.models[flag][value]
        elif flag in grammar.degrees:
            _degree(grammar, flag, value, degrees, problems)
        elif flag in grammar.request:
            _request(grammar.request[flag], flag, value, request, problems)
        elif not _option(grammar, flag, value, degrees, options):
            ignored.append((flag, value))
    if problems:
        raise BadInput(*problems)
    if grammar.settle:
        grammar.settle(degrees, model or path, request)
    hosts = degrees.pop("hosts", 1)
    gpus = degrees.pop("num_gpus", 0) * hosts or _processes(grammar, words)
    parallel = _parallel(degrees, gpus)
    check_ranks(parallel)
    return Launch(
        parallel=parallel,
        options=options,
        model=model or path,
        num_gpus=gpus,
        engine=grammar.engine,
        ignored=tuple(flag for flag, _ in ignored),
        problems=tuple(
            _not_read(flag, value, grammar.hints[flag])
            for flag, value in ignored
            if flag in grammar.hints and value.lower() not in _FALSE
        ),
        request=request,
    )


def _words(grammar: Grammar, argv: Sequence[str]) -> list[str]:
    """The command without variables and line ends; it must start the engine."""
    words = [word for word in argv if word.strip(" \n\\")]
    while words and (words[0] == "env" or _ASSIGNMENT.match(words[0])):
        words.pop(0)
    if not any(program in word for word in words[:8] for program in grammar.programs):
        raise BadInput(_no_program(grammar, words))
    return words


def _option(
    grammar: Grammar, flag: str, value: str, degrees: dict[str, int], options: dict[str, object]
) -> bool:
    """Read a switch or a worded option; a degree stated as a number outlives its switch."""
    name, values = grammar.texts.get(flag, ("", {}))
    if flag in grammar.switches:
        key, choice = grammar.switches[flag]
        on = value.lower() not in _FALSE
        if not key.startswith("option:"):
            degrees.setdefault(key, choice if on else 1)  # type: ignore[arg-type]
        elif on and choice == "text-encoder":
            options.setdefault(key[7:], choice)  # streaming the transformer says more
        elif on:
            options[key[7:]] = choice
        return True
    if value in values:
        options[name] = values[value]
    return value in values


def _request(
    field: str, flag: str, value: str, request: dict[str, float], problems: list[Problem]
) -> None:
    names = ("width", "height") if field == "size" else (field,)
    read = float if field in ("guidance", "fps") else int
    try:
        numbers = [read(text) for text in re.split(r"[x*]", value)]
        request.update(zip(names, numbers, strict=True))
    except ValueError:
        like = {"size": "1280*720", "guidance": "5.0"}.get(field, "a whole number")
        message = f'"{value}" for {flag} cannot be read; give {like}'
        problems.append(Problem("launch-value", message, field="--parallel", value=value))


def _not_read(flag: str, value: str, instead: str) -> Problem:
    typed = f"{flag} {value}".strip()
    message = f"{typed} of the launch command is not read, so the prediction does not follow it"
    return Problem(
        "launch-ignored",
        f"{message}; give {instead} before --parallel" if instead else message,
        field=flag,
        value=value,
        suggestions=(instead,) if instead else (),
        severity="warning",
    )


_COUNTS = ("--nproc-per-node", "--nnodes")


def _processes(grammar: Grammar, words: Sequence[str]) -> int | None:
    """Processes that the launcher before the program starts; None where it does not count them."""
    program = next(i for i, w in enumerate(words) if any(p in w for p in grammar.programs))
    counts: dict[str, int | None] = {}
    for word, following in pairwise(words[: program + 1]):
        flag, equals, value = word.replace("_", "-").partition("=")
        if flag in _COUNTS:
            counts[flag] = degree_of(value if equals else following)
    each, hosts = counts.get(_COUNTS[0]), counts.get(_COUNTS[1], 1)
    return each * hosts if each and hosts else None


def _parallel(degrees: Mapping[str, int], processes: int | None) -> ParallelConfig:
    """Degrees with what follows from the ranks: -1 stands for all of them (of a replica's VAE)."""
    stated = {k: v for k, v in degrees.items() if v > 0 and not k.startswith(("vae", "hsdp"))}
    ranks = processes or replace(ParallelConfig(), **stated).world_size  # type: ignore[arg-type]
    every = {"vae_patch": max(ranks // degrees.get("dp", 1), 1)}
    filled = {k: every.get(k, ranks) if value == -1 else value for k, value in degrees.items()}
    if filled.get("hsdp", 1) == 1:
        filled.pop("hsdp_replicate", None)
    elif "hsdp_replicate" not in filled and ranks > filled["hsdp"]:
        filled["hsdp_replicate"] = ranks // filled["hsdp"]
    return replace(ParallelConfig(), **filled)  # type: ignore[arg-type]


def _no_program(grammar: Grammar, words: Sequence[str]) -> Problem:
    given = " ".join(words[:3]) or "nothing"
    return Problem(
        "launch",
        f'"{given}" does not start {grammar.engine}; try --parallel -- {grammar.programs[0]} ...',
        field="--parallel",
        value=given,
        suggestions=(grammar.programs[0],),
    )


def _canonical(grammar: Grammar, flag: str) -> str:
    for spelling in (flag, "--" + flag[2:].replace("-", "_"), "--" + flag[2:].replace("_", "-")):
        if spelling in grammar.flags:
            return str(grammar.flags[spelling].get("same_as", spelling))
    return flag


def _is_switch(facts: Mapping[str, Any]) -> bool:
    action = str(facts.get("action", ""))
    return action.startswith("store_") or action.endswith("BooleanOptionalAction")


def _pairs(
    grammar: Grammar, words: Sequence[str], problems: list[Problem]
) -> list[tuple[str, str]]:
    """(flag, value) of all known flags; the rest becomes problems."""
    found: list[tuple[str, str]] = []
    position = next(i for i, w in enumerate(words) if any(p in w for p in grammar.programs)) + 1
    while position < len(words):
        word = words[position]
        position += 1
        if not word.startswith("--"):
            continue
        head, equals, value = word.partition("=")
        flag = _canonical(grammar, head)
        if flag not in grammar.flags:
            problems.append(_unknown(grammar, head))
            continue
        follows = not equals and position < len(words) and not words[position].startswith("--")
        if follows and not _is_switch(grammar.flags[flag]):
            value, position = words[position], position + 1
        found.append((flag, value))
    return found


def _degree(
    grammar: Grammar, flag: str, value: str, degrees: dict[str, int], problems: list[Problem]
) -> None:
    if (degree := degree_of(value)) is None:
        problems.append(
            Problem(
                "launch-value",
                f'"{value}" for {flag} is not a whole number from 1 to {MOST_DEGREE:,}; try 2',
                field="--parallel",
                value=value,
            )
        )
        return
    degrees[grammar.degrees[flag]] = degree


def _unknown(grammar: Grammar, flag: str) -> Problem:
    near = get_close_matches(flag, grammar.flags, n=1, cutoff=0.5)
    hint = f'; did you mean "{near[0]}"?' if near else ""
    return Problem(
        "launch-flag",
        f'"{flag}" is no flag of {grammar.engine}{hint}',
        field="--parallel",
        value=flag,
        suggestions=tuple(near),
    )
