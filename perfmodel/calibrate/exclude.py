"""Leaving out rows that are known to be wrong: ``collective:num_ranks=4,8``."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfmodel.calibrate.records import Records
from perfmodel.errors import BadInput, Problem


def exclude(records: Records, rules: Iterable[str]) -> int:
    """Drop the rows of each rule ``OP:COLUMN=VALUE[,VALUE]``; returns how many.

    Raises:
        BadInput: a rule that cannot be read, or names a column the records do not have.
    """
    dropped = 0
    for rule in rules:
        op, _, condition = rule.partition(":")
        column, _, values = condition.partition("=")
        rows = records.ops.get(op)
        if rows is None or column not in rows.columns or not values:
            raise BadInput(_problem(rule, records))
        hit = np.isin(rows.columns[column].astype(str), values.split(","))
        dropped += int(hit.sum())
        records.ops[op] = rows.take(~hit)
        if hit.all():
            del records.ops[op]
    return dropped


def _problem(rule: str, records: Records) -> Problem:
    known = ", ".join(sorted(records.ops))
    return Problem(
        "option",
        f'--exclude "{rule}" is not OP:COLUMN=VALUE[,VALUE] of these records ({known}); '
        "for example collective:num_ranks=4,8",
        field="--exclude",
        value=rule,
        suggestions=("collective:num_ranks=4,8",),
    )
