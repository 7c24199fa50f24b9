"""Texts of programs that are started for a request: no server, `torchrun` for several ranks."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from math import ceil
from pathlib import Path
from shlex import quote

from perfmodel.engines.base import Commands, Context
from perfmodel.engines.records import outputs_note, sent_record
from perfmodel.engines.vllm_omni.commands import PROMPT, is_image
from perfmodel.spec.parallel import ParallelConfig

REPEATS = 3
RESULTS = "results.jsonl"


def output_name(ctx: Context) -> str:
    """``output.mp4`` or ``output.png``."""
    return "output.png" if is_image(ctx) else "output.mp4"


NODE_RANK, FIRST_HOST = "$NODE_RANK", "$MASTER_ADDR"
"""Variables of the shell that tell the hosts of a run apart."""


def hosts_of(ctx: Context, ranks: int) -> int:
    """Hosts that `ranks` processes span, as many on each where that can be."""
    if ctx.nodes == 1 or ranks <= ctx.gpus_per_node:
        return 1
    least = ceil(ranks / ctx.gpus_per_node)
    return next((hosts for hosts in range(least, ctx.nodes + 1) if ranks % hosts == 0), least)


def hosts_note(hosts: int) -> list[str]:
    """A line on where to start a command that spans several hosts."""
    if hosts == 1:
        return []
    return [
        f"start it on each of {hosts} hosts, with NODE_RANK=0 to {hosts - 1} and MASTER_ADDR the "
        "address of the first"
    ]


def launcher(program: Sequence[str], world: int, hosts: int = 1) -> list[str]:
    """``python3 PROGRAM``, or ``torchrun`` over `world` processes of `hosts` hosts."""
    if world == 1:
        return ["python3", *program]
    nodes = []
    if hosts > 1:
        nodes = [f"--nnodes={hosts}", f"--node_rank={NODE_RANK}", f"--master_addr={FIRST_HOST}"]
    return ["torchrun", *nodes, f"--nproc_per_node={ceil(world / hosts)}", *program]


def shell(words: Sequence[str]) -> str:
    """Words as a shell line; the variables that tell hosts apart are left to the shell."""
    variables = (NODE_RANK, FIRST_HOST)
    return " ".join(
        f'"{word}"' if any(name in word for name in variables) else quote(word) for word in words
    )


def benchmark(ctx: Context, config: ParallelConfig, argv: Sequence[str], timings: str = "") -> str:
    """The program run `REPEATS` times, each appended to a results file as a run record."""
    job = {
        "argv": list(argv),
        "repeats": REPEATS,
        "out": RESULTS,
        "timings": timings,
        "record": sent_record(ctx, config, outputs=1),
    }
    client = (Path(__file__).parent / "timed_run.py").read_text(encoding="utf-8")
    return f"python3 - {quote(json.dumps(job))} <<'END_OF_CLIENT'\n{client}END_OF_CLIENT"


def not_set(
    ctx: Context,
    caches: Collection[str] = (),
    *,
    stored: Collection[str] = (),
    attention: bool = True,
) -> list[str]:
    """What is predicted and no word of the command asks for, a line each.

    Args:
        ctx: the request and the options.
        caches: methods of step caches that the command switches on.
        stored: dtypes of linears that are those of the checkpoint.
        attention: it names the attention backend that was asked for.
    """
    options, found = ctx.behaviour.options, []
    if options.dtype in stored:
        found.append(f"needs a checkpoint stored in {options.dtype}: the engine reads its format")
    if ctx.behaviour.attention_explicit and options.attention_density == 1 and not attention:
        name = ctx.behaviour.attention_backend
        found.append(f"predicted with {name}: no flag names it, the installed packages decide")
    named = options.cache_method not in ("none", *caches)
    if named or (options.cache_method == "none" and options.cache_skip):
        name = options.cache_method if named else f"skipping {options.cache_skip:.0%} of the steps"
        found.append(f"predicted with a step cache ({name}), which this does not switch on")
    return found


def without_server(
    ctx: Context,
    config: ParallelConfig,
    argv: Sequence[str],
    *,
    timings: str = "",
    notes: Sequence[str] = (),
) -> Commands:
    """Commands of an engine that loads the model for one run."""
    few = outputs_note(ctx, 1, "the program is started for one")
    hosts = hosts_note(hosts_of(ctx, config.world_size // config.dp))
    lines = [f"# {note}" for note in (*notes, *few, *hosts)]
    if config.dp > 1:
        lines.append(f"# {config.dp} replicas: start it {config.dp} times, each on its own devices")
    run = "\n".join([*lines, shell(argv)])
    measured = benchmark(ctx, config, argv, timings)
    return Commands(
        serve=f"# no server: this loads the model and runs one request\n{run}",
        request=run,
        benchmark="\n".join([*(f"# {note}" for note in (*few, *hosts)), measured]),
    )


def not_here(note: str) -> Commands:
    """A comment in place of each text: a program whose words are not known."""
    return Commands(serve=f"# {note}", request=f"# {note}", benchmark=f"# {note}")


__all__ = [
    "FIRST_HOST",
    "NODE_RANK",
    "PROMPT",
    "benchmark",
    "hosts_note",
    "hosts_of",
    "is_image",
    "launcher",
    "not_here",
    "not_set",
    "output_name",
    "shell",
    "without_server",
]
