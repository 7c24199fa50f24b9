"""Which records answer the question that was asked; what sets the others aside."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from perfmodel import catalog
from perfmodel.api.session import Session
from perfmodel.engines.legality import problems
from perfmodel.errors import BadInput, PerfmodelError, Problem
from perfmodel.files import Unreadable, parse_json, read_text
from perfmodel.report.asked import ProblemInfo
from perfmodel.report.verify_answer import VerifiedRun
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.spec.record import RunRecord, read_records
from perfmodel.validate.questions import BACKENDS, Question, Skip, question
from perfmodel.verify.in_flight import WAITED, alone, unclear
from perfmodel.verify.observe import usable_keys

Kind = Literal["failed", "other", "unreadable", "doubtful", "units"]
SHAPE = {"width": "width", "height": "height", "frames": "frames", "steps": "request_steps"}
"""Fields of a record, and of a shape, that both state as the request does."""
FORMAT_KEYS = ("measured_s", "measured_us", "measured", "latency_s", "latency_ms")
"""Keys of other formats: times that would be lost without a word."""
SAME_SHARE = 0.005
"""Shares of work closer than this are the same question."""
REASONS = 4
"""Reasons that one line lists."""


@dataclass(frozen=True, slots=True)
class Aside:
    """A record that is not used, and why."""

    record: RunRecord
    config_id: str | None
    kind: Kind
    reason: str


@dataclass(frozen=True, slots=True)
class Taken:
    """A record that answers the question."""

    record: RunRecord
    config: ParallelConfig


def read_results(paths: Iterable[Path]) -> tuple[list[RunRecord], list[Problem]]:
    """Records of some files, and what is wrong with the rest.

    Raises:
        BadInput: a file that cannot be read.
    """
    files = list(paths)
    records, bad = read_records(files)
    return records, [*bad, *_other_formats(files)]


def _other_formats(files: Sequence[Path]) -> Iterator[Problem]:
    """Rows with times under a key of another format or unit."""
    for path in files:
        for number, line in enumerate(read_text(path).splitlines(), start=1):
            try:
                row = parse_json(line)
            except Unreadable:
                continue
            keys = [k for k in FORMAT_KEYS if isinstance(row, dict) and k in row]
            if keys and not row.get("measured_ms"):
                message = (
                    f"{path.name}:{number}: times under {', '.join(keys)} are not read; the format "
                    "is measured_ms, in milliseconds; try perfmodel records convert"
                )
                yield Problem("record-units", message, f"{path}:{number}", severity="warning")


def sort(
    records: Sequence[RunRecord], session: Session, include_doubtful: bool = False
) -> tuple[list[Taken], list[Aside]]:
    """Split records into those that answer `session`'s question and the others."""
    taken: list[Taken] = []
    aside: list[Aside] = []
    for record in records:
        found = _judge(record, session, include_doubtful)
        if isinstance(found, Taken):
            taken.append(found)
        else:
            aside.append(found)
    return taken, aside


def refuse_strangers(aside: Sequence[Aside], problems: Sequence[Problem]) -> None:
    """Nothing to judge where every record belongs to another question, or cannot be read.

    Raises:
        BadInput: in what they differ, each reason once; with `problems` of the files.
    """
    if any(item.kind not in ("other", "unreadable") for item in aside):
        return
    reasons = Counter(item.reason for item in aside).most_common(REASONS)
    lines = "; ".join(f"{count} of {len(aside)}: {reason}" for reason, count in reasons)
    waited = all(WAITED in item.reason for item in aside)
    other = "runs of one request at a time" if waited else "the flags that were measured"
    message = f"no record answers the question ({lines}); try {other}"
    raise BadInput(*problems, Problem("results", message, "--from"))


def unanswered(runs: Sequence[VerifiedRun]) -> dict[str, object]:
    """Status and problem of an answer without any measurement; empty where there is one."""
    if any(run.status == "measured" for run in runs):
        return {}
    kinds = Counter(run.status for run in runs)
    counted = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none is readable"
    message = f"no record answers the question ({counted})"
    problem = ProblemInfo.of(Problem("results", message, "--from"))
    return {"status": "bad_input", "problems": (problem,)}


def _judge(record: RunRecord, session: Session, include_doubtful: bool) -> Taken | Aside:
    try:
        asked = question(record)
    except Skip as skip:
        return Aside(record, None, "failed" if record.error else "unreadable", str(skip))
    config = asked.parallel
    name = config.config_id
    if others := list(differences(record, asked, session)):
        return Aside(record, name, "other", "; ".join(others))
    if record.error:
        status = f" (HTTP {record.http_status})" if record.http_status else ""
        return Aside(record, name, "failed", f"{record.error}{status}")
    if not record.measured_ms:
        return Aside(record, name, "failed", "no times in it")
    record = alone(record)
    if not usable_keys(record.measured_ms):
        keys = ", ".join(record.measured_ms)
        return Aside(record, name, "unreadable", f"only {keys}: nothing that is predicted")
    if record.doubtful and not include_doubtful:
        why = "marked doubtful; --include-doubtful takes it in"
        return Aside(record, name, "doubtful", why)
    broken = problems(session.engine.rules(), session.context, config)
    errors = [p.message for p in broken if p.severity == "error"]
    if errors:
        return Aside(record, name, "other", f"not legal under these rules: {errors[0]}")
    return Taken(record, config)


