"""Days of code behind published figures: of pages that state none, or only when they were read."""

from __future__ import annotations

import re

from perfmodel.engines.vllm_omni.versions import day_of_source as day_of_pull

PAGES: dict[str, tuple[tuple[str, str], ...]] = {
    "vllm-omni": (
        # Its table came with the backends (https://github.com/vllm-project/vllm-omni/pull/3079).
        (r"/docs/user_guide/diffusion/attention_backends\.md", "2026-04-15"),
        # Its table of rings came with their code: the wheel of this day has it, 0.11.0rc1 has not.
        (r"/docs/user_guide/acceleration/parallelism_acceleration\.md", "2026-01-06"),
        # Has the VAE in patches of 0.18, and decodes in fp32, as until 0.20: one GPU takes 3.0 s
        # (480p) and 7.2 s (720p) longer than four, 2.4 and 2.5 times what bf16 would.
        (r"/performance_dashboard/wan_2_2_serving_performance\.md", "2026-04-15"),
    ),
    # PixArt, SD3, FLUX.1 and CogVideoX on xfuser 0.3 and 0.4.0, whose wheels are of 2024-08-19 and
    # 2024-12-05 (https://pypi.org/project/xfuser/).
    "xdit": (
        (r"xdit-project/xdit_assets/", "2024-11-30"),
        (r"xdit-project/xDiT/(blob|tree)/[^/]+/docs/performance", "2024-11-30"),
    ),
}
"""Patterns of pages whose figures are older than the newest release, by engine."""


def day_of_page(engine: str, source: str) -> str | None:
    """About the day of the code of `engine` behind a page of `PAGES`; None for any other."""
    pages = PAGES.get(engine, ())
    return next((day for pattern, day in pages if re.search(pattern, source)), None)


def day_of_run(engine: str, source: str, stated: str | None) -> str | None:
    """About the day of the code of `engine` that `source` measured; None where it is not known.

    A page is dated by when it changed last: the day of its figures wins where it is known to be
    earlier than the day that is stated.
    """
    page = day_of_page(engine, source)
    if stated is not None:
        return stated if page is None else min(page, stated)
    return page or (day_of_pull(source) if engine == "vllm-omni" else None)
