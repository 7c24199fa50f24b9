"""What ``validate`` answers about measured runs: coverage, errors, sweeps, every record."""

from __future__ import annotations

from pydantic import Field

from perfmodel.report.asked import Record, Versioned


class Errors(Record):
    """Absolute percentage errors |predicted - measured| / measured, and the signed mean (bias)."""

    n: int
    mape: float
    median_ape: float
    p90_ape: float
    bias: float


class Skipped(Record):
    """A record that was not predicted, and why."""

    id: str
    reason: str


class SweepRow(Record):
    """Records that differ only in the parallel configuration.

    `picked` is what the model would have chosen among the measured ones; `top1_regret_pct` what
    that costs over the best measured; `tied`: the best measured was a stated tie of the pick.
    """

    sweep: str
    n: int
    key: str
    kendall_tau: float | None = None
    top1_regret_pct: float
    best_measured: str
    picked: str
    tied: bool = False


class SweepSummary(Record):
    """Over sweeps of three or more layouts (regret) and all pairs more than 5 % apart (tau)."""

    n: int
    mean_top1_regret_pct: float | None = None
    max_top1_regret_pct: float | None = None
    kendall_tau_pooled: float | None = None
    best_or_tie: int = 0


class RecordDetail(Record):
    """One predicted record."""

    id: str
    engine: str
    model: str
    gpu: str
    num_gpus: int
    config_id: str
    source: str | None = None
    doubtful: bool = False
    in_fit: bool = False
    predicted_ms: dict[str, float] = Field(default_factory=dict)
    measured_ms: dict[str, float] = Field(default_factory=dict)
    ape: dict[str, float] = Field(default_factory=dict)
    low_ms: dict[str, float] = Field(default_factory=dict)
    high_ms: dict[str, float] = Field(default_factory=dict)
    peak_memory_mib: tuple[float, float] | None = None
    assumed: tuple[str, ...] = ()
    likely_reason: str | None = None


class ValidateAnswer(Versioned):
    """All of it; `metrics` and `by` hold the rows that `scored` names."""

    records: int
    predicted: int
    scored: int
    scope: str
    skipped: tuple[Skipped, ...] = ()
    bad_rows: tuple[str, ...] = ()
    metrics: dict[str, Errors] = Field(default_factory=dict)
    by: dict[str, dict[str, Errors]] = Field(default_factory=dict)
    sweeps: tuple[SweepRow, ...] = ()
    sweep_summary: SweepSummary
    interval_coverage: float | None = None
    interval_halfwidth_median_pct: float | None = None
    records_detail: tuple[RecordDetail, ...] = ()
