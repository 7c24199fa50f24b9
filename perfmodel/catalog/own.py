"""The user's own files beside the shipped ones: drafts that are not read, names that collide."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from perfmodel.catalog.data import Entry, data_roots, entries, entry, read_yaml, simple
from perfmodel.errors import Problem

MOST_NAMES = 4
"""Names that one line lists."""


def drafts(folders: Iterable[str] = ("hardware", "models")) -> list[Problem]:
    """A warning for each own file that cannot be read: it matters only where it is asked for."""
    return [
        Problem(
            "own-file",
            f"{item.problems[0].message}; not read, and refused where {item.id} is asked for",
            field=str(item.path),
            severity="warning",
        )
        for folder in folders
        for item in entries(folder).values()
        if item.problems
    ]


def collisions(path: Path) -> list[Problem]:
    """Warnings of a device file that is called as devices of other ids are."""
    item = entry(read_yaml(path, "hardware-file"))
    own = Entry(str(item["id"]), str(item["title"]), tuple(item["names"]), path)
    return [_shared(own, other) for other in _alike(own)]


def lent_names(identity: str, typed: str) -> Problem | None:
    """What is said where `typed`, or the title of an own device `identity`, also names another."""
    own = entries("hardware")[identity]
    exact = simple(typed) == simple(identity)
    shown = own.title if exact else typed
    others = [other for other in _alike(own) if simple(shown) in _names(other)]
    if not others or (exact and own.path.is_relative_to(data_roots()[0])):
        return None
    titles = ", ".join(other.id for other in others)
    message = (
        f'{identity} ({own.path}) is titled "{shown}", which names {titles} too: give it a title '
        "of its own"
        if exact
        else f'"{typed}" taken as {identity} ({own.path}); {titles} is called so too: type an id, '
        f"or give {identity} names of its own"
    )
    return Problem(
        "gpu-name",
        message,
        field="--gpus",
        value=typed,
        suggestions=tuple(other.id for other in others),
        severity="warning",
    )


def _alike(own: Entry) -> list[Entry]:
    """Devices of other ids with a name in common."""
    return [
        other
        for other in entries("hardware").values()
        if other.id != own.id and not other.problems and _names(own) & _names(other)
    ]


def _names(item: Entry) -> set[str]:
    return {simple(item.id), *item.called}


def _shared(own: Entry, other: Entry) -> Problem:
    written = {simple(own.id): own.id, **own.called}
    same = [written[key] for key in written if key in _names(other)]
    shown = ", ".join(f'"{name}"' for name in same[:MOST_NAMES])
    more = f" and {len(same) - MOST_NAMES} more" if len(same) > MOST_NAMES else ""
    return Problem(
        "gpu-name",
        f"{own.path}: {shown}{more} also name {other.id}; with PERFMODEL_PATH they mean {own.id}, "
        f"except its id: give title, aliases and names of your own",
        field="names",
        value=own.id,
        suggestions=(other.id,),
        severity="warning",
    )
