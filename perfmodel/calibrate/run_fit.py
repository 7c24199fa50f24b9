"""Engine terms from measured runs: few, bounded, named, each with the rows that identify it.

A term is searched as the logarithm of its ratio to the present value, with a pull towards it, so
that a term no run identifies stays where it is.  Residuals are log errors, robust (soft l1), and
rows of one source share a weight, so that a long thread counts little more than a short one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.calibrate.run_samples import Sample

Column = NDArray[np.float64]

ROWS_PER_TERM = 10
"""Independent rows that a free term needs."""

LOG_ERROR = 0.1
"""Log error of a run that weighs as much as one standard deviation of a prior."""

ROWS_OF_A_SOURCE = 4
"""Rows of one source that count in full; more of them share that weight."""

STAGES = ("text", "encode", "denoise", "decode", "transfer", "media")
FORWARD_KEYS = ("pipeline_forward", "generation")


@dataclass(frozen=True, slots=True)
class Term:
    """A free term.

    Attributes:
        name: as in the terms file (``launch_compiled_s``, ``sustained_frac.gemm@h100-sxm``).
        engine: whose file it lives in.
        spread: standard deviation of its logarithm before any run is seen.
        inverse: a larger value means less time (a rate or fraction).
    """

    name: str
    engine: str
    spread: float
    inverse: bool


SHARED = (
    Term("sustained_frac.attention", "vllm-omni", 0.10, True),
    Term("sustained_frac.gemm", "vllm-omni", 0.10, True),
    Term("sustained_frac.pointwise", "vllm-omni", 0.15, True),
    Term("conv_rate_frac", "vllm-omni", 0.15, True),
    Term("strided_memory_frac", "vllm-omni", 0.15, True),
    Term("launch_vae_s", "vllm-omni", 0.30, False),
    Term("rank_skew_frac", "vllm-omni", 0.50, False),
    Term("hsdp_hook_s", "vllm-omni", 1.00, False),
    Term("ipc_bytes_per_s", "vllm-omni", 0.40, True),
    Term("media_pixels_per_s", "vllm-omni", 0.40, True),
)
OF_A_DEVICE = (("sustained_frac.attention", 0.08), ("sustained_frac.gemm", 0.08))
OF_AN_ENGINE = (("launch_compiled_s", 0.40), ("launch_eager_s", 0.40), ("request_host_s", 1.0))


def free_terms(samples: Sequence[Sample]) -> list[Term]:
    """Shared terms, and those of devices and engines with enough independent rows."""
    devices = Counter(sample.device for sample in samples)
    engines = Counter(sample.record.engine for sample in samples)
    terms = list(SHARED)
    for device, rows in sorted(devices.items()):
        if rows >= ROWS_PER_TERM * len(OF_A_DEVICE):
            terms += [
                Term(f"{name}@{device}", "vllm-omni", spread, True) for name, spread in OF_A_DEVICE
            ]
    for engine, rows in sorted(engines.items()):
        if rows >= ROWS_PER_TERM * len(OF_AN_ENGINE):
            terms += [Term(name, engine, spread, False) for name, spread in OF_AN_ENGINE]
    return terms


class Model:
    """Samples as arrays; composes their stages again under other terms."""

    def __init__(self, samples: Sequence[Sample], present: Mapping[str, Mapping[str, float]]):
        """Keep the columns.

        Args:
            samples: the runs.
            present: terms of each engine at which the samples were taken.
        """
        self.samples = list(samples)
        self.present = present
        self.devices = np.array([s.device for s in samples])
        self.engines = np.array([s.record.engine for s in samples])
        self.compiled = np.array([s.compiled for s in samples])
        self.denoise = _columns([s.denoise for s in samples])
        self.encode = _columns([s.encode for s in samples])
        self.decode = _columns([s.decode for s in samples])
        self.fused = np.array([s.fused for s in samples])
        self.rest = {
            "text": np.array([s.rest_s for s in samples]),
            "transfer": np.array([s.transfer_s for s in samples]),
            "media": np.array([s.media_s for s in samples]),
            "steps": np.array([s.steps for s in samples], float),
        }
        targets = [
            (number, key, seconds)
            for number, s in enumerate(samples)
            for key, seconds in s.targets.items()
        ]
        self.rows = np.array([number for number, _, _ in targets], np.intp)
        self.keys = [key for _, key, _ in targets]
        self.measured = np.array([seconds for _, _, seconds in targets])
        self.weights = _weights(self.samples, self.rows)

    def term(self, ratios: Mapping[tuple[str, str], float], name: str) -> Column:
        """Value of an engine's term for every sample."""
        values = np.array([self.present[e][name] for e in self.engines])
        for (term, engine), ratio in ratios.items():
            if term == name:
                values = np.where(self.engines == engine, values * ratio, values)
        return values

    def slower(self, ratios: Mapping[tuple[str, str], float], name: str) -> Column:
        """Time of a kind of work over its present time, for every sample."""
        factor = np.ones(len(self.samples))
        shared = ratios.get((name, "vllm-omni"), 1.0)
        for device in np.unique(self.devices):
            own = ratios.get((f"{name}@{device}", "vllm-omni"))
            factor[self.devices == device] = 1.0 / (shared if own is None else own)
        return factor

    def stages(self, ratios: Mapping[tuple[str, str], float]) -> dict[str, Column]:
        """Seconds of every stage of every sample."""
        d = self.denoise
        kernels = (
            d["attention"] * self.slower(ratios, "sustained_frac.attention")
            + d["gemm"] * self.slower(ratios, "sustained_frac.gemm")
            + (d["pointwise"] + d["copy"]) * self.slower(ratios, "sustained_frac.pointwise")
        )
        hook = ratios.get(("hsdp_hook_s", "vllm-omni"), 1.0)
        busy = kernels + d["collective"] + d["hook"] * hook + d["fixed"]
        launch = np.where(
            self.compiled,
            self.term(ratios, "launch_compiled_s"),
            self.term(ratios, "launch_eager_s"),
        )
        host = d["launches"] * launch + d["forwards"] * self.term(ratios, "forward_host_s")
        together = d["wait"] > 0
        skew = self.term({}, "rank_skew_frac") * ratios.get(("rank_skew_frac", "vllm-omni"), 1.0)
        handling = self.term(ratios, "request_host_s") - self.term({}, "request_host_s")
        return {
            "text": self.rest["text"],
            "encode": self._vae(self.encode, ratios, fused=False),
            "denoise": np.maximum(busy, host) + kernels * skew * together,
            "decode": self._vae(self.decode, ratios, fused=True),
            "transfer": self.rest["transfer"] * self.slower(ratios, "ipc_bytes_per_s") + handling,
            "media": self.rest["media"] * self.slower(ratios, "media_pixels_per_s"),
        }

    def _vae(
        self, parts: dict[str, Column], ratios: Mapping[tuple[str, str], float], *, fused: bool
    ) -> Column:
        strided = self.slower(ratios, "strided_memory_frac")
        if fused:
            strided = np.where(self.fused, 1.0, strided)
        busy = (
            parts["conv"] * self.slower(ratios, "conv_rate_frac")
            + (parts["pointwise"] + parts["copy"]) * strided
            + parts["attention"]
            + parts["collective"]
            + parts["fixed"]
        )
        each = self.term({}, "launch_vae_s") * ratios.get(("launch_vae_s", "vllm-omni"), 1.0)
        return np.asarray(np.maximum(busy, parts["launches"] * each))

    def predict(self, ratios: Mapping[tuple[str, str], float]) -> Column:
        """Seconds of every target."""
        stages = self.stages(ratios)
        forward = stages["text"] + stages["encode"] + stages["denoise"] + stages["decode"]
        whole = forward + stages["transfer"] + stages["media"]
        by_key = {
            "denoise": stages["denoise"],
            "denoise_per_step": stages["denoise"] / self.rest["steps"],
            "vae_decode": stages["decode"],
            "vae_encode": stages["encode"],
            "pipeline_forward": forward,
            "generation": forward,
            "stage_gen": forward + stages["transfer"],
        }
        return np.array(
            [by_key.get(key, whole)[row] for row, key in zip(self.rows, self.keys, strict=True)]
        )


