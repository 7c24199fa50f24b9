"""What the stage timers of an engine show where they do not wait for the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.engines.base import Behaviour
from perfmodel.pipeline.evaluate import COPYING, evaluate
from perfmodel.pipeline.lines import Stage
from perfmodel.spec.parallel import Layouts
from perfmodel.spec.record import RunRecord
from perfmodel.units import MS_PER_S
from perfmodel.validate.questions import Question

QUEUE_LAUNCHES = 1024
"""Kernels that the host may launch ahead of the device; then CUDA makes it wait.

No document states it.  Published timers of SGLang's FastHunyuan (six steps of 1,010.9 ms, the loop
5,229.75 ms: 836 ms are missing, of forwards of 1,329 launches here) imply 1,100."""


@dataclass(frozen=True, slots=True)
class StageTimers:
    """Corrections from the time of a stage to what its timer shows.

    Attributes:
        waits: the timers wait for the device.
        known: the depth of the device's queue is.
        left_ms: device time of the denoiser that is queued when its timer stops.
        still_queued_ms: the same of the decode.
        encodes: the decode's timer includes what is left of encoding the file.
    """

    waits: bool = True
    known: bool = True
    left_ms: float = 0.0
    still_queued_ms: float = 0.0
    encodes: bool = False

    def shown_ms(self, stages_ms: dict[str, float]) -> dict[str, float]:
        """Stage times as the timers show them: what is queued counts where the host next waits."""
        encode_ms = stages_ms["video_encode"] if self.encodes else 0.0
        decode_ms = stages_ms["vae_decode"] + self.left_ms - self.still_queued_ms + encode_ms
        return {
            **stages_ms,
            "denoise": stages_ms["denoise"] - self.left_ms,
            "vae_decode": decode_ms,
        }

    def comparable(self, record: RunRecord, key: str) -> bool:
        """Whether a measured key means what its name says.

        The decode of an image ends when it is queued, and its time lies in the step after; so does
        that of a video where the depth of the queue is unknown.
        """
        if self.waits or key not in ("vae_decode", "text_encode"):
            return True
        image = (record.frames or 1) == 1
        return not image and (self.known or key != "vae_decode")


def timers_of(asked: Question) -> StageTimers:
    """The timers of the engine that a record ran on."""
    session = asked.session()
    layouts = Layouts.of([asked.parallel])
    return stage_timers(session.behaviour, lambda: evaluate(session.job, layouts).stages)


def stage_timers(
    behaviour: Behaviour, evaluated: Callable[[], Mapping[str, Stage]] | None = None
) -> StageTimers:
    """The timers of an engine; without its stages, only what does not depend on them."""
    encodes = behaviour.encodes_while_decoding
    if behaviour.timers_wait:
        return StageTimers(encodes=encodes)
    known = behaviour.platform == "cuda"
    if not behaviour.runs_ahead or evaluated is None:
        return StageTimers(waits=False, known=known, encodes=encodes)
    stages = evaluated()
    # Copies of weights are waited for in every layer.
    copies = behaviour.options.offload in COPYING
    return StageTimers(
        waits=False,
        known=known,
        left_ms=0.0 if copies else _queued_ms(stages["denoise"]),
        still_queued_ms=0.0 if encodes else _queued_ms(stages["vae_decode"]),
        encodes=encodes,
    )


def _queued_ms(stage: Stage) -> float:
    """Device time of the last launches of a stage that fit the queue.

    ``time * min(1, QUEUE_LAUNCHES / launches)``; 0 where the device waits for the host.
    """
    case = int(stage.index[0])
    if any(line.bound == "host" and line.total_s[case] > 0 for line in stage.lines):
        return 0.0
    launches = float(np.sum([line.launches[case] for line in stage.lines]))
    share = min(1.0, QUEUE_LAUNCHES / max(launches, 1.0))
    return float(stage.total_s[0]) * share * MS_PER_S
