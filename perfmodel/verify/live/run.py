"""``perfmodel verify --live``: build the pick here, time it, compare it with its prediction."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import torch

from perfmodel.api import header
from perfmodel.api.command import command_line
from perfmodel.api.session import Session, open_session
from perfmodel.calibrate.measure import collectives
from perfmodel.calibrate.measure.device import Device, device_count, open_device
from perfmodel.catalog import build_system, load_device
from perfmodel.engines import DEFAULT_ENGINE
from perfmodel.engines.legality import problems as broken_rules
from perfmodel.errors import BadInput, Problem, Refused
from perfmodel.report.answer import ProblemInfo
from perfmodel.report.live_answer import LiveAnswer, LiveRow
from perfmodel.spec.parallel import ParallelConfig, parse_parallel
from perfmodel.spec.workload import Options, Workload
from perfmodel.verify.live import compare, worker
from perfmodel.verify.live.denoiser import Size
from perfmodel.verify.live.machine import Known, known_device, software
from perfmodel.verify.live.mesh import ranks_of
from perfmodel.verify.live.question import Question, ask, pick, refuse_unbuildable
from perfmodel.verify.live.store import LiveStore, Row
from perfmodel.verify.live.vae_slice import Slice

FILE = "live.jsonl"
BUDGET_S = {"cpu": 0.2, "cuda": 0.5, "npu": 0.5}
CPU_SCALE = 8
BUSY_FRAC = 0.3
TORCH_ATTENTION = "TORCH_SDPA"
DEVICE_RULES = ("attention", "device-")
"""Rules that say where the engine runs: what is built here is torch's own."""
STAND_IN = "h100-sxm"
"""Device of the catalogue that stands for any other in what does not depend on the device."""

Progress = Callable[[str, int], None]
"""(outcome of an operator, operators so far)."""


@dataclass(frozen=True, kw_only=True)
class LiveRequest:
    """What to verify.

    Attributes:
        workload: the request.
        parallel: keys or an id; None is the fastest legal one of the devices here.
        engine: ``name[@version]``.
        options: fixed choices; without an attention backend torch's own is built and predicted.
        fit: calibration file of the user's own.
        device: cuda, npu or cpu; None takes the first there is.
        ranks: processes; 0: as many as `parallel` has, else all devices.
        scale: divides sides, heads and widths; 0: 1 on accelerators, 8 on the CPU.
        out: folder of the rows (and of the device's records).
        dtype: of weights and activations.
        threads: CPU threads of a rank; 0: one.
        budget_s: time for one operator; 0: a default by device.
    """

    workload: Workload
    parallel: str | None = None
    engine: str = DEFAULT_ENGINE
    options: Options | None = None
    fit: Path | None = None
    device: str | None = None
    ranks: int = 0
    scale: int = 0
    out: Path = Path("live")
    dtype: str = "bf16"
    threads: int = 0
    budget_s: float = 0.0


