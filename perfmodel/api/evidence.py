"""Why to believe an answer: errors on held-out kernels, on measured requests, the nearest one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel import catalog, engines
from perfmodel.api.session import Session
from perfmodel.catalog.scored import ScoredRun, options_text, scored_runs
from perfmodel.pipeline.site import DEVICE, HOST, REQUEST, VAE
from perfmodel.report.answer import Evidence, Prediction
from perfmodel.units import PERCENT

FEWEST = 3
"""Measured runs that an error is stated of."""
OTHER_ENGINE, OTHER_LAYOUT, OTHER_TASK = 1.0, 0.3, 0.3
"""What another engine, configuration and task count, as logarithms of the work do."""
HALF, NINE_OF_TEN = 0.5, 0.9

Scope = tuple[str, Callable[[ScoredRun], bool]]


def evidence(session: Session, shown: Prediction) -> tuple[Evidence, ...]:
    """What measurements say of a prediction, most general first.

    Runs are left out where laws or engine terms are the user's own: their errors would not be those
    of this prediction.
    """
    own = own_terms_file(session)
    site = catalog.site_of(session.behaviour.terms, session.system.device.id) if own else {}
    found = [*_kernels(session.fit), *(_site(site) if site else _own_terms(own))]
    if own is None and session.fit == catalog.load_fit(session.system.device.id):
        runs = scored_runs(session.model.slug, session.system.device.id)
        found += [*_group(session, runs), *_nearest(session, shown, runs)]
    return tuple(found)


def own_terms_file(session: Session) -> Path | None:
    """The user's file of engine terms that the prediction rests on; None where it is shipped."""
    files = catalog.data_files(f"calibration/engines/{session.behaviour.terms}.json")
    own = [path for path in files if not path.is_relative_to(catalog.data_roots()[0])]
    return own[-1] if own else None


def _own_terms(path: Path | None) -> Iterator[Evidence]:
    """Errors of runs that the user's engine terms were not fitted to."""
    if path is None:
        return
    fit = catalog.own_terms(path.stem).get("fit", {})
    unseen = fit.get("held_out", {}).get("after", {})
    if unseen.get("median_frac") is not None:
        yield Evidence(
            kind="holdout",
            text=f"median error of the {unseen['rows']:.0f} runs behind your engine terms, each "
            f"predicted without its like: {unseen['median_frac'] * PERCENT:.1f} %",
            median_ape=unseen["median_frac"] * PERCENT,
            records=int(unseen["rows"]),
            in_fit=False,
        )


def _site(site: Mapping[str, Any]) -> Iterator[Evidence]:
    """What the user's own runs on this device say of their machine, and how well."""
    terms, error = site["terms"], site["held_out"]["after"]
    ratios = ", ".join(
        f"{title} x{terms[name]['value']:.3g} ±{terms[name]['deviation'] * PERCENT:.0f} %"
        for title, name in (("device time", DEVICE), ("VAE", VAE), ("host", HOST))
    )
    extra = terms[REQUEST]
    yield Evidence(
        kind="holdout",
        text=f"your runs of {site['rows']} configurations on this GPU (fitted): {ratios}, "
        f"{extra['value']:+.2f} s a request ±{extra['deviation']:.2f}; each predicted from the "
        f"others: mean error {error * PERCENT:.1f} %",
        records=int(site["rows"]),
        in_fit=False,
    )


def _kernels(fit: Mapping[str, object] | None) -> Iterator[Evidence]:
    """Held-out accuracy of the kernel laws."""
    laws: Mapping[str, Mapping[str, Mapping[str, float]]] = (fit or {}).get("laws", {})  # type: ignore[assignment]
    lines = []
    for name in ("gemm/bf16", "attention/bf16"):
        heldout = laws.get(name, {}).get("heldout") or {}
        if heldout.get("median_ape") is not None:
            lines.append(f"{name.split('/')[0]} {heldout['median_ape']:.1f} %")
    if lines:
        text = f"median error on held-out kernels of this GPU: {', '.join(lines)}"
        yield Evidence(kind="holdout", text=text, in_fit=False)


def _scopes(session: Session) -> tuple[Scope, ...]:
    """Groups of runs, those most like the question first, as words and a test."""
    model, device = session.model, session.system.device
    name = session.engine.name
    engine = engines.TITLES.get(name, name)
    return (
        (
            f"measured runs of {model.title} on this GPU with {engine}",
            lambda run: (run.model, run.device, run.engine) == (model.slug, device.id, name),
        ),
        (
            f"measured runs of {model.title} on this GPU with any engine",
            lambda run: (run.model, run.device) == (model.slug, device.id),
        ),
        (
            f"measured runs of any model on this GPU with {engine}",
            lambda run: (run.device, run.engine) == (device.id, name),
        ),
        (
            f"measured runs of {model.title} on any GPU with {engine}",
            lambda run: (run.model, run.engine) == (model.slug, name),
        ),
    )


