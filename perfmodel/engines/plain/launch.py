"""Read a launch command that is made of ``--flag value`` words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
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
    """

    engine: str
    programs: tuple[str, ...]
    flags: Mapping[str, Mapping[str, Any]]
    degrees: Mapping[str, str]
    switches: Mapping[str, tuple[str, object]] = field(default_factory=dict)
    texts: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)
    model: tuple[str, ...] = ("--model",)


def read(grammar: Grammar, argv: Sequence[str]) -> Launch:
    """Degrees, options and model of a command as typed.

    Raises:
        BadInput: another program, unknown flags or values, each with the nearest known one.
    """
    words = [word for word in argv if word.strip(" \n\\")]
    while words and (words[0] == "env" or _ASSIGNMENT.match(words[0])):
        words.pop(0)
    if not any(program in word for word in words[:8] for program in grammar.programs):
        raise BadInput(_no_program(grammar, words))
    degrees: dict[str, int] = {}
    options: dict[str, object] = {}
    problems: list[Problem] = []
    ignored: list[str] = []
    model = ""
    for flag, value in _pairs(grammar, words, problems):
        if flag in grammar.model:
            model = value
        elif flag in grammar.degrees:
            _degree(grammar, flag, value, degrees, problems)
        elif flag in grammar.switches and value.lower() not in _FALSE:
            key, choice = grammar.switches[flag]
            target, name = (options, key[7:]) if key.startswith("option:") else (degrees, key)
            target[name] = choice  # type: ignore[assignment]
        elif flag in grammar.texts and value in grammar.texts[flag][1]:
            name, values = grammar.texts[flag]
            options[name] = values[value]
        else:
            ignored.append(flag)
    gpus = degrees.pop("num_gpus", None)
    if problems:
        raise BadInput(*problems)
    parallel = _parallel(degrees)
    check_ranks(parallel)
    return Launch(
        parallel=parallel,
        options=options,
        model=model,
        num_gpus=gpus,
        engine=grammar.engine,
        ignored=tuple(ignored),
    )


def _parallel(degrees: Mapping[str, int]) -> ParallelConfig:
    """Degrees with what follows from the ranks: -1 stands for all of them."""
    stated = {k: v for k, v in degrees.items() if v > 0 and not k.startswith(("vae", "hsdp"))}
    ranks = replace(ParallelConfig(), **stated).world_size  # type: ignore[arg-type]
    filled = {key: ranks if value == -1 else value for key, value in degrees.items()}
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
