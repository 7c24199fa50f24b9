"""Days of code behind published figures that state neither a version nor a day."""

from __future__ import annotations

import re

from perfmodel.engines.vllm_omni.versions import day_of_source as day_of_pull

PAGES: dict[str, tuple[tuple[str, str], ...]] = {
    # PixArt, SD3, FLUX.1 and CogVideoX on xfuser 0.3 and 0.4.0, whose wheels are of 2024-08-19 and
    # 2024-12-05 (https://pypi.org/project/xfuser/).
    "xdit": (
        (r"xdit-project/xdit_assets/", "2024-11-30"),
        (r"xdit-project/xDiT/(blob|tree)/[^/]+/docs/performance", "2024-11-30"),
    ),
}
"""Patterns of pages whose figures are older than the newest release, by engine."""


def day_of_source(engine: str, source: str) -> str | None:
    """About the day of the code of `engine` that `source` measured; None where it is not known."""
    if engine == "vllm-omni":
        return day_of_pull(source)
    pages = PAGES.get(engine, ())
    return next((day for pattern, day in pages if re.search(pattern, source)), None)
