"""What the causal law is worth on full attention: the evidence for shapes nobody measured.

Full (non-causal) attention with heads of 128 is in no public table, but both masks were measured
with heads of 64.  The law is fitted to causal rows alone and predicts the full rows of that
width: ``python -m perfmodel.calibrate.transfer DEVICE RECORDS...``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from perfmodel.calibrate.explore import Options
from perfmodel.calibrate.kernels import FACTORS
from perfmodel.calibrate.laws_fit import FitLaw, fit_laws
from perfmodel.calibrate.metrics import error_summary
from perfmodel.calibrate.records import Records, Rows, read_records
from perfmodel.calibrate.study import Found, search
from perfmodel.catalog import load_device
from perfmodel.cost.machine import Rates
from perfmodel.errors import BadInput, Problem
from perfmodel.spec.hardware import Device

WIDTH = 64
LONG = 4096


def transfer_error(
    sources: Iterable[Path], device: Device, options: Options | None = None
) -> dict[str, dict[str, float | int]]:
    """Errors on long full rows of width 64 of a law that saw causal rows only.

    Returns:
        By causal kernel that lends its factors, ``fastest`` for the fastest of them.

    Raises:
        BadInput: the records do not hold both masks at that width.
    """
    rows = read_records(sources).ops.get("attention")
    causal = np.asarray(rows.columns["causal"], bool) if rows else np.zeros(0, bool)
    target = ~causal & (rows["head_dim"] == WIDTH) & (rows["seq_q"] >= LONG) if rows else causal
    if rows is None or not target.any() or not causal.any():
        raise BadInput(Problem("transfer", f"the records hold no full and causal heads of {WIDTH}"))
    seen = Records(ops={"attention": rows.take(causal)})
    (law,) = fit_laws(seen, device)
    rates = Rates.of(device)
    found = search(law, rates, np.arange(len(law.rows)), options or Options(), "transfer")
    full = rows.take(target)
    times = {name: _with_kernel(law, rates, found, full, name) for name in _at_width(law)}
    times["fastest"] = np.minimum.reduce(list(times.values()))
    return {name: error_summary(time, full["latency_s"]) for name, time in times.items()}


def _at_width(law: FitLaw) -> list[str]:
    """Causal kernels that were measured at the width."""
    here = law.rows["head_dim"] == WIDTH
    return sorted({str(name) for name in law.rows.text("kernel")[here]})


def _with_kernel(
    law: FitLaw, rates: Rates, found: Found, rows: Rows, kernel: str
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    factors = {name: np.full(len(rows), found.kernels[kernel][name]) for name in FACTORS}
    return law.predict(found.values, rates, rows, factors)


def main(arguments: list[str]) -> None:
    """Print the transfer errors of a device."""
    device = load_device(arguments[0])
    for kernel, error in transfer_error([Path(a) for a in arguments[1:]], device).items():
        print(
            f"{device.id}  {kernel:<32} n {error['n']}  mean {error['mape']:.1f} %  "
            f"bias {error['bias']:+.1f} %"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
