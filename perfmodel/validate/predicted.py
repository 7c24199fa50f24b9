"""What the model says for each key that a record measures."""

from __future__ import annotations

from dataclasses import dataclass, field

from perfmodel.api.predict import predict
from perfmodel.errors import PerfmodelError
from perfmodel.report.answer import PredictAnswer
from perfmodel.spec.record import END_TO_END_KEYS, RunRecord
from perfmodel.units import GIB, MIB, MS_PER_S
from perfmodel.validate.questions import GENERIC_ENGINE, Question, Skip, question
from perfmodel.validate.timers import StageTimers, timers_of
from perfmodel.validate.waiting import waited


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

    @property
    def end_to_end_key(self) -> str | None:
        """The first end-to-end key that the record has."""
        return next((key for key in END_TO_END_KEYS if key in self.predicted_ms), None)

    @property
    def main_key(self) -> str | None:
        """The end-to-end key, else the first that is predicted."""
        return self.end_to_end_key or next(iter(self.predicted_ms), None)


def predict_record(record: RunRecord) -> Predicted:
    """Predict one record.

    Raises:
        Skip: it cannot be predicted, and why.
    """
    asked = question(record)
    try:
        answer = _answer(asked)
    except PerfmodelError as error:
        if error.problems[0].rule_id != "model-not-in-engine":
            raise Skip(error.problems[0].message) from None
        asked = question(record, engine=GENERIC_ENGINE)
        answer = _answer(asked)
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


def _answer(asked: Question) -> PredictAnswer:
    return predict(
        asked.workload,
        asked.system,
        parallel=asked.parallel,
        engine=asked.engine,
        options=asked.options,
        ran=True,
        host=asked.host,
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
    assert answer.workload is not None
    steps = answer.workload.run_steps or answer.workload.steps
    result = by_key(
        {name: getattr(stages, name) or 0.0 for name in type(stages).model_fields},
        latency,
        (one.pipeline_forward_ms or 0.0) * scale,
        steps=steps,
        forwards=rank_forwards(answer.workload.forwards or steps, asked.parallel.cfg),
        client=client_overhead_ms(asked),
        to_result=_stops_before_the_file(asked),
        timers=timers,
    )
    behaviour = asked.session().behaviour
    result = waited(record, behaviour, result, stages.video_encode or 0.0, end)
    return {k: v for k, v in result.items() if record.steps is not None or k not in WHOLE}


WHOLE = ("denoise", "e2e", "server", "client", "stage_gen", "pipeline_forward", "generation")
"""Keys whose time depends on a number of steps that the record must state."""


def by_key(
    stages: dict[str, float],
    latency: float,
    forward: float,
    *,
    steps: int,
    forwards: int,
    client: float,
    to_result: bool,
    timers: StageTimers,
) -> dict[str, float]:
    """Milliseconds by measured key, from milliseconds; each key by its own meaning.

    Args:
        stages: the six stages.
        latency: the request.
        forward: the pipeline's forward.
        steps: that run, over all chunks.
        forwards: of one rank.
        client: what an HTTP client sees beyond the server's own time.
        to_result: the published end-to-end time ends before the file is written.
        timers: what the engine's stage timers show.
    """
    return {
        **timers.shown_ms(stages),
        "denoise_per_step": stages["denoise"] / steps,
        "transformer_forward": stages["denoise"] / max(forwards, 1),
        "pipeline_forward": forward,
        "generation": forward,
        "server": latency,
        "e2e": latency - (stages["video_encode"] if to_result else 0.0),
        "client": latency + client,
        "stage_gen": latency - stages["video_encode"],
    }


def rank_forwards(forwards: int, cfg: int) -> int:
    """Transformer forwards of the busiest rank: guidance ranks share them."""
    return -(-forwards // max(cfg, 1))


def _stops_before_the_file(asked: Question) -> bool:
    """Whether this engine's published end-to-end time ends before the file is written."""
    session = asked.session()
    return session.behaviour.time_ends == "result"


def client_overhead_ms(asked: Question) -> float:
    """What an HTTP client sees beyond the server's own time."""
    session = asked.session()
    return session.job.machine.term("client_overhead_s", 0.0) * MS_PER_S


def _memory_mib(record: RunRecord, answer: PredictAnswer) -> float | None:
    if record.peak_memory_mib is None or answer.prediction is None:
        return None
    if set(record.measured_ms) == {"transformer_forward"}:  # nothing else was loaded
        return None
    driver = record.memory_kind == "driver"
    gib = answer.prediction.peak_memory_gib if driver else answer.prediction.reserved_gib
    return None if gib is None else gib * GIB / MIB
