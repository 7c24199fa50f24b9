"""The error family: every refusal carries problems a person (or a script) can act on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong, in one physical line.

    Attributes:
        rule_id: stable id of the rule, e.g. ``ulysses-heads`` (``perfmodel explain`` knows it).
        message: what was given, what it collides with, what would be legal and what to type next.
        field: the flag or file field it concerns, e.g. ``--parallel`` or ``models/x.yaml: hidden``.
        value: the offending value as text.
        legal_values: values that would be accepted.
        suggestions: things to type instead.
        severity: ``error`` refuses, ``warning`` informs.
    """

    rule_id: str
    message: str
    field: str | None = None
    value: str | None = None
    legal_values: tuple[str, ...] = ()
    suggestions: tuple[str, ...] = ()
    severity: Severity = "error"

    def line(self) -> str:
        """The line for stderr: ``error[rule-id]: message``."""
        return f"{self.severity}[{self.rule_id}]: {self.message}"


def needs(what: str, package: str, extra: str) -> str:
    """What is missing and how it comes: perfmodel is on no index, its extras are in its source."""
    return f"{what} needs {package}: {install(extra)}"


def install(extra: str) -> str:
    """The command that adds an extra of `pyproject.toml`."""
    return f"pip install '.[{extra}]' in the folder of perfmodel's source"


class PerfmodelError(Exception):
    """Base of all errors that perfmodel raises on purpose.

    Attributes:
        problems: everything that is wrong, not only the first thing.
        exit_code: process exit code of the command line.
        status: the ``status`` field of a JSON answer.
    """

    exit_code = 2
    status = "bad_input"

    def __init__(self, *problems: Problem) -> None:
        """Keep the problems; the exception text is their lines."""
        super().__init__("\n".join(problem.line() for problem in problems))
        self.problems = problems


class BadInput(PerfmodelError):
    """Input that cannot be read or is out of range (exit code 2)."""


class Refused(PerfmodelError):
    """A configuration that the engine or the model does not allow (exit code 2)."""

    status = "illegal"


class MissingData(PerfmodelError):
    """A peak rate, law or measurement that does not exist (exit code 4)."""

    exit_code = 4
    status = "missing_data"