def differences(record: RunRecord, asked: Question, session: Session) -> Iterator[str]:
    """In what a record is another question; what it leaves open counts as the same."""
    shape = session.job.shape
    yield from _engine(record, session)
    if asked.workload.model != session.model.slug:
        yield f"model {record.model}, asked {session.model.title}"
    if record.gpu and _device_id(record.gpu) != session.system.device.id:
        yield f"GPU {record.gpu}, asked {session.system.device.id}"
    for name, of_shape in SHAPE.items():
        seen, want = getattr(record, name), int(getattr(shape, of_shape))
        if seen is not None and not _same_size(name, seen, want):
            yield f"{name} {seen}, asked {want}"
    if record.task and record.task != shape.task:
        yield f"task {record.task}, asked {shape.task}"
    yield from _images(record, session)
    yield from _sockets(record, session)
    if waited := unclear(record):
        yield waited
    yield from _branches(record, asked, session)
    yield from _options(record, session)


def _images(record: RunRecord, session: Session) -> Iterator[str]:
    seen, want = record.ref_images, session.context.input_images
    if isinstance(seen, int) and seen != want:
        yield f"{seen} input image(s), asked {want}"


def _sockets(record: RunRecord, session: Session) -> Iterator[str]:
    """CPUs under the devices that ran, against those that as many devices of the machine have."""
    per_host = (record.num_gpus or 1) // (record.nodes or 1)
    want = session.system.sockets_of(per_host)
    if record.sockets is None or want is None:
        return
    seen = min(record.sockets, per_host)
    if seen != want:
        yield f"{per_host} GPUs over {seen} CPU socket(s), asked {want}"


def _branches(record: RunRecord, asked: Question, session: Session) -> Iterator[str]:
    shape, outputs = session.job.shape, asked.workload.batch
    if outputs != int(shape.batch):
        yield f"{outputs} outputs a request, asked {int(shape.batch)}"
    if record.cfg is not None and record.cfg != (shape.branches > 1):
        yield f"{'two' if record.cfg else 'one'} guidance branch(es), asked {shape.branches}"


def _options(record: RunRecord, session: Session) -> Iterator[str]:
    behaviour = session.behaviour
    options = behaviour.options
    if record.dtype and record.dtype != options.dtype:
        yield f"dtype {record.dtype}, asked {options.dtype}"
    backend = BACKENDS.get(record.attention_backend or "", record.attention_backend)
    if backend and behaviour.attention_explicit and backend != behaviour.attention_backend:
        yield f"attention {record.attention_backend}, asked {behaviour.attention_backend}"
    if record.compile is not None and record.compile != behaviour.compiled:
        words = {True: "compiled", False: "eager"}
        yield f"{words[record.compile]}, asked {words[behaviour.compiled]}"
    if record.offload and record.offload != options.offload:
        yield f"offload {record.offload}, asked {options.offload}"
    fast_path = options.vae_fast_path or "off"
    if record.vae_fast_path and record.vae_fast_path != fast_path:
        yield f"VAE fast path {record.vae_fast_path}, asked {fast_path}"
    if record.guardrails is not None and record.guardrails != options.guardrails:
        words = {True: "on", False: "off"}
        yield f"guardrails {words[record.guardrails]}, asked {words[options.guardrails]}"
    cached = options.cache_method != "none" or options.cache_skip > 0
    if bool(record.cache or record.cache_skip) != cached:
        yield f"step cache {record.cache or 'none'}, asked {options.cache_method}"
    for name in ("cache_skip", "attention_density"):
        share, asked = getattr(record, name), getattr(options, name)
        if share is not None and not math.isclose(share, asked, abs_tol=SAME_SHARE):
            yield f"{name.replace('_', ' ')} {share:g}, asked {asked:g}"


def _engine(record: RunRecord, session: Session) -> Iterator[str]:
    if record.engine != session.engine.name:
        yield f"engine {record.engine}, asked {session.engine.name}"
        return
    seen, want = record.engine_version, session.behaviour.version
    if seen and seen.split()[0] != want.split()[-1] and seen != want:
        yield f"{record.engine} {seen}, asked {want}"


def _same_size(name: str, seen: int, want: int) -> bool:
    """Frames may be stated before the engine rounds them (189 runs as 189, 81 as 81)."""
    return seen == want or (name == "frames" and abs(seen - want) < FRAMES_ROUNDED)


FRAMES_ROUNDED = 4
"""Engines round the number of frames by less than the VAE's temporal ratio."""


def _device_id(name: str) -> str:
    try:
        return catalog.load_device(name).id
    except PerfmodelError:
        return name
