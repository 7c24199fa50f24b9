"""Names and numbers of a question resolved once: engine, model, behaviour, shape, machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from perfmodel import catalog, engines
from perfmodel.api.asked import as_options, as_system, as_workload
from perfmodel.api.caches import with_cache
from perfmodel.cost.fits import has_kernels
from perfmodel.cost.machine import Machine
from perfmodel.engines.base import Behaviour, Context, Engine, Version
from perfmodel.errors import MissingData, PerfmodelError, Problem, Refused
from perfmodel.pipeline.job import Job
from perfmodel.pipeline.request_width import SITE
from perfmodel.shapes import Shape
from perfmodel.spec.hardware import System
from perfmodel.spec.model import ModelSpec
from perfmodel.spec.workload import Options, Workload
from perfmodel.stages import family as family_of
from perfmodel.topology import Topology

MISSING_PEAK = "missing-peak"
"""Rule that names a dtype whose peak rate the device does not have: data missing, exit code 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A resolved question.

    Attributes:
        workload, system, options: as asked.
        engine, version, behaviour: what runs it; `behaviour.options` has the engine's defaults.
        model: catalogue record.
        job: what `pipeline.evaluate` takes.
        context: what legality rules and commands look at.
        fit: the calibration behind the kernel laws, None when they are priors.
        strict: refuse a device without fitted products and attention.
    """

    workload: Workload
    system: System
    options: Options
    engine: Engine
    version: Version
    behaviour: Behaviour
    model: ModelSpec
    job: Job
    context: Context
    fit: Mapping[str, Any] | None
    strict: bool

    @property
    def fit_id(self) -> str | None:
        """The id of the fit, None when the kernel laws are priors."""
        return None if self.fit is None else self.fit.get("fit_id")

    def with_options(self, options: Options) -> Session:
        """The same question under other options."""
        return open_session(
            self.workload,
            self.system,
            engine=f"{self.engine.name}@{self.version.label}" if self.version else self.engine.name,
            options=options,
            strict=self.strict,
            resolved=self,
        )


def open_session(
    workload: Workload,
    system: System | str,
    *,
    engine: str = engines.DEFAULT_ENGINE,
    options: Options | None = None,
    fit: Path | None = None,
    strict: bool = False,
    host: str | None = None,
    resolved: Session | None = None,
) -> Session:
    """Resolve a question.

    Args:
        workload: the request.
        system: the machine, or as ``--gpus`` takes it.
        engine: ``name``, ``name@version`` or ``name@date``.
        options: choices that hold for all candidates.
        fit: calibration file to use instead of the shipped one.
        strict: refuse a device without fitted products and attention (MissingData).
        host: a machine behind published runs, whose terms win over the engine's.
        resolved: a session whose engine, model and machine are taken over.

    Raises:
        BadInput: unknown names, bad sizes.
        MissingData: a peak rate that does not exist; a device without fitted laws under `strict`.
    """
    workload, system, options = as_workload(workload), as_system(system), as_options(options)
    found, version = (
        (resolved.engine, resolved.version) if resolved else engines.parse_engine(engine)
    )
    model = resolved.model if resolved else catalog.load_model(workload.model)
    behaviour = found.behaviour(model, system.device, version, options)
    family = family_of(model)
    shape = family.shape(model, workload, behaviour.traits)
    if workload.forwards is not None:
        shape = replace(shape, forwards=workload.forwards)
    data, system = (resolved.fit, system) if resolved else _fit_of(fit, system)
    machine, spread = (
        (resolved.job.machine, resolved.job.spread)
        if resolved
        else _machine(system, behaviour, data, (host, model.slug), strict=strict)
    )
    behaviour, spread = with_cache(behaviour, machine, spread)
    job = Job(
        model=model, family=family, shape=shape, behaviour=behaviour, machine=machine, spread=spread
    )
    return Session(
        workload=workload,
        system=system,
        options=options,
        engine=found,
        version=version,
        behaviour=behaviour,
        model=model,
        job=job,
        context=_context(workload, system, model, behaviour, shape, job),
        fit=data,
        strict=strict,
    )


def refusal(*problems: Problem) -> PerfmodelError:
    """The error of a configuration that cannot be answered: illegal, or a peak that is missing."""
    if any(problem.rule_id == MISSING_PEAK for problem in problems):
        return MissingData(*problems)
    return Refused(*problems)


def _fit_of(path: Path | None, system: System) -> tuple[dict[str, Any] | None, System]:
    """The fit of a file, else that of the catalogue; and `system` with what is to say of it."""
    from perfmodel.cost import fitcheck

    if path is None:
        data = catalog.load_fit(system.device.id)
        found = [fitcheck.shadow_problem(system.device.id)]
    else:
        data = fitcheck.own_fit(path, system.device.id)
        found = [fitcheck.device_problem(path, data, system.device.id)]
    if data is not None:
        found.append(fitcheck.host_problem(data, system.p2p, system.sockets))
    warnings = tuple(problem for problem in found if problem is not None)
    return data, replace(system, warnings=(*system.warnings, *warnings)) if warnings else system


def _machine(
    system: System,
    behaviour: Behaviour,
    data: Mapping[str, Any] | None,
    whose: tuple[str | None, str],
    *,
    strict: bool,
) -> tuple[Machine, Mapping[str, float]]:
    if strict and not has_kernels(data):
        raise MissingData(
            Problem(
                "uncalibrated",
                f"{system.device.id} has no fitted kernel laws, and --strict refuses priors; "
                "measure it: perfmodel bench, then "
                f"perfmodel calibrate --device {system.device.id}",
                field="--strict",
                value=system.device.id,
            )
        )
    terms = catalog.load_terms(behaviour.terms) or {}
    entries = dict(terms.get("terms", {}))
    host, model = whose
    if host is not None:
        entries |= catalog.host_terms(behaviour.terms, host)
    site = catalog.site_of(behaviour.terms, system.device.id)
    entries |= site.get("terms", {})
    values = {name: float(entry["value"]) for name, entry in entries.items()}
    machine = Machine.build(system.device, Topology.of(system), fit=data, terms=values)
    fitted = {name for name, entry in entries.items() if entry["provenance"] == "fitted"}
    machine = replace(machine, fitted_terms=frozenset(fitted))
    return machine, terms.get("spread", {}) | _site_width(site, model)


def _site_width(site: Mapping[str, Any], model: str) -> dict[str, float]:
    """What the user's own runs do to the range of a request of a model."""
    if not site:
        return {}
    ran = model in site["models"]
    return {SITE: float(site["width_ratio" if ran else "other_width_ratio"])}


