"""Release numbers and days as people write them, and the release nearest to a number."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from typing import Literal

from perfmodel.errors import Problem

Release = tuple[int, int, int]

_NUMBER = re.compile(
    r"v?(\d+)\.(\d+)(?:\.(\d+))?"
    r"(?:[.\-]?(?P<word>post|dev|rc|alpha|beta|a|b)[.\-]?\d*(?:\.?dev\d+)?)?"
    r"(?P<local>\+[\w.]+)?(?P<note>\s*\(.*\))?"
)
_DAY = re.compile(r"(\d{4})-(\d{2})(?:-(\d{2}))?")


@dataclass(frozen=True, slots=True)
class Number:
    """A version number.

    Attributes:
        release: the release that it names.
        side: ``exact``: this release (a local label such as ``+cu130`` changes nothing);
            ``before``: a development or pre-release of it; ``after``: a post-release, or code that
            a note in brackets describes.
    """

    release: Release
    side: Literal["exact", "before", "after"]


def read_number(text: str) -> Number | None:
    """``0.30.0``, ``v0.30``, ``0.25.0rc2.dev62``, ``0.5.13.post1``; None for anything else."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    release = (int(match[1]), int(match[2]), int(match[3] or 0))
    if match["word"] not in (None, "post"):
        return Number(release, "before")
    return Number(release, "after" if match["word"] or match["note"] else "exact")


def nearest_release(number: Number, known: Iterable[Release]) -> Release:
    """The newest known release that is no newer than `number`, else the oldest known."""
    releases = sorted(known)
    older = [one for one in releases if one < number.release]
    if number.side != "before" and number.release in releases:
        older.append(number.release)
    return older[-1] if older else releases[0]


def read_day(text: str) -> str | None:
    """ISO day of ``2026-06-16`` or ``2026-06`` (its 28th); None where the calendar has none."""
    match = _DAY.fullmatch(text.strip())
    if match is None:
        return None
    try:
        return date(int(match[1]), int(match[2]), int(match[3] or 28)).isoformat()
    except ValueError:
        return None


def unread(title: str, text: str, last: str) -> Problem:
    """The warning of a day after `last`, the newest code of the engine `title` that was read."""
    return Problem(
        "engine-version",
        f"{title} was read up to {last}; {text} runs on what it had then",
        field="--engine",
        value=text,
        severity="warning",
    )
