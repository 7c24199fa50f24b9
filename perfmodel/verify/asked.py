"""The question that records themselves ask, where nobody else states one."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.errors import BadInput, Problem
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.record import RunRecord
from perfmodel.validate.questions import Question, Skip, question

Key = tuple[object, ...]


def common_question(records: Sequence[RunRecord], include_doubtful: bool = False) -> Question:
    """The question with the most configurations; its machine has the most devices among them.

    Raises:
        BadInput: no record can be predicted; with the reasons.
    """
    groups: dict[Key, dict[ParallelConfig, Question]] = {}
    reasons: dict[str, int] = {}
    doubtful = [] if include_doubtful else [record for record in records if record.doubtful]
    for record in [r for r in records if r not in doubtful] or records:
        try:
            asked = question(record)
        except Skip as skip:
            reasons[str(skip)] = reasons.get(str(skip), 0) + 1
            continue
        groups.setdefault(key_of(record, asked), {}).setdefault(asked.parallel, asked)
    if not groups:
        why = "; ".join(f"{count} {reason}" for reason, count in reasons.items()) or "no records"
        message = f"nothing in the results can be predicted: {why}"
        raise BadInput(Problem("results", message, "--from"))
    largest = max(groups.values(), key=len)
    return max(largest.values(), key=lambda asked: asked.system.num_gpus)


def key_of(record: RunRecord, asked: Question) -> Key:
    """What records of one question share: everything but the configuration."""
    work, options = asked.workload, asked.options
    return (
        asked.engine,
        asked.system.device.id,
        work.model_dump_json(exclude={"guidance"}),
        record.cfg,
        options.model_dump_json(exclude={"vae_tiling"}),
    )
