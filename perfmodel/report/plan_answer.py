"""The JSON contract of `plan`: runs, what each of them tells, and what stays open."""

from __future__ import annotations

from pydantic import Field

from perfmodel.report.answer import Document, Prediction, Record

FlagValue = str | bool | tuple[str, ...]


class PlanRun(Record):
    """One run of a plan.

    `letter` belongs to this plan only; `run_id` names its folder.  `reference` is the run that it
    is compared with, `changes` what differs (`changed` things), `question` what the pair answers.
    `best_share` is the share of draws in which it is the best of all configurations.
    `in_flight`: requests that each repeat sends to the one server at once.
    """

    letter: str
    run_id: str
    config_id: str
    reference: str | None = None
    changes: str
    changed: int = 0
    question: str
    prediction: Prediction
    minutes: float
    gpu_minutes: float
    warmups: int = 1
    repeats: int = 3
    in_flight: int = 1
    best_share: float | None = None


class StopRule(Record):
    """After `after` the other runs are not needed if the best leads by more than `margin_pct`."""

    after: str
    margin_pct: float | None = None
    text: str


class LeftOut(Record):
    """Configurations that are not run, and why; `slower_share` of the draws they lose."""

    what: str
    config_id: str | None = None
    slower_share: float | None = None
    reason: str


class PlanAnswer(Document):
    """What `plan` answers.

    Expected losses compare the final pick with the true best, in percent of its time; they are
    means over draws of the errors of the predictions.  `contains_best_share` is the share of draws
    in which the best configuration, or a tie of it, is among the runs.  `flags` are the flags that
    asked the question, as typed; `verify` asks it again.
    """

    runs: tuple[PlanRun, ...] = ()
    minutes: float | None = None
    gpu_minutes: float | None = None
    start_minutes: float | None = None
    full_sweep_runs: int | None = None
    full_sweep_minutes: float | None = None
    expected_loss_now_pct: float | None = None
    expected_loss_after_pct: float | None = None
    contains_best_share: float | None = None
    stop_rules: tuple[StopRule, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    flags: dict[str, FlagValue] = Field(default_factory=dict)

    @property
    def cases(self) -> list[tuple[dict[str, str], Prediction | None]]:
        """Rows of a CSV: what is special of a run, and its prediction."""
        return [
            (
                {
                    "run": run.letter,
                    "reference": run.reference or "",
                    "changes": run.changes,
                    "question": run.question,
                    "minutes": f"{run.minutes:.3f}",
                    "repeats": str(run.repeats),
                },
                run.prediction,
            )
            for run in self.runs
        ]
