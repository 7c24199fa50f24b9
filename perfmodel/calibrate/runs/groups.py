"""By what runs are held out: by their source, or, where all are of one, by what they ran."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from perfmodel.calibrate.runs.cases import Case

ENOUGH = 3
"""Groups that show whether a term holds for a further one."""


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups that are never in both halves.

    Attributes:
        labels: of each run.
        unseen: what a held-out run belongs to, as people say it.
        site: the one source of all runs; None where there are several.
    """

    labels: tuple[str, ...]
    unseen: str = "sources"
    site: str | None = None

    @property
    def evidence(self) -> str | None:
        """What a fit to one source holds for."""
        if self.site is None:
            return None
        return f"one source ({self.site}), held out by {self.unseen}: it holds for this site"


def groups_of(cases: Sequence[Case]) -> Groups:
    """Sources; of a single source the shapes it ran, else its numbers of GPUs, else its layouts.

    Runs of one source share what the source does not say, so other sources are the test of a term
    that is meant for all.  A term for one site is tested by requests (or layouts) of that site that
    the fit did not see: what only bends single runs does not pass.
    """
    sources = tuple(case.source for case in cases)
    if len(set(sources)) != 1:
        return Groups(sources)
    found = [Groups(tuple(map(of, cases)), name, sources[0]) for name, of in WAYS]
    return max(found, key=lambda one: min(len(set(one.labels)), ENOUGH))


def _shape(case: Case) -> str:
    shape = case.job.shape
    return f"{case.record.model} {shape.task} {shape.width}x{shape.height}x{shape.frames}"


def _gpus(case: Case) -> str:
    return f"{case.record.gpu} {case.record.num_gpus}"


def _layout(case: Case) -> str:
    return case.layouts.row(0).config_id


WAYS: tuple[tuple[str, Callable[[Case], str]], ...] = (
    ("workload shapes", _shape),
    ("GPU counts", _gpus),
    ("layouts", _layout),
)
"""The furthest apart first."""
