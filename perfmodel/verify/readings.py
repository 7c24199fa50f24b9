"""Times in what engines print and send: headers, logs, benchmark files.  One reader for all.

What is read, and its units:

- response headers ``X-Inference-Time-S`` [s], ``X-Stage-Durations`` (JSON, [s]; names that end with
  ``_ms`` in [ms]) and ``X-Peak-Memory-MB`` [MiB];
- profiler lines ``<Pipeline>.vae.decode took 4.02s``, summed over a request, and the line
  ``Video response encoding (MP4 bytes): 3850 ms``;
- benchmark files: ``mean_e2el_ms`` [ms] or ``latency_mean`` [s], ``stage_durations_mean`` [s],
  ``mean_peak_memory_mb`` [MiB]; and the JSON of an image response.

Source: vllm_omni 0.30.0 entrypoints/openai/api_server.py, serving_video.py,
diffusion/profiler/diffusion_pipeline_profiler.py, benchmarks/metrics/metrics.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from perfmodel.files import Unreadable, parse_json
from perfmodel.spec.record import MOST_MS
from perfmodel.units import MS_PER_S

PROFILED = {
    "diffuse": "denoise",
    "denoise_step": "denoise",
    "vae.encode": "vae_encode",
    "vae.decode": "vae_decode",
    "text_encoder.forward": "text_encode",
    "forward": "pipeline_forward",
}
"""Names after the pipeline class, as a server prints and sends them, to record keys."""

_HEADER = re.compile(
    r"^[<\s]*x-(inference-time-s|stage-durations|peak-memory-mb)\s*:\s*(.+?)\s*$", re.I
)
_MP4 = re.compile(r"Video response encoding \(MP4[^)]*\):\s*([\d.]+)\s*ms")
_PROFILE = re.compile(
    r"\.(diffuse|denoise_step|vae\.encode|vae\.decode|text_encoder\.forward|forward)\b"
    r"[^\d\n]{0,40}?(\d+(?:\.\d+)?(?:e-?\d+)?)\s*(ms|s)\b"
)
_PROCESS = re.compile(r"\bpid[ =](\d+)|\brank[ =:]?(\d+)", re.I)
_STAGE_GENERATION = re.compile(r"stage_\d+_gen_ms")
STATISTICS = (("mean", ""), ("median", "_p50"), ("p50", "_p50"), ("p95", "_p95"), ("p99", "_p99"))


@dataclass
class Reading:
    """What a text says about one request, or about the mean of several.

    Attributes:
        measured_ms: times by record key; ``server`` is the server's whole time.
        peak_memory_mib: as torch counts it on the first rank.
        requests, failed: how many there were, where the text tells.
        notes: what was assumed or left out.
    """

    measured_ms: dict[str, float] = field(default_factory=dict)
    peak_memory_mib: float | None = None
    requests: int | None = None
    failed: int | None = None
    notes: list[str] = field(default_factory=list)

    def update(self, other: Reading) -> None:
        """Take over what another text of the same run says."""
        self.measured_ms.update(other.measured_ms)
        self.peak_memory_mib = other.peak_memory_mib or self.peak_memory_mib
        self.requests = other.requests or self.requests
        self.failed = other.failed or self.failed
        self.notes += other.notes


def read(text: str) -> Reading:
    """Read a text of any of the known kinds; an empty reading when it is of none."""
    stripped = text.lstrip()
    if stripped.startswith("{"):
        try:
            whole = parse_json(stripped)
        except Unreadable:
            return read_log(text)
        return read_json(whole) if isinstance(whole, dict) else Reading()
    return read_log(text)


def impossible(measured_ms: Mapping[str, float]) -> list[str]:
    """Times that no run takes, as words: nothing at all, or more than a record may hold."""
    return [
        f"{name} of {ms:g} ms" if math.isfinite(ms) else f"{name} beyond all numbers"
        for name, ms in measured_ms.items()
        if not 0 < ms <= MOST_MS
    ]


def read_log(text: str) -> Reading:
    """Headers and log lines.  Of several requests the last one counts."""
    found = Reading()
    requests = _Requests()
    for line in text.splitlines():
        if header := _HEADER.match(line):
            _header(found, header[1].lower(), header[2])
        for name, value, unit in _PROFILE.findall(line):
            requests.add(_process(line), name, float(value) * (MS_PER_S if unit == "s" else 1.0))
        for value in _MP4.findall(line):
            found.measured_ms["video_encode"] = float(value)
    profiled = requests.last()
    found.measured_ms = {**profiled, **found.measured_ms}
    found.requests = requests.count or None
    if requests.count > 1:
        found.notes.append(f"{requests.count} requests in the log: the last one counts")
    return found


class _Requests:
    """Profiler lines by process and request: a line of ``forward`` ends a request."""

    def __init__(self) -> None:
        self.open: dict[str, dict[str, float]] = {}
        self.done: dict[str, list[dict[str, float]]] = {}

    def add(self, process: str, name: str, milliseconds: float) -> None:
        times = self.open.setdefault(process, {})
        key = PROFILED[name]
        times[key] = times.get(key, 0.0) + milliseconds
        if name == "forward":
            self.done.setdefault(process, []).append(self.open.pop(process))

    @property
    def count(self) -> int:
        return max((len(requests) for requests in self.done.values()), default=0)

    def last(self) -> dict[str, float]:
        """The last request of the process that took longest; else the lines that no one ended."""
        ended = [requests[-1] for requests in self.done.values()]
        if ended:
            return max(ended, key=lambda times: times["pipeline_forward"])
        return max(self.open.values(), key=lambda times: sum(times.values()), default={})


def _process(line: str) -> str:
    found = _PROCESS.search(line)
    return found[0].lower() if found else ""


def _header(found: Reading, name: str, value: str) -> None:
    if name == "stage-durations":
        found.measured_ms.update(durations_ms(value))
        return
    number = _number(value)
    if number is None:
        return
    if name == "peak-memory-mb":
        found.peak_memory_mib = number or None
    else:
        found.measured_ms["server"] = number * MS_PER_S


def durations_ms(durations: str | Mapping[str, Any]) -> dict[str, float]:
    """Profiler durations to record keys; unknown names are left out."""
    if isinstance(durations, str):
        try:
            durations = parse_json(durations)
        except Unreadable:
            return {}
    found: dict[str, float] = {}
    for name, value in durations.items() if isinstance(durations, Mapping) else ():
        number = _number(value)
        if number is None:
            continue
        if _STAGE_GENERATION.fullmatch(name):
            found["stage_gen"] = found.get("stage_gen", 0.0) + number
        elif (key := PROFILED.get(name.partition(".")[2])) and number:
            found[key] = found.get(key, 0.0) + number * MS_PER_S
    return found


def read_json(whole: Mapping[str, Any]) -> Reading:
    """A benchmark file, the JSON of a response, or a run record."""
    found = Reading()
    if isinstance(whole.get("measured_ms"), Mapping):
        found.measured_ms = {k: n for k, v in whole["measured_ms"].items() if (n := _number(v))}
        found.peak_memory_mib = _number(whole.get("peak_memory_mib"))
        return found
    found.requests, found.failed = _count(whole, "completed"), _count(whole, "failed")
    found.measured_ms.update(_benchmark_ms(whole))
    inner = whole.get("metrics") if isinstance(whole.get("metrics"), Mapping) else whole
    assert inner is not None
    found.measured_ms.update(durations_ms(inner.get("stage_durations") or {}))
    for key in ("peak_memory_mb", "mean_peak_memory_mb", "peak_memory_mb_mean"):
        found.peak_memory_mib = _number(inner.get(key)) or found.peak_memory_mib
    if found.failed:
        found.notes.append(f"{found.failed} requests failed and are not in the mean")
    return found


def _benchmark_ms(whole: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Client times and mean stages of a benchmark file."""
    for word, suffix in STATISTICS:
        milliseconds = _number(whole.get(f"{word}_e2el_ms"))
        seconds = _number(whole.get(f"latency_{word}"))
        if milliseconds is not None:
            yield f"client{suffix}", milliseconds
        elif seconds is not None:
            yield f"client{suffix}", seconds * MS_PER_S
    yield from durations_ms(whole.get("stage_durations_mean") or {}).items()


def _count(whole: Mapping[str, Any], name: str) -> int | None:
    number = _number(whole.get(name, whole.get(f"{name}_requests")))
    return None if number is None else int(number)


def _number(value: Any) -> float | None:
    """A finite number that is not negative; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) and number >= 0 else None
