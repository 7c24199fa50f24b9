"""The parts of an answer agree: the headline, the tables, the plan, what may not fit."""

from __future__ import annotations

from functools import cache

import perfmodel as pm
from perfmodel.report.answer import Answer
from perfmodel.report.render import Look, render


@cache
def asked(gpus: str, model: str, engine: str = "vllm-omni", **settings: object) -> Answer:
    of_job = ("width", "height", "batch", "concurrency")
    size = {k: settings.pop(k) for k in of_job if k in settings}
    return pm.recommend(pm.Workload(model=model, **size), gpus, engine=engine, **settings)


def page(answer: Answer) -> str:
    """The page as one line of words."""
    return " ".join(render(answer, "table", Look()).split())


def test_sharded_weights_win_no_tie_on_devices_that_are_half_empty():
    best, *others = asked("4xB200", "hunyuanvideo-1.5", "xdit").recommendations
    assert best.parallel.hsdp_shard_size == 1
    assert best.peak_memory_gib < 0.8 * best.capacity_gib
    assert best.latency_ms < min(row.latency_ms for row in others)
    same = [r for r in others if r.config_id.replace("_hsdp2x2", "") == best.config_id]
    assert same
    assert not any(row.tied_with_best for row in same)


def test_a_tie_says_by_how_much():
    answer = asked("4xB200", "hunyuanvideo-1.5", "xdit")
    tied = next(row for row in answer.recommendations[1:] if row.tied_with_best)
    assert f"{tied.config_id} tie {tied.vs_best_pct:+.1f} %" in page(answer)


def test_a_lossy_option_that_is_slower_is_not_listed_like_a_gain():
    answer = asked("4xB200", "hunyuanvideo-1.5", "xdit")
    fp8 = answer.lossy_options[0]
    slow = answer.model_copy(
        update={"lossy_options": (fp8.model_copy(update={"latency_change_pct": 4.0}),)}
    )
    fast = answer.model_copy(
        update={"lossy_options": (fp8.model_copy(update={"latency_change_pct": -4.0}),)}
    )
    assert "fp8 linears: slower here, +4 % request" in page(slow)
    assert "slower here" not in page(fast)
