"""The command line that gives an answer again: everything that it was asked with, walked."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from perfmodel.api.session import Session
from perfmodel.spec.hardware import System
from perfmodel.spec.parallel import ParallelConfig

UNITS = re.compile("_(ms|gib|minutes|per_gpu_hour)$")
"""Ends of argument names; a flag is called as its argument, without the unit."""


QUESTION = ("workload", "system", "engine", "options")
"""Arguments that a session holds."""


def further(arguments: Mapping[str, object]) -> dict[str, object]:
    """The arguments of a call that its session does not hold, by name."""
    return {name: value for name, value in arguments.items() if name not in QUESTION}


def command_line(session: Session, command: str, settings: Mapping[str, object]) -> str:
    """The command that gives this answer again, with the request's defaults written out.

    Args:
        session: the question.
        command: the command's name.
        settings: all further arguments by name, as the library's functions call them; what is
            None, False or empty was not asked for.
    """
    asked = {
        **machine(session.system),
        **_request(session),
        "option": _options(session),
        **settings,
    }
    words = [word for name, value in asked.items() for word in flag(name, value)]
    return shlex.join(["perfmodel", *command.split(), *words])


def flag(name: str, value: object) -> Iterator[str]:
    """The words of one flag; several values repeat it, pairs are ``key=value``."""
    dashed = "--" + UNITS.sub("", name).rstrip("_").replace("_", "-")
    if value is True:
        yield dashed
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from (dashed, f"{key}={text(item)}")
    elif isinstance(value, tuple | list):
        for item in value:
            yield from (dashed, text(item))
    elif value is not None and value is not False:
        yield from (dashed, text(value))


def text(value: object) -> str:
    """A value as it is typed; a number that reads back as itself."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:g}"
        return short if float(short) == value else repr(value)
    return value.config_id if isinstance(value, ParallelConfig) else str(value)


def machine(system: System) -> dict[str, object]:
    """What names the machine, and what its owner changed."""
    named = system.named or {"gpus": spec(system)}
    return {**named, **system.changed}


def spec(system: System) -> str:
    """What ``--gpus`` takes to mean the devices and their hosts."""
    per_node, usual = system.gpus_per_node, system.device.node_size
    even = system.nodes * per_node == system.num_gpus
    if even and (system.nodes > 1 or per_node > usual):
        return f"{system.nodes}x{per_node}x{system.device.id}"
    return f"{system.num_gpus}x{system.device.id}"


def _request(session: Session) -> dict[str, object]:
    """The request as it runs; what has no resolved form, as it was stated.

    So has the prompt: the shape's text may hold tokens of an image beside it.
    """
    shape, asked = session.job.shape, session.workload
    resolved: dict[str, object] = {
        "model": asked.model if Path(asked.model).exists() else session.model.slug,
        "task": shape.task,
        "size": f"{int(shape.width)}x{int(shape.height)}",
        "frames": int(shape.frames),
        "fps": shape.fps,
        "steps": shape.request_steps,
        "guidance": shape.guidance,
        "engine": f"{session.behaviour.engine}@{session.behaviour.version.split()[-1]}",
    }
    stated = asked.model_dump(exclude={"width", "height", "seconds"})
    return {**stated, **resolved}


def _options(session: Session) -> dict[str, object]:
    """The options as they were asked for.

    What the engine's version chooses, or a prior, is left to it: stated, it would be passed to the
    engine, and be no prior any more.
    """
    return {k: value for k, value in session.options.model_dump().items() if value is not None}
