"""The parts that all answers share: what was asked, on what, under which rules, the trust."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Literal

from perfmodel import catalog, engines
from perfmodel.api.caches import cache_warning
from perfmodel.api.command import command_line, spec
from perfmodel.api.evidence import own_terms_file
from perfmodel.api.session import Session
from perfmodel.cost.fits import has_kernels
from perfmodel.engines.base import Version
from perfmodel.errors import Problem
from perfmodel.report.answer import (
    Answer,
    EngineInfo,
    ProblemInfo,
    SystemInfo,
    WorkloadInfo,
)
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.units import GIB, PERCENT
from perfmodel.version import __version__

CALIBRATED_SHARE = 0.9
PARTLY_SHARE = 0.5
PRIOR_WARNING_SHARE = 0.2


def workload_info(session: Session) -> WorkloadInfo:
    """The request as it runs."""
    shape, asked = session.job.shape, session.workload
    assumed = set(shape.assumed)
    if "model" not in asked.model_fields_set:
        assumed.add("model")
    return WorkloadInfo(
        model=session.model.slug,
        title=session.model.title,
        task=shape.task,
        width=int(shape.width),
        height=int(shape.height),
        frames=int(shape.frames),
        fps=shape.fps,
        seconds=int(shape.frames) / shape.fps if int(shape.frames) > 1 else None,
        steps=shape.request_steps,
        run_steps=int(shape.steps),
        guidance=shape.guidance,
        batch=int(shape.batch),
        concurrency=asked.concurrency,
        input_images=asked.input_images,
        sound=asked.sound,
        latent_frames=int(shape.latent_frames),
        latent_height=int(shape.latent_height),
        latent_width=int(shape.latent_width),
        video_tokens=int(shape.video_tokens),
        extra_tokens=int(shape.extra_tokens),
        text_tokens=int(shape.text_tokens),
        guidance_branches=shape.branches,
        forwards=int(shape.forwards),
        assumed=tuple(sorted(assumed)),
    )


def system_info(session: Session) -> SystemInfo:
    """The machine."""
    system = session.system
    return SystemInfo(
        device=system.device.id,
        title=system.device.title,
        label=system.label,
        spec=spec(system),
        num_gpus=system.num_gpus,
        nodes=system.nodes,
        gpus_per_node=system.gpus_per_node,
        link=system.link_label,
        p2p=system.p2p,
        sockets=system.sockets,
        usable_gib=system.usable_bytes / GIB,
        host_ram_gib=None if system.host_ram_bytes is None else system.host_ram_bytes / GIB,
        assumed=tuple(system.assumed),
    )


def engine_info(session: Session) -> EngineInfo:
    """Engine, version and resolved options."""
    behaviour = session.behaviour
    return EngineInfo(
        name=behaviour.engine,
        title=engines.TITLES.get(behaviour.engine, behaviour.engine),
        version=behaviour.version,
        options=behaviour.options.model_dump(),
        assumed=tuple(behaviour.assumed),
    )


Trust = Literal["calibrated", "partly calibrated", "rough"]


def trust_word(share: Mapping[str, float]) -> Trust:
    """Calibrated, partly calibrated or rough, by the share of time on fitted laws."""
    solid = share.get("fitted", 0.0) + share.get("measured", 0.0)
    if solid >= CALIBRATED_SHARE:
        return "calibrated"
    return "partly calibrated" if solid >= PARTLY_SHARE else "rough"


def base_warnings(session: Session) -> list[Problem]:
    """Everything worth saying before the numbers: names, versions, rounding, padding."""
    version: Version = session.version
    return [
        *session.system.warnings,
        *catalog.drafts(),
        *version.problems,
        *session.job.shape.notes,
        *cache_warning(session.behaviour, session.job.machine),
        *guardrail_warning(session),
    ]


def guardrail_warning(session: Session) -> list[Problem]:
    """What of the guardrails is not in the numbers."""
    if not session.options.guardrails:
        return []
    engine = engines.TITLES.get(session.engine.name, session.engine.name)
    message = (
        "guardrails: the check of the frames is in the output stage, that of the prompt is not "
        "predicted (13 s for a long prompt, where it was measured)"
        if session.behaviour.checks_frames
        else f"guardrails: {engine} has none for {session.model.title} that are described here; "
        "their time is not predicted"
    )
    return [Problem("guardrails", message, "--guardrails", severity="warning")]


def prior_warning(session: Session, share: Mapping[str, float]) -> list[Problem]:
    """One line when more than a fifth of the time rests on priors."""
    prior = share.get("prior", 0.0) + share.get("datasheet", 0.0)
    if prior <= PRIOR_WARNING_SHARE:
        return []
    device = session.system.device.id
    fix = (
        f"measure this machine: perfmodel bench, then perfmodel calibrate --device {device}"
        if not has_kernels(session.fit)
        else "fit the engine terms to your runs (perfmodel calibrate --runs FILE), or pin a stage "
        "with --set STAGE=MS"
    )
    message = (
        f"{prior * PERCENT:.0f} % of the predicted time rests on priors, not on measurements; {fix}"
    )
    return [Problem("priors", message, value=device, severity="warning")]


def idle_warning(session: Session, config: ParallelConfig) -> list[Problem]:
    """A line when the configuration leaves devices without work."""
    used, have = config.world_size, session.system.num_gpus
    if used >= have:
        return []
    replicas = have // used
    hint = f"; {replicas} servers of it use {replicas * used}" if replicas > 1 else ""
    message = f"{config.config_id} uses {used} of {have} GPUs, the others idle{hint}"
    return [Problem("idle-gpus", message, value=str(used), severity="warning")]


def unique(problems: list[Problem]) -> tuple[ProblemInfo, ...]:
    """As records, each once, in order."""
    return tuple(ProblemInfo.of(problem) for problem in dict.fromkeys(problems))


def provenance(session: Session) -> dict[str, str]:
    """What the numbers were made from."""
    fit = session.fit_id or f"priors of the {session.system.device.family} family"
    traced, own = session.model.traced, own_terms_file(session)
    digest = "" if own is None else hashlib.sha256(own.read_bytes()).hexdigest()[:8]
    return {
        **({"traced": f"{traced.class_name} of {traced.library}"} if traced else {}),
        "perfmodel": __version__,
        "fit": f"{session.system.device.id}@{session.fit_id}" if session.fit_id else fit,
        "rules": f"{session.behaviour.engine} {session.behaviour.version}",
        **({"terms": f"{own.stem}@{digest} of your own"} if own else {}),
    }


def identified(
    answer: Answer, session: Session, command: str, settings: Mapping[str, object]
) -> Answer:
    """`answer` with the command that gives it again, and its id."""
    line = command_line(session, command, settings)
    return answer.model_copy(update={"command": line, "answer_id": answer_id(session, line)})


def answer_id(session: Session, command: str) -> str:
    """Eight hex digits over the inputs, the data and the version."""
    data = (
        command,
        provenance(session),
        session.system.usable_bytes,
        session.system.host_ram_bytes,
        session.system.device.model_dump(mode="json"),
        session.model.model_dump(mode="json"),
        sorted(session.job.machine.terms.items()),
    )
    return hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode()).hexdigest()[:8]
