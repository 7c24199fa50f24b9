"""One rank of a live verification, and the launcher of all of them on this machine.

``python -m perfmodel.verify.live.worker PLAN`` runs one rank; `launch` starts N of them.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from perfmodel.calibrate.measure import collectives
from perfmodel.calibrate.measure import ranks as processes
from perfmodel.calibrate.measure.device import Device, open_device
from perfmodel.calibrate.measure.timing import Timing
from perfmodel.errors import MissingData, Problem
from perfmodel.spec.parallel import ParallelConfig
from perfmodel.units import MS_PER_S
from perfmodel.verify.live import mesh as meshes
from perfmodel.verify.live.denoiser import KINDS, CosmosDenoiser, Size, WanDenoiser, guided
from perfmodel.verify.live.mesh import Mesh
from perfmodel.verify.live.parts import Weights
from perfmodel.verify.live.store import LiveStore, Row
from perfmodel.verify.live.tape import Step, Tape
from perfmodel.verify.live.timing import from_first, time_step
from perfmodel.verify.live.vae_slice import Slice, SliceBlock

BLOCK = "transformer block"
Tick = Callable[[str], None]


@dataclass(frozen=True)
class Plan:
    """What every rank needs to know.

    Attributes:
        device: cuda, npu or cpu.
        family: whose blocks.
        size: of a forward.
        branches: guidance branches of a step.
        config: degrees.
        part: the VAE slice, if one is built.
        dtype: of weights and activations.
        path: of the measured rows.
        setup: what the rows belong to.
        budget_s: for one operator.
        threads: CPU threads of a rank; 0 keeps torch's choice.
        compiled: chains of small kernels are compiled.
    """

    device: str
    family: str
    size: Size
    branches: int
    config: ParallelConfig
    part: Slice | None
    dtype: str
    path: Path
    setup: dict[str, Any]
    budget_s: float
    threads: int = 0
    compiled: bool = False


def run_rank(plan: Plan, device: Device, mesh: Mesh, tick: Tick) -> None:
    """Measure everything that has no row yet; rank 0 writes."""
    store = LiveStore(plan.path, plan.setup) if mesh.rank == 0 else None
    weights = Weights(device.torch_device, device.dtype(plan.dtype), mesh)
    with torch.inference_mode():
        for piece, steps in _pieces(plan, weights):
            _measure_steps(piece, steps, plan, device, store, tick)
        _measure_block(plan, weights, device, store, tick)


def _pieces(plan: Plan, weights: Weights) -> Iterator[tuple[str, list[Step]]]:
    """The steps of one guided step with one block, then those of the VAE slice."""
    yield "denoise", record(partial(_one_step, plan, weights), plan)
    if plan.part is not None:
        part = SliceBlock(plan.part, weights)
        yield "vae_decode", record(lambda tape: part(tape, part.entry), plan)


def _one_step(plan: Plan, weights: Weights, tape: Tape) -> torch.Tensor:
    model = KINDS[plan.family](plan.size, weights, 1)
    return guided(model, tape, model.latent(), plan.branches)


def record(run: Callable[[Tape], object], plan: Plan) -> list[Step]:
    """The steps that `run` takes, with the inputs they had."""
    tape = Tape(recording=True, compile=_compiler(plan))
    run(tape)
    return tape.steps


def _compiler(plan: Plan) -> Callable[[Callable[..., Any]], Callable[..., Any]] | None:
    return torch.compile if plan.compiled else None


def _measure_steps(
    piece: str,
    steps: list[Step],
    plan: Plan,
    device: Device,
    store: LiveStore | None,
    tick: Tick,
) -> None:
    """Each different step once; which ones and in what order is rank 0's decision."""
    counts: dict[tuple[str, str], int] = {}
    first: dict[tuple[str, str], int] = {}
    for number, step in enumerate(steps):
        key = (step.name, step.signature)
        first.setdefault(key, number)
        counts[key] = counts.get(key, 0) + 1
    wanted = from_first(
        [
            (number, counts[key], store is not None and store.done((piece, *key)))
            for key, number in first.items()
        ]
    )
    assert isinstance(wanted, list)
    for number, occurrences, done in wanted:
        if not done:
            step = steps[number]
            found = time_step(step, device, plan.budget_s)
            row = Row(piece, step.name, step.signature, occurrences, also=step.also)
            _write(store, row, found)
        tick("done before" if done else "measured")


def _write(store: LiveStore | None, row: Row, found: Timing | str) -> None:
    if store is None:
        return
    values = {**vars(row)}
    if isinstance(found, Timing):
        values |= {
            "each_ms": found.median_s * MS_PER_S,
            "spread_ms": found.spread_s * MS_PER_S,
            "repeats": found.repeats,
        }
    else:
        values["skipped"] = found
    store.append(Row(**values))


def _measure_block(
    plan: Plan, weights: Weights, device: Device, store: LiveStore | None, tick: Tick
) -> None:
    """One whole block on all ranks: what overlaps does, what waits is in it."""
    row = Row("block", BLOCK, "", 1)
    if from_first(store is not None and store.done(row.key)):
        tick("done before")
        return
    model = KINDS[plan.family](plan.size, weights, 1)
    call = block_call(model, Tape(compile=_compiler(plan)))
    alone = plan.config.tp * weights.mesh.sequence == 1
    step = Step(BLOCK, call, (), message=not alone)
    _write(store, row, time_step(step, device, 4 * plan.budget_s))
    tick("measured")


def block_call(model: CosmosDenoiser | WanDenoiser, tape: Tape) -> Callable[[], object]:
    """One block on random hidden states of this rank's tokens."""
    hidden = model.states("x", model.size.tokens)
    x = model.sequence.mine(hidden, model.mesh)
    context = model.prepare(0)
    if isinstance(model, WanDenoiser):
        assert isinstance(context, dict)
        return partial(model.blocks[0], tape, x, context, model.sequence, model.rope)
    assert isinstance(context, list)
    return partial(model.blocks[0], tape, x, context[0], model.sequence, model.rope)


def here(plan: Plan, tick: Tick, init_method: str = "env://") -> int:
    """Run this process's rank (the only one, or one that a launcher started).

    Returns:
        The rank.
    """
    if plan.threads:
        torch.set_num_threads(plan.threads)
    device = open_device(plan.device)
    if meshes.ranks_of(plan.config) == 1:
        run_rank(plan, device, Mesh(plan.config), tick)
        return 0
    world = collectives.join(device, init_method)
    try:
        silent = tick if world.rank == 0 else _nothing
        run_rank(plan, device, meshes.join(plan.config, world.rank), silent)
    finally:
        collectives.leave()
    return world.rank


def _nothing(outcome: str) -> None:
    del outcome


def launch(plan: Plan, tick: Tick) -> None:
    """Run `plan` with a local process a rank; `tick` gets the outcome of each operator.

    Raises:
        MissingData: a rank failed; the message ends with what it said last.
    """
    ranks = meshes.ranks_of(plan.config)
    reason = processes.launch(__name__, plan, ranks, tick)
    if reason is not None:
        message = f"a rank of {ranks} failed: {reason}; start again to go on"
        raise MissingData(Problem("live-rank", message))


def main(path: Path) -> None:
    """Run one rank of a plan that `launch` wrote."""
    processes.end_with_launcher()
    plan: Plan = pickle.loads(path.read_bytes())
    here(plan, partial(print, flush=True), processes.meeting(path))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
