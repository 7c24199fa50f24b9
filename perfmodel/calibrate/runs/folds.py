"""Halves that share no source, the same in every call."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FOLDS = 5


def folds_of(
    sources: Sequence[str], groups: Sequence[str] | None = None, folds: int = FOLDS
) -> NDArray[np.intp]:
    """Fold of each row: all rows of a source in one, large sources dealt first.

    A source goes to the fold that has fewest rows of its groups (engines), then of all, so that
    every engine is spread over the folds as evenly as its sources allow.
    """
    groups = ["" for _ in sources] if groups is None else groups
    size = Counter(sources)
    members: dict[str, set[str]] = defaultdict(set)
    for source, group in zip(sources, groups, strict=True):
        members[source].add(group)
    count = Counter(zip(sources, groups, strict=True))
    held: Counter[tuple[int, str]] = Counter()
    fold: dict[str, int] = {}
    for source in sorted(size, key=lambda name: (-size[name], name)):
        fold[source] = min(
            range(folds),
            key=lambda k: (
                sum(held[k, group] for group in members[source]),
                sum(n for (place, _), n in held.items() if place == k),
                k,
            ),
        )
        for group in members[source]:
            held[fold[source], group] += count[source, group]
    return np.array([fold[source] for source in sources], np.intp)
