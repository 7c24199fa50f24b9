"""Which rows are fitted and which are held out: a hash of the shape decides, never its kernel."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.laws_fit import FitLaw

SALT = "perfmodel-1"
HELD_OUT_OF_TEN_THOUSAND = 2000
"""Held-out share of shapes, in ten thousandths."""
EVERY = 4
"""Of so few shapes that a hash may keep none apart, one of so many is held out."""


def shape_key(law: FitLaw, row: int) -> str:
    """Operator, dtype (or operation) and dimensions of a row, as text."""
    parts = [str(law.rows.columns[name][row]) for name in law.key]
    return "|".join([law.kind, *parts])


def held_out(law: FitLaw, salt: str = SALT) -> NDArray[np.bool_]:
    """True for rows that no fit with this salt may see.

    A shape measured with several kernels, or by several collectors, lies in one half only.  Where
    the hash puts all of a few shapes into one half, the last of every four is held out instead.
    """
    keys = [shape_key(law, row) for row in range(len(law.rows))]
    flags = np.array([_bucket(f"{salt}|{key}") for key in keys], np.int64)
    away = flags < HELD_OUT_OF_TEN_THOUSAND
    if away.any() and not away.all():
        return away
    place = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    every = min(EVERY, len(place))
    return np.array([place[key] % every == every - 1 for key in keys], bool)


def _bucket(text: str) -> int:
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:4], "big") % 10_000


def top_work(law: FitLaw, share: float = 0.1) -> NDArray[np.bool_]:
    """Rows among the `share` with the most work."""
    return np.asarray(law.work > np.quantile(law.work, 1.0 - share))
