"""What the model says for each key that a record measures."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.api.predict import predict
from perfmodel.api.session import open_session
from perfmodel.errors import PerfmodelError
from perfmodel.report.answer import PredictAnswer
from perfmodel.spec.record import RunRecord
from perfmodel.units import GIB, MIB, MS_PER_S
from perfmodel.validate.questions import Question, Skip, question
from perfmodel.validate.timers import StageTimers, timers_of


@dataclass(frozen=True, slots=True)
class Predicted:
    """A record beside its prediction.

    Attributes:
        predicted_ms, low_ms, high_ms: by measured key.
        memory_mib: predicted in the kind that the record measured.
        answer: the whole prediction.
    """

    record: RunRecord
    question: Question
    answer: PredictAnswer
    predicted_ms: dict[str, float]
    low_ms: dict[str, float] = field(default_factory=dict)
    high_ms: dict[str, float] = field(default_factory=dict)
    memory_mib: float | None = None


def predict_record(record: RunRecord) -> Predicted:
    """Predict one record.

    Raises:
        Skip: it cannot be predicted, and why.
    """
    asked = question(record)
    try:
        answer = predict(
            asked.workload,
            asked.system,
            parallel=asked.parallel,
            engine=asked.engine,
            options=asked.options,
        )
    except PerfmodelError as error:
        raise Skip(error.problems[0].message) from None
    timers = timers_of(asked)
    low, mid, high = (_by_key(record, asked, answer, timers, end) for end in ("low", "mid", "high"))
    keys = [key for key in record.measured_ms if key in mid and timers.comparable(record, key)]
    return Predicted(
        record=record,
        question=asked,
        answer=answer,
        predicted_ms={key: mid[key] for key in keys},
        low_ms={key: low[key] for key in keys},
        high_ms={key: high[key] for key in keys},
        memory_mib=_memory_mib(record, answer),
    )


def _by_key(
    record: RunRecord, asked: Question, answer: PredictAnswer, timers: StageTimers, end: str
) -> dict[str, float]:
    """Milliseconds of one end of the interval by measured key; each by its own meaning."""
    one = answer.prediction
    assert one is not None
    stages = {"low": one.stages_low_ms, "mid": one.stages_ms, "high": one.stages_high_ms}[end]
    latency = {"low": one.latency_low_ms, "mid": one.latency_ms, "high": one.latency_high_ms}[end]
    assert stages is not None
    assert latency is not None
    scale = latency / (one.latency_ms or latency)
    values = {name: getattr(stages, name) or 0.0 for name in type(stages).model_fields}
    assert answer.workload is not None
    steps = answer.workload.steps
    forwards = answer.workload.forwards or steps
    per_rank = -(-forwards // max(asked.parallel.cfg, 1))
    overhead = client_overhead_ms(asked)
    written = values["video_encode"] if _stops_before_the_file(asked) else 0.0
    result = {
        **timers.shown_ms(values),
        "denoise_per_step": values["denoise"] / steps,
        "transformer_forward": values["denoise"] / max(per_rank, 1),
        "pipeline_forward": (one.pipeline_forward_ms or 0.0) * scale,
        "generation": (one.pipeline_forward_ms or 0.0) * scale,
        "server": latency,
        "e2e": latency - written,
        "client": latency + overhead,
        "stage_gen": latency - values["video_encode"],
    }
    if record.steps is None:
        whole = (
            "denoise",
            "e2e",
            "server",
            "client",
            "stage_gen",
            "pipeline_forward",
            "generation",
        )
        result = {key: value for key, value in result.items() if key not in whole}
    return result


def _stops_before_the_file(asked: Question) -> bool:
    """Whether this engine's published end-to-end time ends before the file is written."""
    session = open_session(asked.workload, asked.system, engine=asked.engine, options=asked.options)
    return session.behaviour.time_ends == "result"


def client_overhead_ms(asked: Question) -> float:
    """What an HTTP client sees beyond the server's own time."""
    session = open_session(asked.workload, asked.system, engine=asked.engine, options=asked.options)
    return session.job.machine.term("client_overhead_s", 0.0) * MS_PER_S


def _memory_mib(record: RunRecord, answer: PredictAnswer) -> float | None:
    if record.peak_memory_mib is None or answer.prediction is None:
        return None
    if set(record.measured_ms) == {"transformer_forward"}:  # nothing else was loaded
        return None
    driver = record.memory_kind == "driver"
    gib = answer.prediction.peak_memory_gib if driver else answer.prediction.reserved_gib
    return None if gib is None else gib * GIB / MIB
