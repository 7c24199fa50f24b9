"""Configurations of all devices: ``--use-all-gpus`` ranks no others, and why there may be none.

Copies count where the objective runs them: throughput fills the machine with them, latency has as
many as requests are in flight.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from perfmodel.api.records import Table
from perfmodel.api.session import Session
from perfmodel.api.table import Legality, build_table, legality, untried_sizes
from perfmodel.errors import BadInput, Problem
from perfmodel.pipeline.queue import copies_of
from perfmodel.report.answer import RejectedRow
from perfmodel.search.enumerate import MOST_ROWS, MOST_WORLD
from perfmodel.spec.parallel import Layouts

FLAG = "--use-all-gpus"


def uses_all(session: Session, layouts: Layouts, objective: str) -> NDArray[np.bool_]:
    """Which of `layouts`, in the copies that `objective` runs, use every device."""
    num_gpus, requests = session.system.num_gpus, session.workload.concurrency
    copies = copies_of(objective, requests, num_gpus, layouts)
    return np.asarray(layouts.world_size * copies == num_gpus)


def of_all(session: Session, layouts: Layouts, objective: str) -> Layouts:
    """Those of `layouts` that use every device."""
    return layouts.take(uses_all(session, layouts, objective))


def table_of_all(table: Table, objective: str) -> Table:
    """`table` without the configurations of fewer devices."""
    return build_table(table.session, of_all(table.session, table.evaluation.layouts, objective))


def refused_on_all(session: Session, found: Legality) -> RejectedRow | None:
    """The rule that most configurations of all devices break; None where one is legal."""
    whole = found.layouts.world_size == session.system.num_gpus
    if not whole.any() or found.legal[whole].any():
        return None
    return legality(session, found.layouts.take(whole)).rejected[0]


def _replicas(session: Session, legal: Layouts) -> str:
    """How copies of a legal layout would use every device; "" where none would."""
    num_gpus = session.system.num_gpus
    whole = legal.world_size[num_gpus % legal.world_size == 0]
    if not len(whole):
        return ""
    count = num_gpus // int(whole.max())
    return f", {count:,} replicas use all (--objective throughput, or --concurrency {count})"


def refuse_without_all(
    session: Session, legal: Layouts, objective: str, *, named: bool = False
) -> None:
    """Nothing, where one of the legal layouts uses every device.

    Args:
        session: the question.
        legal: the layouts that may run, at least one.
        objective: what the ranking is by.
        named: they were named one by one, so that the search left nothing out.

    Raises:
        BadInput: none uses all devices, or so many are not tried.
    """
    if len(of_all(session, legal, objective)):
        return
    count = session.system.num_gpus
    if not named and count in untried_sizes(session):
        message = (
            f"{FLAG}: a request is not tried on {count:,} GPUs (at most "
            f"{MOST_WORLD:,}, and {MOST_ROWS:,} combinations); leave it out, more run as replicas"
        )
        raise BadInput(Problem("search-bound", message, FLAG, str(count)))
    most = int(legal.world_size.max())
    what = "none of --candidates" if named else "no legal configuration"
    works = "1 GPU works" if most == 1 else f"{most:,} GPUs work"
    message = f"{FLAG}: {what} uses all {count:,} GPUs for one request; leave it out, {works}"
    message += _replicas(session, legal)
    raise BadInput(Problem("all-gpus", message, FLAG, str(count)))
