"""What a block runs, step by step: a tape runs it, and can keep each step to time it alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


@dataclass(frozen=True)
class Step:
    """One operator with the inputs it had.

    Attributes:
        name: of the operator in the prediction.
        function, inputs: the call.
        message: whether ranks wait for one another in it.
        also: further operators of the prediction that the same call does.
    """

    name: str
    function: Callable[..., object]
    inputs: tuple[Any, ...]
    message: bool = False
    also: tuple[str, ...] = ()

    @property
    def signature(self) -> str:
        """Shapes and types of the inputs: equal ones are the same work."""
        return "|".join(_shape(value) for value in flat(self.inputs))


@dataclass
class Tape:
    """Runs operators.

    Attributes:
        recording: whether steps are kept.
        compile: turns a chain of small kernels into fused ones; None leaves it as it is.
        steps: what was kept, in order.
    """

    recording: bool = False
    compile: Callable[[Callable[..., Any]], Callable[..., Any]] | None = None
    steps: list[Step] = field(default_factory=list)
    _compiled: dict[Callable[..., Any], Callable[..., Any]] = field(default_factory=dict)

    def silent(self) -> Tape:
        """A tape that runs the same kernels and keeps nothing."""
        return Tape(False, self.compile, [], self._compiled)

    def __call__(self, name: str, function: Callable[..., Result], *inputs: Any) -> Result:
        """Run one operator."""
        if self.recording:
            self.steps.append(Step(name, function, inputs))
        return function(*inputs)

    def fused(self, name: str, function: Callable[..., Result], *inputs: Any) -> Result:
        """Run a chain of small kernels, fused where the tape compiles."""
        if self.compile is not None:
            if function not in self._compiled:
                self._compiled[function] = self.compile(function)
            function = self._compiled[function]
        return self(name, function, *inputs)

    def send(self, name: str, function: Callable[..., Result], *inputs: Any) -> Result:
        """Run a message, for which ranks wait."""
        if self.recording:
            self.steps.append(Step(name, function, inputs, message=True))
        return function(*inputs)

    def note(self, name: str, function: Callable[..., object], *inputs: Any) -> None:
        """Keep a message that the block overlaps with something else, without running it."""
        if self.recording:
            self.steps.append(Step(name, function, inputs, message=True))


def flat(value: object) -> list[object]:
    """Tensors (and other values) inside nested tuples."""
    if isinstance(value, tuple | list):
        return [inner for part in value for inner in flat(part)]
    return [value]


def tensors(value: object) -> list[torch.Tensor]:
    """Tensors inside nested tuples."""
    return [part for part in flat(value) if isinstance(part, torch.Tensor)]


def copied(value: Any) -> Any:
    """The same with every tensor in memory of its own, its layout kept."""
    if isinstance(value, torch.Tensor):
        return value.clone(memory_format=torch.preserve_format)
    if isinstance(value, tuple):
        return tuple(copied(part) for part in value)
    return value


def _shape(value: object) -> str:
    if isinstance(value, torch.Tensor):
        sides = "x".join(map(str, value.shape))
        return f"{sides}:{str(value.dtype).removeprefix('torch.')}"
    return "" if callable(value) or value is None else str(value)
