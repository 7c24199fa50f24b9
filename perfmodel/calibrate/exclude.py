"""Leaving out rows that are known to be wrong: ``collective:num_ranks=4,8``."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfmodel.calibrate.records import MOST_SHOWN, Column, Records
from perfmodel.errors import BadInput, Problem


def exclude(records: Records, rules: Iterable[str]) -> int:
    """Drop the rows of each rule ``OP:COLUMN=VALUE[,VALUE]``; returns how many.

    Raises:
        BadInput: a rule that cannot be read, or names a column or value that no row has.
    """
    dropped = 0
    for rule in rules:
        op, _, condition = rule.partition(":")
        column, _, values = condition.partition("=")
        rows = records.ops.get(op)
        if rows is None or column not in rows.columns or column == "latency_s":
            raise BadInput(_problem(rule, records))
        held = np.char.lower(rows.columns[column].astype(str))
        wanted = [value.strip().lower() for value in values.split(",")]
        if missing := [value for value in wanted if value not in held]:
            raise BadInput(_no_row(rule, missing, rows.columns[column]))
        hit = np.isin(held, wanted)
        dropped += int(hit.sum())
        records.ops[op] = rows.take(~hit)
        if hit.all():
            del records.ops[op]
    return dropped


def _no_row(rule: str, missing: list[str], column: Column) -> Problem:
    held = ", ".join(str(value) for value in np.unique(column)[:MOST_SHOWN])
    message = f'--exclude "{rule}": no row holds {", ".join(missing)}; there are: {held}'
    return Problem("option", message, field="--exclude", value=rule)


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
