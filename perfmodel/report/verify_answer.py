"""The JSON contract of `verify`: predicted against measured, what held, what was learnt."""

from __future__ import annotations

from typing import Literal

from perfmodel.report.answer import Document, Prediction, Record, StageRow

RunStatus = Literal["measured", "failed", "set aside"]


class VerifiedRun(Record):
    """One record beside its prediction.

    `status` is measured, failed or set aside (another question, doubtful, unreadable, another
    unit); `reason` says why it is not used, `notes` what is missing in it.  `stages` compares by
    stage, with ``request`` below; `compared_ms` is what the ranking is judged by.
    """

    letter: str | None = None
    record_id: str
    config_id: str | None = None
    status: RunStatus
    reason: str | None = None
    notes: tuple[str, ...] = ()
    stages: tuple[StageRow, ...] = ()
    compared_ms: float | None = None
    predicted_ms: float | None = None
    error_pct: float | None = None
    outside_range: bool | None = None
    peak_memory_gib: float | None = None
    predicted_memory_gib: float | None = None


class TermShift(Record):
    """How far a kind of time was off: `shift_pct` on it, `effect_ms` on the pick's request.

    `before_pct` and `after_pct` are its 80 % half-widths; `bounded`: the measurements would move
    it further than a single study may.
    """

    source: str
    title: str
    shift_pct: float
    before_pct: float
    after_pct: float
    effect_ms: float
    bounded: bool = False


class UpdatedRow(Record):
    """A place of the ranking after the measurements; `measured` values replace predictions.

    `vs_best_pct` is by what the ranking is by; times are of one request alone.
    """

    rank: int
    rank_before: int
    config_id: str
    num_gpus: int = 1
    before_ms: float
    latency_ms: float
    latency_low_ms: float
    latency_high_ms: float
    vs_best_pct: float | None = None
    measured: bool = False
    tied_with_best: bool = False


class VerifyAnswer(Document):
    """What `verify` answers.

    `pick` is the best predicted of the measured configurations, `pick_held` whether no measured
    one is faster by more than repeats differ; null with fewer than two.  `regret_pct` is what the
    pick costs over the best measured, all three by what the ranking is by.  `compared_by` is the
    measured key of that comparison.
    Status ``bad_input``: no record answers the question; `runs` says why of each.
    """

    plan_id: str | None = None
    runs: tuple[VerifiedRun, ...] = ()
    compared_by: str | None = None
    pick: str | None = None
    best_measured: str | None = None
    pick_held: bool | None = None
    regret_pct: float | None = None
    pairs_in_order: int | None = None
    pairs: int | None = None
    inside_range: int | None = None
    terms: tuple[TermShift, ...] = ()
    ranking: tuple[UpdatedRow, ...] = ()
    expected_loss_pct: float | None = None
    best: Prediction | None = None
    next_runs: tuple[str, ...] = ()
    study: str | None = None
    study_trials: int | None = None

    @property
    def has_page(self) -> bool:
        """Records that do not answer are listed with their reasons."""
        return super().has_page or bool(self.runs)

    @property
    def cases(self) -> list[tuple[dict[str, str], Prediction | None]]:
        """Rows of a CSV: a record, what it measured, what was predicted."""
        return [
            (
                {
                    "run": run.letter or "",
                    "record": run.record_id,
                    "configuration": run.config_id or "",
                    "status": run.status,
                    "reason": run.reason or "",
                    "measured_ms": _cell(run.compared_ms),
                    "predicted_ms": _cell(run.predicted_ms),
                    "error_pct": _cell(run.error_pct),
                },
                None,
            )
            for run in self.runs
        ]


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
