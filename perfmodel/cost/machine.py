"""What a law needs to know of a device, and the machine that carries laws and engine terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from perfmodel.cost.fits import Law, NamedPrior, load_laws
from perfmodel.cost.lent import adapt
from perfmodel.errors import MissingData, Problem
from perfmodel.topology import link_rate

if TYPE_CHECKING:
    from perfmodel.spec.hardware import Device, Figure


class PathLike(Protocol):
    """Links that a process group crosses: tier and share of bandwidth for each configuration."""

    @property
    def tier(self) -> NDArray[np.int64]:
        """0 local, 1 link domain, 2 inside a host, 3 network."""

    @property
    def bytes_per_s_per_direction(self) -> NDArray[np.float64]:
        """Bandwidth of a rank after sharing with the groups that run at the same time."""


class TopologyLike(Protocol):
    """Maps process groups to links (`perfmodel.topology.Topology`)."""

    def path(
        self,
        ranks: ArrayLike,
        stride: ArrayLike = 1,
        groups: ArrayLike = 1,
        pattern: Literal["ring", "pairwise", "next"] = "ring",
    ) -> PathLike:
        """The slowest tier that the groups cross and the bandwidth left to a rank there."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Datasheet figures of one device in base units, and the best rates ever measured on it.

    Attributes:
        device_id: hardware id.
        family: architecture family (``blackwell``, ``hopper``, ``davinci``...): selects tiles.
        peak_flop_per_s: dense datasheet peak by dtype; a dtype that is missing is not supported.
        roof_flop_per_s: max(datasheet, best measured) by dtype.
        memory_bytes_per_s: datasheet bandwidth.
        roof_memory_bytes_per_s: max(datasheet, best measured).
        l2_bytes: last-level cache.
        multiprocessors: SMs, CUs or cube cores.
        exp_per_s: exponentials per second over the device.
        clock_hz: clock of the multiprocessors.
        link_bytes_per_s: per direction between devices of a domain, as the topology has it.
        host_link_bytes_per_s: per direction to the host.
        in_switch_reduce: the switch sums all-reduces.
        host_ranks: largest group that fits one host or link domain.
    """

    device_id: str
    family: str
    peak_flop_per_s: Mapping[str, float]
    roof_flop_per_s: Mapping[str, float]
    memory_bytes_per_s: float
    roof_memory_bytes_per_s: float
    l2_bytes: float
    multiprocessors: int
    exp_per_s: float
    link_bytes_per_s: float
    host_link_bytes_per_s: float
    in_switch_reduce: bool = False
    host_ranks: int = 8
    clock_hz: float = 0.0

    @classmethod
    def of(cls, device: Device) -> Rates:
        """Read a catalogue device; figures that are unknown take a stated neutral value.

        An unknown exponential rate is 16 per clock and multiprocessor (the special-function
        units of every CUDA generation since Volta).  Where the multiprocessors are not stated, or
        what is counted are engines of many, it is one for each `FLOP_PER_EXP` of the peak.
        """
        peaks = _known(device.peak_flop_per_s)
        if (vector := _value(device.vector_flop_per_s)) is not None:
            peaks.setdefault("fp32", vector)
        best = _known(device.measured.gemm_flop_per_s)
        units = int(_value(device.compute.multiprocessors) or 1)
        clock_hz = _value(device.compute.boost_hz) or NEUTRAL_CLOCK_HZ
        return cls(
            device_id=device.id,
            family=device.family,
            peak_flop_per_s=peaks,
            roof_flop_per_s={
                name: max(_lookup(peaks, name, device.id), best.get(name, 0.0))
                for name in {*peaks, *(n for n in best if _unit(n) & peaks.keys())}
            },
            memory_bytes_per_s=_value(device.memory.bandwidth_bytes_per_s) or 0.0,
            roof_memory_bytes_per_s=device.roof_bytes_per_s(),
            l2_bytes=_value(device.memory.l2_bytes) or 0.0,
            multiprocessors=units,
            exp_per_s=_value(device.exp_per_s)
            or _usual_exp_per_s(device.family, peaks, units * clock_hz),
            link_bytes_per_s=link_rate(device),
            host_link_bytes_per_s=_value(device.host_link.bytes_per_s_per_direction) or 0.0,
            in_switch_reduce=device.link.in_switch_reduce,
            host_ranks=max(device.node_size, device.link.domain_size),
            clock_hz=clock_hz,
        )

    def peak(self, dtype: str) -> float:
        """Dense datasheet peak of `dtype`; MissingData when the device does not have it."""
        return _lookup(self.peak_flop_per_s, dtype, self.device_id)

    def roof(self, dtype: str) -> float:
        """max(datasheet, best measured) rate of `dtype`."""
        return _lookup(self.roof_flop_per_s, dtype, self.device_id)

    def scaled(self, factor: float) -> Rates:
        """All rates times `factor` (property tests)."""
        return replace(
            self,
            peak_flop_per_s={k: v * factor for k, v in self.peak_flop_per_s.items()},
            roof_flop_per_s={k: v * factor for k, v in self.roof_flop_per_s.items()},
            memory_bytes_per_s=self.memory_bytes_per_s * factor,
            roof_memory_bytes_per_s=self.roof_memory_bytes_per_s * factor,
            exp_per_s=self.exp_per_s * factor,
            link_bytes_per_s=self.link_bytes_per_s * factor,
            host_link_bytes_per_s=self.host_link_bytes_per_s * factor,
            clock_hz=self.clock_hz * factor,
        )


POWERED_LAWS = {"gemm": "gemm/bf16", "attention": "attention/bf16", "conv": "gemm/bf16"}
"""Laws whose rate the power limit decides, by the name that `Machine.sustained` takes."""

NEUTRAL_CLOCK_HZ = 1.5e9
"""Clock of a device whose file does not state one."""

EXP_PER_CLOCK = 16
"""Special-function results per clock and SM (CUDA C programming guide, arithmetic throughput)."""

FLOP_PER_EXP = {
    "ada": 64,
    "ampere": 128,
    "blackwell-rtx": 64,
    "cdna3": 128,
    "cdna4": 256,
    "hopper": 256,
    "rdna3": 32,
    "rdna4": 64,
}
"""16-bit matrix FLOP for each exponential of a full multiprocessor of the family (both a clock,
from the figures in ``hardware/``)."""
MOST_FLOP_PER_EXP = 512
"""Of the leanest, Blackwell's and Ascend's: 8192 a clock beside 16; taken for other families."""

SAME_UNIT = {
    "fp16": ("bf16",),
    "bf16": ("fp16",),
    "fp8_block": ("fp8",),
    "mxfp8": ("fp8",),
    "tf32": ("fp32",),
}
UNASKED = ("fp32", "tf32", "fp64")
"""Rates that parts of a model need and that no option names."""


def _unit(dtype: str) -> set[str]:
    """`dtype` and those that run at its rate."""
    return {dtype, *SAME_UNIT.get(dtype, ())}


def _usual_exp_per_s(family: str, peaks: Mapping[str, float], unit_clocks_per_s: float) -> float:
    """By the multiprocessors; by the matrix peak where these would give less than half of that."""
    counted = EXP_PER_CLOCK * unit_clocks_per_s
    peak = max(peaks.get("bf16", 0.0), peaks.get("fp16", 0.0))
    usual = peak / FLOP_PER_EXP.get(family, MOST_FLOP_PER_EXP)
    return counted if 2.0 * counted > usual else usual


def _value(figure: Figure | None) -> float | None:
    """The number of a figure that may be absent."""
    return figure.value if figure is not None else None


def _known(figures: Mapping[str, Figure]) -> dict[str, float]:
    """Figures that have a number."""
    return {name: f.value for name, f in figures.items() if f.value is not None}


def _lookup(table: Mapping[str, float], dtype: str, device_id: str) -> float:
    for name in (dtype, *SAME_UNIT.get(dtype, ())):
        if table.get(name):
            return table[name]
    have = ", ".join(sorted(table))
    if dtype in UNASKED:
        advice = "parts of the model run in it under any --dtype; its hardware file must state it"
    else:
        advice = "choose one with --dtype"
    raise MissingData(
        Problem(
            "peak-rate",
            f"{device_id} has no {dtype} peak rate; it has {have}; {advice}",
            field="--gpus" if dtype in UNASKED else "--dtype",
            value=dtype,
            legal_values=tuple(sorted(table)),
        )
    )


@dataclass(frozen=True, slots=True)
class Machine:
    """A device with its laws, the links between its ranks and the terms of an engine.

    Attributes:
        device: catalogue record.
        topology: maps groups to links.
        laws: law by name (``gemm/bf16``, ``attention/bf16``, ``collective/all_reduce``...).
        terms: engine terms by name (seconds, bytes per second or fractions); they win over the
            named priors of `calibration/priors.json`.
        rates: figures of the device in base units.
        named: named priors.
        fitted_terms: names in `terms` that end-to-end runs identified; the others are priors.
    """

    device: Device
    topology: TopologyLike
    laws: Mapping[str, Law]
    terms: Mapping[str, float] = field(default_factory=dict)
    rates: Rates = None  # type: ignore[assignment]
    named: Mapping[str, NamedPrior] = field(default_factory=dict)
    fitted_terms: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        """Derive the rates once."""
        if self.rates is None:
            object.__setattr__(self, "rates", Rates.of(self.device))

    @classmethod
    def build(
        cls,
        device: Device,
        topology: TopologyLike,
        *,
        fit: Mapping[str, Any] | None = None,
        terms: Mapping[str, float] | None = None,
    ) -> Machine:
        """Laws from `fit`, else the shipped fit of the device, else its family's, adapted."""
        laws, named = load_laws(device.id, device.family, fit, same_links=device.link.same_as)
        laws = adapt(laws, named, device)
        return cls(device, topology, laws, dict(terms or {}), Rates.of(device), named)

    def term(self, name: str, default: float | None = None) -> float:
        """Engine term `name`, else the named prior, else `default`.

        What was found for this device (``name@device``) or its family (``name@family``) wins.

        Raises:
            MissingData: neither exists and no default was given.
        """
        found = self._found(name)
        if found in self.terms:
            return float(self.terms[found])
        if found in self.named:
            return self.named[found].value
        if default is None:
            raise MissingData(Problem("term", f"no engine term or prior is named {name}"))
        return default

    def term_provenance(self, name: str) -> str:
        """``fitted`` when runs identified the engine term `name`, else ``prior``."""
        return "fitted" if self._found(name) in self.fitted_terms else "prior"

    def _found(self, name: str) -> str:
        """The most special key under which the term is known; `name` itself if none is."""
        keys = (f"{name}@{self.rates.device_id}", f"{name}@{self.rates.family}", name)
        return next((k for k in keys for table in (self.terms, self.named) if k in table), name)

    def sustained(self, law: str) -> float:
        """Sustained over short-burst rate of `law` (``gemm``, ``attention``, ``conv``...).

        1 where the power limit of the device leaves clock to spare.
        """
        general = self.terms.get("sustained_frac", 1.0)
        share = self.term(f"sustained_frac.{law}", general)
        base = self.laws.get(POWERED_LAWS.get(law, ""))
        return share if base is None else 1.0 - (1.0 - share) * base.power_limited_frac
