"""From measured keys to observed times of stages, and to one number a run is compared by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from perfmodel.api.session import Session
from perfmodel.pipeline.evaluate import FORWARD_STAGES, STAGES
from perfmodel.pipeline.uncertainty import REPEAT_FRAC
from perfmodel.plan.belief import Belief, Observation
from perfmodel.spec.record import RunRecord
from perfmodel.units import MS_PER_S
from perfmodel.validate.questions import version_of
from perfmodel.validate.scores import likely_unit
from perfmodel.verify.in_flight import note

WHOLE_KEYS = ("server", "e2e", "client", "stage_gen")
"""The whole request, the best first."""

COMPARED_KEYS = (*WHOLE_KEYS, "pipeline_forward", "generation", "denoise", "denoise_per_step")
SINGLE_NOISE_FRAC = 0.03
"""Relative 80 % half-width of a single request: no repeats show its spread."""


def key_stages(key: str, session: Session) -> tuple[str, ...]:
    """Stages that a measured key covers; empty for one that no stages make up."""
    after = ("video_encode",)
    written = session.behaviour.time_ends == "result"
    covers = {
        **{name: (name,) for name in STAGES},
        "denoise_per_step": ("denoise",),
        "pipeline_forward": FORWARD_STAGES,
        "generation": FORWARD_STAGES,
        "server": STAGES,
        "client": STAGES,
        "e2e": tuple(s for s in STAGES if not (written and s in after)),
        "stage_gen": tuple(s for s in STAGES if s not in after),
    }
    return covers.get(key, ())


def key_seconds(key: str, milliseconds: float, session: Session) -> float:
    """Seconds of the stages that a key covers: rates times steps, clients less their overhead."""
    seconds = milliseconds / MS_PER_S
    if key == "denoise_per_step":
        return seconds * int(session.job.shape.steps)
    if key == "client":
        return max(seconds - session.job.machine.term("client_overhead_s", 0.0), 0.0)
    return seconds


def usable_keys(measured_ms: Mapping[str, float]) -> list[str]:
    """Keys to learn from: every stage, one whole, sums only where their parts are missing."""
    stages = [name for name in STAGES if measured_ms.get(name)]
    if "denoise" not in stages and measured_ms.get("denoise_per_step"):
        stages.append("denoise_per_step")
    whole = [key for key in WHOLE_KEYS if measured_ms.get(key)][:1]
    parts = {"denoise", "denoise_per_step"} & set(stages)
    sums = ("pipeline_forward", "generation")
    forward = [key for key in sums if measured_ms.get(key)][:1]
    return [*stages, *whole, *(forward if not (parts and "vae_decode" in stages) else [])]


def observations(
    row: int, record: RunRecord, belief: Belief, session: Session
) -> tuple[list[Observation], list[str]]:
    """What a record says about a configuration, and what in it is not used.

    A time whose predicted stages are all zero teaches nothing (a stage that the model has not).
    """
    found, notes = [], [*note(record), *_dated(record, session)]
    for key in usable_keys(record.measured_ms):
        stages = key_stages(key, session)
        seconds = key_seconds(key, record.measured_ms[key], session)
        predicted_s = float(belief.time_s(stages)[row])
        if predicted_s <= 0 or seconds <= 0:
            notes.append(f"{key} is predicted as 0 and not learnt from")
            continue
        noise = noise_frac(record.measured_ms, key, record.repeats)
        found.append(Observation(row, stages, seconds, noise))
    return found, notes


def _dated(record: RunRecord, session: Session) -> list[str]:
    """The day of a run that names no release, where that is before the release asked.

    ``validate`` predicts such a run as of its day; here it still answers the question that it does
    not contradict.
    """
    day, stated = version_of(record)
    behaviour = session.behaviour
    if record.engine_version or stated or day is None or day >= behaviour.date:
        return []
    return [
        f"no version stated, of about {day} by its source: read as {behaviour.version}; "
        f"--engine {record.engine}@{day} asks as of then"
    ]


def noise_frac(measured_ms: Mapping[str, float], key: str, repeats: object) -> float:
    """Relative 80 % half-width of a measurement, from its repeats where there are any."""
    low, high = measured_ms.get(f"{key}_min"), measured_ms.get(f"{key}_max")
    half = (high - low) / 2 / measured_ms[key] if low is not None and high is not None else 0.0
    single = not isinstance(repeats, int | float) or repeats <= 1
    return max(REPEAT_FRAC, half, SINGLE_NOISE_FRAC if single else 0.0)


def wrong_unit(measured_ms: Mapping[str, float], row: int, belief: Belief, session: Session) -> str:
    """What looks like another unit than milliseconds; "" when nothing does."""
    for key in usable_keys(measured_ms):
        stages = key_stages(key, session)
        predicted_ms = float(belief.time_s(stages)[row]) * MS_PER_S
        seen_ms = key_seconds(key, measured_ms[key], session) * MS_PER_S
        if seen_ms <= 0 or predicted_ms <= 0:
            continue
        unit = likely_unit(predicted_ms, seen_ms)
        if unit is not None and key != "text_encode":
            ratio = max(predicted_ms / seen_ms, seen_ms / predicted_ms)
            return (
                f"{key} {measured_ms[key]:g} ms is {ratio:,.0f} times off the predicted "
                f"{predicted_ms:,.0f} ms: it looks like {unit}"
            )
    return ""


def compared_key(all_measured: Sequence[Mapping[str, float]]) -> str | None:
    """The key that all runs have, the most of the request first."""
    return next((k for k in COMPARED_KEYS if all(m.get(k) for m in all_measured)), None)