def live(
    request: LiveRequest,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> LiveAnswer | None:
    """Build, time and compare.

    Rows are kept in ``<out>/live.jsonl`` as they are measured; a second start goes on from there.

    Returns:
        The answer; None on the ranks other than 0 of a job that torchrun started.

    Raises:
        BadInput, Refused: what cannot be built, or an illegal configuration.
        MissingData: the device is unknown, or a rank failed.
    """
    opened = open_device(request.device)
    config = _config(request)
    ranks = ranks_of(config) if config else _ranks_here(request, opened)
    threads = request.threads or (1 if opened.is_cpu else 0)
    if threads:
        torch.set_num_threads(threads)
    _check_devices(ranks, opened)
    # What no device can build is refused before an unknown one is measured for a minute.
    _question(request, Known(load_device(STAND_IN), None), config, ranks, opened)
    known = known_device(opened, request.out, ranks, threads or 1, request.fit, say)
    session, question = _question(request, known, config, ranks, opened)
    plan = _plan(request, question, opened, threads)
    before = len(LiveStore(plan.path, plan.setup).rows)
    rank = _measure(plan, progress)
    if rank > 0:
        return None
    rows = list(LiveStore(plan.path, plan.setup).rows.values())
    command = _command(session, question, plan, request.fit)
    return _answer(session, question, plan, rows, opened, before, command)


def _question(
    request: LiveRequest, known: Known, config: ParallelConfig | None, ranks: int, opened: Device
) -> tuple[Session, Question]:
    """What is built on `ranks` devices that are described as `known`.

    Raises:
        BadInput, Refused: unknown names, what cannot be built, an illegal configuration.
    """
    nodes = max(ranks // int(os.environ.get("LOCAL_WORLD_SIZE", ranks)), 1)
    named = nodes if nodes > 1 else None
    system = build_system(known.device, count=ranks // nodes, nodes=named)
    options = _options(request.options or Options(), opened)
    session = open_session(
        request.workload, system, engine=request.engine, options=options, fit=known.fit
    )
    refuse_unbuildable(session.model, config)
    config = config or pick(session, ranks, DEVICE_RULES)
    refuse_illegal(session, config)
    if opened.is_cpu:
        session = unthrottled(session)
    scale = request.scale or (CPU_SCALE if opened.is_cpu else 1)
    return session, ask(session, config, scale)


def _started(request: LiveRequest) -> int:
    """Processes that were asked for or started; 0 when nothing was said."""
    return int(os.environ["WORLD_SIZE"]) if collectives.under_torchrun() else request.ranks


def _ranks_here(request: LiveRequest, opened: Device) -> int:
    return _started(request) or device_count(opened.kind)


def _config(request: LiveRequest) -> ParallelConfig | None:
    if request.parallel is None:
        return None
    config, suffixes = parse_parallel(request.parallel)
    if suffixes:
        message = f"--live builds bf16 blocks without {', '.join(suffixes)}"
        raise BadInput(Problem("live-axis", message, "--parallel", request.parallel))
    ranks, given = ranks_of(config), _started(request)
    if given and given != ranks:
        message = f"{config.config_id} runs on {ranks} ranks, not {given}; try --ranks {ranks}"
        raise BadInput(Problem("live-ranks", message, "--ranks", str(given)))
    return config


def _check_devices(ranks: int, opened: Device) -> None:
    here = device_count(opened.kind)
    if opened.is_cpu or collectives.under_torchrun() or ranks <= here:
        return
    message = (
        f"{ranks} ranks need {ranks} devices, this machine has {here}; choose a smaller "
        f"--parallel, or start it on every node with torchrun"
    )
    raise BadInput(Problem("live-ranks", message, "--parallel", str(ranks)))


def _options(options: Options, opened: Device) -> Options:
    """Torch's attention where none is asked for; nothing is compiled on the CPU."""
    update: dict[str, Any] = {}
    if options.attention_backend is None:
        update["attention_backend"] = TORCH_ATTENTION
    if options.compile is None and opened.kind != "cuda":
        update["compile"] = False
    return options.model_copy(update=update)


def refuse_illegal(session: Session, config: ParallelConfig) -> None:
    """Raise the rules that the configuration breaks, but for those about the device's kernels.

    Raises:
        Refused: all of them.
    """
    found = broken_rules(session.engine.rules(), session.context, config)
    errors = [p for p in found if p.severity == "error" and not p.rule_id.startswith(DEVICE_RULES)]
    if errors:
        raise Refused(*errors)


def unthrottled(session: Session) -> Session:
    """The session at the rates of short bursts: what is measured here on a CPU are those.

    An engine runs an accelerator for minutes at its power limit, which the term
    ``sustained_frac`` stands for.
    """
    machine = session.job.machine
    machine = replace(machine, terms={**machine.terms, "sustained_frac": 1.0})
    return replace(session, job=replace(session.job, machine=machine))


def _plan(request: LiveRequest, question: Question, opened: Device, threads: int) -> worker.Plan:
    job, behaviour = question.job, question.job.behaviour
    size = Size(
        spec=job.model.transformer,
        batch=question.outputs_together,
        grid=question.grid,
        text_tokens=int(job.shape.text_tokens),
        masked=behaviour.pad_masked or job.model.family == "cosmos3",
        fused_qkv=behaviour.traits.fused_qkv,
        backend=behaviour.attention_backend,
    )
    setup = {
        "model": job.model.slug,
        "config_id": question.config.config_id,
        "scale": question.scale,
        "hidden": size.spec.hidden,
        "heads": size.spec.heads,
        "ffn": size.spec.ffn,
        "grid": list(size.grid),
        "text_tokens": size.text_tokens,
        "branches": int(job.shape.branches),
        "piece": list(question.piece()),
        "dtype": request.dtype,
        "attention": size.backend,
        "compiled": question.compiled,
        "device": opened.name,
        "software": software(opened),
    }
    return worker.Plan(
        device=opened.kind,
        family=job.model.family,
        size=size,
        branches=int(job.shape.branches),
        config=question.config,
        part=_slice(question),
        dtype=request.dtype,
        path=request.out / FILE,
        setup=setup,
        budget_s=request.budget_s or BUDGET_S[opened.kind],
        threads=threads,
        compiled=question.compiled and opened.kind == "cuda",
    )


def _slice(question: Question) -> Slice | None:
    found = question.vae_slice()
    if found is None:
        return None
    phase, label, conv = found
    sides = (int(conv.out_t), int(conv.out_h), int(conv.out_w))
    return Slice(label, conv.out_channels, *sides, phase)


def _measure(plan: worker.Plan, progress: Progress | None) -> int:
    finished = 0

    def tick(outcome: str) -> None:
        nonlocal finished
        finished += 1
        if progress is not None:
            progress(outcome, finished)

    if collectives.under_torchrun() or ranks_of(plan.config) == 1:
        return worker.here(plan, tick)
    worker.launch(plan, tick)
    return 0


def _answer(
    session: Session,
    question: Question,
    plan: worker.Plan,
    rows: list[Row],
    opened: Device,
    before: int,
    command: str,
) -> LiveAnswer:
    pieces = {name: [r for r in rows if r.piece == name] for name in ("denoise", "vae_decode")}
    denoise = compare.denoise_rows(question, pieces["denoise"])
    vae = compare.vae_rows(question, pieces["vae_decode"])
    inside = [row for row in denoise if row.unit == compare.BLOCK]
    whole = next((r.each_ms for r in rows if r.piece == "block"), None)
    block = compare.block(question, denoise)
    predicted_ms = compare.stage_ms(question)
    errors = [abs(r.error_pct) for r in (*denoise, *vae) if r.error_pct is not None]
    return LiveAnswer(
        workload=header.workload_info(session),
        system=header.system_info(session),
        engine=header.engine_info(session),
        config_id=question.config.config_id,
        ranks=ranks_of(question.config),
        device_name=opened.name,
        software=software(opened),
        backend=collectives.BACKENDS[opened.kind] if ranks_of(question.config) > 1 else None,
        dtype=plan.dtype,
        scale=question.scale,
        compiled=plan.compiled,
        rows=(*denoise, *vae),
        block_predicted_ms=block.predicted_ms,
        block_measured_ms=whole,
        block_sum_measured_ms=_sum_ms(inside),
        block_runs=block.runs,
        denoise_predicted_ms=predicted_ms,
        denoise_measured_ms=compare.extrapolated_ms(question, denoise, whole),
        covered_share=sum(r.share or 0.0 for r in denoise if r.measured_ms is not None),
        vae_slice=None if plan.part is None else plan.part.label,
        vae_slice_share=sum(r.share or 0.0 for r in vae) if vae else None,
        not_built=compare.not_built(question.denoise(), denoise),
        median_error_pct=median(errors) if errors else None,
        records=str(plan.path),
        measured_now=len(rows) - before,
        measured_before=before,
        warnings=_warnings(question, session, opened),
        provenance=header.provenance(session),
        command=command,
        answer_id=header.answer_id(session, command),
    )


def _sum_ms(rows: list[LiveRow]) -> float | None:
    values = [row.measured_ms for row in rows if row.measured_ms is not None]
    return sum(values) if values else None


def _command(session: Session, question: Question, plan: worker.Plan, fit: Path | None) -> str:
    # the machine is the one at hand
    extra = {
        "gpus": None,
        "parallel": question.config.config_id,
        "device": plan.device,
        "scale": question.scale,
        "threads": plan.threads or None,
        "records": plan.path.parent,
        "fit": fit,
    }
    return command_line(session, "verify --live", extra)


def _warnings(question: Question, session: Session, opened: Device) -> tuple[ProblemInfo, ...]:
    found = list(header.base_warnings(session))
    load, cores = os.getloadavg()[0], os.cpu_count() or 1
    if opened.is_cpu and load > BUSY_FRAC * cores + ranks_of(question.config):
        message = (
            f"this machine is busy (load {load:.1f} on {cores} cores): whole blocks and messages "
            "take longer by that, single operators do not"
        )
        found.append(Problem("live-busy", message, severity="warning"))
    if question.scale > 1:
        shape, spec = question.job.shape, question.job.model.transformer
        message = (
            f"reduced by {question.scale}: {int(shape.width)}x{int(shape.height)}, "
            f"{int(shape.tokens):,} tokens, width {spec.hidden:,}, {spec.heads} heads; prediction "
            "and measurement are both of that; --scale 1 builds the request itself"
        )
        found.append(Problem("live-scale", message, "--scale", severity="warning"))
    return header.unique(found)
