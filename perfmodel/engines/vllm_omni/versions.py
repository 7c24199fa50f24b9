"""Releases of vLLM-Omni and when each behaviour began.

Release days are the file dates inside the wheels on https://pypi.org/project/vllm-omni/; each
feature was looked up in the source of every wheel from 0.14.0 to 0.30.0.  Between releases the main
branch changes earlier than the next wheel: the day is then the one of the pull request where it is
known, else the day of the first release that has the feature (no later than that).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date

from perfmodel.engines.base import Version
from perfmodel.engines.releases import (
    Number,
    Release,
    nearest_release,
    read_day,
    read_number,
    unread,
)
from perfmodel.errors import BadInput, Problem

RELEASES: dict[Release, str] = {
    (0, 14, 0): "2026-02-01",
    (0, 16, 0): "2026-03-01",
    (0, 18, 0): "2026-03-23",
    (0, 20, 0): "2026-05-08",
    (0, 22, 0): "2026-06-06",
    (0, 24, 0): "2026-07-07",
    (0, 26, 0): "2026-08-03",
    (0, 28, 0): "2026-08-31",
    (0, 30, 0): "2026-09-25",
}
FIRST_DAY = "2025-12-01"
"""No days before: the main branch of this month has no feature of `FEATURES` yet."""
PINNED: Release = (0, 30, 0)
PULLS: dict[int, str] = {
    0: FIRST_DAY,
    1516: "2026-03-12",
    3079: "2026-04-15",
    3928: "2026-06-06",
    4301: "2026-06-10",
    4467: "2026-06-15",
    4614: "2026-06-22",
    5283: "2026-07-20",
    7056: "2026-09-01",
    7427: "2026-09-25",
}
"""Days of some pull requests: of `FEATURES`, of published records, and of HunyuanVideo-1.5, which
the wheel of 2026-03-23 has and that of 2026-03-01 has not."""
_PULL = "https://github.com/vllm-project/vllm-omni/pull/"


@dataclass(frozen=True, slots=True)
class Feature:
    """A behaviour that began at a release; on main from `date` on."""

    since: Release
    date: str
    source: str

    def on(self, version: Version) -> bool:
        """Whether `version` has it: by release number, else by day."""
        if version.release is not None:
            return version.release >= self.since
        return version.date >= self.date


def _from_release(since: Release, source: str) -> Feature:
    return Feature(since, RELEASES[since], source)


FEATURES: dict[str, Feature] = {
    # The wheel of 2026-01-06 (0.12.0rc1) has enable_torch_compile: bool = False.
    "compiles": _from_release((0, 14, 0), "diffusion/worker/diffusion_model_runner.py"),
    "wan_auto_pad": _from_release((0, 16, 0), "wan2_2_transformer.py _sp_plan"),
    "hsdp": _from_release((0, 16, 0), "entrypoints/cli/serve.py --use-hsdp"),
    "advanced_uaa": _from_release((0, 18, 0), "entrypoints/cli/serve.py --ulysses-mode"),
    "vae_patch": _from_release((0, 18, 0), "entrypoints/cli/serve.py"),
    "profiler": _from_release((0, 18, 0), "entrypoints/cli/serve.py"),
    "wan_vae_half": _from_release((0, 20, 0), "models/wan2_2/pipeline_wan2_2.py torch_dtype"),
    "cudnn_default": Feature((0, 22, 0), "2026-04-01", f"{_PULL}3079"),
    "vae_patch_below_world": Feature((0, 22, 0), "2026-06-06", f"{_PULL}3928"),
    # Absent from the wheel of 2026-05-08.
    "valid_text": _from_release((0, 22, 0), "models/hunyuan_video max_valid_encoder_tokens"),
    "pipeline_parallel": _from_release((0, 22, 0), "distributed/pipeline_parallel.py"),
    "no_guardrails": _from_release((0, 22, 0), "entrypoints/cli/serve.py --no-guardrails"),
    "sound_padded": Feature((0, 24, 0), "2026-07-07", f"{_PULL}4436"),
    "clip_on_device": Feature((0, 24, 0), "2026-06-15", f"{_PULL}4467"),
    "one_frame_condition": Feature((0, 24, 0), "2026-06-22", f"{_PULL}4614"),
    "spatial_shard": _from_release((0, 24, 0), "entrypoints/cli/serve.py --vae-parallel-mode"),
    # Absent from the wheel of 2026-07-07, in that of 2026-08-03: the middle is taken for main.
    "trtllm_default": Feature((0, 26, 0), "2026-07-20", f"{_PULL}5283"),
    "guidance_passes": _from_release((0, 26, 0), "models/ltx2/ltx2_guidance.py"),
    "allgather": _from_release((0, 26, 0), "entrypoints/cli/serve.py --allgather-degree"),
    "layerwise_gather": _from_release((0, 26, 0), "offloader/distributed_layerwise_backend.py"),
    "component_offload": _from_release(
        (0, 30, 0), "entrypoints/cli/serve.py --diffusion-offload-config"
    ),
    "attention_flag": _from_release(
        (0, 22, 0), "entrypoints/cli/serve.py --diffusion-attention-backend"
    ),
    "quantization_flag": _from_release(
        (0, 22, 0), "entrypoints/cli/serve.py --diffusion-quantization-config"
    ),
    "text_encoder_tp": _from_release((0, 26, 0), "entrypoints/cli/serve.py"),
    # Known to the month only; so is the cuDNN default above.
    "vae_fast_path": Feature((0, 30, 0), "2026-09-01", f"{_PULL}7056"),
    "distilled_refused": Feature((0, 30, 0), "2026-09-25", f"{_PULL}7427"),
    # Not in the last wheel that was read; main has it from the pull request on.
    "ovis_hsdp": Feature((0, 31, 0), "2026-09-25", f"{_PULL}7831"),
    "cosmos3_auto_pad": _from_release((0, 30, 0), "transformer_cosmos3.py _sp_plan"),
}

_SOURCE = re.compile(r"vllm-omni/(?:pull|issues)/(\d+)")
_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?$")


def has(name: str, version: Version) -> bool:
    """Whether `version` has the feature called `name`."""
    return FEATURES[name].on(version)


def lacks(since: Release, version: Version) -> bool:
    """Whether `version` is a release that came before `since`.

    The main branch of a day lacks nothing on this ground: it has a feature before the first wheel
    does, on a day that is not known.
    """
    return version.release is not None and version.release < since


def day_of_source(source: str) -> str | None:
    """About the day of the code that a pull request measured; None for another source.

    Between pull requests of known days, by number: a record that names neither a version nor a day
    is older than the newest release.
    """
    match = _SOURCE.search(source)
    if match is None:
        return None
    number = min(int(match[1]), max(PULLS))
    below = max(known for known in PULLS if known <= number)
    above = min(known for known in PULLS if known >= number)
    first, last = (date.fromisoformat(PULLS[known]).toordinal() for known in (below, above))
    share = (number - below) / max(above - below, 1)
    return date.fromordinal(first + round(share * (last - first))).isoformat()


def label_of(release: Release) -> str:
    """``0.30.0``."""
    return ".".join(map(str, release))


def of_label(label: str) -> Version:
    """The version of a `Behaviour`, by its label."""
    return resolve_version(label.removeprefix("main at ") or None)


def resolve_version(text: str | None, dated: str | None = None) -> Version:
    """Version from ``0.30.0``, ``2026-06-16``, ``2026-06`` or None (the pinned release).

    A development version has the behaviour of the newest release that is not newer than it; an
    unknown release number takes the nearest known one, with a warning, as does a day after the
    last release.  A text that is neither (a commit, a branch) is dated by `dated`.

    Raises:
        BadInput: neither a version nor a date, and no `dated`.
    """
    if text is None:
        return (
            Version(label_of(PINNED), RELEASES[PINNED], PINNED) if dated is None else _dated(dated)
        )
    if _DATE.match(text):
        return _on(text)
    if number := read_number(text):
        return _nearest(text, number)
    if dated is not None and _DATE.match(dated):
        return _dated(dated)
    names = tuple(map(label_of, RELEASES))
    raise BadInput(
        Problem(
            "engine-version",
            f'"{text}" is neither a vLLM-Omni version nor a date; legal: {", ".join(names)} '
            f"or a day such as 2026-06-16; try --engine vllm-omni@{names[-1]}",
            field="--engine",
            value=text,
            legal_values=names,
            suggestions=(f"vllm-omni@{names[-1]}",),
        )
    )


def _dated(day: str) -> Version:
    """A record's day; one before the first known day has the behaviour of that day."""
    return replace(_on(max(day, FIRST_DAY)), problems=())


