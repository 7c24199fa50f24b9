"""What a long fit is doing, said every few seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import TypeVar

Item = TypeVar("Item")

EVERY_S = 5.0
"""Seconds between two lines."""


class Progress:
    """Lines about the task at hand, one every `EVERY_S` seconds."""

    def __init__(self, say: Callable[[str], None] = lambda _: None) -> None:
        """`say` prints a line."""
        self._say, self._task, self._done = say, "", 0
        self._began = self._last = monotonic()

    def task(self, name: str) -> None:
        """What follows is about `name`, which is said at once."""
        self.quick(name)
        self._say(name)

    def quick(self, name: str) -> None:
        """What follows is about `name`; nothing is said of it unless it takes long."""
        self._task, self._done = name, 0
        self._last = monotonic()

    def done(self, unit: str) -> None:
        """One more `unit` of the task is done."""
        self._done += 1
        now = monotonic()
        if now - self._last >= EVERY_S:
            self._last = now
            self._say(f"{self._task}: {self._done} {unit}, {now - self._began:.0f} s so far")

    def counted(self, items: Iterable[Item], unit: str) -> Iterator[Item]:
        """`items`, each counted when it is done."""
        for item in items:
            yield item
            self.done(unit)
