"""The JSON contract of `verify --live`: operators predicted and measured on the devices at hand."""

from __future__ import annotations

from pydantic import Field

from perfmodel.report.answer import Document, Prediction, Record


class LiveRow(Record):
    """One operator; `runs` executions of it make a block (or a forward, a step, a decode).

    `predicted_ms` and `measured_ms` are of one `unit` (block, forward, step, decode), `share` is
    the predicted share of the stage.  `skipped` says why nothing was measured.
    """

    stage: str
    operator: str
    kind: str
    unit: str
    predicted_ms: float
    measured_ms: float | None = None
    error_pct: float | None = None
    spread_ms: float | None = None
    repeats: int = 0
    share: float | None = None
    bound: str | None = None
    provenance: str | None = None
    skipped: str | None = None


class LiveAnswer(Document):
    """What `verify --live` answers.

    `scale` divides sides, heads and widths (1: the request itself).  Block times are of all ranks
    together, with what overlaps; `denoise_measured_ms` puts the measured block times times the
    blocks that run in a request (and the measured operators around them) in the place of the
    predictions; `covered_share` is the predicted share of the stage that was measured.
    `not_built` names operators that were predicted and not run, with their share.
    """

    config_id: str
    ranks: int
    device_name: str
    software: str
    backend: str | None = None
    dtype: str
    scale: int = 1
    compiled: bool = False
    rows: tuple[LiveRow, ...] = ()
    block_predicted_ms: float | None = None
    block_measured_ms: float | None = None
    block_sum_measured_ms: float | None = None
    block_runs: float | None = None
    denoise_predicted_ms: float | None = None
    denoise_measured_ms: float | None = None
    covered_share: float | None = None
    vae_slice: str | None = None
    vae_slice_share: float | None = None
    not_built: dict[str, float] = Field(default_factory=dict)
    median_error_pct: float | None = None
    records: str | None = None
    measured_now: int = 0
    measured_before: int = 0

    @property
    def cases(self) -> list[tuple[dict[str, str], Prediction | None]]:
        """Rows of a CSV."""
        return [
            (
                {
                    "stage": row.stage,
                    "operator": row.operator,
                    "kind": row.kind,
                    "unit": row.unit,
                    "predicted_ms": f"{row.predicted_ms:.6g}",
                    "measured_ms": "" if row.measured_ms is None else f"{row.measured_ms:.6g}",
                    "error_pct": "" if row.error_pct is None else f"{row.error_pct:.1f}",
                    "provenance": row.provenance or "",
                },
                None,
            )
            for row in self.rows
        ]
