"""The launch command after ``--``: its words, the engine that it starts, what it leaves open."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from perfmodel.cli.given import Given
from perfmodel.errors import BadInput, Problem

if TYPE_CHECKING:
    from perfmodel.report.answer import Document

D = TypeVar("D", bound="Document")
STARTERS = {
    "vllm": "vllm-omni",
    "vllm-omni": "vllm-omni",
    "sglang": "sglang-diffusion",
    "xdit": "xdit",
    "generate.py": "wan-official",
    "video2world.py": "cosmos-official",
    "text2image.py": "cosmos-official",
}
"""Programs and scripts that start an engine by their own name."""
ENDINGS = {"_example.py": "xdit"}
"""How the names of an engine's example programs end."""
LOOKED_AT = 8
"""Words before the program: variables, ``python -m``, a launcher and its flags."""


def words(launch: Sequence[str]) -> list[str]:
    """The words of a command; one that was given as a single quoted text is split.

    Raises:
        BadInput: a quotation in that text does not end.
    """
    if len(launch) != 1 or not launch[0].split()[1:]:
        return list(launch)
    try:
        return shlex.split(launch[0].replace("\\\n", " "))
    except ValueError as error:
        message = f"the launch command after -- cannot be split into words: {error}"
        raise BadInput(Problem("launch", message, "--parallel", launch[0])) from None


def started_engine(command: Sequence[str]) -> str | None:
    """The engine whose program the command starts; None when its name does not tell."""
    for word in command[:LOOKED_AT]:
        name = Path(word).name
        ending = next((engine for end, engine in ENDINGS.items() if name.endswith(end)), None)
        if started := STARTERS.get(name, ending):
            return started
    return None


def read_engine(given: Given, command: Sequence[str]) -> str | None:
    """The engine to read the command with, where ``--engine`` does not say it.

    Raises:
        BadInput: ``--engine`` names another one than the command starts.
    """
    from perfmodel.engines import parse_engine

    asked, started = given.text("engine"), started_engine(command)
    if asked is None or started is None:
        return started
    if (name := parse_engine(asked)[0].name) == started:
        return None
    message = (
        f"the launch command after -- starts {started}, and --engine says {name}; "
        f"try --engine {started}"
    )
    raise BadInput(
        Problem("engine", message, "--engine", asked, suggestions=(f"--engine {started}",))
    )


def check_model(given: Given, command: Sequence[str], engine: str | None) -> None:
    """The model of ``--model`` is that of the command; a path may be named by ``--model``.

    Raises:
        BadInput: two models, or a command that cannot be read.
    """
    from perfmodel import catalog
    from perfmodel.engines import parse_engine

    asked = given.text("model")
    named = parse_engine(engine)[0].read_launch(command).model
    if asked is None or not named or Path(named).exists():
        return
    try:
        started = catalog.load_model(named).slug
    except BadInput:
        return
    if (slug := catalog.load_model(asked).slug) != started:
        message = (
            f"two models: --model {asked} ({slug}), and {named} ({started}) in the launch command "
            "after --; leave out --model, or give the same one"
        )
        raise BadInput(Problem("model", message, "--model", asked))


def with_open_points(answer: D, command: Sequence[str] | None, engine: str | None) -> D:
    """The answer with the warnings of its launch command, such as an unknown cache ratio."""
    if not command:
        return answer
    from perfmodel.engines import parse_engine
    from perfmodel.report.asked import ProblemInfo

    found = parse_engine(engine)[0].read_launch(command).problems
    extra = [ProblemInfo.of(problem) for problem in found]
    new = [warning for warning in extra if warning not in answer.warnings]
    return answer.model_copy(update={"warnings": (*answer.warnings, *new)}) if new else answer