def _columns(rows: Sequence[Mapping[str, float]]) -> dict[str, Column]:
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _weights(samples: Sequence[Sample], rows: NDArray[np.intp]) -> Column:
    """Square root of each target's weight: targets of a long source share the weight of a few."""
    of_source = Counter(samples[row].record.source for row in rows)
    return np.array(
        [min(1.0, ROWS_OF_A_SOURCE / of_source[samples[row].record.source]) ** 0.5 for row in rows]
    )


def fit(model: Model, terms: Sequence[Term]) -> dict[tuple[str, str], float]:
    """Ratio of each term to its present value, by (name, engine)."""
    from scipy.optimize import least_squares

    spreads = np.array([term.spread for term in terms])

    def residuals(logs: Column) -> Column:
        errors = np.log(model.predict(_ratios(terms, logs)) / model.measured)
        return np.concatenate([errors * model.weights / LOG_ERROR, logs / spreads])

    found = least_squares(residuals, np.zeros(len(terms)), loss="soft_l1", max_nfev=40)
    return _ratios(terms, found.x)


def _ratios(terms: Sequence[Term], logs: Column) -> dict[tuple[str, str], float]:
    return {(t.name, t.engine): float(np.exp(x)) for t, x in zip(terms, logs, strict=True)}


def cross_validate(
    samples: Sequence[Sample],
    present: Mapping[str, Mapping[str, float]],
    folds: int = 5,
) -> Column:
    """Predicted over measured of every target, by a fit that never saw its source."""
    sources = sorted({str(s.record.source) for s in samples})
    fold_of = {source: number % folds for number, source in enumerate(sources)}
    whole = Model(samples, present)
    ratio = np.zeros(len(whole.measured))
    folds_of = np.array([fold_of[str(s.record.source)] for s in samples])
    for fold in range(folds):
        train = [s for s, f in zip(samples, folds_of, strict=True) if f != fold]
        terms = free_terms(train)
        found = fit(Model(train, present), terms)
        held = folds_of[whole.rows] == fold
        ratio[held] = (whole.predict(found) / whole.measured)[held]
    return ratio