def _group(session: Session, runs: Sequence[ScoredRun]) -> Iterator[Evidence]:
    """Errors of the first group that holds enough runs; of those outside the fit if enough are."""
    for words, belongs in _scopes(session):
        members = [run for run in runs if belongs(run)]
        unseen = [run for run in members if not run.in_fit]
        if len(members) < FEWEST:
            continue
        told = unseen if len(unseen) >= FEWEST else members
        errors = [abs(run.error_frac) * PERCENT for run in told]
        fitted = sum(run.in_fit for run in told)
        how = "none" if not fitted else "all" if fitted == len(told) else str(fitted)
        half, nine = quantile(errors, HALF), quantile(errors, NINE_OF_TEN)
        yield Evidence(
            kind="runs",
            text=f"{len(told)} {words} ({how} used in the fit): median error {half:.1f} %, "
            f"9 of 10 within {nine:.0f} %",
            median_ape=half,
            records=len(told),
            in_fit=bool(fitted),
        )
        return


def quantile(values: Sequence[float], share: float) -> float:
    """The value that a `share` of `values` lies below, linear between neighbours.

    To the last bit what np.quantile gives, which loads all of numpy.ma to say it.
    """
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    low = int(at)
    part, below, above = at - low, ordered[low], ordered[min(low + 1, len(ordered) - 1)]
    if part >= 0.5:
        return above - (above - below) * (1.0 - part)
    return below + (above - below) * part


def _nearest(session: Session, shown: Prediction, runs: Sequence[ScoredRun]) -> Iterator[Evidence]:
    """The run of this model on this device whose request and layout are most like the asked."""
    slug, device = session.model.slug, session.system.device.id
    near = [run for run in runs if (run.model, run.device) == (slug, device)]
    if not near:
        return
    newest = sorted(near, key=lambda one: one.source_date, reverse=True)
    run = min(
        newest, key=lambda one: (distance(session, shown, one), len(_other_options(session, one)))
    )
    known = "used in the fit" if run.in_fit else "not used in the fit"
    yield Evidence(
        kind="nearest",
        text=f"nearest measured run: {_described(session, shown, run)}: "
        f"{run.measured_ms:,.0f} ms, predicted {run.predicted_ms:,.0f} "
        f"({run.error_frac * PERCENT:+.1f} %; {known})",
        measured_ms=run.measured_ms,
        predicted_ms=run.predicted_ms,
        in_fit=run.in_fit,
        url=run.source or None,
    )


def distance(session: Session, shown: Prediction, run: ScoredRun) -> float:
    """How unlike a run is: logarithms of the ratios of pixels, forwards, outputs, GPUs.

    Another engine counts as `OTHER_ENGINE`, another configuration as `OTHER_LAYOUT`, another task
    as `OTHER_TASK`.
    """
    theirs, ours = _amounts(run), _asked(session, shown)
    return (
        sum(abs(math.log(theirs[name] / ours[name])) for name in ours)
        + OTHER_ENGINE * (run.engine != session.engine.name)
        + OTHER_LAYOUT * (run.config_id != shown.config_id)
        + OTHER_TASK * (run.task != session.job.shape.task)
    )


def _amounts(run: ScoredRun) -> dict[str, float]:
    return {
        "pixels": run.width * run.height,
        "frames": run.frames,
        "forwards": run.forwards,
        "batch": run.batch,
        "concurrency": run.concurrency,
        "num_gpus": run.num_gpus,
    }


def _asked(session: Session, shown: Prediction) -> dict[str, float]:
    shape = session.job.shape
    return {
        "pixels": int(shape.width) * int(shape.height),
        "frames": int(shape.frames),
        "forwards": int(shape.forwards),
        "batch": int(shape.batch),
        "concurrency": session.workload.concurrency,
        "num_gpus": shown.num_gpus,
    }


def _other_options(session: Session, run: ScoredRun) -> list[str]:
    """Options of a run that the question resolves to something else."""
    asked = options_text(session.behaviour.options.model_dump()).split()
    return [word for word in run.options.split() if word not in asked]


def _described(session: Session, shown: Prediction, run: ScoredRun) -> str:
    """What a run has in common with the question, and its own where it differs."""
    engine = engines.TITLES.get(run.engine, run.engine)
    same_rules = (run.engine, run.version) == (session.engine.name, session.behaviour.version)
    rules = "" if same_rules else f", {engine} {run.version}"
    if run.engine == session.engine.name:
        rules = "".join(f", {word}" for word in _other_options(session, run)) + rules
    theirs, ours = _amounts(run), _asked(session, shown)
    differs = {name for name in ours if theirs[name] != ours[name]} - {"num_gpus"}
    if run.task == session.job.shape.task and not differs:
        same_layout = run.config_id == shown.config_id
        return f"same request{' and configuration' if same_layout else ', ' + run.config_id}{rules}"
    frames = f", {run.frames} frames" if run.frames > 1 else ""
    outputs = f", {run.batch} outputs" if run.batch > 1 else ""
    queued = f", {run.concurrency} in flight" if run.concurrency > 1 else ""
    size = f"{run.width}x{run.height}{frames}, {run.steps} steps"
    return f"{run.task} {size}{outputs}{queued}, {run.config_id}{rules}"