def _context(
    workload: Workload,
    system: System,
    model: ModelSpec,
    behaviour: Behaviour,
    shape: Shape,
    job: Job,
) -> Context:
    dims = model.transformer
    task = model.tasks[shape.task]

    def tokens_at(width: int, height: int, frames: int) -> int:
        at = np.array([width]), np.array([height]), np.array([frames])
        return int(np.asarray(job.family.shape_columns(model, shape, *at).tokens)[0])

    return Context(
        behaviour=behaviour,
        model=model.title,
        model_id=model.slug,
        hf_id=model.hf_id,
        family=model.family,
        heads=dims.heads,
        kv_heads=dims.kv_heads,
        hidden=dims.hidden,
        ffn_width=dims.ffn,
        layers=dims.layers,
        experts=model.experts,
        tokens=int(shape.tokens),
        sound_tokens=int(shape.extra_tokens) if workload.sound else 0,
        text_tokens=int(shape.text_tokens),
        branches=shape.branches,
        distilled=model.distilled,
        guidance=shape.guidance,
        task=shape.task,
        width=int(shape.width),
        height=int(shape.height),
        frames=int(shape.frames),
        fps=shape.fps,
        steps=shape.request_steps,
        outputs=int(shape.batch),
        flow_shift=behaviour.traits.flow_shift or task.flow_shift,
        input_images=(workload.input_images or 1) if task.condition in ("image", "clip") else 0,
        num_gpus=system.num_gpus,
        nodes=system.nodes,
        gpus_per_node=system.gpus_per_node,
        device=system.device.id,
        vendor=system.device.vendor.lower(),
        device_family=system.device.family,
        peak_dtypes=frozenset(job.machine.rates.peak_flop_per_s),
        tokens_at=tokens_at,
        sockets_of=system.sockets_of,
    )