def _on(text: str) -> Version:
    day = read_day(text)
    if day is None:
        raise BadInput(
            Problem(
                "engine-version",
                f'"{text}" is no day of a calendar; try --engine vllm-omni@2026-06-16',
                field="--engine",
                value=text,
            )
        )
    first = FIRST_DAY
    if day < first:
        message = (
            f"{text} is before {first}, the first day whose vLLM-Omni behaviour is known; legal: "
            f"{first} and later; try --engine vllm-omni@{first}"
        )
        again = (f"--engine vllm-omni@{first}",)
        raise BadInput(
            Problem("engine-version", message, "--engine", text, (f"{first} and later",), again)
        )
    last = RELEASES[PINNED]
    later = (unread("vLLM-Omni", text, last),) if day > last else ()
    return Version(f"main at {text}", day, problems=later)


def _nearest(text: str, number: Number) -> Version:
    taken = nearest_release(number, RELEASES)
    if taken == number.release and number.side == "exact":
        return Version(label_of(taken), RELEASES[taken], taken)
    problem = Problem(
        "engine-version",
        f"vLLM-Omni {text} is not one of the releases read here; the behaviour of "
        f"{label_of(taken)} ({RELEASES[taken]}) is taken; legal: "
        f"{', '.join(map(label_of, RELEASES))} or a day",
        field="--engine",
        value=text,
        legal_values=tuple(map(label_of, RELEASES)),
        suggestions=(f"vllm-omni@{label_of(taken)}",),
        severity="warning",
    )
    return Version(text, RELEASES[taken], taken, (problem,))
