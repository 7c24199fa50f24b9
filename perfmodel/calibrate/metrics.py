"""Error measures: absolute percentage errors of predictions, whole and by class."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.laws_fit import FitLaw
from perfmodel.calibrate.records import Rows
from perfmodel.units import KIB, MIB, PERCENT

FloatArray = NDArray[np.float64]

SMALL_S = 2e-5
"""Below this a matrix product is mostly launch and ramp."""


def error_summary(predicted: FloatArray, measured: FloatArray) -> dict[str, float | int]:
    """n, and in percent the mean, median and 90th percentile absolute error and the bias."""
    error = (predicted - measured) / measured * PERCENT
    size = np.abs(error)
    if not len(size):
        return {"n": 0}
    return {
        "n": len(size),
        "mape": round(float(size.mean()), 3),
        "median_ape": round(float(np.median(size)), 3),
        "p90_ape": round(float(np.percentile(size, 90)), 3),
        "bias": round(float(error.mean()), 3),
    }


def grouped(
    predicted: FloatArray, measured: FloatArray, groups: Mapping[str, NDArray[np.bool_]]
) -> dict[str, dict[str, float | int]]:
    """`error_summary` of each group that has rows."""
    return {
        name: error_summary(predicted[mask], measured[mask])
        for name, mask in groups.items()
        if mask.any()
    }


def size_classes(law: FitLaw, rows: Rows) -> dict[str, NDArray[np.bool_]]:
    """Size classes that the accuracy of a law is stated for."""
    time = rows["latency_s"]
    if law.kind == "gemm":
        large = (rows["m"] >= 4 * KIB) & (rows["n"] >= 2 * KIB) & (rows["k"] >= 2 * KIB)
        return {
            "m>=4096 n,k>=2048": large,
            "latency>=20us": time >= SMALL_S,
            "latency<20us": time < SMALL_S,
        }
    if law.kind == "attention":
        long = rows["seq_q"] >= 4 * KIB
        return {"seq>=4096": long, "seq<4096": ~long, **_masks(rows)}
    if law.kind == "collective":
        large = rows["message_bytes"] >= 2 * MIB
        return {"bytes>=2MiB": large, "bytes<2MiB": ~large}
    return {}


def _masks(rows: Rows) -> dict[str, NDArray[np.bool_]]:
    """Causal or not, by head width."""
    causal = np.asarray(rows.columns["causal"], bool)
    width = rows["head_dim"]
    return {
        f"{'causal' if flag else 'full'} head_dim={int(dim)}": (width == dim) & (causal == flag)
        for flag in (True, False)
        for dim in np.unique(width)
    }


def by_kernel(rows: Rows) -> dict[str, NDArray[np.bool_]]:
    """Rows of each kernel."""
    names = rows.text("kernel")
    return {str(name): names == name for name in np.unique(names)}
