"""Configurations of all devices: ``--use-all-gpus`` ranks no others, and why there may be none."""

from __future__ import annotations

from perfmodel.api.records import Table
from perfmodel.api.session import Session
from perfmodel.api.table import Legality, build_table, legality, untried_sizes
from perfmodel.errors import BadInput, Problem
from perfmodel.report.answer import RejectedRow
from perfmodel.search.enumerate import MOST_ROWS, MOST_WORLD
from perfmodel.spec.parallel import Layouts

FLAG = "--use-all-gpus"


def of_all(session: Session, layouts: Layouts) -> Layouts:
    """Those of `layouts` that use every device."""
    return layouts.take(layouts.world_size == session.system.num_gpus)


def table_of_all(table: Table) -> Table:
    """`table` without the configurations of fewer devices."""
    return build_table(table.session, of_all(table.session, table.evaluation.layouts))


def refused_on_all(session: Session, found: Legality) -> RejectedRow | None:
    """The rule that most configurations of all devices break; None where one is legal."""
    whole = found.layouts.world_size == session.system.num_gpus
    if not whole.any() or found.legal[whole].any():
        return None
    return legality(session, found.layouts.take(whole)).rejected[0]


def refuse_without_all(session: Session, legal: Layouts, *, named: bool = False) -> None:
    """Nothing, where one of the legal layouts uses every device.

    Args:
        session: the question.
        legal: the layouts that may run, at least one.
        named: they were named one by one, so that the search left nothing out.

    Raises:
        BadInput: none uses all devices, or so many are not tried.
    """
    if len(of_all(session, legal)):
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
    message = f"{FLAG}: {what} uses all {count:,} GPUs; leave it out, {works}"
    raise BadInput(Problem("all-gpus", message, FLAG, str(count)))