def rows_behind(samples: Sequence[Sample], term: Term) -> list[str]:
    """Ids of the runs that a term of a device or engine was fitted to."""
    name, _, device = term.name.partition("@")
    of_engine = name in dict(OF_AN_ENGINE)
    return [
        s.record.id
        for s in samples
        if (not device or s.device == device) and (not of_engine or s.record.engine == term.engine)
    ]


def updated(
    data: dict[str, Any],
    engine: str,
    ratios: Mapping[tuple[str, str], float],
    present: Mapping[str, float],
    samples: Sequence[Sample],
    terms: Sequence[Term],
) -> dict[str, Any]:
    """A terms file with the fitted values of its engine, their rows and provenance."""
    table = dict(data.get("terms", {}))
    for term in terms:
        if term.engine != engine:
            continue
        base = term.name.partition("@")[0]
        before = present.get(term.name, present[base])
        entry = dict(table.get(term.name) or table.get(base) or {"unit": "", "meaning": base})
        low, high = entry.get("low", 0.0), entry.get("high", float("inf"))
        value = min(max(before * ratios[term.name, engine], low), high)
        rows = rows_behind(samples, term)
        entry |= {
            "value": float(f"{value:.4g}"),
            "provenance": "fitted",
            "rows": len(rows),
            "sources": len({s.record.source for s in samples if s.record.id in set(rows)}),
        }
        table[term.name] = entry
    return {**data, "terms": table}
