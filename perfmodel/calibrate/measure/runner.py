"""Runs a list of cases: measure, append, skip with a reason, report progress."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from perfmodel.calibrate.cases import Case, HostCase, MediaCase, PointwiseCase, TransferCase
from perfmodel.calibrate.measure import host, kernels, media, transfer
from perfmodel.calibrate.measure.device import Device, Unsupported
from perfmodel.calibrate.measure.store import RecordStore
from perfmodel.calibrate.measure.timing import Timing, time_calls
from perfmodel.errors import MissingData, Problem

FAILURES = Exception
"""How torch and its libraries say that a shape does not run.

Compilers and codecs raise classes of their own (Triton, a failed C compiler, FFmpeg), other
versions of torch a TypeError for an option they lack: none of it may end a run of hours.
"""

_MEMORY_FRAC = 0.8

Tick = Callable[[Case, str], None]
"""Called after each case with what happened: ``measured``, ``skipped`` or ``done before``."""


@dataclass
class Tally:
    """How a run went.

    Attributes:
        measured, skipped, done_before: numbers of cases.
        reasons: number of skipped cases by reason.
    """

    measured: int = 0
    skipped: int = 0
    done_before: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def count(self, outcome: str) -> None:
        """Count one case that was ``measured`` or ``done before``."""
        if outcome == "measured":
            self.measured += 1
        else:
            self.done_before += 1

    def count_skip(self, reason: str) -> None:
        """Count one skipped case."""
        self.skipped += 1
        self.reasons[reason] = self.reasons.get(reason, 0) + 1


def expand(cases: Iterable[Case], device: Device) -> list[Case]:
    """All kernels of all cases, distinct, small work first within an operator."""
    distinct = dict.fromkeys(one for case in cases for one in kernels.expand(case, device))
    order = {op: index for index, op in enumerate(dict.fromkeys(case.op for case in distinct))}
    return sorted(distinct, key=lambda case: (order[case.op], case.flops, case.memory_bytes))


@dataclass
class Runner:
    """Measures cases on one device into one store.

    Attributes:
        device: where to run.
        store: where records go.
        budget_s: time for one case [s].
        longest_call_s: a case of which one call is expected to take longer is skipped.
    """

    device: Device
    store: RecordStore
    budget_s: float
    longest_call_s: float = 20.0
    _rates: dict[tuple[str, str, str], float] = field(default_factory=dict)

    def run(self, cases: Sequence[Case], tick: Tick | None = None) -> Tally:
        """Measure what is not done yet.

        Raises:
            MissingData: the device stopped working (every later case would fail too).
        """
        tally = Tally()
        for case in cases:
            outcome = "done before" if self.store.done(case) else self._one(case, tally)
            if outcome != "skipped":
                tally.count(outcome)
            if tick is not None:
                tick(case, outcome)
        return tally

    def _one(self, case: Case, tally: Tally) -> str:
        reason = self._refusal(case)
        if reason is None:
            try:
                timing = self._measure(case)
            except FAILURES as error:
                reason = _reason(error)
        if reason is not None:
            self.store.skip(case, reason)
            tally.count_skip(reason)
            self._check_alive(reason)
            return "skipped"
        self._learn(case, timing)
        self.store.append(case, timing, self.device.clock_mhz())
        return "measured"

    def _refusal(self, case: Case) -> str | None:
        """Why `case` should not even be tried."""
        free = self.device.free_bytes() * _MEMORY_FRAC
        if case.memory_bytes > free:
            return f"out of memory: needs {case.memory_bytes:.3g} B, {free:.3g} B may be used"
        rate = self._rates.get(_rate_key(case))
        if rate and case.flops / rate > self.longest_call_s:
            return f"one call would take about {case.flops / rate:.0f} s"
        return None

    def _measure(self, case: Case) -> Timing:
        if isinstance(case, HostCase):
            return host.measure(case, self.device, self.budget_s)
        if isinstance(case, TransferCase):
            return transfer.measure(case, self.device, self.budget_s)
        if isinstance(case, MediaCase):
            return media.measure(case, self.budget_s)
        return self._time_kernel(case)

    def _time_kernel(self, case: Case) -> Timing:
        import torch

        with torch.inference_mode(), warnings.catch_warnings():
            # torch says why a backend refuses a shape once for each of its conditions
            warnings.simplefilter("ignore", UserWarning)
            calls = kernels.build(case, self.device)
            return time_calls(self.device, calls, self.budget_s)

    def _learn(self, case: Case, timing: Timing) -> None:
        rate = case.flops / timing.median_s if timing.median_s > 0 else 0.0
        key = _rate_key(case)
        self._rates[key] = max(rate, self._rates.get(key, 0.0))

    def _check_alive(self, reason: str) -> None:
        """Stop when the device itself is lost; otherwise free its memory and go on."""
        try:
            self.device.synchronize()
            self.device.release()
        except RuntimeError as error:
            message = f"{self.device.name} stopped working after: {reason}; run again with --resume"
            raise MissingData(Problem("bench-device-lost", message)) from error


def _rate_key(case: Case) -> tuple[str, str, str]:
    return case.op, str(getattr(case, "dtype", "")), case.kernel_name


def _reason(error: Exception) -> str:
    """One line: what kind of failure, and the first line of its text."""
    text = str(error).strip().splitlines()
    first = text[0][:200] if text else ""
    if isinstance(error, Unsupported | NotImplementedError):
        return f"unsupported: {first}"
    if "out of memory" in str(error).lower() or isinstance(error, MemoryError):
        return f"out of memory: {first}"
    return f"{type(error).__name__}: {first}"


def compiled_forms(cases: Iterable[Case]) -> list[Case]:
    """Cases that need ``torch.compile``."""
    return [
        case
        for case in cases
        if (isinstance(case, HostCase) and case.mode == "compiled")
        or (isinstance(case, PointwiseCase) and case.kernel.startswith("compile."))
    ]
