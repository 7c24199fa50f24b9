"""Errors of runs under terms of a fit that did not see their source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfmodel.calibrate.runs.cases import Values
from perfmodel.calibrate.runs.evaluations import Evaluations, IntArray
from perfmodel.calibrate.runs.solve import FloatArray, mean_error


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Errors of runs whose source was not in the fit.

    Attributes:
        rows: whole requests.
        weighted: mean absolute log error of all targets, weighted by source.
        median_frac, mean_frac, bias_frac: of the requests' relative errors.
    """

    rows: int
    weighted: float
    median_frac: float
    mean_frac: float
    bias_frac: float


def held_out(
    evaluations: Evaluations, cases: Sequence[int], by_fold: Sequence[Values], folds: IntArray
) -> HeldOut:
    """Errors of `cases`, each under the terms of its own fold."""
    errors = held_out_errors(evaluations, cases, by_fold, folds)
    targets = evaluations.targets_of(cases)
    whole = errors[evaluations.whole[targets]]
    relative = np.exp(whole) - 1.0 if len(whole) else np.zeros(1)
    return HeldOut(
        rows=len(whole),
        weighted=mean_error(errors, evaluations.weight[targets]),
        median_frac=float(np.median(np.abs(relative))),
        mean_frac=float(np.abs(relative).mean()),
        bias_frac=float(relative.mean()),
    )


def held_out_errors(
    evaluations: Evaluations, cases: Sequence[int], by_fold: Sequence[Values], folds: IntArray
) -> FloatArray:
    """Log error of each target of `cases` (ascending), each run under the terms of its fold."""
    targets = evaluations.targets_of(cases)
    of_target = evaluations.case_of[targets]
    errors = np.empty(len(targets))
    for fold, values in enumerate(by_fold):
        members = [n for n in cases if folds[n] == fold]
        errors[folds[of_target] == fold] = evaluations.log_predicted(members, values)
    return np.asarray(errors - evaluations.log_measured[targets])
